"""Brackets of a mechanism whose lower ends are those of what neighbouring data sets attain."""

import dataclasses

import jax
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import selection
from jaxacct.numerics.precision import as_float64


@ja.register_dataclass
@dataclasses.dataclass(frozen=True)
class Between(ja.Mechanism):
    """Gaussian noise of a scale somewhere between: dominated by 0.9 of it, and known by three larger ones."""

    noise: float
    relations = ("zero_out", "replace", "add_or_remove", "remove", "add")

    def validate(self):
        ja.Gaussian(self.noise)

    def dominating_pairs(self, relation="zero_out"):
        return self._times(0.3 if relation == "replace" else 0.9).dominating_pairs("zero_out")

    def attained(self, relation):
        return (self._times(1.2),), (self._times(1.1), self._times(1.3))

    def _times(self, factor):
        return ja.Gaussian(as_float64(self.noise) * factor)


def test_the_lower_end_is_the_best_alternative_of_the_worst_case():
    found = ja.epsilon(Between(2.0), 3, 1e-5, relation="zero_out")
    assert found.lower == ja.epsilon(ja.Gaussian(2.4), 3, 1e-5).lower
    assert found.upper == ja.epsilon(ja.Gaussian(1.8), 3, 1e-5).upper
    assert np.isnan(found.estimate)
    assert not found.converged


@pytest.mark.exhaustive
def test_a_composition_replaces_every_mechanism_that_has_lower_ends():
    found = ja.delta((Between(2.0), ja.Gaussian(3.0), Between(4.0)), (3, 2, 1), 1.0, relation="zero_out")
    assert found.lower == pytest.approx(
        float(ja.delta((ja.Gaussian(2.4), ja.Gaussian(3.0), ja.Gaussian(4.8)), (3, 2, 1), 1.0).lower)
    )
    assert found.upper == pytest.approx(
        float(ja.delta((ja.Gaussian(1.8), ja.Gaussian(3.0), ja.Gaussian(3.6)), (3, 2, 1), 1.0).upper)
    )


@pytest.mark.exhaustive
def test_a_profile_has_the_ends_of_its_points():
    epsilons, deltas = [0.5, 1.0, 2.0], [1e-5, 1e-3]
    for found, each in (
        (ja.curve(Between(2.0), 3, epsilons=epsilons, relation="zero_out"),
         [ja.delta(Between(2.0), 3, value, relation="zero_out") for value in epsilons]),
        (ja.curve(Between(2.0), 3, deltas=deltas, relation="zero_out"),
         [ja.epsilon(Between(2.0), 3, value, relation="zero_out") for value in deltas]),
    ):  # fmt: skip
        np.testing.assert_allclose(found.lower, [float(one.lower) for one in each], rtol=1e-9)
        np.testing.assert_allclose(found.upper, [float(one.upper) for one in each], rtol=1e-9)


@pytest.mark.exhaustive
def test_traced_numbers_have_the_same_ends():
    def ask(noise):
        return ja.epsilon(Between(noise), 3, 1e-5, relation="zero_out")

    eager, traced = ask(2.0), jax.jit(ask)(2.0)
    many = jax.vmap(ask)(np.array([2.0, 3.0]))
    for one in (traced, jax.tree.map(lambda leaf: leaf[0], many)):
        np.testing.assert_allclose([one.lower, one.upper], [eager.lower, eager.upper], rtol=1e-9)


@pytest.mark.exhaustive
def test_replacing_costs_at_most_zeroing_out_twice():
    """The factor e^epsilon belongs to the second half; a bound without it is below the truth for some pair."""
    found = ja.delta(Between(2.0), 3, 2.0, relation="replace")
    half = float(ja.delta(ja.Gaussian(1.8), 3, 1.0).upper)
    by_pairs = float(ja.delta(ja.Gaussian(0.6), 3, 2.0).upper)
    assert found.upper == pytest.approx(min(by_pairs, half * (1 + np.e)), rel=1e-9)
    # With loose pairs for replacing the other bound decides; the epsilon found is one whose delta is small enough.
    loose = ja.epsilon(Between(2.0), 3, 1e-5, relation="replace").upper
    assert loose < float(ja.epsilon(ja.Gaussian(0.6), 3, 1e-5).upper)
    assert ja.delta(Between(2.0), 3, float(loose), relation="replace").upper <= 1e-5 * (1 + 1e-9)
    assert ja.delta(Between(2.0), 3, float(loose) * 0.999, relation="replace").upper > 1e-5


@pytest.mark.exhaustive
def test_a_search_takes_no_lower_end_from_several_data_sets():
    search = ja.RepeatAndSelect(Between(4.0), 1, selection.Geometric(5.0))
    found = ja.epsilon(search, 1, 1e-5)
    assert found.lower == 0
    assert found.upper == pytest.approx(
        float(
            ja.epsilon(
                ja.RepeatAndSelect(ja.Gaussian(3.6), 1, selection.Geometric(5.0)), 1, 1e-5, relation="zero_out"
            ).upper
        ),
        rel=1e-3,
    )
