"""The search for a line: what it guesses is not taken for more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxacct as ja
from jaxacct.composition import ForEpsilon, directed_parts
from jaxacct.mechanisms.pair import cumulant_above
from jaxacct.numerics.pytrees import without_axes
from jaxacct.saddlepoint import contour, solve
from jaxacct.saddlepoint.contour import largest_order, scan_nodes


def spoiled(function):
    """What is found roughly: its guesses as they are, and all that bounds rest on off by much more than digits."""

    def found(*args):
        aim = function(*args)
        return aim._replace(
            orders=10 * aim.orders,
            above=[row - 10.0 for row in aim.above],
            scans=jax.tree.map(lambda leaf: leaf + 1, aim.scans),
            largest=aim.largest / 2,
        )

    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("mechanism", [ja.Laplace(2.0), ja.PoissonSubsampledLaplace(1.5, 0.1)])
def test_bounds_rest_on_nothing_that_is_found_roughly(mechanism, monkeypatch):
    monkeypatch.setattr(contour, "roughly", spoiled)
    with jax.enable_x64(True):
        parts = without_axes(directed_parts(mechanism, 50.0, "add_or_remove")[0])
        scans, largest = scan_nodes(parts), largest_order(parts)
        wanted = solve._first(ForEpsilon(np.float64(1e-5)))
        aim = contour.find_saddle_point(parts, wanted, jnp.log(1e-5), jnp.asarray(True))
        assert aim.is_known
        assert aim.largest == largest
        assert np.all(aim.orders <= largest)
        jax.tree.map(np.testing.assert_array_equal, aim.scans, scans)
        np.testing.assert_allclose(aim.above[0], cumulant_above(scans[0], aim.orders), rtol=1e-14)
