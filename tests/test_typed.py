"""The typed programs of tests/typed run, too; ``.ci/run`` has two type checkers read them."""

import pathlib

import jaxacct as ja
from jaxacct import filters
from tests.typed import right_uses


def test_right_uses():
    upper, line = right_uses.answers(2.0, 10)
    assert line.startswith(f"epsilon = {ja.Bounds(0.0, 0.0, upper):.3f} at delta = ")
    assert right_uses.granted(filters.ZCDPFilter(1.0, 1e-5), ja.Gaussian(10.0)).spent > 0
    counted = ja.epsilon(right_uses.NoisyCount(deviation=20.0, most=2.0), 10, 1e-5)
    assert float(counted) == float(ja.epsilon(ja.Gaussian(10.0), 10, 1e-5))
    assert 0 < float(right_uses.renyi([2.0, 4.0])) < 10


def test_every_wrong_use_is_expected_by_both_checkers():
    lines = pathlib.Path(right_uses.__file__).with_name("wrong_uses.py").read_text().splitlines()
    wrong = [line for line in lines if "ignore[" in line]
    assert len(wrong) > 20
    assert all("# type: ignore[" in line and "# pyright: ignore[" in line for line in wrong)
