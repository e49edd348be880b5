"""Functions in forms for pairs, which have few digits and spend work to keep them; written in ``jax.numpy``.

Each has the arguments of the function of the mathematics that it stands in for, and is traced as everything else is.
:func:`jaxacct.numerics.arithmetic.with_pair_form` names it there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import numpy as jnp
from jaxtyping import Array, Float

from jaxacct.numerics.arithmetic import arithmetic, roundoff

IN_PAIRS = 12.0
"""Units of roundoff by which characteristic functions err more than in float64: everything but the weights is right to
19 here (:mod:`jaxacct.numerics.float_pairs.tiles`), not to 8. Bounds rest on it: it must not be lowered."""


def ladder() -> np.ndarray:
    """Returns the multiples of the sought order that are tried."""
    # Multiples of the sought order at which a line of integration is tried. Where large losses are rare a lower line
    # loses more digits: the highest for which the nodes suffice is wanted, and a finer ladder meets it more closely.
    return np.array([0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.3, 1.7, 2.3])


def costs(lengths: Array, penalty: Array, most: float) -> Array:
    """Returns the costs of lines (n,): the digits that they lose, or inf for more than `longer` times the shortest.

    ``penalty`` is in nats; the shortest line is one of those whose penalty is below ``most``.
    """
    # Factor by which a line that loses fewer digits may be longer than the shortest.
    longer = 4.0
    shortest = jnp.min(jnp.where(penalty < most, lengths, jnp.inf))
    return jnp.where(lengths <= longer * shortest, penalty, jnp.inf)


def rounding_of_moments(terms: Any, nodes: Any, t: Array, slope: Array, near: Array, log_units: float) -> Any:
    """Returns bounds on the rounding of a cumulant and its slope, inf where they are taken directly.

    A moment is a sum of terms of one sign, each a mass times phi(x), or times Y (e^x - 1), x being t Y or -Y: they err
    relatively by x's error, times at most |x| + 2. With logs, orders times losses and losses off by ``log_units`` of
    themselves a term is off by that many times |log p| + |t Y| + |Y| + 3, and by 64 of its own: e^x by four units,
    which e^x - 1 - x makes 45 from x = 1/2 on, and the error of the nodes' places.

    Args:
        terms: those of the value, and of the slope, (J,) each.
        nodes: the law's :class:`jaxacct.mechanisms.pair.Nodes`.
        t (): the order.
        slope (): as computed.
        near (): whether the moment is near 1, and a sum of such terms.
        log_units: units of roundoff.
    """
    of_value, of_slope = terms
    y, log_p, missing, infinite = nodes.losses, nodes.log_p, nodes.missing, nodes.infinite

    def error(terms: Array, atoms: Array) -> Array:
        """Returns the error of a sum, over a moment that is above 0.77."""
        sizes = 3 + jnp.abs(log_p) + jnp.abs(t * y) + jnp.abs(y)
        units = arithmetic().of_sum(y.shape[0]) + 64 + log_units * sizes
        off = jnp.sum(jnp.where(terms > 0, units * terms, 0.0)) + 8 * atoms
        return jnp.where(near, 1.3 * roundoff() * off, jnp.inf)

    value_error = error(of_value, (t + 1) * (missing + infinite))
    return value_error, error(of_slope, missing + infinite) + 1.3 * jnp.abs(slope) * value_error


def spreads(weights: Array, sizes: Array, deviations: Array, angles: Array) -> Float[Array, " 3"]:
    """Returns the spread of a law's nodes (n,), its square, and the mean of the angles."""
    spread = weights * sizes
    return jnp.stack([jnp.sum(spread), jnp.sum(spread * jnp.abs(deviations)), jnp.sum(weights * angles)])


def with_doubt(spread: Array, law: Any, order: Array, scan: Any, window: Any, pieces: Array, known: Any) -> Array:
    """Returns spreads with a bound on the error of the mean as a fourth.

    ``known`` are the moments at that order, and a bound on the rounding of their slope.
    """
    moments, slope_error = known
    apart = jnp.maximum(law.step(window, pieces), scan.places[1] - scan.places[0])
    doubt = slope_error + 2 * law.slope_error(order, scan, moments.value, apart)
    # Each piece after the first is added to the sums, and to the mean.
    added = 2 * roundoff() * (pieces - 1) * spread[0]
    return jnp.append(spread, doubt + added)


def imaginary_and_error(y: Array, w: Array, spacing: Array, spread: Array, units: float) -> tuple[Array, Array]:
    """Returns imaginary parts (n,) of E_t[e^(iwX) - 1], and the errors of these sums, as complex numbers.

    The linear part, which is the mean's error, is taken out where that makes the error smaller.
    """
    # Units of roundoff by which the same errs where its linear part is taken out: 19, and 5 for that part and the
    # difference. Bounds rest on it: it must not be lowered. With exact weights w and the loss X less its mean,
    # E_t[e^(iwX) - 1] = sum of w g(wX), g(a) = e^(ia) - 1 - ia, of modulus at most a^2/2 and 2|a|, and of slope at most
    # |a| and 2. Weights that err by 130 units, and angles that err by two of themselves and six of the loss's, move
    # this sum by 150 of min(a^2/2, 2|a|), a tenth of the loss counted in: in the second order. The linear part iw X, as
    # the computed weights give it, is subtracted as it is; its true value is w times the error of the mean, a sum of
    # terms of one sign. Otherwise the errors of weights would count as a shift of the mean of all steps, by a share of
    # the steps' spreads.
    of_centred = 24.0
    # Whichever of the two forms has the smaller error counts, frequency by frequency.
    u = roundoff()
    spread, square, mean, doubt = spread
    off = (units + IN_PAIRS) * u * w * spread
    centred = w * (u * (of_centred * spread + units * jnp.minimum(2 * spread, w * square / 2)) + doubt)
    return jnp.where(centred < off, y - w / spacing * mean, y), jnp.fmin(off, centred)
