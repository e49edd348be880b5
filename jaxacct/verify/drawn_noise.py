"""Noise that a run drew in integers, judged by what its report says: the table's law, and the distance of the run.

*The law.* D(s) is the discrete Gaussian, of mass proportional to e^(-k^2/(2 s^2)) at the integers k. A draw X has a
sign and a size, of 2^14 sizes with integer masses over 2^127: those nearest to the masses of D(s1), given that its size
is so small, s1^2 = 2^40/(765^2 + 1); at 0 what makes the sum 2^127. A value of noise is Z = X1 + 765 X2, or
X1 + 32 (X2 + 765 X3).

*The table.* Walker's alias method: 2^14 rows of mass 2^113. A row has a cut and an alias: it is drawn as itself where
113 random bits are below the cut, else as its alias. So the mass of a size follows from the rows.

*Theorem.* Let theta(v) = 2 sum_(m >= 1) e^(-2 pi^2 m^2 v) and chi(v) = (theta(v)/(1 - theta(v)))^2. N values of Z are
within the sum of these total variations of values that are a post-processing of Gaussian noise of variance s^2 - 49/16:

    bridge  sqrt(e^(N chi(49/16)) - 1)/2               D(s) is near to a random rounding of that Gaussian noise;
    sums    the same of s1^2 t^2/(s1^2 + b^2 t^2)      X + b Y to D(s): t = s1 and b = 765, then t = 2^20 and b = 32;
    table   3 N times that of X to D(s1)
    suffix  3 N 28/8 2^-98                             eight draws share bits, which matter where two of them tie.

By Poisson's formula sums of e^(-(k - c)^2/(2 v)) over the integers are constant in c up to a factor in [1 - theta(v),
1 + theta(v)]: hence chi, as a ratio of mean 1 in an interval of length l has a variance of at most l^2/4. Over N
values the ratio squared has the mean (1 + chi)^N at most. Only the largest of what two or three draws cost counts.

Source: Walker (1977), "An efficient method for generating discrete random variables with general distributions";
Micciancio and Walter (2017), "Gaussian sampling over the integers", for sums.
"""

from __future__ import annotations

import functools
import hashlib
import struct
from fractions import Fraction
from typing import Any

from flint import arb, ctx

from jaxacct.verify.contour import ball

BITS = 400
"""Bits of precision. Any value is sound: too few leave a mass undecided, which raises an error."""

ROWS, UNIT = 2**14, 2**113
"""Number of rows, and the mass of each."""

VARIANCE = Fraction(2**40, 765**2 + 1)
"""s1^2."""

SQUARES = {2: Fraction(2**40), 3: VARIANCE + 32**2 * 2**40}
"""s^2, by the number of draws of Z."""

GENERATORS = tuple(
    f"ChaCha20, from {key}"
    for key in (
        "256 bits of the operating system's entropy", "a key given by the user", "a seed given by the user",
    )
)  # fmt: skip
"""The words in which a report names its generator. That it is pseudorandom is assumed of these alone."""


def theta_of(v: arb) -> arb:
    """Returns theta at v >= 1, in a ball: from the ninth term on they are below twice the ninth."""
    terms = [(-2 * arb.pi() ** 2 * m * m * v).exp() for m in range(1, 10)]
    return 2 * (sum(terms[:-1], arb(0)) + arb(0).union(2 * terms[-1]))


@functools.cache
def masses() -> tuple[tuple[int, ...], arb]:
    """Returns the masses of sizes over 2^127, and the total variation of X from D(s1)."""
    with ctx.workprec(BITS):
        v = ball(VARIANCE)
        total = (2 * arb.pi() * v).sqrt() * (1 + theta_of(v))
        law = [(1 + (m > 0)) * (-m * m / (2 * v)).exp() / total for m in range(ROWS)]
        inside = sum(law, arb(0))
        nearest = [(p / inside * ROWS * UNIT + arb(0.5)).floor().unique_fmpz() for p in law]
        if None in nearest:
            raise ArithmeticError("the nearest integer to a mass is not decided")
        sizes = [int(one) for one in nearest]
        sizes[0] += ROWS * UNIT - sum(sizes)
        off = sum((abs(arb(w) / (ROWS * UNIT) - p) for w, p in zip(sizes, law, strict=True)), arb(0))
        return tuple(sizes), (off + 1 - inside) / 2


@functools.cache
def table_sha256() -> str:
    """Returns the SHA-256 of the table: rows as four words of 32 bits, the last byte of each last in memory.

    Rows of less than a unit are filled in turn, the last one first, by the last row that has a unit or more; the alias
    stands above the 113 bits of the cut. What is left is a unit, and its own alias.
    """
    left, rows = list(masses()[0]), [m * UNIT for m in range(ROWS)]
    short, long = [m for m in range(ROWS) if left[m] < UNIT], [m for m in range(ROWS) if left[m] >= UNIT]
    while short:
        m, donor = short.pop(), long[-1]
        rows[m] = donor * UNIT + left[m]
        left[donor] -= UNIT - left[m]
        if left[donor] < UNIT:
            short.append(long.pop())
    # The rows alone show the law that they draw.
    law = [0] * ROWS
    for m, row in enumerate(rows):
        alias, cut = divmod(row, UNIT)
        law[m] += cut
        law[alias] += UNIT - cut
    if tuple(law) != masses()[0]:
        raise ArithmeticError("the table draws another law")
    words = b"".join(struct.pack("<4I", *(row >> shift & 0xFFFFFFFF for shift in (96, 64, 32, 0))) for row in rows)
    return hashlib.sha256(words).hexdigest()


def distances(samples: int) -> dict[str, arb]:
    """Returns the theorem's total variations of so many values, by their names."""
    with ctx.workprec(BITS):
        v = ball(VARIANCE)

        def of_many(square: arb) -> arb:
            off = theta_of(square)
            return (samples * (off / (1 - off)) ** 2).expm1().sqrt() / 2

        sums = [of_many(v * t / (v + b * b * t)) for t, b in ((v, 765), (arb(2) ** 40, 32))]
        return {
            "bridge": of_many(ball(Fraction(49, 16))),
            "sums": sum(sums, arb(0)),
            "table": 3 * samples * masses()[1],
            "suffix": 3 * samples * ball(Fraction(28, 8 * 2**98)),
        }


def refute(record: dict[str, Any], distance: float, runs: int, steps: int) -> str:
    """Returns why a report's record of noise in integers does not hold; empty where it was proved.

    Args:
        record: what the report calls ``noise_drawn``.
        distance: the total variation that a certificate pays for.
        runs: number of runs of the training's mechanism that are certified.
        steps: number of steps that there are at least, whatever a run covers.

    What the report says of itself alone stays said by it: that this was the generator, and so many parameters.
    """
    try:
        draws, samples, known = record["draws"], record["samples"], record["total_variation"]
        if record["generator"] not in GENERATORS:
            return f"the generator {_shown(record['generator'])} is none of a trainer's: {'; '.join(GENERATORS)}."
        if record["table_sha256"] != (law := table_sha256()):
            return f"the table of noise has the hash {_shown(record['table_sha256'])}, and {law} is that of its law."
        if draws not in SQUARES or record["scale_squared"] != str(SQUARES[draws]):
            return f"noise of {_shown(draws)} draws has not the variance {_shown(record['scale_squared'])}."
        if why := _refute_number(record, runs, steps):
            return why
        needed = distances(samples)
        if known.keys() != needed.keys():
            named = _shown(", ".join(known))
            return f"the distance has the parts {named}, and {', '.join(needed)} are those of the theorem."
        for name, least in needed.items():
            if not isinstance(known[name], float) or not least <= ball(Fraction(known[name])):
                return f"the distance of {name} is {_shown(known[name])}, and {least.str(6)} for {samples} values."
        if Fraction(distance) < sum(map(Fraction, known.values())):
            return f"the distance that is paid for, {distance!r}, is below the sum of its parts."
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        return f"what is said of the noise is not what a trainer writes ({error!r})."
    return ""


def _shown(value: Any) -> str:
    """Returns a value as a reason shows it: as much of it as a hash has digits."""
    return repr(value)[:80]


def _refute_number(record: dict[str, Any], runs: int, steps: int) -> str:
    """Returns why a record's number of values is not that of its steps, or these are fewer than are certified."""
    keys = ("samples", "entries", "counts", "samples_per_step", "steps", "steps_per_run")
    for key in keys:
        if type(record[key]) is not int or record[key] < 1:
            return f"{key} = {_shown(record[key])} is no number of at least 1."
    samples, entries, counts, each, covered, in_run = (record[key] for key in keys)
    if each != entries + counts or samples != each * covered:
        return f"{samples} values of noise are not those of {covered} steps of {entries} + {counts} each."
    if covered < (least := max(runs * in_run, steps)):
        return f"noise is drawn for {covered} steps, and {least} are composed."
    return ""
