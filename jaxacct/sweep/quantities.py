"""What is computed for one entry of a sweep: compiled for all, and by the mesh for those that this leaves open."""

from __future__ import annotations

import enum
import functools
import warnings
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxacct import calibrate, certified, prv, saddlepoint, validation
from jaxacct.arithmetic import CERTIFIED, Chosen
from jaxacct.bounds import Bounds
from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.mechanisms.mechanism import Relation
from jaxacct.question import ForDelta, ForEpsilon, Kind, Question
from jaxacct.sweep.settings import Settings, check, fields_of

MODES = ("saddlepoint", "certified")

Entry = dict[str, Any]


class Accountant(enum.IntEnum):
    """Which accountant an entry's bracket is of.

    ===========  ===============================================================================================
    FAILED       the mesh raised an error; what the exact accountant said before is kept
    NONE         none has an answer: the bracket says nothing
    SADDLEPOINT  the exact one
    PRV          the mesh, together with the exact one
    ===========  ===============================================================================================
    """

    FAILED = -1
    NONE = 0
    SADDLEPOINT = 1
    PRV = 2


def kinds_of(quantity: str) -> dict[str, np.dtype]:
    """Returns names and types of what an entry of a sweep for this quantity gives."""
    names = ("noise_multiplier",) * (quantity == "noise_multiplier") + ("lower", "estimate", "upper")
    kinds = {name: np.dtype(np.float64) for name in names}
    return kinds | {"converged": np.dtype(bool), "accountant": np.dtype(np.int8)}


@dataclass(frozen=True)
class Quantity:
    """What is looked for, and how.

    Attributes:
        name: "epsilon", "delta" or "noise_multiplier".
        mode: "saddlepoint", or "certified": the mesh answers where the saddle point does not.
        relation: neighbouring relation.
        tolerance: of :func:`jaxacct.prv.epsilon` or ``delta``, for the mesh; of
            :func:`jaxacct.calibrate.noise_multiplier`.
        arithmetic: what both compute in, as of :func:`jaxacct.epsilon`; a calibration chooses for itself.
    """

    name: str
    mode: str
    relation: Relation
    tolerance: float
    arithmetic: Chosen = "auto"

    def check(self, settings: Settings) -> None:
        """Raises where the settings are not those of the quantity."""
        validation.check_one_of(self.mode, "mode", MODES)
        validation.check_positive(self.tolerance, "tolerance")
        choices: tuple[Chosen, ...] = ("auto",) if self.calibrates else CERTIFIED
        validation.check_one_of(self.arithmetic, "arithmetic", choices, f" by a sweep for {self.name}")
        for mechanism in settings.mechanisms:
            known: tuple[str, ...] = mechanism.relations  # type: ignore[attr-defined]
            validation.check_one_of(self.relation, "relation", known, f" by {mechanism.__name__}")
        if self.calibrates:
            if settings.mechanisms != (PoissonSubsampledGaussian,):
                raise ValueError(
                    "mechanism: the least noise is looked for of PoissonSubsampledGaussian alone: leave mechanism out "
                    "(a sampling_rate of 1 is the plain Gaussian mechanism)."
                )
            check(settings, ("epsilon", "delta"), unknown="noise_multiplier")
        else:
            check(settings, (self.question.given,))

    @property
    def arrays(self) -> dict[str, np.dtype]:
        """Names and types of what an entry gives."""
        return kinds_of(self.name)

    @property
    def calibrates(self) -> bool:
        """Whether the least noise is looked for, and not what a run costs."""
        return self.name == "noise_multiplier"

    @property
    def question(self) -> Kind:
        """What accountants are asked; of the least noise, what its bracket is of."""
        return ForDelta if self.name == ForDelta.name else ForEpsilon

    @property
    def worst(self) -> float:
        """The upper bound where nothing is known."""
        return self.question.worst

    @property
    def exact(self) -> Quantity:
        """The quantity without what its compiled part does not depend on, so that one program serves all modes."""
        return replace(self, mode="saddlepoint", tolerance=self.tolerance if self.calibrates else 1.0)

    def compiled(self, mechanism: type, entry: Entry) -> Entry:
        """Returns what the exact accountant knows; ``entry`` is traced."""
        if self.calibrates:
            found = self._least_noise(entry)
            settled = (found.status == calibrate.Status.CONVERGED) | (found.status == calibrate.Status.NOT_BINDING)
            return {"noise_multiplier": found.value} | _answer(found.reached, settled, _by_saddlepoint(found.satisfied))
        bounds = saddlepoint.accountant.answer(*self._arguments(mechanism, entry), self.relation, self.arithmetic)
        says = bounds.converged | (bounds.upper < self.worst) | (bounds.lower > 0)
        return _answer(bounds, bounds.converged, _by_saddlepoint(says))

    def by_mesh(self, mechanism: type, entry: Entry, before: Entry) -> Entry:
        """Returns what the mesh adds to what was found ``before``; the values of ``entry`` are concrete."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", prv.ToleranceWarning)  # each entry says itself whether it has converged
            if self.calibrates:
                try:
                    found = self._least_noise(entry)
                except ValueError:  # no noise is enough: the settings themselves were checked before
                    return before
                settled = found.status in (calibrate.Status.CONVERGED, calibrate.Status.NOT_BINDING)
                found_by = Accountant.PRV if found.satisfied else Accountant.NONE
                return {"noise_multiplier": found.value} | _answer(found.reached, settled, found_by)
            exact = Bounds(before["lower"], before["estimate"], before["upper"], before["converged"])
            arguments = self._arguments(mechanism, entry)
            ask = functools.partial(prv.accountant.answer, arithmetic=self.arithmetic)
            mesh = functools.partial(ask, *arguments, self.relation, self.tolerance)
            bounds = certified.with_mesh(exact, mesh, self.tolerance)
        if certified.is_settled(exact, self.tolerance):  # no mesh was asked
            return _answer(bounds, bounds.converged, before["accountant"])
        says = bounds.upper < self.worst or bounds.lower > 0
        return _answer(bounds, bounds.converged, Accountant.PRV if says else Accountant.NONE)

    def _least_noise(self, entry: Entry) -> calibrate.Calibrated:
        budget_and_run = (entry[name] for name in ("epsilon", "delta", "sampling_rate", "steps"))
        return calibrate.noise_multiplier(*budget_and_run, relation=self.relation, tolerance=self.tolerance)

    def _arguments(self, mechanism: type, entry: Entry) -> tuple[Any, Any, Question]:
        made = mechanism(**{name: entry[name] for name in fields_of(mechanism)})
        asked = self.question
        return made, entry["steps"], asked(entry[asked.given])


def _by_saddlepoint(says: Any) -> Any:
    return jnp.where(says, int(Accountant.SADDLEPOINT), int(Accountant.NONE)).astype(jnp.int8)


def _answer(bounds: Bounds, converged: Any, accountant: Any) -> Entry:
    return {
        "lower": bounds.lower,
        "estimate": bounds.estimate,
        "upper": bounds.upper,
        "converged": converged,
        "accountant": accountant,
    }


def quantity_of(
    name: str, mode: str, relation: Relation, tolerance: float | None, arithmetic: Chosen = "auto"
) -> Quantity:
    """Returns the quantity, with the accountants' own tolerance where none is given."""
    quantity = Quantity(name, mode, relation, 0.0, arithmetic)
    default = calibrate.targets.TOLERANCE if quantity.calibrates else quantity.question.tolerance
    return replace(quantity, tolerance=default if tolerance is None else tolerance)
