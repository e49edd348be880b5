"""Names say what a thing is, and stand for one thing in the package. The list of shared names may only shrink."""

import ast
import collections
import pathlib

import pytest

import jaxacct

PACKAGE = pathlib.Path(jaxacct.__path__[0])

EMPTY = frozenset({"apart", "beside", "within", "told", "whole", "up", "asked", "found", "given"})
"""Prepositions and participles: whatever they name has a better name, for they name nothing."""

SHARED_VERBS = frozenset({
    "add_parser", "answer", "certify", "check", "combined", "compose", "compute", "curve", "delta", "epsilon",
    "noise_multiplier", "read", "run", "square_root", "_report",
})  # fmt: skip
"""Functions of one name in more than two files: each room has its own, and a caller writes the room before it."""


def _trees() -> dict[str, ast.Module]:
    return {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


TREES = _trees()


def _homes(kind: type) -> dict[str, set[str]]:
    """Returns the files of each name of a class or a function of the top level."""
    homes = collections.defaultdict(set)
    for path, tree in TREES.items():
        for node in tree.body:
            if isinstance(node, kind):
                homes[node.name].add(path)
    return homes


def _bound(node: ast.AST, function: str = "") -> set[tuple[str, str]]:
    """Returns the names bound below a node, of whatever kind, each with the function or class that it is bound in."""
    names = set()
    # A name belongs to the innermost function or class around it.
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            names.add((function, child.name))
            names |= _bound(child, f"{function}.{child.name}".lstrip("."))
            continue
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            names.add((function, child.id))
        if isinstance(child, ast.arg):
            names.add((function, child.arg))
        names |= _bound(child, function)
    return names


def test_a_class_name_stands_once():
    assert {name: homes for name, homes in _homes(ast.ClassDef).items() if len(homes) > 1} == {}


def test_a_function_name_stands_in_two_files_at_most():
    assert {name for name, homes in _homes(ast.FunctionDef).items() if len(homes) > 2} == SHARED_VERBS


def test_no_name_is_empty():
    empty = {
        f"{path}:{function}:{name}"
        for path, tree in TREES.items()
        for function, name in _bound(tree)
        if name.strip("_") in EMPTY
    }
    assert empty == set()


@pytest.mark.parametrize(("text", "names"), [
    ("def f(found): pass", {("", "f"), ("f", "found")}),
    ("class C:\n    whole: int\n    def g(self):\n        up = 1", {
        ("", "C"), ("C", "whole"), ("C", "g"), ("C.g", "self"), ("C.g", "up"),
    }),
    ("x, (given, *rest) = y", {("", "x"), ("", "given"), ("", "rest")}),
])  # fmt: skip
def test_bound_names_are_seen(text, names):
    assert _bound(ast.parse(text)) == names
