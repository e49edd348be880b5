"""One of each: what is written once stays so. A row is a pattern of the code and the files that have it."""

import ast
import itertools
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]

FILES = {
    str(path.relative_to(ROOT)): path.read_text()
    for package in ("jaxacct", "jaxacct_recipes")
    for path in sorted((ROOT / package).rglob("*.py"))
}

ONCE = {
    "a halving of a bracket": (
        r"def halved?\(|while \w+ - \w+ > |while low < ",
        # Where one run of Laplace noise is inverted, a bracket grows and both of its ends are found in one loop.
        {"jaxacct/numerics/root_search.py", "jaxacct/saddlepoint/closed_forms.py"},
    ),
    "secants, and inverse quadratic interpolation": (
        r"def least_by_secants\(|def least_near_root\(",
        {"jaxacct/numerics/root_search.py"},
    ),
    "steps of epochs, and the rate of a batch size": (r"def (steps_of|rate_of)\(", {"jaxacct/display.py"}),
    "a class called Program": (r"^class Program\b", {"jaxacct/numerics/programs.py"}),
    "the order of the accountants": (r"^def certify\(query: Query\)", {"jaxacct/certified.py"}),
    "the way into float64": (r"^def kernel\(", {"jaxacct/numerics/precision.py"}),
    "a list that becomes an array": (
        r"np\.asarray\(\w+, np\.float64\) if isinstance\(\w+, \(list, tuple\)\)",
        {"jaxacct/validation.py"},
    ),
    "fields that become arrays": (
        r"object\.__setattr__\(self, name, (np\.asarray|validation\.as_array)",
        {"jaxacct/mechanisms/mechanism.py"},
    ),
    "the noise of a private step": (r"def privatize_step\(", {"jaxacct/train/noise.py"}),
    "keys, noise and loss of a step": (
        r"^def (key_of|sample_key|loss_of_row)\(|^class Door\b|^    def pay\(self, state: S",
        {"jaxacct/train/gradients.py"},
    ),
    "an interpreter of traced functions in training": (
        r"for place, step in enumerate\(jaxpr\.eqns\)",
        {"jaxacct/train/clipping/rows.py"},
    ),
    "a difference by whether an arithmetic leaves out rare losses": (
        r"\)\.leaves_out_rare\b",
        {"jaxacct/saddlepoint/contour.py"},
    ),
    "a difference by whether an arithmetic has few digits": (
        r"\)\.has_few_digits\b",
        {
            *("jaxacct/mechanisms/pair.py", "jaxacct/mechanisms/gaussian.py", "jaxacct/saddlepoint/contour.py"),
            "jaxacct/rdp.py",
        },
    ),
    "a comparison of the arithmetic that a caller chose": (
        r"\barithmetic [!=]= ",
        {"jaxacct/certified.py", "jaxacct/saddlepoint/accountant.py", "jaxacct/sweep/description.py"},
    ),
    "a leaf's path": (r'keystr\(path, simple=True, separator="/"\)', {"jaxacct/train/ownership.py"}),
    "the choices that the command shares": (r'Literal\["add_or_remove"', {"jaxacct/choices.py"}),
    "a subcommand": (r"\.add_parser\(|set_defaults\(run=", {"jaxacct/cli/arguments.py"}),
    "the statements of the referee": (r"^STATEMENTS\b", {"jaxacct/verify/statements.py"}),
}

NOWHERE = {
    "settings of the trainer in groups": r"\*\*short|group_of\(|\b(Budget|Batches|Placement|Augmentation)\([a-z_]+=",
    "a top level that is handed down": r"_ASK\b|class Ask\b",
    "private modules of JAX": r"^\s*(from|import) jax\._src",
    "float64 by a global setting": r"config\.update\(\"jax_enable_x64",
}


@pytest.mark.parametrize("what", ONCE)
def test_is_written_once(what):
    pattern, places = ONCE[what]
    assert {name for name, text in FILES.items() if re.search(pattern, text, re.M)} == places


def test_float64_is_entered_by_the_numerics_alone():
    """Others say ``kernel`` or ``scope``: what enters the scope by hand is in the room that has these."""
    found = {
        name
        for name, text in FILES.items()
        for node in ast.walk(ast.parse(text))
        if "enable_x64" in (getattr(node, "attr", ""), getattr(node, "id", ""), getattr(node, "name", ""))
    }
    assert {name.rsplit("/", 1)[0] for name in found} == {"jaxacct/numerics"}


def is_middle(node):
    """Whether an expression is the middle of two names: half of their sum, or of their difference."""
    if not isinstance(node, ast.BinOp):
        return False
    halved = node.left if isinstance(node.op, ast.Div) and ast.unparse(node.right) in ("2", "2.0") else None
    if isinstance(node.op, ast.Mult):
        halved = next((b for a, b in itertools.permutations((node.left, node.right)) if ast.unparse(a) == "0.5"), None)
    is_pair = isinstance(halved, ast.BinOp) and isinstance(halved.op, ast.Add | ast.Sub)
    return is_pair and all(isinstance(end, ast.Name | ast.Attribute) for end in (halved.left, halved.right))


def halving_loops(text):
    """Yields the lines of loops that set an end of a bracket, and look at its middle."""
    for loop in ast.walk(ast.parse(text)):
        if isinstance(loop, ast.For | ast.While):
            names = [node for node in ast.walk(loop) if isinstance(node, ast.Name)]
            moved = {name.id for name in names if isinstance(name.ctx, ast.Store)}
            middles = [node for node in ast.walk(loop) if is_middle(node)]
            if any(name.id in moved for middle in middles for name in ast.walk(middle) if isinstance(name, ast.Name)):
                yield loop.lineno


def test_a_bracket_is_halved_in_one_file():
    """The referee has its own, as it shares no code with what it judges; its pieces are cut at their middles, too."""
    found = {name for name, text in FILES.items() if list(halving_loops(text))}
    assert found == {
        "jaxacct/numerics/root_search.py",
        "jaxacct/verify/contour.py",
        "jaxacct/verify/statements.py",
    }
    assert list(halving_loops("while abs(b - a) > 1e-9:\n    m = (a + b) / 2\n    a, b = (m, b) if f(m) else (a, m)"))
    assert list(halving_loops("for _ in range(60):\n    m = a + 0.5 * (b - a)\n    a = m"))


@pytest.mark.parametrize("what", NOWHERE)
def test_is_nowhere(what):
    found = {name for name, text in FILES.items() if re.search(NOWHERE[what], text, re.M)}
    assert not found
    assert len(FILES) > 100


VALUES = {"compiled", "scoped"}
"""A decorator that is named by what it makes of a function, and the function that one makes."""

NOUNS = {"seed", "speed", "need", "embed", "shed", "feed", "reseed", "unchecked"}


def is_property(node):
    return any("property" in ast.unparse(decorator) for decorator in node.decorator_list)


def test_functions_are_verbs():
    """A function or a method is named by what it does, not by a participle for what came out."""
    participles = {
        f"{name}: {node.name}"
        for name, text in FILES.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and re.fullmatch(r"_?[a-z]+ed", node.name) and not is_property(node)
        if node.name.lstrip("_") not in VALUES | NOUNS
    }
    assert participles == PUBLIC


PUBLIC = {
    "jaxacct/audit.py: combined",
    "jaxacct/composition.py: combined",
    "jaxacct/mechanisms/allocation.py: summed",
    *(f"jaxacct/mechanisms/{name}.py: attained" for name in ("mechanism", "shuffled", "balls_in_bins", "ratio_law")),
    "jaxacct/mechanisms/shuffled_reports.py: attained",
    "jaxacct/policies.py: stopped",
    "jaxacct/selection.py: missed",
    "jaxacct/certificates/specs.py: combined",
    "jaxacct/certificates/specs.py: parsed",
    "jaxacct/strategies.py: combined",
    "jaxacct/strategies.py: normalized",
    "jaxacct/sweep/description.py: parsed",
    "jaxacct/sweep/result.py: downsampled",
    "jaxacct/tradeoff.py: subsampled",
    "jaxacct/tradeoff.py: symmetrized",
    "jaxacct/train/optimizers.py: averaged",
    "jaxacct/train/gradients.py: planned",
    "jaxacct/verify/statements.py: subsampled",
}
"""Public names, and those beside them; they stay."""
