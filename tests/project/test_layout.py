"""The layout that CONTRIBUTING.md promises: imports point one way, files are small, and what a page links to exists."""

import ast
import graphlib
import importlib
import itertools
import json
import operator
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PACKAGE = ROOT / "jaxacct"

FLOORS = (
    ("choices", "processes", "display", "json_files", "numerics", "validation", "bounds", "rounded_sum"),
    ("selection", "strategies", "mechanisms"),
    ("composition", "refinement", "convert"),
    ("prv", "saddlepoint", "rdp", "iteration", "monte_carlo"),
    ("certified",),
    ("tradeoff", "gdp", "calibrate", "factorize"),
    ("ledger", "menus", "filters", "odometers", "policies"),
    ("train", "audit", "release", "adapters", "sweep", "plot"),
    ("verify", "certificates", "specs"),
    ("cli", "__main__"),
)
"""Rooms import from lower floors, and on their own floor from those before them: mechanisms know no accountant."""

ROOMS = tuple(itertools.chain(*FLOORS))

MOST_LINES = 1200

PLACEHOLDERS = {"jaxacct/mechanisms/yours.py": "the reader's own file"}

PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted(ROOT.glob("docs/**/*.md"))]


def room_of(module: str) -> str:
    """The room of a module's full name; the top level stands for its two verbs."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "certified"


def file_of(module: str) -> pathlib.Path | None:
    """The file of a module of the library, if there is one of that name."""
    path = ROOT / module.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.exists()), None)


def imported(path: pathlib.Path, packages: tuple[str, ...] = ("jaxacct",)):
    """Yields the modules of the library that a file imports, within functions too; of a folder's files, their names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in packages)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            if node.module.split(".")[0] in packages:
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                yield from (name if file_of(name) else node.module for name in names)
        elif isinstance(node, ast.Call) and re.search(r"\b(import_module|__import__)$", ast.unparse(node.func)):
            name = node.args[0]
            if isinstance(name, ast.Constant) and str(name.value).split(".")[0] in packages:
                yield name.value


def test_every_room_has_its_place():
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__"} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room):
    files = list((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]
    above = set(ROOMS[ROOMS.index(room) + 1 :])
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path in files for name in imported(path) if room_of(name) in above]
    assert not wrong


@pytest.mark.exhaustive
def test_no_files_import_each_other():
    """Neither straight nor by a detour, nor within functions, nor for types, nor through the recipes."""
    both = ("jaxacct", "jaxacct_recipes")
    # The package's face has no lines of its own that a file could need, and imports a room when somebody names it.
    face = PACKAGE / "__init__.py"
    paths = [path for package in both for path in (ROOT / package).rglob("*.py") if path != face]
    above = {path: {file_of(name) for name in imported(path, both)} - {None, face} for path in paths}
    assert sum(map(len, above.values())) > 500
    list(graphlib.TopologicalSorter(above).static_order())  # raises CycleError, with the circle


def test_the_page_has_the_floors_in_their_order():
    rows = re.findall(r"^\| \d+ \| ([^|]*) \|", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    assert [tuple(re.findall(r"`(\w+)`", row)) for row in rows] == list(FLOORS)
    assert len(FLOORS) <= 10


def roads() -> list[list[tuple[pathlib.Path, str]]]:
    """The roads that docs/design/roads.md describes: files with the functions that are passed, in order."""
    text = (ROOT / "docs" / "design" / "roads.md").read_text().split("\n## ")[0]
    found: list[list[tuple[pathlib.Path, str]]] = []
    for number, path, functions in re.findall(r"^(\d+)\. `([\w/]+\.py)`: ((?:`\w+`(?:, )?)+)", text, re.M):
        if number == "1":
            found.append([])
        found[-1] += [(ROOT / path, name) for name in re.findall(r"\w+", functions)]
    return found


MOST = {
    ("mesh", "cold"): (16, 226, 18),
    ("mesh", "warm"): (12, 95, 12),
    ("atoms", "cold"): (24, 422, 31),
    ("atoms", "warm"): (17, 126, 16),
    ("contour", "cold"): (17, 267, 30),
    ("contour", "warm"): (12, 86, 13),
    ("calibration", "cold"): (15, 160, 22),
    ("calibration", "warm"): (14, 115, 22),
    ("training step", "trace"): (21, 304, 20),
    ("training step", "cold"): (29, 346, 29),
    ("training step", "warm"): (16, 64, 11),
}
"""Files and functions of the package that a call enters, and how deep it goes, at most: a road that grows says so."""


@pytest.mark.exhaustive
def test_the_road_to_the_transform_is_as_it_is_told():
    """The calls are run; the page has the stack at their ends (``python -m bench.road --write``)."""
    done = subprocess.run([sys.executable, "-m", "bench.road"], cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    for told, name in zip(roads(), ("mesh", "atoms", "contour", "calibration"), strict=True):
        assert [(str(path.relative_to(ROOT)), function) for path, function in told] == list(
            map(tuple, found[name]["road"])
        )
    for (name, when), most in MOST.items():
        counts = found[name][when]
        found_here = counts["files"], counts["functions"], counts["depth"]
        assert all(map(operator.le, found_here, most)), (name, when, found_here, counts["entered"])
    road = found["training step"]["road"]
    assert [road[0], road[-1]] == [["jaxacct/train/trainer.py", "fit"], ["jaxacct/train/noise.py", "privatize_step"]]
    assert {file.rpartition("/")[2] for file, _ in road} == {
        "trainer.py", "interrupts.py", "step.py", "gradients.py", "noise.py"
    }, "from fit to the noise by the loop, its pieces, the step, and the one door"  # fmt: skip


SUBJECTLESS = {
    *("What", "Of", "Where", "How", "By", "Which", "As", "For", "Those", "In", "On", "At", "That", "To", "So", "And"),
    *("Below", "Above", "Over", "Under", "Up", "Between", "Within", "Beside", "Beyond", "With", "Likewise", "Namely"),
}
"""Words with which no sentence begins that says what a thing is."""

OPENINGS = {*SUBJECTLESS, "Whether", "Who", "Whose"}
"""Words with which no module opens; an attribute may say "Whether"."""


def texts(tree: ast.Module):
    """Yields the docstrings of a module, its classes and functions, and its constants and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""
            for before, after in itertools.pairwise(node.body):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                if is_text and isinstance(before, ast.Assign | ast.AnnAssign):
                    yield str(after.value.value)


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_begin_with_what_the_thing_is(room):
    files = list((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]
    first = {(path.name, text[:60]) for path in files for text in texts(ast.parse(path.read_text()))}
    assert len(first) >= len(files)
    assert not [
        entry for entry in sorted(first) if entry[1].split(maxsplit=1)[:1] and entry[1].split()[0] in SUBJECTLESS
    ]


def opens_well(text: str) -> bool:
    """Whether a module's docstring begins as a sentence does, and with none of the words that leave out the subject."""
    first = text[:1]
    return (first.isupper() or first.isdigit() or first in tuple("`'\"")) and text.split()[0] not in OPENINGS


@pytest.mark.parametrize("folder", ["jaxacct", "bench", "tests", "jaxacct_recipes"])
def test_docstrings_of_modules_begin_with_what_the_module_is(folder):
    openings = {
        str(path.relative_to(ROOT)): ast.get_docstring(ast.parse(path.read_text())) or ""
        for path in (ROOT / folder).rglob("*.py")
    }
    assert openings
    assert not {path: text[:60] for path, text in openings.items() if not opens_well(text)}


BASE = ("numerics", "validation", "display", "json_files", "processes", "bounds", "rounded_sum")
"""Rooms that all others share: numbers, checks of arguments, files and processes."""

INNER = {"jaxacct.calibrate.targets.least_noise", "jaxacct.selection.DRAWING", "jaxacct.ledger.Ledger"}
"""Names that the trainer takes from within a room: two for a search over its settings, and the type of all ledgers."""


def reached(path: pathlib.Path):
    """Yields the attributes of the kernel's modules that a file reads, with the modules' names."""
    tree = ast.parse(path.read_text())
    modules = {
        alias.asname or alias.name: f"jaxacct.{alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == "jaxacct"
        for alias in node.names
        if alias.name in ROOMS
    }
    for node in ast.walk(tree):
        chain = ast.unparse(node).split(".") if isinstance(node, ast.Attribute) else [""]
        chain = chain if all(map(str.isidentifier, chain)) else [""]
        module = modules.get(chain[0])
        # Of a chain of names each is looked for in what is before it, as long as that is a module.
        for name in chain[1:] if module else ():
            if file_of(f"{module}.{name}") is None:
                yield module, name
                break
            module = f"{module}.{name}"


def test_the_trainer_is_on_the_public_names_of_the_kernel():
    """What a room or a module lists in ``__all__`` is public; the trainer imports nothing else, but from the base."""
    used = set()
    for path in (PACKAGE / "train").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "jaxacct":
                used |= {(node.module, alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                used |= {tuple(a.name.rpartition(".")[::2]) for a in node.names if a.name.startswith("jaxacct.")}
        used |= set(reached(path))
    wrong = set()
    for module, name in used:
        room = name if module == "jaxacct" else room_of(module)
        if room not in ("train", *BASE):
            public = getattr(importlib.import_module(module), "__all__", ())
            wrong |= set() if name in public or (module == "jaxacct" and name in ROOMS) else {f"{module}.{name}"}
    assert len(used) > 100
    assert wrong == INNER


def test_the_trainers_folder_shows_its_names_alone():
    train = importlib.import_module("jaxacct.train")
    assert dir(train) == sorted(train.__all__)


@pytest.mark.exhaustive
def test_only_what_draws_imports_the_plots():
    users = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        if any(room_of(name) == "plot" for name in imported(path))
    }
    assert users - {"plot", "__init__.py"} == {"cli"}


BORDER = ("numerics",)
"""Rooms that decide which arithmetic a program is made of, or are one."""


def test_nothing_but_the_border_asks_which_arithmetic_it_is():
    """Others know units and what an arithmetic says of itself, and name functions of which float32 has another form."""
    asks = []
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0].removesuffix(".py") in BORDER:
            continue
        tree = ast.parse(path.read_text())
        nodes = list(ast.walk(tree))
        units = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr == "roundoff"}
        for node in nodes:
            is_one = isinstance(node, ast.Name) and node.id in ("FLOAT64", "FLOAT32") and id(node) not in units
            is_name = isinstance(node, ast.Attribute) and ast.unparse(node) == "arithmetic().name"
            if is_one or is_name:
                asks.append(f"{path.relative_to(ROOT)}: {ast.unparse(node)}")
    assert not asks


def test_files_are_small():
    files = [path for folder in ("jaxacct", "bench", "tests") for path in (ROOT / folder).rglob("*.py")]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert len(lengths) > 100
    assert not {name: length for name, length in lengths.items() if length > MOST_LINES}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_to_headings(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text):
        link = target[0] or target[1]
        if re.match(r"[a-z]+:", link):
            continue
        place, _, heading = link.partition("#")
        file = (page.parent / place).resolve() if place else page
        if not file.exists() or (heading and file.suffix == ".md" and heading not in headings(file)):
            broken.append(link)
    assert not broken


def headings(page: pathlib.Path) -> set[str]:
    """The anchors of a page's headings."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", line).strip().lower().replace(" ", "-") for line in lines}


def named_files():
    """Yields each page with a path of the repository that it names in code."""
    for page in PAGES:
        for name in re.findall(
            r"`((?:jaxacct|jaxacct_recipes|bench|docs|tests|notebooks|\.ci)/[\w./-]*)`", page.read_text()
        ):
            yield page, name
    papers = ROOT / "docs" / "papers.md"
    for name in re.findall(r"`(?!bench/|jaxacct_recipes/)([\w/]+\.py)`", papers.read_text()):
        yield papers, f"jaxacct/{name}"


def test_files_that_a_page_names_exist():
    named = list(named_files())
    missing = {name for _, name in named if not (ROOT / name).exists()}
    assert len(named) > 80
    assert missing == set(PLACEHOLDERS), "missing, or no longer a placeholder"


AUTHOR = r"[A-Z][^\W\d_]+(?:-[A-Z]\w+)?"
CITATION = re.compile(rf"\b({AUTHOR})(?:, {AUTHOR})*(?:,? and {AUTHOR}| et al\.)? \((\d{{4}})\)")


def test_every_cited_paper_is_listed():
    rows = re.findall(r"^\| (.*\(\d{4}\).*) \|$", (ROOT / "docs" / "papers.md").read_text(), re.M)
    cited = set()
    for path in PACKAGE.rglob("*.py"):
        cited |= set(CITATION.findall(re.sub(r"\s+(?:# )?", " ", path.read_text())))
    assert len(cited) > 40
    assert not {(author, year) for author, year in cited if not any(author in row and year in row for row in rows)}


UNDATED = {("verify/statements.py", "Johansson")}
"""Files that name an author of a listed work without its year."""


def test_a_file_that_is_listed_with_a_paper_cites_it():
    rows = re.findall(r"^\| (.*\(\d{4}\).*) \| .* \| (.*) \|$", (ROOT / "docs" / "papers.md").read_text(), re.M)
    wrong, pairs = set(), 0
    for source, files in rows:
        papers = CITATION.findall(source)
        for name in re.findall(r"`([\w/]+\.py)`", files):
            file = next(path for path in (PACKAGE / name, ROOT / name) if path.exists())
            text = re.sub(r"\s+(?:# )?", " ", file.read_text())
            if not any(re.search(rf"\b{author}\b[^;]{{0,80}}{year}", text) for author, year in papers):
                wrong.add((name, papers[0][0]))
            pairs += 1
    assert pairs > 100
    assert wrong == UNDATED


def asks_jax(node: ast.ImportFrom) -> bool:
    """Whether jaxtyping fetches what is imported of it from JAX, when it is asked for."""
    return any(alias.name in ("Array", "ArrayLike", "DTypeLike", "PyTree", "PyTreeDef") for alias in node.names)


def test_a_part_of_jax_is_asked_for_after_jax():
    """Of two threads one would else come into JAX's circles of imports by a side door, and get half of a module."""
    for path in (*PACKAGE.rglob("*.py"), *(ROOT / "jaxacct_recipes").rglob("*.py")):
        names = [
            (node.lineno, node.names[0].name if isinstance(node, ast.Import) else node.module or "")
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import)
            or (isinstance(node, ast.ImportFrom) and (node.module != "jaxtyping" or asks_jax(node)))
        ]
        of_jax = [name for _, name in sorted(names) if name.split(".")[0] in ("jax", "jaxtyping")]
        assert not of_jax or of_jax[0] == "jax", path
