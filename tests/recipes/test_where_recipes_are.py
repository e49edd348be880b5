"""Recipes lie outside of the library: nothing in it but the command needs them, and old names still lead there."""

import ast
import importlib
import pathlib

import pytest

import jaxacct_recipes
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


@pytest.mark.parametrize("name", sorted(set(jaxacct_recipes.__all__) - {"LOADERS"}))
def test_old_names_lead_there_and_say_so(name):
    with pytest.warns(DeprecationWarning, match=f"jaxacct_recipes.{name}"):
        assert getattr(train, name) is getattr(jaxacct_recipes, name)
    assert name not in train.__all__


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match="no attribute 'LOADERS'"):
        _ = train.LOADERS


def test_the_former_module_of_data_sets_leads_there():
    former = importlib.import_module("jaxacct.train.datasets")
    assert len(dir(former)) == 6
    for name in dir(former):
        with pytest.warns(DeprecationWarning, match=f"{name} now"):
            assert getattr(former, name) is getattr(jaxacct_recipes, name, getattr(train, name, None))
    with pytest.raises(AttributeError, match="no attribute 'digits'"):
        _ = former.digits
