"""Recipes lie outside of the library: nothing in it but the command needs them."""

import ast
import pathlib

import pytest

from jaxacct import train

PACKAGE = pathlib.Path(train.__file__).parents[1]


@pytest.mark.exhaustive
def test_the_command_alone_imports_recipes():
    users = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.ImportFrom) and node.module.startswith("jaxacct_recipes"))
        or (isinstance(node, ast.Import) and any(alias.name.startswith("jaxacct_recipes") for alias in node.names))
    }
    assert users == {"cli"}
