"""Every public name of the package, as its packages list them."""

import importlib
import inspect
import pathlib
import pkgutil

import jaxacct


def lists_names(finder, name):
    """Whether a module that is a room of its own says what of it is public."""
    path = pathlib.Path(finder.path) / f"{name.removeprefix('jaxacct.')}.py"
    return path.exists() and "\n__all__ = " in path.read_text()


PACKAGES = ["jaxacct", "jaxacct_recipes"] + [
    name
    for finder, name, is_package in pkgutil.walk_packages(jaxacct.__path__, "jaxacct.")
    # The command's public face is its help, and arithmetic is asked for by ``arithmetic=``.
    if (is_package or lists_names(finder, name)) and name != "jaxacct.cli" and not name.startswith("jaxacct.numerics")
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
