"""The policy that spends what is left of a budget: it needs one."""

import pytest

import jaxacct as ja
from jaxacct.policies import SpendRemaining

ODOMETERS = {
    "RenyiOdometer": lambda: ja.odometers.RenyiOdometer(1e-5),
    "VilleOdometer": lambda: ja.odometers.VilleOdometer(1e-5),
    "FilterOdometer": lambda: ja.odometers.FilterOdometer(delta=1e-6, epsilon=6.0),
}


@pytest.mark.parametrize("name", ODOMETERS)
def test_an_odometer_is_refused_by_name(name):
    with pytest.raises(ValueError, match=f"ledger is a {name}, an odometer: .*Give SpendRemaining a filter"):
        SpendRemaining(sampling_rate=0.1, steps=10).start(ODOMETERS[name]())


def test_a_filter_is_not():
    noise = SpendRemaining(sampling_rate=0.1, steps=10).start(ja.filters.RenyiFilter(3.0, 1e-5))
    assert 0.3 < float(noise) < 1000.0
