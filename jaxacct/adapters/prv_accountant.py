"""The classes of prv-accountant, which is no longer maintained, answered by this library's certified accountants.

Change ``from prv_accountant import ...`` to ``from jaxacct.adapters.prv_accountant import ...``; the names of its
modules are here, too. The package itself is not needed.

Every answer is (lower, estimate, upper) as there, from :func:`jaxacct.epsilon` and :func:`jaxacct.delta`: bounds that
count rounding, and hold for an example that is added or removed. Its own are those of adding one, to within
``eps_error`` and ``delta_error``; ours are narrower, so that these two, ``max_self_compositions`` and ``eps_max`` ask
for nothing but a check.

>>> prv = PoissonSubsampledGaussianMechanism(noise_multiplier=1.0, sampling_probability=0.01)
>>> accountant = PRVAccountant(prvs=prv, max_self_compositions=1000, eps_error=0.1, delta_error=1e-8)
>>> low, estimate, up = accountant.compute_epsilon(delta=1e-5, num_self_compositions=1000)
>>> bool(low <= estimate <= up) and f"{up:.3f}"
'1.828'
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np

from jaxacct import certified, validation
from jaxacct.bounds import Bounds
from jaxacct.calibrate import noise_multiplier as least_noise_multiplier
from jaxacct.mechanisms import ApproximateDP, Gaussian, Laplace, Mechanism, PoissonSubsampledGaussian, PureDP
from jaxacct.validation import MOST_STEPS

__all__ = [
    "Accountant",
    "ApproximateDPMechanism",
    "DPSGDAccountant",
    "GaussianMechanism",
    "LaplaceMechanism",
    "PRVAccountant",
    "PoissonSubsampledGaussianMechanism",
    "PrivacyRandomVariable",
    "PureDPMechanism",
    "find_noise_multiplier",
]

Triple: TypeAlias = tuple[float, float, float]
"""A lower bound, an estimate and an upper bound."""


class PrivacyRandomVariable:
    """The base of the mechanisms: each is a mechanism of this library.

    A subclass with a ``cdf`` of its own is refused: that is the law of a loss under one of the two distributions, with
    errors that nobody states. :class:`jaxacct.PrivacyLoss` takes both laws and their errors, and accountants take it.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism

    def _refuse(self, *_: Any) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__} has no law of its own here: accountants take what it stands for, {self.mechanism}; "
            "jaxacct.rdp.curve has its Rényi divergences."
        )

    mean = probability = pdf = cdf = rdp = _refuse


class PoissonSubsampledGaussianMechanism(PrivacyRandomVariable):
    """Gaussian noise on a Poisson sample: :class:`jaxacct.PoissonSubsampledGaussian`."""

    def __init__(self, sampling_probability: float, noise_multiplier: float) -> None:
        super().__init__(PoissonSubsampledGaussian(noise_multiplier, sampling_probability))


class GaussianMechanism(PrivacyRandomVariable):
    """Gaussian noise of ``noise_multiplier`` on a query of some sensitivity: :class:`jaxacct.Gaussian`."""

    def __init__(self, noise_multiplier: float, l2_sensitivity: float = 1.0) -> None:
        super().__init__(Gaussian(_quotient(noise_multiplier, l2_sensitivity, "l2_sensitivity")))


class LaplaceMechanism(PrivacyRandomVariable):
    """Laplace noise of scale 1 on a query that moves by ``mu``: :class:`jaxacct.Laplace` of scale 1/mu."""

    def __init__(self, mu: float) -> None:
        super().__init__(Laplace(_quotient(1.0, mu, "mu")))


class PureDPMechanism(PrivacyRandomVariable):
    """Any mechanism that is eps-DP: :class:`jaxacct.PureDP`."""

    def __init__(self, eps: float) -> None:
        super().__init__(PureDP(eps))


class ApproximateDPMechanism(PrivacyRandomVariable):
    """Any mechanism that is (epsilon, delta)-DP: :class:`jaxacct.ApproximateDP`."""

    def __init__(self, epsilon: float, delta: float) -> None:
        super().__init__(ApproximateDP(epsilon, delta))


def _quotient(noise: float, sensitivity: float, name: str) -> float:
    """Returns noise over a sensitivity, rounded down where it is not exact."""
    if not (np.isfinite(sensitivity) and sensitivity > 0):
        raise ValueError(f"{name} = {sensitivity} is no finite number above 0: give how far the query may move.")
    quotient = noise / sensitivity
    return quotient if sensitivity == 1 else float(np.nextafter(quotient, 0.0))


class PRVAccountant:
    """An accountant of several mechanisms, each run a number of times.

    Args:
        prvs: mechanisms of this module or of this library, one or a sequence.
        eps_error, delta_error: above 0, and of no effect.
        max_self_compositions: the most runs of each, one number for one mechanism; by default 1.
        eps_max: of no effect: nothing is assumed of epsilon.

    Raises TypeError for what is no mechanism with a certified law, and ValueError where numbers are out of range, or do
    not match the mechanisms.
    """

    def __init__(
        self,
        prvs: PrivacyRandomVariable | Mechanism | Sequence[PrivacyRandomVariable | Mechanism],
        eps_error: float,
        delta_error: float,
        max_self_compositions: int | Sequence[int] | None = None,
        eps_max: float | None = None,
    ) -> None:
        if isinstance(prvs, (PrivacyRandomVariable, Mechanism)):
            prvs = [prvs]
        for name, error in (("eps_error", eps_error), ("delta_error", delta_error)):
            if not error > 0:
                raise ValueError(f"{name} = {error} is not above 0: give the error that you would accept.")
        self.eps_error, self.delta_error, self.prvs = eps_error, delta_error, list(prvs)
        self._mechanisms = tuple(map(_mechanism_of, self.prvs))
        self.max_self_compositions = self._counts(max_self_compositions, "max_self_compositions")

    def compute_delta(self, epsilon: float, num_self_compositions: int | Sequence[int] | None) -> Triple:
        """Returns bounds on delta at an epsilon: (lower, estimate, upper)."""
        return _triple(certified.delta(self._mechanisms, self._runs(num_self_compositions), epsilon))

    def compute_epsilon(self, delta: float, num_self_compositions: int | Sequence[int] | None) -> Triple:
        """Returns bounds on epsilon at a delta: (lower, estimate, upper)."""
        return _triple(certified.epsilon(self._mechanisms, self._runs(num_self_compositions), delta))

    def compute_composition(self, num_self_compositions: int | Sequence[int] | None) -> NoReturn:
        """Raises: there is no list of masses of a composed loss here, whose error would be known."""
        self._runs(num_self_compositions)
        raise NotImplementedError(
            "compute_composition gives the masses of a rounded loss, of which nothing is proved: ask compute_epsilon, "
            "compute_delta, or jaxacct.curve for a whole profile."
        )

    def _counts(self, numbers: int | Sequence[int] | None, name: str) -> tuple[int, ...]:
        counts = [1] * len(self._mechanisms) if numbers is None else np.atleast_1d(np.asarray(numbers)).tolist()
        if len(counts) != len(self._mechanisms):
            raise ValueError(f"{name} = {numbers} do not match {len(self._mechanisms)} prvs: give a number for each.")
        return tuple(
            validation.check_whole(count, name, 0, MOST_STEPS, "how often a mechanism is run") for count in counts
        )

    def _runs(self, numbers: int | Sequence[int] | None) -> tuple[int, ...]:
        counts = self._counts(numbers, "num_self_compositions")
        if any(count > most for count, most in zip(counts, self.max_self_compositions, strict=True)):
            raise ValueError(
                f"num_self_compositions = {numbers} are above max_self_compositions = {self.max_self_compositions}: "
                "give the accountant as many as there will be."
            )
        return counts


def _mechanism_of(prv: object) -> Mechanism:
    own = isinstance(prv, PrivacyRandomVariable) and type(prv).cdf is PrivacyRandomVariable.cdf
    mechanism = prv.mechanism if own and isinstance(prv, PrivacyRandomVariable) else prv
    if not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"prvs = {validation.shorten(prv)} has no law that is certified: give a mechanism of this module, or one "
            "of jaxacct; a loss of your own is PrivacyLoss, with its laws under both distributions."
        )
    return mechanism


def _triple(bounds: Bounds) -> Triple:
    lower, estimate, upper = (float(end) for end in (bounds.lower, bounds.estimate, bounds.upper))
    return lower, estimate, upper


class DPSGDAccountant(PRVAccountant):
    """An accountant of DP-SGD on Poisson samples: :class:`PRVAccountant` of one mechanism."""

    def __init__(
        self,
        noise_multiplier: float,
        sampling_probability: float,
        max_steps: int,
        eps_error: float = 0.1,
        delta_error: float = 1e-9,
    ) -> None:
        prv = PoissonSubsampledGaussianMechanism(sampling_probability, noise_multiplier)
        super().__init__(prv, eps_error, delta_error, max_steps)

    def compute_epsilon(self, delta: float, num_steps: int) -> Triple:  # type: ignore[override]
        """Returns bounds on epsilon at a delta after some steps: (lower, estimate, upper)."""
        return super().compute_epsilon(delta, num_steps)


class Accountant:
    """The oldest accountant, of DP-SGD at one delta; it warns as it did. Give no ``mesh_size``: there is none."""

    def __init__(
        self,
        noise_multiplier: float,
        sampling_probability: float,
        delta: float,
        max_compositions: int,
        eps_error: float | None = None,
        mesh_size: float | None = None,
        verbose: bool = False,
    ) -> None:
        warnings.warn("Accountant is the oldest name: use PRVAccountant, or jaxacct.epsilon.", DeprecationWarning, 2)
        if mesh_size is not None:
            raise ValueError(f"mesh_size = {mesh_size}: there is no mesh of a fixed size. Leave it out.")
        self.delta = delta
        self.accountant = DPSGDAccountant(noise_multiplier, sampling_probability, max_compositions, eps_error or 0.1)

    def compute_epsilon(self, num_compositions: int) -> Triple:
        """Returns bounds on epsilon after some steps: (lower, estimate, upper)."""
        return self.accountant.compute_epsilon(self.delta, num_compositions)


def find_noise_multiplier(
    sampling_probability: float,
    num_steps: int,
    target_epsilon: float,
    target_delta: float,
    eps_error: float = 0.1,
    mu_max: float = 100.0,
) -> float:
    """Returns the least noise multiplier whose upper bound on epsilon is at most the target.

    That of :func:`jaxacct.calibrate.noise_multiplier`: the target is met, not missed by up to ``eps_error``. Raises
    RuntimeError, as there, where it is above ``mu_max``.
    """
    noise = float(least_noise_multiplier(target_epsilon, target_delta, sampling_probability, num_steps).value)
    if not noise <= mu_max:
        raise RuntimeError(f"The noise multiplier needed, {noise}, is above mu_max = {mu_max}: allow more epsilon.")
    return noise
