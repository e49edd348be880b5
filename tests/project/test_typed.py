"""The typed programs of tests/typed run, too; ``.ci/run`` has two type checkers read them."""

import inspect
import pathlib

import pytest

import jaxacct as ja
from jaxacct import filters, mechanisms
from tests.typed import right_uses


@pytest.mark.exhaustive
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


def test_a_mechanism_derives_from_the_base_and_states_its_pair():
    class Unfinished(ja.Mechanism):
        relations = ("add_or_remove",)

    with pytest.raises(TypeError, match="dominating_pairs"):
        Unfinished()

    class Alike:
        relations, batch_shape = ("add_or_remove",), ()
        validate = releases_nothing = dominating_pairs = lambda self, *_: ()

    with pytest.raises(TypeError, match=r"derives from jaxacct\.Mechanism"):
        ja.epsilon(Alike(), steps=1, delta=1e-5)
    for name in mechanisms.__all__:
        kind = getattr(mechanisms, name)
        assert not inspect.isclass(kind) or issubclass(kind, (ja.Mechanism, ja.DominatingPair, ja.CellMasses))
