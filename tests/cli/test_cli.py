"""The command line as a user meets it: its output, its exit codes, and what its help and its page promise."""

import ast
import json
import math
import os
import pathlib
import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from helpers.command_line import CALIBRATE, COMMANDS, EPSILON, RUN, TRUTH, answer, runner
from rich.text import Text

import jaxacct as ja
from jaxacct.cli import arguments, build_parser


@pytest.fixture
def jaxacct(capsys, monkeypatch):
    return runner(capsys, monkeypatch)


def test_epsilon_as_json(jaxacct):
    record = answer(jaxacct(*EPSILON, "--json"))
    assert record["lower"] <= TRUTH <= record["upper"] <= TRUTH * (1 + 1e-9)
    assert record["accountant"] == "best"
    assert record["steps"] == 10_000


def test_renyi_epsilon_is_above_the_certified_one(jaxacct):
    record = answer(jaxacct(*EPSILON, "--accountant", "rdp", "--json"))
    assert record["upper"] > TRUTH
    assert record["lower"] is None


def test_no_noise_costs_everything(jaxacct):
    done = jaxacct("epsilon", "--noise-multiplier", 0, "--steps", 1, "--delta", 1e-5, "--json")
    assert (answer(done)["lower"], answer(done)["upper"]) == ("inf", "inf")
    assert done.stderr == ""


def test_delta_by_the_exact_accountant(jaxacct):
    record = answer(jaxacct("delta", *RUN, "--epsilon", TRUTH, "--accountant", "saddlepoint", "--json"))
    assert record["lower"] <= record["estimate"] <= record["upper"]
    assert abs(record["estimate"] / 1e-5 - 1) < 1e-6
    assert record["accountant"] == "saddlepoint"


def test_calibrate(jaxacct):
    record = answer(jaxacct(*CALIBRATE, "--json"))
    assert record["solve_for"] == "noise_multiplier"
    assert 3.8128 < record["value"] < 3.8129
    assert record["noise_multiplier"] == record["value"]
    assert record["status"] == "converged"
    assert 0.9999 < record["reached"]["upper"] <= 1
    noise = float(re.search(r"noise multiplier\s+│ ([\d.]+)", jaxacct(*CALIBRATE).stdout)[1])
    assert record["value"] <= noise < record["value"] + 1e-6, "rounded up"


BAD = {
    ("--noise-multiplier", "-1"): ["noise_multiplier", "-1"],
    ("--sampling-rate", "-1"): ["sampling_rate", "[0, 1]"],
    ("--sampling-rate", "5"): ["sampling_rate", "fraction"],
    ("--sampling-rate", "1%"): ["--sampling-rate", "fraction", "0.01"],
    ("--steps", "-3"): ["steps", "whole number"],
    ("--steps", "2.5"): ["steps", "whole number", "epochs"],
    ("--epochs", "10"): ["--epochs", "--steps"],
    ("--batch-size", "256"): ["--batch-size", "--sampling-rate"],
    ("--delta", "1"): ["delta", "(0, 1)"],
    ("--delta", "4"): ["delta", "(0, 1)", "epsilon"],
    ("--delta", "nan"): ["delta", "nan"],
    ("--epsilon", "4"): ["--epsilon", "--delta"],
    ("--steps", "many"): ["--steps", "many", "number"],
    ("--accountnat", "rdp"): ["--accountnat", "did you mean --accountant?"],
    ("--accountant", "saddle"): ["saddle", "did you mean saddlepoint?"],
    ("--accountant", "rdp", "--tolerance", "1e-3"): ["tolerance", "prv"],
    ("--tolerance", "0"): ["tolerance"],
}
BAD_CALIBRATION = [
    ([*CALIBRATE, "--advantage", "0.1"], ["--epsilon", "--advantage"]),
    (["calibrate", "--epsilon", "1"], ["--delta"]),
    ([*CALIBRATE[:5], "--steps", "5"], ["--sampling-rate", "missing"]),
    ([*CALIBRATE, "--noise-multiplier", "1"], ["--noise-multiplier", "--solve-for"]),
    ([*CALIBRATE[:5], "--delta", "7"], ["--sampling-rate"]),
    ([*CALIBRATE, "--delta", "7"], ["delta", "(0, 1)"]),
    (["calibrate", "--tpr", "0.1", "--fpr", "0.2", *CALIBRATE[5:]], ["tpr", "fpr", "blindly"]),
    (["calibrate", "--tpr", "0.1", "--fpr", "0.2", "--solve-for", "steps"], ["noise-multiplier"]),
    ([*CALIBRATE, "--bands", "4,x"], ["--bands", "4,x", "whole"]),
    ([*CALIBRATE, "--bands", "128"], ["--bands [128]", "--sampling-rate 0.01", "fewer"]),
    (["calibrate", "--advantage", "0.1", *CALIBRATE[5:], "--bands", "4"], ["--bands", "--epsilon"]),
]
BAD_CURVE = [
    (["curve", *RUN, "--fpr", "0.1"], ["--fpr", "tradeoff", "--epsilon or --delta"]),
    (["curve", *RUN, "--epsilon", "1", "--delta", "1e-5"], ["--delta", "--epsilon"]),
    (["curve", *RUN, "--epsilon", "1:2"], ["epsilon", "LOW:HIGH:COUNT"]),
    (["curve", *RUN, "--epsilon", "-1"], ["-1", "epsilon"]),
    (["curve", *RUN, "--delta", "1e-5,2"], ["2", "delta"]),
    (["curve", *RUN, "--kind", "renyi", "--orders", "0.5"], ["orders", "0.5"]),
    (["curve", *RUN, "--out", "curve.xlsx"], [".npz", ".csv"]),
    (["curve", *RUN, "--plot", "curve.doc"], [".png", ".svg"]),
    (["curve", "--noise-multiplier", "0", "--steps", "1"], ["--epsilon", "no range"]),
]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        *(([*EPSILON, *change], words) for change, words in BAD.items()), *BAD_CALIBRATION, *BAD_CURVE,
        (["epsilno"], ["epsilno", "did you mean epsilon?"]), (["loss"], ["loss", "give one of", *COMMANDS]),
        ([], ["COMMAND"]),
    ],
)  # fmt: skip
def test_bad_input_exits_with_2_and_one_line(arguments, words, jaxacct):
    done = jaxacct(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert all(word in done.stderr for word in words), done.stderr
    assert done.stdout == ""


def test_what_is_no_bad_input_has_a_code_of_its_own(jaxacct, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ja, "epsilon", fails)
    done = jaxacct(*EPSILON)
    assert done.returncode == 70
    assert "Traceback" in done.stderr
    assert "out of memory" in done.stderr


def test_an_epsilon_imports_what_it_needs_and_keeps_what_it_compiled(tmp_path):
    heavy = "flax optax orbax matplotlib sklearn scipy rich jaxacct.train jaxacct.sweep jaxacct.calibrate jaxacct.rdp"
    script = (
        "import sys\n"
        "from jaxacct.cli import main\n"
        f"code = main({[*EPSILON, '--json']!r})\n"
        f"print([name for name in {heavy.split()!r} if name in sys.modules])\n"
        "import jax\n"
        "print(jax.config.jax_compilation_cache_dir)\n"
        "sys.exit(code)\n"
    )
    environment = dict(os.environ)
    del environment["JAX_COMPILATION_CACHE_DIR"]
    tmp_path.chmod(0o700)
    environment["JAXACCT_CACHE"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    record, imported, used = done.stdout.splitlines()
    assert json.loads(record)["quantity"] == "epsilon"
    assert imported == "[]"
    assert used == str(tmp_path)
    assert list(tmp_path.iterdir())


def test_the_package_names_everything_before_it_is_imported():
    tree = ast.parse(pathlib.Path(ja.__file__).read_text())
    imports = [alias.name for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert "*" in imports
    imports += ja.mechanisms.__all__
    assert set(ja.__all__) <= set(imports), "type checkers see what is imported by a statement"
    assert set(ja.__all__) <= set(dir(ja))
    assert all(getattr(ja, name) is not None for name in ja.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ja.nonsense


TABLES = {
    "epsilon": EPSILON,
    "calibrate": CALIBRATE,
    "curve": ["curve", *RUN, "--epsilon", "0:8:5"],
    "delta": ["delta", *RUN, "--epsilon", "3"],
}


def numbers(record):
    """What a table must show of a result: outward to six digits, or to eight."""
    if "results" in record:
        rows = record["results"]
        return [f"{e:.10g}" for e in rows["epsilon"]] + [arguments.round_to("upper", value) for value in rows["upper"]]
    if "value" in record:
        return [arguments.round_to("upper", record["value"], 8)]
    return [arguments.round_to(name, record[name]) for name in ("lower", "upper")]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("columns", [40, 80, 200])
def test_tables_show_every_number_whole_however_wide_the_terminal(name, columns, jaxacct):
    done = jaxacct(*TABLES[name], COLUMNS=str(columns))
    assert done.returncode == 0
    assert done.stderr == ""
    words = done.stdout.replace("│", " ").split()
    assert set(numbers(answer(jaxacct(*TABLES[name], "--json")))) <= set(words)
    assert max(map(len, done.stdout.splitlines())) <= min(columns, 80)
    assert "…" not in done.stdout
    assert "\x1b" not in done.stdout
    assert "certified" in done.stdout


def test_a_table_that_is_too_wide_loses_nothing(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    rows = [[f"{i}.23456789012" for i in range(5)]] * 2
    arguments.Report(columns=(["one", "two", "three", "four", "five"], rows)).show(as_json=False)
    printed = capsys.readouterr().out
    assert all(printed.count(cell) == 2 for cell in rows[0])


def test_no_colour_where_it_is_not_wanted(capsys, monkeypatch):
    colour = re.compile(r"\x1b\[(?:\d+;)*(?:3\d|9\d)[;m]")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    arguments.console().print(Text("red", "red"))
    assert colour.search(capsys.readouterr().out)
    monkeypatch.setenv("NO_COLOR", "1")
    arguments.console().print(Text("red", "red"))
    assert not colour.search(capsys.readouterr().out)


def test_a_profile_is_that_of_the_accountants(jaxacct):
    record = answer(jaxacct("curve", *RUN, "--epsilon", "2,1,6.187712389971", "--json"))
    lower, upper = (np.array(record["results"][name]) for name in ("lower", "upper"))
    truth = ja.delta(ja.PoissonSubsampledGaussian(1.0, 0.01), 10_000, 2.0)
    assert (lower[0], upper[0]) == (truth.lower, truth.upper)
    assert lower[2] <= 1e-5 * (1 + 1e-9)
    assert upper[2] >= 1e-5 * (1 - 1e-9)
    assert upper[2] < upper[0] < upper[1]
    # The other way round.
    back = answer(jaxacct("curve", *RUN, "--delta", f"{truth.upper},1e-5", "--json"))["results"]
    assert back["upper"] == pytest.approx([2.0, TRUTH], rel=1e-9)


def test_a_profile_by_itself_ends_where_delta_does_and_is_printed_in_full(jaxacct):
    record = answer(jaxacct("curve", *RUN, "--json"))["results"]
    places, upper = np.array(record["epsilon"]), np.array(record["upper"])
    assert len(places) == 101
    assert places[0] == 0
    assert 1e-16 < upper[-1] < 1e-12
    assert np.all(np.diff(upper) < 0)
    assert [float(f"{place:.10g}") for place in places] == pytest.approx(places, rel=1e-15)


def test_where_the_exact_accountant_does_not_converge_meshes_bound_the_profile(jaxacct, monkeypatch):
    """One step of two outcomes beside a Gaussian would do; here the exact accountant is told to know nothing."""
    nothing = ja.Bounds(lower=0.0, estimate=math.nan, upper=1.0, converged=False)
    monkeypatch.setattr(ja.saddlepoint, "delta", lambda *_, **__: nothing)
    record = answer(jaxacct("curve", *RUN, "--epsilon", "2,4", "--json"))["results"]
    monkeypatch.undo()
    for i, epsilon in enumerate((2.0, 4.0)):
        truth = ja.saddlepoint.delta(ja.PoissonSubsampledGaussian(1.0, 0.01), 10_000, epsilon).estimate
        assert record["lower"][i] <= truth <= record["upper"][i] <= 1.01 * truth
        assert record["lower"][i] <= record["estimate"][i] <= record["upper"][i]


def test_tradeoff_and_renyi_curves_are_those_of_the_library(jaxacct, tmp_path):
    pytest.importorskip("matplotlib")
    files = [tmp_path / "new" / name for name in ("curve.csv", "curve.npz", "curve.json", "curve.png")]
    arguments = ["curve", *RUN, "--kind", "tradeoff", "--fpr", "0:1:5"]
    found = answer(jaxacct(*arguments, "--out", files[0], "--plot", files[3], "--json"))
    lower, upper = (np.array(found["results"][name]) for name in ("lower", "upper"))
    places = np.linspace(0, 1, 5)
    direct = ja.tradeoff.curve(ja.PoissonSubsampledGaussian(1.0, 0.01), 10_000, places)
    assert (lower.tolist(), upper.tolist()) == (direct.lower.tolist(), direct.upper.tolist())
    assert files[3].read_bytes()[1:4] == b"PNG"
    table = np.genfromtxt(files[0], delimiter=",", names=True)
    assert table["false_positive_rate"].tolist() == places.tolist()
    assert table["upper"].tolist() == upper.tolist()

    renyi = ["curve", *RUN, "--kind", "renyi", "--orders", "2,4"]
    assert jaxacct(*renyi, "--out", files[1]).returncode == 0
    expected = ja.rdp.composed_curve(ja.PoissonSubsampledGaussian(1.0, 0.01), 10_000, [2.0, 4.0])
    with np.load(files[1]) as stored:
        assert stored["order"].tolist() == [2, 4]
        assert stored["upper"].tolist() == expected.tolist()
        assert json.loads(str(stored["about"]))["kind"] == "renyi"
    assert json.loads(jaxacct(*renyi, "--out", files[2], "--json").stdout) == json.loads(files[2].read_text())


def examples(command, jaxacct):
    """Returns the commands that a help text shows."""
    done = jaxacct(command, "--help")
    assert done.returncode == 0
    return [shlex.split(line)[1:] for line in re.findall(r"^  (jaxacct .*)$", done.stdout, flags=re.MULTILINE)]


def test_help_names_every_command(jaxacct):
    done = jaxacct("--help")
    assert done.returncode == 0
    assert re.findall(r"^    (\w+) ", done.stdout, flags=re.MULTILINE) == list(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_of_every_help_text_is_understood(command, jaxacct):
    lines = examples(command, jaxacct)
    assert 1 <= len(lines) <= 3
    for line in lines:
        assert build_parser().parse_args(line).command == command
    parts = (command, *lines[0][1:2]) if command == "release" else (command,)  # a command of commands has them below
    assert "--json" in jaxacct(*parts, "--help").stdout


@pytest.mark.parametrize(
    ("command", "number"), [("epsilon", 0), ("epsilon", 1), ("delta", 0), ("delta", 1), ("calibrate", 0),
                            ("curve", 1)],
)  # fmt: skip
def test_examples_run(command, number, jaxacct):
    done = jaxacct(*examples(command, jaxacct)[number])
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""


def test_version_names_what_computes(jaxacct):
    done = jaxacct("--version")
    assert done.returncode == 0
    assert re.match(rf"jaxacct {re.escape(ja.__version__)}, jax [\d.]+.*, Python 3\.\d+.*\ndevices: \w+", done.stdout)


def test_completion_or_what_it_needs(jaxacct, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    done = jaxacct("--print-completion", "bash")
    assert done.returncode == 2
    assert "jaxacct[completion]" in done.stderr
    monkeypatch.undo()
    pytest.importorskip("shtab")
    for shell in ("bash", "zsh", "tcsh"):
        done = jaxacct("--print-completion", shell)
        assert done.returncode == 0
        assert "noise-multiplier" in done.stdout
