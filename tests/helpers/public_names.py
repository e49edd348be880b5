"""Every public name of the package, as its packages list them."""

import importlib
import inspect
import pkgutil

import jaxacct

PACKAGES = ["jaxacct"] + [
    name
    for _, name, is_package in pkgutil.walk_packages(jaxacct.__path__, "jaxacct.")
    # A room is a package or one module. The command's public face is its help, and arithmetic is asked for by
    # ``arithmetic=``.
    if (
        is_package
        or (name.count(".") == 1 and not name.endswith("__") and hasattr(importlib.import_module(name), "__all__"))
    )
    and name != "jaxacct.cli"
    and not name.startswith("jaxacct.numerics")
]


def public_names():
    """Yields the full name and the object of every entry of an ``__all__`` once, under its shortest name."""
    seen = set()
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            entry = getattr(module, name)
            if id(entry) not in seen and not inspect.ismodule(entry):
                seen.add(id(entry))
                yield f"{package}.{name}", entry


NAMES = dict(public_names())
