"""A ledger that goes on from what another one spent keeps its own budget, whatever the other one had."""

import dataclasses

import jax
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.filters import ApproximateDPFilter, GDPFilter, RenyiFilter, ZCDPFilter
from jaxacct.odometers import FilterOdometer, RenyiOdometer, VilleOdometer

KINDS = {
    "zcdp": lambda epsilon, delta: ZCDPFilter(epsilon, delta, mechanism_delta=delta / 9), "gdp": GDPFilter,
    "approximate": ApproximateDPFilter,
    "renyi": lambda epsilon, delta: RenyiFilter(epsilon, delta, orders=(20.0, 90.0)),
    "ville": lambda _, delta: VilleOdometer(delta), "paper's": lambda _, delta: RenyiOdometer(delta, base=20.0),
    "variance": lambda _, delta: FilterOdometer(delta),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_budgets_are_its_own_and_the_sums_are_the_others(name):
    ours, other = KINDS[name](1.0, 1e-5), KINDS[name](50.0, 1e-3)
    cheap, dear = (ja.PureDP(0.1), ja.PureDP(5.0)) if name == "approximate" else (ja.Gaussian(9.0), ja.Gaussian(0.5))
    granted, other = other.spend(cheap)
    assert granted
    found = jax.jit(lambda ours, other: ours.resume(other))(ours, other)
    for field in dataclasses.fields(found.state):
        given = "budget" in field.name or field.name.removeprefix("log_inverse_") in ("delta", "epsilon")
        source = ours if given else other
        for leaf, expected in zip(
            *(jax.tree.leaves(getattr(x.state, field.name)) for x in (found, source)), strict=True
        ):
            np.testing.assert_array_equal(leaf, expected, err_msg=field.name)
    if ours.has_budget:  # what the other one would still pay for, this one does not
        assert other.would_grant(dear)
        assert not found.would_grant(dear)


@pytest.mark.parametrize(
    "spent", [ZCDPFilter(1.0, 1e-5), RenyiFilter(1.0, 1e-5, orders=(20.0, 80.0)), VilleOdometer(1e-5), 3, None]
)
def test_a_ledger_of_another_kind_or_of_other_orders_is_refused(spent):
    with pytest.raises(ValueError, match="of other settings than this RenyiFilter"):
        RenyiFilter(1.0, 1e-5, orders=(20.0, 90.0)).resume(spent)
