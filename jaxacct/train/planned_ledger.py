"""The ledger of a planned run: a counter. Why that is enough is proved in :mod:`jaxacct.train.planned`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float64, Int32

from jaxacct.precision import in_float64, outside
from jaxacct.pytrees import register_dataclass


@register_dataclass
@dataclass(frozen=True)
class PlannedLedger:
    """Counts the runs of a plan, and grants them while there are some left: all that a planned run needs in its loop.

    Attributes:
        made (): runs granted so far, int32.
        runs: of the plan; static.
        certified: the plan's certified epsilon; static, so that no record can change it.

    >>> ledger = PlannedLedger.of(2, certified=0.5)
    >>> granted, ledger = ledger.spend(2)
    >>> bool(granted), bool(ledger.spend(1)[0]), float(ledger.epsilon())
    (True, False, 0.5)
    """

    made: Int32[Array, ""]
    runs: int = field(metadata={"static": True})
    certified: float = field(metadata={"static": True})

    @classmethod
    def of(cls, runs: int, *, certified: float) -> PlannedLedger:
        """Returns the ledger of a plan before its first run."""
        return cls(jnp.zeros((), jnp.int32), runs, certified)

    def spend(self, runs: ArrayLike) -> tuple[Bool[Array, ""], PlannedLedger]:
        """Returns whether so many more runs are the plan's, and the ledger after them: the same one if they are not."""
        more = jnp.asarray(runs, jnp.int32)
        granted = (more >= 0) & (more <= self.remaining())
        return granted, dataclasses.replace(self, made=jnp.where(granted, self.made + more, self.made))

    def remaining(self) -> Int32[Array, ""]:
        """Returns how many runs the plan has left; 0 where a count from elsewhere is none."""
        return jnp.where((self.made >= 0) & (self.made <= self.runs), self.runs - self.made, 0)

    def epsilon(self) -> Float64[Array, ""]:
        """Returns the certified epsilon of the whole plan, which holds wherever a run stops; 0 before its first."""
        return outside(_reading(self.made, self.certified))


@in_float64
def _reading(made: Array, certified: float) -> Array:
    return jnp.where(made == 0, 0.0, certified)
