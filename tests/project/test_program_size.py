"""The number of operations that a user's own ``jax.jit`` is handed by each public verb, for each kind of loss.

Compile time and memory follow the number of operations, which is counted when a program is lowered, without a clock.
The table of ``tests/data/program_size.json`` has for each verb its lines of StableHLO and the files that they come
from. A verb that has grown by a tenth fails, and the message says which files' lines they are. ``python
tests/project/test_program_size.py`` writes the table anew, which is to be done where a verb has become smaller.
"""

import collections
import functools
import json
import pathlib
import re
import sys

import jax
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.composition import ForEpsilon, directed_parts, facts_of, laws_of
from jaxacct.numerics.arithmetic import float64_elsewhere
from jaxacct.saddlepoint import of_atoms

TABLE = pathlib.Path(__file__).parents[1] / "data" / "program_size.json"

GROWTH = 1.1
"""Largest ratio of a verb's lines to those of the table."""

LOSSES = {
    "Gaussian": lambda s: (ja.Gaussian(s), 100),
    "one run": lambda s: (ja.PoissonSubsampledGaussian(s, 0.01), 1),
    "Poisson Gaussian": lambda s: (ja.PoissonSubsampledGaussian(s, 0.01), 10_000),
    "Poisson Laplace": lambda s: (ja.PoissonSubsampledLaplace(s, 0.01), 1000),
    "Laplace": lambda s: (ja.Laplace(s), 100),
    "fixed size": lambda s: (ja.GaussianWithoutReplacement(s, 0.01), 1000),
    "group": lambda s: (ja.group(ja.PoissonSubsampledGaussian(s, 0.01), 8), 1000),
    "allocation": lambda s: (ja.RandomAllocation(s, 100), 10),
    "finite": lambda s: (ja.RandomizedResponse(s), 100),
    "tuple": lambda s: ((ja.PoissonSubsampledGaussian(s, 0.01), ja.Gaussian(20.0)), (1000, 5)),
}
RELATIONS = collections.defaultdict(lambda: "add_or_remove", {"fixed size": "replace", "finite": "replace"})
POISSON = LOSSES["Poisson Gaussian"]
CELLS = of_atoms.LADDER[0].cells


def one_part(s):
    """The smallest composition there is: one mechanism of two outcomes."""
    return directed_parts(*LOSSES["finite"](s), "replace")[0]


def law_of(s):
    """A law of the usual number of atoms, and its number of runs, that take no lines to make."""
    laws, counts = jax.eval_shape(lambda s: laws_of(CELLS, directed_parts(*POISSON(s), "add")[0], 30.0), s)
    return jax.tree.map(lambda leaf: s.astype(leaf.dtype) + np.zeros(leaf.shape, leaf.dtype), (laws, counts))


def verbs():
    """The verbs, by name; each of a noise multiplier, or of what is next to it."""
    found = {}
    for name, run in LOSSES.items():
        accountants = {"epsilon": ja.epsilon, "rdp.epsilon": ja.rdp.epsilon}
        if name not in ("Gaussian", "one run"):
            accountants |= {"saddlepoint.epsilon": ja.saddlepoint.epsilon, "prv.epsilon": ja.prv.epsilon}
        for verb, epsilon in accountants.items():
            asked = functools.partial(epsilon, delta=1e-5, relation=RELATIONS[name])
            found[f"{verb}, {name}"] = lambda s, asked=asked, run=run: asked(*run(s))
        if "prv.epsilon" in accountants:
            parts = functools.partial(directed_parts, relation=RELATIONS[name])
            found[f"law, {name}"] = lambda s, parts=parts, run=run: laws_of(CELLS, parts(*run(s))[0], 30.0)
    return found | {
        "composer": lambda s: of_atoms.answers(
            of_atoms.LADDER[0], *law_of(s), ForEpsilon(s[None]), facts_of(one_part(s))
        ),
        "delta": lambda s: ja.delta(*POISSON(s), 1.0),
        "epsilon, its derivative": jax.grad(lambda s: ja.saddlepoint.epsilon(*POISSON(s), 1e-5).upper),
        "epsilon, a batch": jax.vmap(lambda s: ja.epsilon(*POISSON(s), 1e-5).upper),
        "calibrate.noise_multiplier": lambda e: ja.calibrate.noise_multiplier(e, 1e-5, 0.01, 1000).value,
        "tradeoff.curve": lambda s: ja.tradeoff.curve(POISSON(s)[0], 1000, np.array([0.1])).upper,
        "gdp.mu": lambda s: ja.gdp.mu(*POISSON(s)),
        "RenyiFilter.spend": lambda s: ja.filters.RenyiFilter(3.0, 1e-5).spend(POISSON(s)[0], 1)[0],
        "RenyiOdometer.spend": lambda s: ja.odometers.RenyiOdometer(1e-5).spend(POISSON(s)[0], 1)[1].epsilon(),
    }


VERBS = verbs()


def lowered(name):
    """Returns a verb's program in the form for platforms that have float64."""
    with jax.enable_x64(True), float64_elsewhere():
        given = np.linspace(1.0, 2.0, 1000) if "batch" in name else np.float64(1.0)
        return jax.jit(VERBS[name]).lower(given)


def counted(name):
    """Returns how many lines of StableHLO each file of the package adds to a verb; "" is for those that JAX adds."""
    setting, limit = "jax_traceback_in_locations_limit", jax.config.jax_traceback_in_locations_limit
    jax.config.update(setting, -1)
    try:
        text = lowered(name).as_text(debug_info=True)
    finally:
        jax.config.update(setting, limit)
    places = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.M))

    @functools.cache
    def file_of(place):
        """The innermost file of the package among a place's frames."""
        known = places.get(place, "")
        frame = re.match(r'"[^"]*/jaxacct/([^"]*)":\d', known)
        if frame:
            return frame.group(1)
        return next(filter(None, map(file_of, re.findall(r"#loc\d*", known))), "")

    lines = collections.Counter()
    for line in text.splitlines():
        if not line.startswith("#loc"):
            at = re.findall(r"loc\((#loc\d*)\)", line)
            lines[file_of(at[-1]) if at else ""] += line.count(" = ")
    return {file: count for file, count in lines.most_common() if count}


@pytest.mark.first_tier("epsilon, Gaussian", "rdp.epsilon, one run", "rdp.epsilon, finite", "gdp.mu")
@pytest.mark.parametrize("name", VERBS)
def test_no_verb_grows_by_a_tenth(name):
    budget = json.loads(TABLE.read_text())[name]
    total, allowed = lowered(name).as_text().count(" = "), sum(budget.values())
    if total > GROWTH * allowed:  # whose the lines are takes as long again
        jax.clear_caches()  # which hold the program without its lines' origins
        grown = {file: count - budget.get(file, 0) for file, count in counted(name).items()}
        grown = {file: count for file, count in grown.items() if count > 0}
        pytest.fail(f"{name}: {total} lines for {allowed}; more than before: {grown}")


def test_the_table_is_of_these_verbs():
    assert set(json.loads(TABLE.read_text())) == set(VERBS)


if __name__ == "__main__":
    chosen = [name for name in VERBS if not sys.argv[1:] or name in sys.argv[1:]]
    table = json.loads(TABLE.read_text()) if TABLE.exists() else {}
    for name in chosen:
        table[name] = counted(name)
        print(f"{sum(table[name].values()):6} {name}", flush=True)
    TABLE.write_text(json.dumps({name: table[name] for name in VERBS}, indent=1) + "\n")
