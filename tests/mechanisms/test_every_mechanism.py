"""Tests that every exported mechanism has an example, a statement, papers, pages, and no cost of releasing nothing."""

import dataclasses
import inspect
import pathlib
import re

import jax
import numpy as np
import pytest
from helpers.mechanisms import EXAMPLES, UNSTATED

import jaxacct as ja
from jaxacct import mechanisms
from jaxacct.cli import sweep
from jaxacct.mechanisms import records
from jaxacct.numerics.pytrees import register_dataclass

DOCS = pathlib.Path(__file__).parents[2] / "docs"
ROWS = re.findall(r"^\| (.*\(\d{4}\).*) \|$", (DOCS / "papers.md").read_text(), re.M)
NOT_TIGHT = re.search(r"^\| not tight \|.*?\n\n", (DOCS / "accountants.md").read_text(), re.M | re.S)[0]
BASES = (mechanisms.Mechanism, mechanisms.RenyiOnly)
EXPORTED = [getattr(mechanisms, name) for name in mechanisms.__all__]
KINDS = [each for each in EXPORTED if inspect.isclass(each) and issubclass(each, BASES[0]) and each not in BASES]
AXES = {"noise_multiplier", "scale", "sampling_rate"}
"""Fields that the command line's axes can be."""

CITATION = re.compile(r"([A-Z][^\W\d_]+(?:-[A-Z]\w+)?)(?:, [A-Z][\w-]+)*(?:,? and [A-Z][\w-]+| et al\.)? \((\d{4})\)")


def wanting(kind):
    """Yields what is missing of a mechanism, and where it belongs."""
    file = f"{kind.__module__.removeprefix('jaxacct.').replace('.', '/')}.py"
    if not EXAMPLES.get(kind.__name__):
        yield "an example: EXAMPLES of tests/helpers/mechanisms.py"
    for author, year in CITATION.findall(" ".join((kind.__doc__ or "").split())):
        if not any(author in row and year in row and f"`{file}`" in row for row in ROWS):
            yield f"a row of docs/papers.md for {author} ({year}) that names `{file}`"
    if not kind.tight and not issubclass(kind, BASES[1]) and kind.__name__ not in (DOCS / "accountants.md").read_text():
        yield "what `lower` means, as its pair is not tight: the table of docs/accountants.md"
    if kind.tight and f"`{kind.__name__}`" in NOT_TIGHT:
        yield "a place outside of the table of docs/accountants.md of what is not tight, for it is"
    needed = {each.name for each in dataclasses.fields(kind) if each.default is dataclasses.MISSING}
    if needed and needed <= AXES and kind.__name__ not in sweep.MECHANISMS:
        yield "its name in MECHANISMS of jaxacct/cli/sweep.py: axes can describe it"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_nothing_is_missing(kind):
    missing = list(wanting(kind))
    assert not missing, f"{kind.__name__} is exported and lacks " + "; ".join(missing)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_referee_states_it_or_there_is_a_reason(kind):
    statements = pytest.importorskip("jaxacct.verify.statements").STATEMENTS
    where = "STATEMENTS of jaxacct/verify/statements.py, or UNSTATED of tests/helpers/mechanisms.py with the reason"
    assert (kind.__name__ in statements) != (kind.__name__ in UNSTATED), (
        f"{kind.__name__} belongs in one of these: {where}"
    )


def test_no_example_is_left_of_what_is_gone():
    names = {kind.__name__ for kind in KINDS}
    assert set(EXAMPLES) == names
    assert set(UNSTATED) < names


def named(entry):
    return type(entry).__name__


ALL = [example for some in EXAMPLES.values() for example in some]


def as_free(example):
    """The example with parameters under which nothing is released; None where its class has none.

    Noise may refuse the infinite value, and then there are none (docs/design); a loss of 0 is accepted by all.
    """
    fields = {field.name for field in dataclasses.fields(example)}
    noise = fields & {"noise_multiplier", "scale", "threshold_scale", "query_scale", "threshold_noise", "query_noise"}
    losses = fields & {"epsilon", "delta", "rho", "xi"}
    changed = dict.fromkeys(noise, np.inf) | dict.fromkeys(losses, 0.0)
    if not changed or isinstance(example, mechanisms.MatrixMechanism):
        return None
    try:
        return dataclasses.replace(example, **changed)
    except ValueError as refused:
        if any(str(refused).startswith(f"{name} = inf ") for name in noise):
            return None
        raise


@pytest.mark.parametrize("example", ALL, ids=named)
def test_infinite_noise_and_no_loss_release_nothing_and_the_example_something(example):
    with jax.enable_x64(True):
        assert not np.any(example.releases_nothing())
        free = as_free(example)
        assert free is None or np.all(free.releases_nothing())


@register_dataclass
@dataclasses.dataclass(frozen=True)
class FiniteNoise(mechanisms.Laplace):
    """A mechanism that refuses infinite noise, as it may."""

    def validate(self):
        if not self.scale < np.inf:
            raise ValueError(f"scale = {self.scale} is not finite: give less noise.")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class SomeLoss(mechanisms.PureDP):
    """A mechanism that refuses a loss of 0, as it may not."""

    def validate(self):
        if not self.epsilon > 0:
            raise ValueError(f"epsilon = {self.epsilon} is not above 0: give more.")


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Silent(mechanisms.Laplace):
    """A mechanism that accepts infinite noise, and does not say that it then releases nothing."""

    def releases_nothing(self):
        return False


def test_infinite_noise_may_be_refused_and_a_loss_of_none_may_not():
    ask = test_infinite_noise_and_no_loss_release_nothing_and_the_example_something
    ask(FiniteNoise(1.0))
    with pytest.raises(ValueError, match="epsilon = 0"):
        ask(SomeLoss(1.0))
    with pytest.raises(AssertionError):
        ask(Silent(1.0))


@pytest.mark.parametrize("example", ALL, ids=named)
def test_it_is_written_and_read_again(example):
    if type(example) not in records.KINDS.values():
        pytest.skip("its functions, or a strategy's arrays, are no JSON")
    record = records.record_of(example)
    assert records.record_of(records.mechanism_of(record)) == record


@register_dataclass
@dataclasses.dataclass(frozen=True)
class OneWay(mechanisms.Mechanism):
    """A mechanism made of another's pair, which has a proof in one direction alone."""

    noise: float = 2.0

    relations = ("remove",)

    def validate(self):
        pass

    def dominating_pairs(self, relation="add_or_remove"):
        return mechanisms.Gaussian(self.noise).dominating_pairs(relation)


ASKED = {
    "epsilon": lambda run, **how: ja.epsilon(*run, 1e-5, **how),
    "epsilon, traced": lambda run, **how: jax.jit(lambda s: ja.epsilon(OneWay(s), 1, 1e-5, **how).upper)(2.0),
    "epsilon of several": lambda run, **how: ja.epsilon((run[0], ja.Gaussian(3.0)), (1, 1), 1e-5, **how),
    "a sequence": lambda run, **how: ja.epsilon(OneWay(np.ones(2)), 1, 1e-5, **how),
    "delta": lambda run, **how: ja.delta(*run, 1.0, **how),
    "curve": lambda run, **how: ja.curve(*run, epsilons=[1.0], **how),
    "prv": lambda run, **how: ja.prv.epsilon(*run, 1e-5, **how),
    "saddlepoint": lambda run, **how: ja.saddlepoint.epsilon(*run, 1e-5, **how),
    "rdp": lambda run, **how: ja.rdp.epsilon(*run, 1e-5, **how),
    "tradeoff": lambda run, **how: ja.tradeoff.advantage(*run, **how),
    "gdp": lambda run, **how: ja.gdp.mu(*run, **how),
}


@pytest.mark.parametrize("verb", ASKED)
def test_a_class_answers_for_the_relations_alone_that_it_lists(verb):
    for relation in ({}, {"relation": "add"}, {"relation": "replace"}):
        with pytest.raises(ValueError, match=r"relation = .* is not supported by OneWay: give one of 'remove'"):
            ASKED[verb]((OneWay(), 1), **relation)
