"""Names in docstrings, comments and pages: functions, methods, classes and files that are said to exist do exist.

Nothing is imported: what is defined is read off the syntax trees.
"""

import ast
import builtins
import functools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]
FILES = {
    str(path.relative_to(ROOT)): path.read_text()
    for package in ("jaxacct", "jaxacct_recipes")
    for path in sorted((ROOT / package).rglob("*.py"))
}
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *sorted(ROOT.glob("docs/**/*.md"))]

ROLE = re.compile(r":(func|class|meth|mod|attr|data|exc):`~?([\w.\s#]+)`")
OTHERS = {"jax", "flax", "nnx", "optax", "numpy", "rich", "xarray", "zarr", "opacus", "dp_accounting", "jax_privacy"}
"""Libraries of others, whose names are theirs."""

ELSEWHERE = {
    "BatchMemoryManager": "Opacus",
    "UnsupportedEventError": "dp-accounting",
    "to_named_tuple": "dp-accounting",
    "DifferentialPrivacyServerSideFixedClipping": "Flower",
    "ClientSide": "Flower",
    "jax_enable_x64": "JAX",
    "out_sharding": "JAX",
    "z_g": "a symbol of a formula",
    "S_n": "likewise",
    "eqx": "Equinox",
    "with_partitioning": "Flax",
    "not_binding": "a status in lower case",
    "JAX_EXEC_TIME_OPTIMIZATION_EFFORT": "JAX",
    "dp_event.py": "dp-accounting's file",
}
"""Names that are not this repository's, and whose they are."""


def defined(body):
    """The names that statements define: also under ``if``, and those that are imported."""
    names = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, ast.If | ast.Try):
            names |= defined(node.body) | defined(node.orelse)
    return names


class Defined:
    """What the packages define: names of modules, and of classes with their bases."""

    def __init__(self, files):
        self.trees = {path: ast.parse(text) for path, text in files.items()}
        self.tops, self.classes = {}, {}
        for path, tree in self.trees.items():
            self.tops[self.module_of(path)] = defined(tree.body)
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    bases = [re.sub(r"\[.*", "", ast.unparse(base)).split(".")[-1] for base in node.bases]
                    own = {
                        x.attr
                        for x in ast.walk(node)
                        if isinstance(x, ast.Attribute) and ast.unparse(x.value) == "self"
                    }
                    self.classes.setdefault(node.name, []).append((defined(node.body) | own, bases))
        for module in list(self.tops):
            parent, _, name = module.rpartition(".")
            if parent:
                self.tops[parent].add(name)
        self.anywhere = set().union(*self.tops.values())

    @staticmethod
    def module_of(path):
        return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def members(self, name):
        """The members of all classes of a name, inherited ones too."""
        of_bases = (self.members(base) for _, bases in self.classes.get(name, ()) for base in bases if base != name)
        return set().union(*(own for own, _ in self.classes.get(name, ())), *of_bases)

    def is_in(self, module, names):
        """Whether a chain of names begins in a module and goes on in a class of it."""
        top = self.anywhere if module == "jaxacct" else self.tops[module]
        return not names or (
            names[0] in top and (len(names) == 1 or names[0] not in self.classes or names[1] in self.members(names[0]))
        )

    def knows(self, names):
        """Whether a chain that begins with a package leads to something."""
        length = len(names)
        while ".".join(names[:length]) not in self.tops:
            length -= 1
        return self.is_in(".".join(names[:length]), names[length:])

    def resolves(self, kind, target, module, within):
        """Whether a role of a docstring leads to something: a leading point says that it is looked for everywhere."""
        names = re.sub(r"[\s#]+", "", target).lstrip(".").split(".")
        if names[0] in OTHERS:
            return True
        if names[0] in ("jaxacct", "jaxacct_recipes"):
            return self.knows(names)
        if len(names) == 1:
            near = self.members(within) if kind in ("meth", "attr") else self.tops[module]
            beside = self.tops[module if module in self.packages else module.rpartition(".")[0]]
            return names[0] in near | (beside if kind == "mod" else set()) or (
                target.startswith(".") and names[0] in self.anywhere
            )
        if names[-2] in self.classes:
            return names[-1] in self.members(names[-2])
        suffix = "." + ".".join(names[:-1])
        return any(names[-1] in top for name, top in self.tops.items() if name.endswith(suffix))

    @functools.cached_property
    def packages(self):
        return {self.module_of(path) for path in self.trees if path.endswith("__init__.py")}


DEFINED = Defined(FILES)


def wrong_roles(found, path, text):
    """Yields the roles of a file that lead nowhere."""
    classes = [node for node in ast.walk(found.trees[path]) if isinstance(node, ast.ClassDef)]
    for role in ROLE.finditer(text):
        line = text.count("\n", 0, role.start()) + 1
        around = [node.name for node in classes if node.lineno <= line <= (node.end_lineno or 0)]
        if not found.resolves(role[1], role[2], found.module_of(path), around[-1] if around else ""):
            yield f"{path}:{line}: {role[0]}"


def test_roles_of_docstrings_lead_to_what_is_defined():
    assert not [wrong for path, text in FILES.items() for wrong in wrong_roles(DEFINED, path, text)]
    assert sum(len(ROLE.findall(text)) for text in FILES.values()) > 1000


@pytest.mark.parametrize(
    ("role", "leads"),
    [
        (":meth:`run`", True), (":meth:`ran`", False), (":meth:`helper`", False), (":func:`helper`", True),
        (":func:`.helper`", True), (":func:`other`", False), (":func:`.other`", True), (":meth:`.Base.stop`", True),
        (":meth:`.Toy.stop`", True), (":meth:`.Toy.go`", False), (":mod:`.rooms`", True), (":mod:`.doors`", False),
        (":func:`jaxacct.rooms.other`", True), (":func:`jaxacct.rooms.helper`", False), (":data:`jax.numpy.pi`", True),
    ],
)  # fmt: skip
def test_a_role_is_looked_for_where_it_stands(role, leads):
    base = "def helper(): ...\nclass Base:\n    def stop(self): ...\n"
    toy = f'{base}class Toy(Base):\n    """{role}"""\n    def run(self): ...'
    files = {"jaxacct/__init__.py": "", "jaxacct/toys.py": toy, "jaxacct/rooms.py": "def other(): ..."}
    assert (not list(wrong_roles(Defined(files), "jaxacct/toys.py", toy))) == leads


def is_text(node):
    """Whether a node is a docstring, or a string that explains the assignment above it."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def prose_of(path):
    """The comments and docstrings of a file."""
    docstrings = [node.value.value for node in ast.walk(DEFINED.trees[path]) if is_text(node)]
    return "\n".join([*docstrings, *re.findall(r"^\s*# (.*)$", FILES[path], re.M)])


@functools.cache
def words_of_code():
    """The words of the packages' code, strings included, without docstrings and comments."""
    words = set(dir(builtins)) | {pathlib.Path(path).stem for path in FILES}
    left: list[ast.AST] = list(DEFINED.trees.values())
    while left:
        node = left.pop()
        for _, value in ast.iter_fields(node):
            for entry in value if isinstance(value, list) else [value]:
                if isinstance(entry, str):
                    words.update([entry] if entry.isidentifier() else re.findall(r"\w+", entry))
                elif isinstance(entry, ast.AST) and not is_text(entry):
                    left.append(entry)
    return words


def test_names_in_code_in_docstrings_and_comments_are_those_of_the_code():
    prose = {path: prose_of(path) for path in FILES}
    wrong = [
        f"{path}: {chain}"
        for path, text in prose.items()
        for chain in re.findall(r"``([A-Za-z_][\w.]*)(?:\(.*?\))?``", text)
        if chain.split(".")[0] not in OTHERS
        and not set(filter(None, chain.split("."))) <= words_of_code() | set(ELSEWHERE)
    ]
    assert not wrong


def test_files_that_docstrings_and_comments_name_exist():
    files = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*.*") if path.suffix in (".py", ".md")]
    wrong = [
        f"{path}: {name}"
        for path in FILES
        for name in re.findall(r"(?<![\w./*])((?:[\w-]+/)*[\w-]+\.(?:py|md))\b", prose_of(path))
        if not any(f"/{file}".endswith(f"/{name}") for file in files) and name not in ELSEWHERE
    ]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_on_a_page_are_defined(page):
    """Chains that begin with the package, its short name or a class, in lines and in blocks."""
    text = page.read_text()
    code = [*re.findall(r"^```python.*?\n(.*?)^```", text, re.M | re.S)]
    code += re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))
    chains = {chain for part in code for chain in re.findall(r"(?<![\w./-])([A-Za-z]\w*(?:\.\w+)+)(?![\w/])", part)}
    wrong = []
    for chain in sorted(chains):
        names = chain.split(".")
        names = {"ja": ["jaxacct"], "train": ["jaxacct", "train"]}.get(names[0], names[:1]) + names[1:]
        if names[0] in ("jaxacct", "jaxacct_recipes"):
            wrong += [] if DEFINED.knows(names) or chain.endswith((".json", ".png", ".md")) else [chain]
        elif names[0] in DEFINED.classes and "`" not in chain:
            wrong += [] if names[1] in DEFINED.members(names[0]) else [chain]
    assert not wrong


def test_names_that_the_map_of_the_code_has_are_in_the_code():
    """Pages for who changes the code name much that is private, of the tests and benchmarks as well."""
    pages = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "design").glob("*.md"))]
    text = "\n".join(re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S) for page in pages)
    known = words_of_code() | set(ELSEWHERE)
    for folder in ("tests", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            known |= defined(ast.parse(path.read_text()).body) | {path.stem}
    named = set(re.findall(r"`([A-Za-z_]\w*)(?:\([^`]*\))?`", text))
    assert len(named) > 100
    assert not {name for name in named if name not in known} - NOT_OURS


NOT_OURS = {"argparse"}
"""Words in code that are nobody's names here."""
