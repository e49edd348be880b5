"""The best of a random number of runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxacct.arithmetic import roundoff
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.mechanisms.renyi_only import Curves, OfOthers
from jaxacct.precision import as_float64
from jaxacct.pytrees import register_dataclass
from jaxacct.selection.laws import Binomial, Poisson, Trials, TruncatedNegativeBinomial

GRID = np.array([*np.round(np.arange(1.1, 11.0, 0.1), 1), *np.round(np.geomspace(11, 1024, 64))])
"""Orders among which the second one of the theorem, and those above an order that is asked for, are looked for."""

HALVINGS = 100


@register_dataclass
@dataclass(frozen=True)
class RepeatAndSelect(OfOthers):
    """A composition that is run K times, K at random, of whose K results the best alone is released: a search.

    What "best" means is any order on the results that does not look at the data again; how many runs there were is not
    told. :func:`jaxacct.epsilon`, :func:`jaxacct.delta` and :func:`jaxacct.curve`, outside of a trace, know it by the
    privacy profile of one run, certified: alone with a lower bound, and composed with others by the pair that has
    this profile (:mod:`jaxacct.selection.profile`). In a trace it is known by its Rényi curve alone.

    Attributes:
        mechanism: what one run is composed of: a mechanism, or a tuple of them. A run may draw a setting first and
            release it, too, as long as this dominates it for every setting.
        steps: how often each of them runs in it.
        trials: the law of K, of :mod:`jaxacct.selection`. With :class:`~.selection.Poisson` and
            :class:`~.selection.Binomial` there may be no run, which is released as such.

    Relations: "add_or_remove" (default), "replace", "zero_out": those under which what is within is known. Not one way
    alone: what bounds either direction uses the reverse one.

    Formal guarantee: an upper bound, for every order on the results; the least of two routes, each with rounding. The
    lower bound is that of the costliest of some orders on the results of the pair that dominates one run, under
    "add_or_remove"; 0 under the others. By Rényi divergences: let D be a curve of one run, g the law's parameter and
    eta its shape. For any order b >= 1 that of order a is at most

        D_a + log(mean)/(a - 1) + (1 + eta) ((1 - 1/b) D_b + log(1/g)/b),

    and for Poisson's law D_a + log(mean)/(a - 1) + mean delta(log(1 + 1/(a - 1))). It rises with the order, so what
    holds at a higher one holds as well. 1/g rises with the mean, (1/g - 1) times eta/(1 - g^eta), and is found from
    above: with u = log(1/g) the mean is expm1(u)/u times x/(1 - e^-x) at x = eta u, which is at least e^(u/2). Of at
    most n runs all together cost no more than n D_a.

    Source: Papernot and Steinke (2022), "Hyperparameter tuning with Rényi differential privacy", Theorems 2 and 6;
    Koskela et al. (2024), "Privacy profiles for private selection".

    >>> from jaxacct import Gaussian, epsilon, rdp, selection
    >>> search = RepeatAndSelect(Gaussian(noise_multiplier=5.0), 1, selection.Geometric(mean=10.0))
    >>> print(f"{epsilon(search, 1, 1e-6):.2f} {rdp.epsilon(search, 1, 1e-6):.2f}")
    1.24 1.81
    """

    trials: Trials

    relations: ClassVar[tuple[Relation, ...]] = ("add_or_remove", "replace", "zero_out")

    def check_numbers(self) -> None:
        super().check_numbers()
        if not isinstance(self.trials, Trials):
            raise TypeError(
                f"trials = {self.trials!r} is no law: give one of jaxacct.selection, such as Geometric(10.0)."
            )
        if any(np.ndim(leaf) for leaf in jax.tree.leaves(self.trials)):
            raise ValueError(f"trials = {self.trials} has arrays, and is one law: give numbers, or jax.vmap over laws.")

    def divergence(self, orders: Float[Array, " n"], relation: Relation, curves: Curves) -> Float[Array, " n"]:
        law = self.trials
        if isinstance(law, Binomial):
            most, chance = as_float64(law.count), as_float64(law.probability)
            valid = (most >= 1) & (chance > 0) & (chance <= 1)
            return jnp.where(valid, most * curves.of(self.mechanism, self.steps, orders), jnp.nan)
        mean, grid = as_float64(law.mean), jnp.asarray(GRID)
        asked = jnp.concatenate([orders, grid])
        own, fixed = (curves.of(self.mechanism, self.steps, values) for values in (orders, GRID))
        if isinstance(law, Poisson):
            added = mean * curves.delta(fixed, grid, jnp.log1p(1 / (asked - 1)))
        else:
            assert isinstance(law, TruncatedNegativeBinomial)
            eta = as_float64(law.shape)
            mean = jnp.where(eta >= 0, mean, jnp.nan)
            added = (1 + eta) * jnp.min((1 - 1 / grid) * fixed + _log_inverse(mean, eta) / grid)
        bound = jnp.concatenate([own, fixed]) + jnp.log(mean) / (asked - 1) + added
        above = jnp.where(grid[None, :] >= orders[:, None], bound[None, orders.shape[0] :], jnp.inf)
        least = jnp.minimum(bound[: orders.shape[0]], jnp.min(above, axis=1))
        if not isinstance(law, Poisson):  # from 1 up, and 1 on average: it is 1
            least = jnp.where(mean == 1, own, least)
        return jnp.where((mean >= 1) & (mean < jnp.inf), least, jnp.nan)


def _log_inverse(mean: Array, eta: Array) -> Array:
    """Returns log(1/g), rounded up, of the truncated negative binomial law of a mean."""

    def enough(u: Array) -> Array:
        x = eta * u
        growth = jnp.where(u > 0, jnp.expm1(u) / jnp.where(u > 0, u, 1.0), 1.0)
        spread = jnp.where(x > 0, x / -jnp.expm1(-jnp.where(x > 0, x, 1.0)), 1.0)
        return growth * spread * (1 - 512 * roundoff()) >= mean

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = low + (high - low) / 2
        return jnp.where(enough(middle), low, middle), jnp.where(enough(middle), middle, high)

    most = 2 * jnp.log(mean) * (1 + 4096 * roundoff()) + 4096 * roundoff()
    return jax.lax.fori_loop(0, HALVINGS, halve, (jnp.zeros_like(most), most))[1]
