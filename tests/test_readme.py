"""The README's Python, and that of short pages, from top to bottom: what it prints is what its comments say."""

import ast
import contextlib
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parent.parent
PAGES = {"README.md": 4, "docs/your-own-loop.md": 3, "docs/what-can-go-wrong.md": 4}
"""With the least number of values that each compares."""
NUMBER = re.compile(r"-?\d+(?:\.(\d+))?(?=$|[\s,;])")


def snippets(text):
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def comments(code):
    """Returns the comment that ends each line, without its sign."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def run(code, namespace):
    """Runs a snippet, and returns how many of its values were compared with a comment."""
    said, compared = comments(code), 0
    for statement in ast.parse(code).body:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module([statement], []), "a page", "exec"), namespace)  # this repository's own page
        comment, output = said.get(statement.end_lineno), printed.getvalue().strip()
        if output:
            assert comment is not None, f"prints {output}, and no comment says so: {ast.unparse(statement)}"
            # A comment may go on behind the value.
            assert comment == output or re.match(re.escape(output) + r"[,;:] ", comment), (comment, output)
            compared += 1
        elif comment and isinstance(statement, ast.Assign) and (number := NUMBER.match(comment)):
            value = float(namespace[ast.unparse(statement.targets[0])])
            digits = len(number[1] or "")
            assert f"{value:.{digits}f}" == number[0], (comment, value)
            compared += 1
    return compared


@pytest.mark.parametrize("page", PAGES)
def test_what_is_printed_is_what_the_comments_say(page):
    namespace, compared = {}, 0
    for code in snippets((ROOT / page).read_text()):
        compared += run(code, namespace)
    assert compared >= PAGES[page]


@pytest.mark.parametrize(
    ("code", "compared"),
    [
        ("print(1)  # 1\n", 1),
        ("print('a b')  # a b, of course\n", 1),
        ("x = 2.25\ny = x  # 2.25 or so\nz = 1  # one\n", 1),
    ],
)
def test_right_comments_pass(code, compared):
    assert run(code, {}) == compared


@pytest.mark.parametrize(
    "code", ["print(1)  # 2\n", "print(1)\n", "print(1)  # 10\n", "x = 2.25  # 2.26\n", "print(\n    1,\n)  # 2\n"]
)
def test_wrong_comments_fail(code):
    with pytest.raises(AssertionError):
        run(code, {})
