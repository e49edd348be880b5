"""Each mechanism's dominating pairs, written down from the theorems, apart from what the accountants use.

Of :mod:`jaxacct.mechanisms` only the classes and their fields are read; a float means the number that it is, exactly. A
statement returns for each direction of a relation the law of Y = log P/Q under P. Where P and Q are mixtures of the
noise around some places, :mod:`.mixtures` splits the line where the noise has kinks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import jax
import numpy as np
from flint import arb

from jaxacct import mechanisms as m
from jaxacct.verify import two_batches
from jaxacct.verify.losses import Loss, ball
from jaxacct.verify.mixtures import Weights, joined, mixtures, noise, nothing
from jaxacct.verify.mixtures import noise as mixture_of_noise


class Unstated(Exception):
    """No statement can be evaluated; says why."""


def everything() -> Loss:
    """The loss of a mechanism that releases all."""
    return Loss(("everything",), infinite=arb(1))


def stated(mechanism: Any, relation: m.Relation) -> list[Loss]:
    """Returns one law for each direction of ``relation``, or one alone that serves for all."""
    for kind, statement in STATEMENTS.items():
        if type(mechanism) is kind and (kind, relation) != (m.RandomizedResponse, "zero_out"):
            directions = directions_of(mechanism, relation)
            fields = {f.name: getattr(mechanism, f.name) for f in dataclasses.fields(kind)}
            laws = {direction: statement(direction, **fields) for direction in directions}
            return list({law.key: law for law in laws.values()}.values())
    raise Unstated(f"the referee has no statement of the pair of {type(mechanism).__name__}")


def states_less(mechanism: Any) -> bool:
    """Returns whether something is stated here by its own law, which the accountants' pair is above.

    Of such a one their upper bound is to be judged; their lower bound is one on their pair, and not on the mechanism.
    """
    parts = mechanism if isinstance(mechanism, (tuple, list)) else (mechanism,)
    return any(isinstance(part, m.RandomAllocation) for part in parts)


def directions_of(mechanism: Any, relation: m.Relation) -> tuple[str, ...]:
    """Returns the directions that a relation asks for; the order of a user's own pair (p, q) is "remove"."""
    if relation not in mechanism.relations:
        known = ", ".join(mechanism.relations)
        raise ValueError(
            f"relation = {relation!r} is not supported by {type(mechanism).__name__}: give one of {known}."
        )
    own = isinstance(mechanism, m.DiscretePair) and relation == "replace"
    return m.DIRECTIONS["add_or_remove" if own else relation]


def composition(mechanism: Any, steps: Any, relation: m.Relation) -> list[list[tuple[Loss, int]]]:
    """Returns, for each direction, the laws and how often each is run; equal ones together, what is void left out."""
    runs = [(stated(one, relation), count) for one, count in _runs(mechanism, steps) if count]
    found = []
    for i in range(max((len(laws) for laws, _ in runs), default=1)):
        together: dict[tuple, tuple[Loss, int]] = {}
        for laws, count in runs:
            law = laws[min(i, len(laws) - 1)]
            if law.key != ("nothing",):
                together[law.key] = law, count + together.get(law.key, (law, 0))[1]
        found.append(list(together.values()))
        if any(law.alone is not None for law, _ in found[-1]) and sum(count for _, count in found[-1]) > 1:
            raise Unstated("random allocation over two batches has a statement of one epoch, alone")
    return found


def _runs(mechanism: Any, steps: Any) -> list[tuple[Any, int]]:
    """Returns the mechanisms one by one, with scalar fields."""
    if isinstance(mechanism, (tuple, list)):
        if not isinstance(steps, (tuple, list)) or len(steps) != len(mechanism):
            raise ValueError(f"steps = {steps} do not match {len(mechanism)} mechanisms: give one number for each.")
        return [run for part, count in zip(mechanism, steps, strict=True) for run in _runs(part, count)]
    mechanism.validate()
    if mechanism.composed:
        return [run for part, count in mechanism.apart(steps) for run in _runs(part, count)]
    shape = mechanism.batch_shape
    if len(shape) > 1 or np.shape(steps) not in ((), shape):
        raise ValueError(f"steps of shape {np.shape(steps)} do not match a mechanism of shape {shape}.")
    if not shape:
        return [(mechanism, whole(steps))]
    own = {name: 1 for name in ("p", "q", "sensitivities", "probabilities")}

    def entry(i: int) -> Any:
        leaves = {f.name: getattr(mechanism, f.name) for f in dataclasses.fields(mechanism)}
        chosen = {
            name: np.asarray(leaf)[i] if np.ndim(leaf) > own.get(name, 0) else leaf
            for name, leaf in leaves.items()
            if not callable(leaf)
        }
        return dataclasses.replace(mechanism, **chosen)

    counts = np.broadcast_to(np.asarray(steps, dtype=object), shape)
    return [(entry(i), whole(counts[i])) for i in range(shape[0])]


def whole(steps: Any) -> int:
    """Returns a number of runs as an integer; raises where it is none."""
    count = exact(steps, "steps")
    if isinstance(count, float) or count < 0 or count.denominator != 1:
        raise ValueError(f"steps = {steps} is not a number of steps: give a whole number, at least 0.")
    return int(count)


def exact(value: Any, name: str) -> Fraction | float:
    """Returns a number as it is, whole ones of any size too; infinity and NaN as floats. Raises where it is none."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} = {value} is traced: a verdict is about numbers.")
    if isinstance(value, Fraction):
        return value
    found = value if isinstance(value, int) else np.asarray(value)
    if isinstance(value, bool) or (not isinstance(found, int) and (found.dtype.kind not in "iuf" or found.ndim)):
        raise TypeError(f"{name} = {value!r} of type {type(value).__name__}: give a number.")
    if isinstance(found, int) or found.dtype.kind in "iu":
        return Fraction(int(found))
    number = float(found)
    return Fraction(number) if math.isfinite(number) else number


def real(value: Any) -> arb:
    """Returns the number that a field is."""
    number = exact(value, "a field")
    return arb(number) if isinstance(number, float) else arb(number.numerator) / number.denominator


def rational(value: Any) -> Fraction:
    """The same, as a fraction."""
    return Fraction(exact(value, "a field"))


def normal(scale: arb, shift: int) -> Loss:
    """N(shift, s^2) against N(0, s^2): the loss is normal, of variance mu^2 = shift^2/s^2 and mean mu^2/2."""
    if float(scale) == np.inf:
        return nothing()
    return everything() if scale == 0 else Loss(("normal", float(scale), shift), normal=(shift / scale) ** 2)


def gaussian(direction: str, noise_multiplier: Any) -> Loss:
    """The half-line is optimal for a shift: Balle and Wang (2018). Replacing moves the query by 2."""
    return normal(real(noise_multiplier), 2 if direction == "replace" else 1)


def sides(direction: str, mixed: Weights) -> tuple[Weights, Weights]:
    """Returns P and Q, as weights and places of noise B around 0, where what is sampled adds up to some places.

    Zhu, Dong and Wang (2022), Theorem 11; Choquette-Choo et al. (2024): the mixture against B, its reverse, and for
    replacing two mixtures. Those of Q lie on the other side of 0, so that the loss rises.
    """
    base, mirrored = [(arb(1), arb(0))], [(weight, -place) for weight, place in mixed]
    return {"remove": (mixed, base), "add": (base, mirrored), "replace": (mixed, mirrored)}[direction]


def sampled(rate: arb) -> Weights:
    """Returns where the noise is if an example is sampled at some rate."""
    return [(1 - rate, arb(0)), (rate, arb(1))]


def subsampled(kind: str, direction: str, scale: arb, rate: arb) -> Loss:
    """A Poisson sample and noise of some kind."""
    if rate == 0:
        return nothing()
    if kind == "gaussian" and rate == 1:
        return normal(scale, 2 if direction == "replace" else 1)
    return noise(kind, (kind, float(scale), float(rate), direction), scale, *sides(direction, sampled(rate)))


def subsampled_gaussian(direction: str, noise_multiplier: Any, sampling_rate: Any) -> Loss:
    """Poisson samples and Gaussian noise."""
    return subsampled("gaussian", direction, real(noise_multiplier), real(sampling_rate))


def subsampled_laplace(direction: str, scale: Any, sampling_rate: Any) -> Loss:
    """Poisson samples and Laplace noise."""
    return subsampled("laplace", direction, real(scale), real(sampling_rate))


def subsampled_group(direction: str, scale: Any, sampling_rate: Any, size: int, noise: str) -> Loss:
    """A Poisson sample, of a group that moves the sum by as many units as it has examples there: a binomial number."""
    s, q = real(scale), real(sampling_rate)
    if q == 0:
        return nothing()
    if noise == "gaussian" and q == 1:
        return normal(s, size * (2 if direction == "replace" else 1))
    chances = [(k, math.comb(size, k) * q**k * (1 - q) ** (size - k)) for k in range(size + 1)]
    mixed = [(chance, arb(k)) for k, chance in chances if chance != 0]
    key = ("group", noise, float(s), float(q), size, direction)
    return mixture_of_noise(noise, key, s, *sides(direction, mixed))


def gaussian_mixture(direction: str, noise_multiplier: Any, sensitivities: Any, probabilities: Any) -> Loss:
    """Noise around places of some probabilities, taken as shares."""
    places = np.asarray(sensitivities, np.float64).tolist()
    weights = np.asarray(probabilities, np.float64).tolist()
    together: dict[float, arb] = {}
    for place, weight in zip(places, weights, strict=True):
        together[place] = together.get(place, arb(0)) + arb(weight)
    whole = sum(together.values(), arb(0))
    mixed = [(w / whole, arb(place)) for place, w in sorted(together.items()) if w != 0]
    key = ("mixture", float(real(noise_multiplier)), tuple(places), tuple(weights), direction)
    if all(place == 0 for _, place in mixed):
        return nothing()
    return noise("gaussian", key, real(noise_multiplier), *sides(direction, mixed))


def truncated(
    direction: str,
    noise_multiplier: Any,
    sampling_rate: Any,
    overflow_probability: Any,
    least_overflow_probability: Any,
    overflow_rate: Any,
    overflow_slack: Any,
) -> Loss:
    """Theorem of :class:`jaxacct.TruncatedPoissonGaussian`: which of three sampled Gaussians is run, is known.

    Half the noise at the rate r with probability v, half the noise at the rate q with min(e, w - v), else all of it.
    """
    s, q, most = real(noise_multiplier), real(sampling_rate), real(overflow_probability)
    least, r = real(least_overflow_probability), real(overflow_rate)
    if float(s) == np.inf or q == 0:
        return nothing()
    slack = real(overflow_slack).min(most - least)
    parts: dict[tuple[float, float], tuple[arb, arb, arb]] = {}
    for weight, scale, rate in ((least, s / 2, r), (slack, s / 2, q), (1 - least - slack, s, q)):
        if weight != 0:
            place = float(scale), float(rate)
            parts[place] = weight + (parts[place][0] if place in parts else 0), scale, rate
    laws = [
        noise("gaussian", (), scale, *sides(direction, sampled(rate)), weight) for weight, scale, rate in parts.values()
    ]
    fields = (s, q, most, least, r, slack)
    return joined(("truncated", *(float(field) for field in fields), direction), *laws)


def without_replacement(kind: str, scale: arb, rate: arb) -> Loss:
    """Zhu, Dong and Wang (2022), Theorem 11, for replacing: the noise B around 0, A around 2, M = (1-q) B + q A.

    Above 0 the law is that of log M/B under M where x > 1, below 0 that of -log M/B under B there (reflect x -> 2 - x),
    and what remains, 1 - M(x > 1) - B(x > 1), is an atom at 0.
    """
    if float(scale) == np.inf or rate == 0:
        return nothing()
    zero, one, two = arb(0), arb(1), arb(2)
    if scale == 0:
        return Loss(("bare", float(rate)), infinite=rate, atoms=((1 - rate, zero),)) if rate < 1 else everything()
    mixed, base = [(1 - rate, zero), (rate, two)], [(one, zero)]
    above, below = mixtures(kind, scale, mixed, base, one, one), mixtures(kind, scale, base, mixed, one, one)
    within = 1 - (-1 / scale).exp() if kind == "laplace" else (1 / (scale * two.sqrt())).erf()
    atom = [((1 - rate) * within, zero)] if rate < 1 else []
    return joined(("without", kind, float(scale), float(rate)), above, below, atoms=atom)


def gaussian_without_replacement(direction: str, noise_multiplier: Any, sampling_rate: Any) -> Loss:
    """Batches of fixed size and Gaussian noise."""
    return without_replacement("gaussian", real(noise_multiplier), real(sampling_rate))


def laplace_without_replacement(direction: str, scale: Any, sampling_rate: Any) -> Loss:
    """Batches of fixed size and Laplace noise."""
    return without_replacement("laplace", real(scale), real(sampling_rate))


def laplace(direction: str, scale: Any) -> Loss:
    """Noise around the shift D against noise around 0; the loss lies within a = D/scale."""
    s, shift = real(scale), arb(2 if direction == "replace" else 1)
    law = noise("laplace", ("laplace", float(s), float(shift)), s, [(arb(1), shift)], [(arb(1), arb(0))])
    return dataclasses.replace(law, laplace=shift / s) if law.pieces else law


def discrete_laplace(direction: str, scale: Any, sensitivity: int) -> Loss:
    """Mass (1-a)/(1+a) a^|n|, a = e^(-1/scale), moved by D: losses (2n - D)/scale for n from 0 to D, the ends with all
    that lies beyond them.
    """
    if float(np.asarray(scale)) == np.inf:
        return nothing()
    s, width = rational(scale), int(sensitivity)
    a = (-1 / ball(s)).exp()
    atoms = []
    for n in range(width + 1):
        share = 1 / (1 + a) if n in (0, width) else (1 - a) / (1 + a)
        atoms.append((share * a ** (width - n), ball((2 * n - width) / s)))
    return Loss(("discrete laplace", s, width), atoms=tuple(atoms), lattice=(-width / s, 2 / s))


def discrete_gaussian(direction: str, scale: Any, sensitivity: int, reach: int) -> Loss:
    """Mass proportional to e^(-n^2/(2 s^2)), moved by D: loss D (2n - D)/(2 s^2).

    Atoms further than R from P's centre are left out: sum over |n| > R of e^(-n^2/(2 s^2)) <= 2 e^(-(R+1)^2/(2 s^2)) /
    (1 - e^(-(R+1)/s^2)), over a sum that is at least 1.
    """
    if float(np.asarray(scale)) == np.inf:
        return nothing()
    s, width = rational(scale), int(sensitivity)
    kappa = ball(1 / s**2)
    limit = int(42 * max(float(s), 0.05)) + 2
    half = [(-kappa * n * n / 2).exp() for n in range(limit + 1)]
    beyond = 2 * (-kappa * (limit + 1) ** 2 / 2).exp() / (1 - (-kappa * (limit + 1)).exp())
    whole = half[0] + 2 * sum(half[1:], arb(0)) + arb(0).union(beyond)
    step = width / s**2
    atoms = [
        (half[abs(n - width)] / whole, ball(step * (2 * n - width) / 2))
        for n in range(width - limit, width + limit + 1)
    ]
    key = ("discrete gaussian", s, width)
    return Loss(key, atoms=tuple(atoms), lattice=(-step * width / 2, step), lost=beyond)


def pure(direction: str, epsilon: Any) -> Loss:
    """Kairouz, Oh and Viswanath (2015): binary randomized response dominates."""
    return approximate(direction, epsilon, 0.0)


def approximate(direction: str, epsilon: Any, delta: Any) -> Loss:
    """The same, and everything is said with probability delta."""
    d = real(delta)
    if float(np.asarray(epsilon)) == np.inf or d == 1:
        return everything()
    e = rational(epsilon)
    if e == 0:
        atoms, lattice = [(1 - d, arb(0))], (Fraction(0), Fraction(0))
        return nothing() if d == 0 else Loss(("failure", float(d)), infinite=d, atoms=tuple(atoms), lattice=lattice)
    high = 1 / (1 + (-ball(e)).exp())
    atoms = [((1 - d) * high, ball(e)), ((1 - d) * high * (-ball(e)).exp(), -ball(e))]
    return Loss(("binary", e, float(d)), infinite=d, atoms=tuple(atoms), lattice=(-e, 2 * e))


def randomized_response(direction: str, epsilon: Any, outcomes: int) -> Loss:
    """Kairouz, Bonawitz and Ramage (2016), equation (2), for two true values."""
    if outcomes == 2 or float(np.asarray(epsilon)) in (0.0, np.inf):
        return pure(direction, epsilon)
    e = rational(epsilon)
    ratio = (-ball(e)).exp()
    likely = 1 / (1 + (outcomes - 1) * ratio)
    atoms = [(likely, ball(e)), ((outcomes - 2) * ratio * likely, arb(0)), (ratio * likely, -ball(e))]
    return Loss(("response", e, outcomes), atoms=tuple(atoms), lattice=(-e, e))


def discrete_pair(direction: str, p: Any, q: Any) -> Loss:
    """The outcomes as given; those of one likelihood ratio p/q, compared exactly, together."""
    p, q = (np.asarray(side, np.float64).tolist() for side in (p, q))
    if direction == "add":
        p, q = q, p
    infinite = sum((Fraction(a) for a, b in zip(p, q, strict=True) if b == 0), Fraction(0))
    masses: dict[Fraction, Fraction] = {}
    for a, b in zip(p, q, strict=True):
        if a > 0 and b > 0:
            ratio = Fraction(a) / Fraction(b)
            masses[ratio] = masses.get(ratio, Fraction(0)) + Fraction(a)
    if not infinite and set(masses) == {1} and sum(masses.values()) == 1:
        return nothing()
    atoms = tuple((ball(mass), ball(ratio).log()) for ratio, mass in sorted(masses.items()))
    return Loss(("pair", tuple(sorted(masses.items())), infinite), infinite=ball(infinite), atoms=atoms)


def random_allocation(direction: str, noise_multiplier: Any, batches: Any, points: int, participations: int) -> Loss:
    """One batch is the Gaussian mechanism; with more the likelihood ratio is a mean of log-normal variables.

    Of two batches one epoch is an integral (:mod:`.two_batches`). Noise without end says nothing, none says all.
    """
    if float(np.asarray(batches)) == 1 or float(np.asarray(noise_multiplier)) == np.inf:
        return gaussian(direction, noise_multiplier)
    noise = exact(noise_multiplier, "noise_multiplier")
    if float(np.asarray(batches)) == 2 and participations == 1 and not isinstance(noise, float):
        if noise == 0:
            return everything()
        s = ball(noise)
        return Loss(("two batches", direction, noise), alone=lambda epsilon: two_batches.delta(direction, s, epsilon))
    raise Unstated(
        "the likelihood ratio of random allocation, a mean of log-normal variables, has no density in closed form: one "
        "epoch of one or two batches has a statement"
    )


def unknown_functions(direction: str, **_: Any) -> Loss:
    """A user's distribution functions return floats, of which nothing is proved."""
    raise Unstated("the distribution functions of PrivacyLoss return floats, which prove nothing in ball arithmetic")


STATEMENTS: dict[Any, Callable[..., Loss]] = {
    m.Gaussian: gaussian,
    m.PoissonSubsampledGaussian: subsampled_gaussian,
    m.PoissonSubsampledGroup: subsampled_group,
    m.GaussianMixture: gaussian_mixture,
    m.TruncatedPoissonGaussian: truncated,
    m.GaussianWithoutReplacement: gaussian_without_replacement,
    m.LaplaceWithoutReplacement: laplace_without_replacement,
    m.Laplace: laplace,
    m.PoissonSubsampledLaplace: subsampled_laplace,
    m.DiscreteLaplace: discrete_laplace,
    m.DiscreteGaussian: discrete_gaussian,
    m.PureDP: pure,
    m.ApproximateDP: approximate,
    m.RandomizedResponse: randomized_response,
    m.DiscretePair: discrete_pair,
    m.RandomAllocation: random_allocation,
    m.PrivacyLoss: unknown_functions,
}
