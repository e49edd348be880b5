"""Pages as their readers walk them: blocks from top to bottom, in an empty folder, with what the page has installed.

``python tests/helpers/pages.py --base VENV --wheel FILE PAGE [SECTION ...]`` walks what stands above the first section,
and the sections named, in a new environment on top of one that has JAX. Of the blocks

- ``python`` is run, and what it prints is what its comments say;
- one with ``title="FILE"`` is a file;
- ``sh`` is run by bash, but for its lines ``pip install``: these, and nothing else, are installed;
- ``text`` is what the ``sh`` before it printed, "..." in it standing for anything.

Needs the standard library alone.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import os
import pathlib
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import tokenize
from typing import Any, NamedTuple

NUMBER = re.compile(r"-?\d+(?:\.(\d+))?(?=$|[\s,;])")
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```', re.M | re.S)


class Block(NamedTuple):
    """A fenced block of a page."""

    kind: str
    title: str
    text: str


def snippets(text: str) -> list[str]:
    """Returns the code of a page's blocks of Python."""
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def blocks(text: str, sections: tuple[str, ...] = ()) -> list[Block]:
    """Returns the blocks above the first section and in those named; raises ValueError where one is not there."""
    above, *rest = re.split(r"^## (.*)\n", text, flags=re.M)
    titled = dict(zip(rest[::2], rest[1::2], strict=True))
    if missing := set(sections) - set(titled):
        raise ValueError(f"no section is named {missing}: the page has {list(titled)}.")
    return [Block(*found) for found in BLOCK.findall("\n".join([above, *(titled[name] for name in sections)]))]


def comments(code: str) -> dict[int, str]:
    """Returns the comment that ends each line, without its sign."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {token.start[0]: token.string.lstrip("# ") for token in tokens if token.type == tokenize.COMMENT}


def run(code: str, namespace: dict[str, Any]) -> int:
    """Runs a snippet, and returns how many of its values were compared with a comment."""
    said, compared = comments(code), 0
    for statement in ast.parse(code).body:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(ast.Module([statement], []), "a page", "exec"), namespace)  # this repository's own page
        comment, output = said.get(statement.end_lineno or 0), printed.getvalue().strip()
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


def same(shown: str, printed: str) -> bool:
    """Whether a command printed what a page shows, up to spaces at the ends of lines.

    >>> same("a ... d", "a b c d"), same("a", "b")
    (True, False)
    """
    shown, printed = ("\n".join(line.rstrip() for line in text.strip().splitlines()) for text in (shown, printed))
    return re.fullmatch(".*?".join(map(re.escape, shown.split("..."))), printed, re.S) is not None


def commands(text: str) -> tuple[str, list[str]]:
    """Returns a block of the shell without its lines ``pip install``, and what these install."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    installs = [line for line in lines if line.startswith("pip install ")]
    wanted = [word for line in installs for word in shlex.split(line, comments=True)[2:]]
    return "\n".join(line for line in lines if line not in installs), wanted


def walk(page: list[Block]) -> int:
    """Runs blocks in the present folder, and returns how many outputs were compared with what is shown."""
    namespace: dict[str, Any] = {}
    printed, compared = None, 0
    for kind, title, text in page:
        if title:
            pathlib.Path(title).write_text(text)
        elif kind == "python":
            compared += run(text, namespace)
        elif kind == "sh":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", commands(text)[0]], stdout=subprocess.PIPE, text=True, check=True
            )
            printed = done.stdout
        elif kind == "text":
            assert printed is not None, f"no command is above this: {text}"
            assert same(text, printed), f"the page shows\n{text}\nand the command printed\n{printed}"
            printed, compared = None, compared + 1
    return compared


def environment(folder: pathlib.Path, base: str, wheel: str, page: list[Block]) -> pathlib.Path:
    """Makes an environment of what a page installs, on top of another one, and returns its Python."""
    subprocess.run([f"{base}/bin/python", "-m", "venv", "--without-pip", folder], check=True)
    python = folder / "bin" / "python"
    for own in folder.glob("lib/python*/site-packages"):
        (own / "base.pth").write_text(f"{base}/{own.relative_to(folder)}\n")
    wanted = [word for block in page if block.kind == "sh" and not block.title for word in commands(block.text)[1]]
    ours = [wheel, *(re.sub(r"^jaxacct(?=\[|$)", wheel, word) for word in wanted)]
    install = [f"{base}/bin/pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*install, "--no-deps", "--ignore-installed", wheel], check=True)  # its command is of this Python
    subprocess.run([*install, *dict.fromkeys(ours)], check=True)
    return python


def main() -> None:
    """Walks a page in an environment of its own; without ``--base``, in this one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", help="environment that has JAX and pip")
    parser.add_argument("--wheel", help="of this package")
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("sections", nargs="*")
    given = parser.parse_args()
    page = blocks(given.page.read_text(), tuple(given.sections))
    with tempfile.TemporaryDirectory() as folder:
        if given.base:
            python = environment(pathlib.Path(folder, "environment"), given.base, given.wheel, page)
            subprocess.run([python, __file__, given.page.resolve(), *given.sections], check=True, cwd=folder)
            return
        os.chdir(folder)
        os.environ["PATH"] = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
        os.environ["COLUMNS"] = "80"
        sys.path.insert(0, "")
        compared = walk(page)
    assert compared, "the page shows no output"
    print(f"{given.page.name}: {compared} outputs are as shown")


if __name__ == "__main__":
    main()
