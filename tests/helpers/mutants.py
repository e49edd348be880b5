"""A module of the library with one thing changed, which a test has to notice."""

import importlib
import pathlib
import sys
import types


def mutant(name, *changes):
    """Returns the module with each (old, new) exchanged in its source; every old text has to be there."""
    source = pathlib.Path(importlib.import_module(name).__file__).read_text()
    for old, new in changes:
        assert source.count(old) >= 1, old
        source = source.replace(old, new)
    made = types.ModuleType(f"{name}_mutant")
    sys.modules[made.__name__] = made  # dataclasses look their module up
    exec(compile(source, made.__name__, "exec"), vars(made))  # this library's own source
    return made
