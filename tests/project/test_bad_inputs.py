"""Nonsense in every argument of public calls: what raises names the argument, briefly, and is an error of ours.

``helpers/nonsense.py`` has the calls and the kinds. Errors are raised before any program is made: what gets as far as
one counts as taken, and is asked in full where that is cheap to do.
"""

import re
import warnings

import jax
import numpy as np
import pytest
from helpers.nonsense import CALLS, KINDS, NEVER_VALID, name_of

import jaxacct as ja
from jaxacct import validation
from jaxacct.numerics import programs

LONGEST = 600
"""Most characters of a message."""

PYTREES = ("mechanisms.", "selection.", "strategies.", "train.clipping.", "iteration.Projected")
"""Rooms whose classes are pytrees: JAX puts objects of its own into their fields, and what is asked of them refuses."""

LATER = {
    ("train.planned.SideQuery", "mechanism"), ("train.planned.SideQuery", "every"),  # a NamedTuple, which plans refuse
    ("train.optimizers.adam_bc", "learning_rate"), ("train.optimizers.adam_bc", "b1"),
    ("train.optimizers.adam_bc", "b2"), ("train.optimizers.adam_bc", "floor"),
    ("train.optimizers.adam_bc", "noise_deviation"),
}  # fmt: skip
"""Arguments whose nonsense is refused by what they are given to."""


class Taken(BaseException):
    """Says that a call got as far as a program: no argument was refused."""


@pytest.fixture(autouse=True)
def no_programs(monkeypatch):
    run = programs.Program.__call__

    def call(self, *args, **kwargs):
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, kwargs))):
            return run(self, *args, **kwargs)
        raise Taken

    monkeypatch.setattr(programs.Program, "__call__", call)


def complaint(call, arguments, name, value):
    """What is wrong about how a call takes a value for an argument; None where nothing is."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(**arguments | {name: value})
    except Taken:
        return "taken"
    except (TypeError, ValueError) as error:
        message = str(error)
        if type(error) not in (TypeError, ValueError):
            return f"{type(error).__name__}: {message[:200]}"
        if len(message) > LONGEST:
            return f"{len(message)} characters: {message[:200]}"
        return None if re.search(rf"(?<!\w){name}(?!\w)", message) else f"not named: {message[:200]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return "taken"


def sweep(calls):
    wrong, asked = [], 0
    for call in calls:
        for name in CALLS[call]:
            for kind, value in KINDS.items():
                asked += 1
                found = complaint(call, CALLS[call], name, value)
                place = (name_of(call), name)
                if found == "taken":
                    may = kind not in NEVER_VALID or place in LATER or place[0].startswith(PYTREES)
                    found = None if may else "taken"
                if found:
                    wrong.append(f"{'.'.join(place)} = {kind}: {found}")
    return wrong, asked


def first_of_each_room(calls):
    seen = set()
    return [call for call in calls if not (call.__module__ in seen or seen.add(call.__module__))]


def test_nonsense_is_refused_by_name():
    """One call of each file, with every kind of nonsense for every argument."""
    with np.errstate(all="ignore"):
        wrong, asked = sweep(first_of_each_room(CALLS))
    assert not wrong, "\n".join(wrong)
    assert asked > 1000


@pytest.mark.exhaustive
def test_nonsense_is_refused_by_name_in_every_call():
    with np.errstate(all="ignore"):
        wrong, asked = sweep(CALLS)
    assert not wrong, f"{len(wrong)} of {asked}:\n" + "\n".join(wrong)
    assert asked > 6000


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda: ja.epsilon(ja.Gaussian(np.ones(3)), list(range(1800)), 1e-5), "steps"),
        (lambda: ja.epsilon((ja.Gaussian(1.0),) * 2, tuple(range(1800)), 1e-5), "steps"),
        (lambda: ja.epsilon(ja.Gaussian(1.0), 10**4000, 1e-5), "steps"),
        (lambda: ja.epsilon(ja.Gaussian(1.0), 2**63, 1e-5), "steps"),
        (lambda: ja.rdp.curve(ja.Gaussian(1.0), [0.5] * 5000), "orders"),
        (lambda: ja.filters.RenyiFilter(1.0, 1e-5, orders=[0.5] * 5000), "orders"),
        (lambda: ja.rdp.curve(ja.Gaussian(1.0), [2.0], relation="x" * 5000), "relation"),
        (lambda: ja.epsilon("x" * 5000, 1, 1e-5), "mechanism"),
        (lambda: ja.DiscretePair(np.full(5000, -1.0), np.full(5000, 1.0)), "p"),
    ],
)
def test_a_long_value_makes_no_long_message(call, names):
    with pytest.raises((TypeError, ValueError), match=rf"(?<!\w){names}(?!\w)") as caught:
        call()
    assert len(str(caught.value)) <= LONGEST


def test_no_remedy_is_refused_in_its_turn():
    """A number that 64 bits do not hold is no better as a float."""
    for steps in (2**63, float(2**63)):
        with pytest.raises(ValueError, match="steps") as caught:
            ja.epsilon(ja.Gaussian(1.0), steps, 1e-5)
        assert "float" not in str(caught.value)


@pytest.mark.parametrize("name", ["noise_multiplier", "sampling_rate", "steps", "scale"])
def test_an_infinite_budget_is_refused_by_its_own_name(name):
    arguments = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "steps": 10}
    arguments.pop(name, None)
    if name == "scale":
        arguments = {"make": ja.Gaussian, "steps": 10}
    with pytest.raises(ValueError, match=r"^epsilon = inf .*finite"):
        getattr(ja.calibrate, name)(epsilon=np.inf, delta=1e-5, **arguments)


def test_values_are_shortened():
    class Loud:
        def __repr__(self):
            raise RuntimeError

    for value in (
        "x" * 10**6,
        list(range(10**4)),
        np.zeros(10**4),
        10**5000,
        -(10**5000),
        Loud(),
        {i: i for i in range(999)},
    ):
        assert len(validation.shorten(value)) < 200
    assert validation.shorten((1.0, "a")) == "(1.0, 'a')"
