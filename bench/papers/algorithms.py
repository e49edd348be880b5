r"""NoisySGD and NoisyAdam (Bu, Dong, Long and Su, 2020), as Optax transformations of the noisy mean gradient.

Both algorithms take a Poisson sample I_t, clip each example's gradient to norm R, and form

    v_t = (sum of clipped gradients + sigma R N(0, I)) / |I_t|.

Algorithm 1, NoisySGD:   theta <- theta - eta_t v_t.
Algorithm 2, NoisyAdam:  m <- b1 m + (1 - b1) v_t,  u <- b2 u + (1 - b2) v_t * v_t,
                         theta <- theta - eta_t m / (sqrt(u) + xi).

The trainer forms v_t, and what is here comes after it: post-processing, which costs no privacy. Both have the guarantee
of T steps of the Poisson subsampled Gaussian mechanism.

One departure. The text divides by the realized size |I_t|; the trainer divides by its mean, the public number p n.
The realized size is private: where one example is added, |I_t| changes too, so that the noisy sum over |I_t| is no
longer the Gaussian mechanism of the paper's analysis, and for an empty sample it is undefined. For p = 1 both are the
same.

In Algorithm 2 the noisy gradient enters both moments, u included, and they are not corrected for their start at zero:
for b1 = 0.9, b2 = 0.999 the first steps are up to 3.2 eta long, and up to 6.6 eta after some ten steps of one sign.
Kingma and Ba's Adam divides them by 1 - b^t; that is ``bias_correction=True``, which Optax calls ``adam``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from jaxacct import validation

FIRST_MOMENT, SECOND_MOMENT, XI = 0.9, 0.999, 1e-8
"""Kingma and Ba's values; Bu et al. leave (beta_1, beta_2) and xi open."""


def noisy_sgd(learning_rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
    """Returns the update of Bu et al.'s Algorithm 1: the noisy mean gradient times ``-learning_rate``.

    Args:
        learning_rate: a number above 0, or an Optax schedule of the step's number from 0: eta_t.

    Raises ValueError for a number that is not above 0.

    Source: Bu et al. (2020), "Deep learning with Gaussian differential privacy", Algorithm 1.

    >>> optimizer = noisy_sgd(0.5)
    >>> update, _ = optimizer.update(jnp.array([2.0]), optimizer.init(jnp.zeros(1)))
    >>> update.tolist()
    [-1.0]
    """
    return optax.sgd(_checked(learning_rate))


def noisy_adam(
    learning_rate: optax.ScalarOrSchedule,
    b1: float = FIRST_MOMENT,
    b2: float = SECOND_MOMENT,
    xi: float = XI,
    *,
    bias_correction: bool = False,
) -> optax.GradientTransformation:
    """Returns the update of Bu et al.'s Algorithm 2, from moments that start at zero.

    Args:
        learning_rate: a number above 0, or an Optax schedule of the step's number from 0: eta_t.
        b1: share of the old first moment that is kept, in [0, 1).
        b2: likewise of the second.
        xi: added to the root of the second moment, above 0.
        bias_correction: whether to divide the moments by ``1 - b**t``, which Algorithm 2 does not.

    Raises ValueError where an argument is out of range.

    Source: Bu et al. (2020), Algorithm 2; with ``bias_correction``, Kingma and Ba (2014), "Adam".

    >>> for correct in (False, True):
    ...     optimizer = noisy_adam(0.1, bias_correction=correct)
    ...     update, _ = optimizer.update(jnp.array([2.0]), optimizer.init(jnp.zeros(1)))
    ...     print(round(float(update[0]), 4))
    -0.3162
    -0.1
    """
    learning_rate = _checked(learning_rate)
    for name, value in (("b1", b1), ("b2", b2)):
        if not 0 <= value < 1:
            raise ValueError(f"{name} = {value} is not a share of the old moment to keep: give a number in [0, 1).")
    validation.check_positive(xi, "xi")
    moments = optax.scale_by_adam(b1, b2, eps=xi) if bias_correction else _scale_by_moments(b1, b2, xi)
    return optax.chain(moments, optax.scale_by_learning_rate(learning_rate))


class Moments(NamedTuple):
    """Running means of the noisy gradient and of its square, entry by entry; both start at zero."""

    first: PyTree
    second: PyTree


def _scale_by_moments(b1: float, b2: float, xi: float) -> optax.GradientTransformation:
    """Optax has Adam with bias correction only, and RMSprop without a first moment."""

    def init(params: PyTree) -> Moments:
        return Moments(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params))

    def update(gradient: PyTree, state: Moments, params: Any = None) -> tuple[PyTree, Moments]:
        del params
        first = jax.tree.map(lambda old, new: b1 * old + (1 - b1) * new, state.first, gradient)
        second = jax.tree.map(lambda old, new: b2 * old + (1 - b2) * new * new, state.second, gradient)
        return jax.tree.map(lambda m, u: m / (jnp.sqrt(u) + xi), first, second), Moments(first, second)

    return optax.GradientTransformation(init, update)


def _checked(learning_rate: float | Array | optax.Schedule) -> Any:
    if not callable(learning_rate):
        validation.check_positive(learning_rate, "learning_rate")
    return learning_rate
