"""The README's Python, and that of short pages, from top to bottom: what it prints is what its comments say."""

import pathlib

import pytest
from helpers.pages import blocks, commands, run, same, snippets, walk
from helpers.thorough import draws

import jaxacct as ja

ROOT = pathlib.Path(__file__).parents[2]
PAGES = {
    "README.md": 6,
    "docs/index.md": 1,
    "docs/your-own-loop.md": 3,
    "docs/your-own-mechanism.md": 7,
    "docs/what-can-go-wrong.md": 4,
    "docs/pipelines.md": 4,
    "docs/units.md": 4,
    "docs/federated.md": 4,
    "docs/accountants.md": 6,
    "docs/correlated-noise.md": 1,
    "docs/stop-and-resume.md": 2,
    "docs/threat-model.md": 2,
    "docs/statistics.md": 2,
}
"""With the least number of values that each compares."""


@pytest.fixture(autouse=True)
def fewer_draws(monkeypatch):
    """A million draws take half a minute, and no page compares what they say."""
    estimated = ja.monte_carlo.delta
    monkeypatch.setattr(ja.monte_carlo, "delta", lambda *run, draws, **more: estimated(*run, draws=most(draws), **more))


def most(count):
    return draws(min(count, 10**4), count)


@pytest.mark.first_tier(
    *sorted(
        PAGES.keys()
        - {"docs/accountants.md", "docs/correlated-noise.md", "docs/pipelines.md", "docs/your-own-mechanism.md"}
    )
)  # which take 50 s
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


def test_a_walk_takes_what_stands_above_and_the_sections_named(tmp_path, monkeypatch):
    page = """# Page

```sh
pip install "jaxacct[plot]" other  # from a mirror
cat made
```

## One

```toml title="made"
a = 1
```

```sh
cat made; echo b
```

```text
a = ...
b
```

## Two

```python
print(1)  # 1
```
"""
    monkeypatch.chdir(tmp_path)
    assert commands(blocks(page)[0].text) == ("cat made", ["jaxacct[plot]", "other"])
    first, *one = blocks(page, ("One", "Two"))
    assert walk(one) == 2
    with pytest.raises(AssertionError, match="the page shows"):
        walk([*one[:2], one[2]._replace(text="a = 2\nb\n")])
    with pytest.raises(ValueError, match="One"):
        blocks(page, ("Three",))
    assert walk([first]) == 0
    assert not same("a", "a b")
