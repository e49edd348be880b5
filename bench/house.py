"""The size of the library: files, classes, code and comments, counted alike for each room and any other package.

    python -m bench.house                          # jaxacct, room by room
    python -m bench.house PATH/lineax PATH/optax   # other packages, in all

Code lines are lines with a token that is neither docstring nor comment nor import. The complexity of a function is one
more than its branches: loops, conditions and their parts, handlers, and what comprehensions filter by. Functions
inside are counted by themselves.
"""

from __future__ import annotations

import ast
import collections
import io
import pathlib
import statistics
import sys
import tokenize

import jaxacct

COMPLEX = 15
"""Complexity from which on a function is listed."""

COLUMNS = ("files", "lines", "code", "functions", "classes", "constants", "comments")

SILENT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
"""Tokens that make no line one of code."""


def counted(path: pathlib.Path) -> collections.Counter[str]:
    """Returns the counts of one file."""
    text = path.read_text()
    tree = ast.parse(text)
    aside: set[int] = set()
    for node in ast.walk(tree):
        is_text = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            aside.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code, comments = set(), 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += 1
        elif token.type not in SILENT:
            code.update(range(token.start[0], token.end[0] + 1))
    named = [
        target
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    constants = sum(isinstance(target, ast.Name) and target.id.lstrip("_").isupper() for target in named)
    functions = sum(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in ast.walk(tree))
    classes = sum(isinstance(node, ast.ClassDef) for node in ast.walk(tree))
    counts = 1, text.count("\n"), len(code - aside), functions, classes, constants, comments
    return collections.Counter(dict(zip(COLUMNS, counts, strict=True)))


def branches(node: ast.AST) -> int:
    """Returns the number of branches below a node, those of functions and classes inside left out."""
    total = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        total += isinstance(child, ast.If | ast.IfExp | ast.For | ast.While | ast.ExceptHandler | ast.match_case)
        total += len(child.values) - 1 if isinstance(child, ast.BoolOp) else 0
        total += len(child.ifs) if isinstance(child, ast.comprehension) else 0
        total += branches(child)
    return total


def shape(files: list[pathlib.Path], package: pathlib.Path) -> str:
    """Returns in words the size and complexity of functions, and how many names stand in several files."""
    sizes, complexities = [], []
    homes: dict[tuple[type, str], set[pathlib.Path]] = collections.defaultdict(set)
    # Functions and classes of all files; homes are those of the top level alone.
    for path in files:
        tree = ast.parse(path.read_text())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                homes[type(node), node.name].add(path)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                has_text = ast.get_docstring(node) is not None
                inner = node.body[1:] if has_text else node.body
                sizes.append(sum((part.end_lineno or 0) - part.lineno + 1 for part in inner))
                complexities.append((1 + branches(node), f"{path.relative_to(package)}:{node.name}"))
    worst = sorted((found for found in complexities if found[0] >= COMPLEX), reverse=True)
    classes = sum(len(paths) > 1 for (kind, _), paths in homes.items() if kind is ast.ClassDef)
    functions = sum(len(paths) > 2 for (kind, _), paths in homes.items() if kind is ast.FunctionDef)
    return "\n".join([
        f"lines of a function without its docstring: mean {statistics.mean(sizes):.1f}",
        f"complexity of {COMPLEX} or more: {len(worst)} functions, "
        + ", ".join(f"{name} {count}" for count, name in worst[:8]),
        f"class names in several files: {classes}; names of top-level functions in more than two: {functions}",
    ])  # fmt: skip


def table(package: pathlib.Path, *, by_room: bool) -> str:
    """Returns the counts of a package as text, one line for each of its rooms if that is asked, and one for all."""
    files = sorted(package.rglob("*.py"))
    rooms: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for path in files:
        parts = path.relative_to(package).parts
        rooms[parts[0] if len(parts) > 1 else "(top)"] += counted(path)
    whole = sum(rooms.values(), collections.Counter())
    ranked = sorted(rooms.items(), key=lambda room: -room[1]["code"]) if by_room else []
    lines = [
        f"{name:20s}" + "".join(f"{counts[column]:11,d}" for column in COLUMNS)
        + f"{100 * counts['comments'] / max(counts['code'], 1):9.1f}"
        for name, counts in [*ranked, (package.name, whole)]
    ]  # fmt: skip
    median = statistics.median(path.read_text().count("\n") for path in files)
    last = f"{'':20s}a file's median length: {median:.0f} lines"
    return "\n".join([*lines, last, *([shape(files, package)] if by_room else [])])


def main() -> None:
    print(" " * 20 + "".join(f"{column:>11s}" for column in COLUMNS) + "  per 100")
    for name in sys.argv[1:] or [jaxacct.__path__[0]]:
        print(table(pathlib.Path(name), by_room=len(sys.argv) == 1))


if __name__ == "__main__":
    main()
