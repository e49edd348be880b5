"""Verdicts: on values known to 160 bits, on edges, on brackets wrong by little, and on accountants that err."""

import ast
import dataclasses
import json
import math
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from helpers.command_line import runner
from helpers.thorough import cases

import jaxacct as ja
from jaxacct import composition, verify
from jaxacct.numerics import programs

TRUTHS = json.loads((pathlib.Path(__file__).parents[1] / "data" / "delta_truth.json").read_text())
CLAIM = pathlib.Path(__file__).parent / "claim.json"


@pytest.mark.first_tier("2.675-790446-add", "4.348-291357-add", "3.84-1553-remove", "3.789-333144-remove")
@pytest.mark.parametrize("entry", TRUTHS[::3], ids=lambda entry: f"{entry['sigma']}-{entry['k']}-{entry['direction']}")
def test_known_values_are_proved_and_nearby_ones_refuted(entry):
    mechanism = ja.PoissonSubsampledGaussian(entry["sigma"], entry["q"])
    truth = entry["delta"]

    def judge(lower, upper):
        return verify.delta(mechanism, entry["k"], entry["eps"], (lower, upper), relation=entry["direction"])

    low, high = truth * (1 - 1e-14), truth * (1 + 1e-14)
    proved = judge(low, high)
    assert proved.status == "PROVED"
    assert low <= proved.truth[0] <= proved.truth[1] <= high
    for lower, upper in ((0.0, truth * (1 - 1e-8)), (truth * (1 + 1e-8), 1.0)):
        refuted = judge(lower, upper)
        assert refuted.status is verify.Ruling.REFUTED
        assert low <= refuted.truth[0] <= refuted.truth[1] <= high


@pytest.mark.exhaustive
def test_epsilon_of_two_directions_a_tuple_and_a_sequence():
    step = ja.PoissonSubsampledGaussian(1.0, 0.01)
    truth = 6.187712389971
    for mechanism, steps in (
        (step, 10_000),
        ((step, step, ja.PureDP(0.0)), (4000, 6000, 5)),
        (ja.PoissonSubsampledGaussian(np.full(2, 1.0), np.full(2, 0.01)), np.array([1, 9999])),
    ):
        assert verify.epsilon(mechanism, steps, 1e-5, (truth - 1e-9, truth + 1e-9)).status == "PROVED"
        refuted = verify.epsilon(mechanism, steps, 1e-5, (0.0, truth - 1e-7))
        assert refuted.status == "REFUTED"
        assert refuted.truth[0] <= truth <= refuted.truth[1]
        assert refuted.truth[1] - refuted.truth[0] < 1e-9
        assert verify.epsilon(mechanism, steps, 1e-5, (truth + 1e-7, math.inf)).status == "REFUTED"


@pytest.mark.parametrize(
    ("mechanism", "steps", "delta", "truth"),
    [
        (ja.Laplace(0.5), 3, 0.0, 6.0),
        (ja.PureDP(0.25), 4, 0.0, 1.0),
        ((ja.PureDP(1.0), ja.PureDP(2.0)), (1, 1), 0.0, 3.0),
        (ja.PureDP(0.0), 10, 1e-5, 0.0),
        (ja.Gaussian(math.inf), 10, 1e-5, 0.0),
        (ja.Gaussian(1.0), 0, 1e-5, 0.0),
        (ja.ApproximateDP(1.0, 1e-5), 1, 1e-5, 1.0),
        (ja.Gaussian(1.0), 1, 0.0, math.inf),
        (ja.Gaussian(0.0), 1, 1e-5, math.inf),
        (ja.ApproximateDP(1.0, 1e-3), 1, 1e-5, math.inf),
        (ja.PureDP(math.inf), 1, 1e-5, math.inf),
        (ja.Gaussian(1.0), 1, 1.0, 0.0),
    ],
)
def test_edges_of_epsilon(mechanism, steps, delta, truth):
    above = truth if math.isinf(truth) else max(truth * (1 + 1e-12), 0.0)
    assert (
        verify.epsilon(mechanism, steps, delta, (truth * (1 - 1e-12) if truth < math.inf else 50.0, above)).status
        == "PROVED"
    )
    if truth > 0:
        assert verify.epsilon(mechanism, steps, delta, (0.0, min(truth - 1e-8, 1e6))).status == "REFUTED"
    if truth < math.inf:
        assert verify.epsilon(mechanism, steps, delta, (truth + 1e-8, math.inf)).status == "REFUTED"


@pytest.mark.parametrize(
    ("mechanism", "steps", "epsilon", "truth"),
    [
        (ja.ApproximateDP(0.5, 0.25), 2, math.inf, 1 - 0.75**2),
        (ja.Gaussian(1.0), 7, math.inf, 0.0),
        (ja.PureDP(1.0), 2, 2.0, 0.0),
        (ja.Gaussian(0.0), 1, 1.0, 1.0),
        (ja.Gaussian(math.inf), 1, 0.0, 0.0),
        (ja.PoissonSubsampledGaussian(0.0, 0.25), 1, 1.0, 0.25),
        (ja.DiscretePair([0.5, 0.5, 0.0], [0.25, 0.5, 0.25]), 1, 0.0, 0.25),
    ],
)
def test_edges_of_delta(mechanism, steps, epsilon, truth):
    exact = not isinstance(mechanism, ja.DiscretePair)  # whose losses are logarithms
    low, high = (truth, truth) if exact else (truth - 1e-15, truth + 1e-15)
    assert verify.delta(mechanism, steps, epsilon, (low, high)).status == "PROVED"
    if truth > 0:
        assert verify.delta(mechanism, steps, epsilon, (0.0, truth * (1 - 1e-8))).status == "REFUTED"
    if truth < 1:
        assert verify.delta(mechanism, steps, epsilon, (truth + 1e-8, 1.0)).status == "REFUTED"


@pytest.mark.parametrize(
    "mechanism",
    [
        ja.TruncatedPoissonGaussian(math.inf, 0.1, 0.1),
        ja.TruncatedPoissonGaussian(1.0, 0.0, 0.1),
        ja.PoissonSubsampledLaplace(1.0, 0.0),
        ja.DiscreteGaussian(math.inf),
        ja.DiscreteLaplace(math.inf),
        ja.RandomAllocation(math.inf, 10),
        ja.GaussianMixture(math.inf, [0.0, 1.0], [0.5, 0.5]),
    ],
    ids=repr,
)
def test_what_releases_nothing_costs_nothing(mechanism):
    for given in (0.0, 1e-5):
        assert verify.epsilon(mechanism, 7, given, (0.0, 0.0)).status == "PROVED"
        assert verify.epsilon(mechanism, 7, given, (1e-9, 1.0)).status == "REFUTED"
    for given in (0.0, math.inf):
        assert verify.delta(mechanism, 7, given, (0.0, 0.0)).status == "PROVED"


# Of three steps the contour is short where the noise is large and the rate is not small.
@pytest.mark.exhaustive
@pytest.mark.parametrize(("steps", "setting"), cases([(3, (2.0, 0.5, (10, 11), 7))], [(1, (0.8, 0.1, (100, 101), 12))]))
def test_a_known_number_of_examples_is_proved(steps, setting):
    mechanism = ja.TruncatedPoissonGaussian.for_batches(*setting)
    bracket = ja.prv.epsilon(mechanism, steps, 1e-3, points=1024)
    assert verify.epsilon(mechanism, steps, 1e-3, bracket).status == "PROVED"
    assert verify.epsilon(mechanism, steps, 1e-3, (0.0, float(bracket.lower) * (1 - 1e-8))).status == "REFUTED"


def test_what_cannot_be_decided_says_what_is_missing():
    def cdf(y, b):
        return y

    own = ja.PrivacyLoss(cdf, cdf, lowest=-1.0, highest=1.0)
    for mechanism, words in ((own, "PrivacyLoss"), (ja.RandomAllocation(1.0, 10), "random allocation")):
        verdict = verify.epsilon(mechanism, 1, 1e-5, (0.5, 1.0))
        assert verdict.status == "UNDECIDED"
        assert words in verdict.reason
        assert verify.epsilon(mechanism, 1, 1e-5, (0.0, math.inf)).status == "PROVED"
    assert verify.epsilon(ja.RandomAllocation(2.0, 1), 16, 1e-5, (0.0, 1.0)).status == "REFUTED"


def test_nonsense_raises():
    step = ja.PoissonSubsampledGaussian(1.0, 0.01)
    for wrong in (
        lambda: verify.epsilon(step, 10, math.nan, (0, 1)),
        lambda: verify.epsilon(step, 10, 1e-5, (0, math.nan)),
        lambda: verify.epsilon(step, 2.5, 1e-5, (0, 1)),
        lambda: verify.delta(step, 10, -1.0, (0, 1)),
        lambda: verify.epsilon(ja.TruncatedPoissonGaussian(1.0, 0.1, 0.1), 10, 1e-5, (0, 1), relation="replace"),
        lambda: verify.epsilon((step, step), (1,), 1e-5, (0, 1)),
    ):
        with pytest.raises(ValueError, match=r"\w"):
            wrong()


def test_every_mechanism_has_a_statement():
    from jaxacct import mechanisms
    from jaxacct.verify.statements import STATEMENTS

    exported = {name: getattr(mechanisms, name) for name in mechanisms.__all__}
    named = {name for name, one in exported.items() if isinstance(one, type) and issubclass(one, mechanisms.Mechanism)}
    # What is always taken for the mechanisms that it is composed of has none of its own: the next test.
    composed = {name for name in named if getattr(mechanisms, name).composed is not mechanisms.Mechanism.composed}
    # Of random allocation that are blocks of an epoch, where an example is in more than two of its batches.
    # Of shuffled batches that are even, a single one is the Gaussian mechanism. The rest are others by what is in them.
    by_fields = {"AllocatedMechanism", "BallsInBins", "PoissonSampledMechanism"}
    assert composed == {"MatrixMechanism", "RandomAllocation", "ShuffledGaussian"} | by_fields
    composed -= {"RandomAllocation", "ShuffledGaussian"}
    # Nor has what is known by its Rényi curve alone, nor what is made of others' pairs by a bound.
    curves = {name for name in named if issubclass(getattr(mechanisms, name), mechanisms.RenyiOnly)}
    bounds = {"DPWithoutReplacement", "PoissonSubsampledDP", "ExponentialMechanism", "TreeAggregation"}
    bounds |= {"GaussianWithReplacement", "WithoutReplacementGroup", "AboveThreshold", "GaussianAboveThreshold"}
    bounds |= {"DiscreteGaussianVector", "ShuffledRandomizedResponse"}
    assert set(STATEMENTS) == named - {"Mechanism"} - composed - curves - bounds


@pytest.mark.exhaustive
def test_the_referee_takes_a_training_for_all_of_its_cycles():
    strategy = ja.strategies.square_root(2).normalized()
    training = ja.MatrixMechanism(strategy, 2.0, ja.strategies.CyclicPoisson(40, 2, 0.1))
    for runs, status in ((training.cycles, verify.Ruling.PROVED), (1, verify.Ruling.REFUTED)):
        bounds = ja.epsilon(training.cycle, runs, 1e-5)
        assert verify.epsilon(training, 1, 1e-5, bounds).status is status


def test_only_the_border_knows_the_library():
    folder = pathlib.Path(verify.__file__).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_text())
        # What only type checkers import computes nothing.
        guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        tree.body = [node for node in tree.body if node not in guarded]
        used = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                used |= {alias.name for alias in node.names if alias.name.split(".")[0] in ("jax", "jaxacct")}
            elif isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in ("jax", "jaxacct"):
                used |= {f"{node.module}.{alias.name}" for alias in node.names}
        own = "verify", "json_files", "choices"  # the last has the words of a verdict, and no number
        used = {name for name in used if name.split(".")[0] == "jax" or name.split(".")[1] not in own}
        known = {"jax", "jaxacct.mechanisms.PrivacyLoss", "jaxacct.mechanisms.RandomAllocation"}
        assert used == (known | {"jaxacct.mechanisms.records"} if path.name == "border.py" else set()), path.name


def test_the_referee_judges_records_without_jax():
    script = (
        "import sys\n"
        "from jaxacct.verify import cells, contour, statements, verdict\n"
        "runs = statements.composition([({'type': 'Gaussian', 'noise_multiplier': 10.0}, 100)], 'remove')\n"
        "ball = verdict.Direction(runs[0]).delta(1.0)\n"
        "print(bool(0.12693673 < ball < 0.12693675), 'jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_class_that_bears_the_name_of_a_stated_one_is_not_judged_by_its_statement():
    @ja.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Gaussian(ja.Gaussian):
        pass

    verdict = verify.epsilon(Gaussian(1.0), 1, 1e-5, (0.5, 1.0))
    assert verdict.status == "UNDECIDED"
    assert "Gaussian" in verdict.reason


# What an accountant may get wrong, and the referee is to see. A run of DP-SGD, so that the programs are there already.

STEP = ja.PoissonSubsampledGaussian(1.0, 0.01)


def one_run_less(module, patch):
    """The accountant loses one run in ten thousand."""
    parts = composition.directed_parts

    def fewer(mechanism, steps, *more):
        return parts(mechanism, steps - 1, *more)

    patch.setattr(composition, "directed_parts", fewer)


def only_adding(module, patch):
    """The accountant forgets the direction that counts more."""
    parts = composition.directed_parts
    patch.setattr(composition, "directed_parts", lambda *asked: parts(*asked)[1:])


def a_fifth_less(module, patch):
    """The Rényi divergences are a fifth too small."""
    for name in ("of_all_orders", "composed_divergence"):
        divergences = getattr(module, name)
        patch.setattr(module, name, lambda *a, divergences=divergences, **k: divergences(*a, **k) * 0.8)


def judged(accountant, mutate=None):
    """The verdict on an accountant's epsilon at 1e-5, as it is or mutated."""
    from jaxacct import rdp as renyi
    from jaxacct.prv import accountant as mesh
    from jaxacct.saddlepoint import accountant as exact

    module = {"saddlepoint": exact, "prv": mesh, "rdp": renyi}[accountant]
    with pytest.MonkeyPatch.context() as patch:
        programs.forget()  # which were compiled of what is exchanged
        if mutate is not None:
            mutate(module, patch)
        found = module.epsilon(STEP, 10_000, 1e-5)
        programs.forget()
    bounds = found if isinstance(found, ja.Bounds) else (0.0, float(found))
    return verify.epsilon(STEP, 10_000, 1e-5, bounds).status


@pytest.mark.first_tier("rdp-a_fifth_less")
@pytest.mark.parametrize(
    ("accountant", "mutate"), [("saddlepoint", one_run_less), ("prv", only_adding), ("rdp", a_fifth_less)]
)
def test_a_mutation_of_each_accountant_is_caught(accountant, mutate):
    assert judged(accountant) == "PROVED"
    assert judged(accountant, mutate) == "REFUTED"


def test_the_referee_itself_can_fail(monkeypatch):
    """A wrong statement changes the verdict: nothing is decided by what is claimed."""
    from jaxacct.verify import statements

    stated = statements.subsampled_gaussian

    def wrong(direction, noise_multiplier, sampling_rate):
        return stated(direction, noise_multiplier, np.nextafter(sampling_rate, 1) * (1 + 1e-9))

    claim = json.loads(CLAIM.read_text())
    bracket = claim["lower"], claim["upper"]
    assert verify.epsilon(STEP, 10_000, 1e-5, bracket).status == "PROVED"
    monkeypatch.setitem(statements.STATEMENTS, "PoissonSubsampledGaussian", wrong)
    assert verify.epsilon(STEP, 10_000, 1e-5, bracket).status == "REFUTED"


@pytest.fixture
def jaxacct(capsys, monkeypatch):
    return runner(capsys, monkeypatch)


def written(tmp_path, **changed):
    path = tmp_path / "claim.json"
    path.write_text(json.dumps(json.loads(CLAIM.read_text()) | changed))
    return path


def test_the_command_ends_with_what_it_found(jaxacct, tmp_path):
    assert jaxacct("verify", CLAIM).returncode == 0
    done = jaxacct("verify", written(tmp_path, upper=6.1877), "--json")
    record = json.loads(done.stdout)
    assert (done.returncode, record["status"], record["counts"]["refuted"]) == (3, "REFUTED", 1)
    assert record["claims"][0]["truth"][0] > 6.1877
    allocated = {"type": "RandomAllocation", "noise_multiplier": 1.0, "batches": 10}
    done = jaxacct("verify", written(tmp_path, mechanism=allocated))
    assert done.returncode == 4
    assert "random allocation" in " ".join(done.stdout.replace("│", " ").split())
    assert jaxacct("verify", written(tmp_path, lower=None, estimate=None, upper="inf")).returncode == 0


def test_the_command_reads_what_others_wrote(jaxacct, tmp_path):
    truth = 6.187712389971
    low, high = truth - 1e-9, truth + 1e-9
    common = {"relation": "add_or_remove", "steps": 10_000}
    run = {"noise_multiplier": 1.0, "sampling_rate": 0.01}
    records = {
        "calibrate": common | run | {"target": {"epsilon": 6.2, "delta": 1e-5},
            "reached": {"quantity": "epsilon", "lower": low, "upper": high}},
        "curve": common | {"kind": "profile", "quantity": "delta", "over": "epsilon",
            "mechanism": {"type": "PoissonSubsampledGaussian"} | run,
            "results": {"epsilon": [truth, 700.0], "lower": [9.99e-6, 0.0], "upper": [1.001e-5, 1e-10]}},
        "sweep": {"quantity": "epsilon", "relation": "add_or_remove", "mechanisms": ["PoissonSubsampledGaussian"],
            "constants": {"steps": 10_000.0, "sampling_rate": 0.01, "delta": 1e-5},
            "axes": {"noise_multiplier": [1.0, 1e300]}, "results": {"lower": [low, 0.0], "upper": [high, "inf"]}},
        "tuple": {"quantity": "delta", "epsilon": "inf", "lower": 0.4375, "upper": 0.4375, "steps": [2, 1],
            "mechanism": [{"type": "ApproximateDP", "epsilon": 0.5, "delta": 0.25}, {"type": "PureDP", "epsilon": 1}],
            "relation": "add"},
    }  # fmt: skip
    for name, record in records.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(record))
        done = jaxacct("verify", path)
        assert done.returncode == 0, (name, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"quantity": "epsilon"}', '{"quantity": "advantage", "mechanism": {}, "steps": 1}']
)
def test_what_is_no_claim_is_said_in_one_line(jaxacct, tmp_path, text):
    path = tmp_path / "claim.json"
    path.write_text(text)
    done = jaxacct("verify", path)
    assert done.returncode == 2
    assert done.stderr.startswith("jaxacct verify: error: ")
    assert done.stderr.count("\n") == 1


def test_a_missing_package_is_named(monkeypatch):
    import importlib
    import sys

    for name in [name for name in sys.modules if name.startswith("jaxacct.verify")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flint", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install \"jaxacct\[verify\]\""):
        importlib.import_module("jaxacct.verify")


def test_a_verdict_is_a_frozen_record():
    verdict = verify.Verdict(verify.Ruling.PROVED, (0.0, 1.0), "")
    with pytest.raises(dataclasses.FrozenInstanceError):
        verdict.status = verify.Ruling.REFUTED
