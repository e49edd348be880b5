"""Batches of NumPy's float64 without float64: nothing is differentiated, so no digit is lost before accounting."""

import jax
import numpy as np
import pytest

import jaxacct as ja
from jaxacct import convert, iteration

VERBS = {
    "rdp.epsilon": lambda s: ja.rdp.epsilon(ja.Gaussian(s), 10, 1e-5),
    "zcdp_to_epsilon": lambda rho: convert.zcdp_to_epsilon(rho, 1e-5),
    "amplified_mu": lambda s: iteration.amplified_mu([1.0, 1.0], s),
}


@pytest.mark.parametrize("name", VERBS)
def test_a_batch_keeps_the_digits_of_its_numbers(name):
    """Two numbers that float32 takes for one; noise that is rounded up would cost too little."""
    verb, values = VERBS[name], np.array([2.0000000001, 2.0])
    with jax.enable_x64(False):
        batch, nested = np.asarray(jax.vmap(verb)(values)), np.asarray(jax.vmap(jax.vmap(verb))(values[None]))
        whole = np.asarray(jax.vmap(verb)(np.array([2, 3])))
    np.testing.assert_allclose(batch, [float(verb(value)) for value in values], rtol=1e-13)
    np.testing.assert_array_equal(nested[0], batch)
    assert batch[0] != batch[1] == whole[0]
