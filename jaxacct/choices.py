"""The choices that the library and its command offer alike, as types of strings; and the verdicts of both on claims.

Nothing of the library is imported here, nor JAX: the command's help shows the choices, and must not wait; the referee
gives verdicts, and shares no code with what it judges.
"""

import enum
from dataclasses import dataclass
from typing import Literal, TypeAlias

Relation: TypeAlias = Literal["add_or_remove", "add", "remove", "replace", "zero_out"]
"""Neighbouring relations: neighbours differ by one example more or less, one more, one less, one replaced by another,
or one replaced by an example that contributes nothing ("zero_out", also called replace-special: a record of its own,
whose clipped gradients are all 0).

Under "replace" and "zero_out" neighbours have equally many examples: their number is public and may be used. Under the
others it is protected as well. Sums protect it, but what a sum is divided by must not depend on it."""

Certified: TypeAlias = Literal["auto", "float64", "float32"]
"""Arithmetics, which all give bounds: "auto" is float64, and float32 on platforms that lack it."""

Mode: TypeAlias = Literal["saddlepoint", "certified"]
"""Modes of a sweep: the exact accountant alone, or the mesh where that does not converge."""


class Ruling(enum.StrEnum):
    """The state of a claim.

    Attributes:
        PROVED: the truth lies within the claimed bracket, or is at most the epsilon that was claimed.
        REFUTED: it does not.
        UNDECIDED: neither was proved; the reason says what is missing.
    """

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNDECIDED = "UNDECIDED"


@dataclass(frozen=True)
class Verdict:
    """The judgement of a claim: of a bracket, by the referee, or of an epsilon, by what is known of the mechanism.

    Attributes:
        status: PROVED, REFUTED or UNDECIDED.
        truth: (low, high), float64, between which the truth was proved to lie: the bracket itself where it was proved
            and no more was needed, a narrow one where the referee refuted it.
        reason: the grounds of the status, or what is missing, in words.

    >>> Verdict(Ruling.PROVED, (1.0, 1.1), "").status == "PROVED"
    True
    """

    status: Ruling
    truth: tuple[float, float]
    reason: str
