"""Which runs cost no more than an item's: those that its pair dominates, for every epsilon and both directions.

* Gaussian noise of a Poisson sample: more noise is the same and further noise. A smaller rate: with q' = a q the
  mixture (1 - q') N_0 + q' N_1 is (1 - a) N_0 + a ((1 - q) N_0 + q N_1), and hockey-stick divergences are jointly
  convex, so that of the pair (and of the two mixtures, for replacement) is at most that at q. No sampling is rate 1.
* Laplace noise: that of scale b' > b is Laplace noise of scale b plus independent noise, for the quotient of the
  characteristic functions, (1 + b^2 t^2)/(1 + b'^2 t^2) = b^2/b'^2 + (1 - b^2/b'^2)/(1 + b'^2 t^2), is that of a
  mixture of 0 and of Laplace noise of scale b'. Rates as above.
* Any other mechanism: itself.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, Bool

from jaxacct.mechanisms import Gaussian, Laplace, Mechanism, PoissonSubsampledGaussian, PoissonSubsampledLaplace
from jaxacct.precision import exact_float64, in_float64, is_concrete


class _Noise(NamedTuple):
    """A mechanism of additive noise on a Poisson sample."""

    kind: type[Mechanism]
    scale: ArrayLike
    rate: ArrayLike


def dominates(item: Mechanism, other: Mechanism) -> Bool[ArrayLike, ""]:
    """Returns whether a run of ``other`` is known to be dominated by one of ``item``, which is concrete.

    ``other`` may be traced; NaN and what is out of range is dominated by nothing. It is decided in float64, by
    ``item`` as :func:`costlier` gives it.

    >>> dominates(Gaussian(1.3), PoissonSubsampledGaussian(np.float32(1.3), 0.5))
    True
    """
    item = costlier(item)
    mine, theirs = _noise_of(item), _noise_of(other)
    if mine is None or theirs is None:
        # JAX's == overlooks the class of a registered dataclass, its hash does not: a set asks for both.
        if type(item) is not type(other) or len({jax.tree.structure(item), jax.tree.structure(other)}) > 1:
            return False
        pairs = list(zip(jax.tree.leaves(item), jax.tree.leaves(other), strict=True))
        if any(np.shape(mine) != np.shape(theirs) for mine, theirs in pairs):
            return False
        return _all(pairs, pairs)  # at least and at most
    if mine.kind is not theirs.kind:
        return False
    return _all([(theirs.scale, mine.scale), (mine.rate, theirs.rate), (theirs.rate, 0.0)], [])


def costlier(mechanism: Mechanism) -> Mechanism:
    """Returns the mechanism with float32 parameters that dominates a concrete one and is nearest to it.

    What a loop computes in float32 is then dominated by the item that it was meant to be.
    """
    noise = _noise_of(mechanism)
    if noise is None:
        return mechanism
    scale, rate = _float32(noise.scale, up=False), _float32(noise.rate, up=True)
    name = "scale" if noise.kind is Laplace else "noise_multiplier"
    changed = {name: scale} if isinstance(mechanism, noise.kind) else {name: scale, "sampling_rate": rate}
    same: Any = mechanism
    return dataclasses.replace(same, **changed)


def _noise_of(mechanism: Mechanism) -> _Noise | None:
    match mechanism:
        case Gaussian():
            return _Noise(Gaussian, mechanism.noise_multiplier, 1.0)
        case PoissonSubsampledGaussian():
            return _Noise(Gaussian, mechanism.noise_multiplier, mechanism.sampling_rate)
        case Laplace():
            return _Noise(Laplace, mechanism.scale, 1.0)
        case PoissonSubsampledLaplace():
            return _Noise(Laplace, mechanism.scale, mechanism.sampling_rate)
    return None


def _float32(value: ArrayLike, *, up: bool) -> float:
    exact = float(np.asarray(value))
    with np.errstate(over="ignore"):
        near = np.float32(exact)
    if float(near) < exact if up else float(near) > exact:  # a finite number that float32 takes for infinite, too
        near = np.nextafter(near, np.float32(np.inf if up else -np.inf))
    return float(near)


def _all(at_least: list[tuple[Any, Any]], at_most: list[tuple[Any, Any]]) -> Bool[ArrayLike, ""]:
    if is_concrete(at_least):
        rises = [np.asarray(a, np.float64) >= np.asarray(b, np.float64) for a, b in at_least]
        falls = [np.asarray(a, np.float64) <= np.asarray(b, np.float64) for a, b in at_most]
        return bool(all(map(np.all, rises + falls)))
    return _all_traced(at_least, at_most)


@in_float64
def _all_traced(at_least: list[tuple[Any, Any]], at_most: list[tuple[Any, Any]]) -> Bool[ArrayLike, ""]:
    rises = [jnp.all(exact_float64(a) >= exact_float64(b)) for a, b in at_least]
    return jnp.all(jnp.stack(rises + [jnp.all(exact_float64(a) <= exact_float64(b)) for a, b in at_most]))
