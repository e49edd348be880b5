"""delta of finitely many losses, by listing the sums: exact but for the balls' own rounding.

The types of k runs of m atoms are counted with multinomial coefficients; on a lattice those of one sum are together, as
coefficients of a power of a polynomial. Two lists are enough for any number of laws: for each entry a of the one, the
entries of the other with b > eps - a form an end of it, whose masses of P and of Q are running sums.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from flint import arb, arb_poly

from jaxacct.verify import sketch
from jaxacct.verify.losses import Loss, ball
from jaxacct.verify.quadrature import TooMuch

MOST = 600_000
"""Sums in a list; a fifth of it on a lattice, where a transform does better."""


class Entry(NamedTuple):
    """A mass of P and a loss."""

    mass: arb
    loss: arb


def sums(law: Loss, count: int, tilt: float, most: int = MOST) -> list[Entry]:
    """Returns the sums of ``count`` losses. Masses are precise where e^(tilt loss) times the mass is not small."""
    size = len(law.atoms)
    if law.lattice is not None or size == 2:
        return _on_lattice(law, count, tilt, most // 5)
    if math.comb(count + size - 1, size - 1) > most:
        raise TooMuch(f"{count} runs of {size} losses have more than {most} sums")
    found = [(count, Entry(arb(1), arb(0)))]
    for i, (p, y) in enumerate(law.atoms):
        grown = []
        for left, entry in found:
            mass = entry.mass
            least = left if i == size - 1 else 0
            if least:
                grown.append((0, Entry(mass * p**left, entry.loss + left * y)))
                continue
            for j in range(left + 1):
                grown.append((left - j, Entry(mass, entry.loss + j * y)))
                mass = mass * p * (left - j) / (j + 1)
        found = grown if i < size - 1 else [run for run in grown if run[0] == 0]
    return [entry for _, entry in found]


def _on_lattice(law: Loss, count: int, tilt: float, most: int) -> list[Entry]:
    atoms = sorted(law.atoms, key=lambda atom: float(atom[1]))
    if len(atoms) == 1:
        return [Entry(atoms[0][0] ** count, count * atoms[0][1])]
    low = atoms[0][1]
    step = ball(law.lattice[1]) if law.lattice is not None else atoms[1][1] - low
    places = [int((((y - low) / step + arb(0.5)).floor().unique_fmpz()) or 0) for _, y in atoms]
    if places[-1] * count > most:
        raise TooMuch(f"more than {most} sums on a lattice")
    t = arb(tilt)
    coefficients = [arb(0)] * (places[-1] + 1)
    for place, (p, y) in zip(places, atoms, strict=True):
        coefficients[place] += p * (t * (y - low)).exp()
    found = (arb_poly(coefficients) ** count).coeffs()
    turn, weight, entries = (-t * step).exp(), arb(1), []
    for j, mass in enumerate(found):
        entries.append(Entry(mass * weight, count * low + j * step))
        weight *= turn
    return entries


def listed(runs: sketch.Runs, tilt: float, most: int = MOST, count: int = 2) -> list[list[Entry]]:
    """Returns at most so many lists whose sums are those of the composition, together where they are short."""
    lists = sorted((sums(law, k, tilt, most) for law, k in runs), key=len)
    while len(lists) > count or (len(lists) == 2 and len(lists[0]) * len(lists[1]) <= 1000):
        if len(lists[0]) * len(lists[1]) > most:
            raise TooMuch(f"more than {most} sums")
        product = [Entry(a.mass * b.mass, a.loss + b.loss) for a in lists[0] for b in lists[1]]
        lists = sorted([product, *lists[2:]], key=len)
    return lists


def delta(runs: sketch.Runs, epsilon: arb, tilt: float) -> arb:
    """Returns a ball that holds the delta at ``epsilon``, finite losses alone."""
    lists = listed(runs, tilt)
    short, long = lists if len(lists) == 2 else ([Entry(arb(1), arb(0))], lists[0])
    if not long:
        return arb(0)
    # One radius for all, so that the order of the middles decides.
    radius = max((float(entry.loss.rad()) for entry in long), default=0.0) * 1.001
    order = sorted((entry.loss.mid(), i) for i, entry in enumerate(long))
    losses = [arb(middle, radius) for middle, _ in order]
    masses = [long[i].mass for _, i in order]
    p_above, q_above = [arb(0)], [arb(0)]
    for loss, mass in zip(reversed(losses), reversed(masses), strict=True):
        p_above.append(p_above[-1] + mass)
        q_above.append(q_above[-1] + mass * (-loss).exp())
    size, j = len(losses), len(losses)
    total = arb(0)
    for entry in sorted(short, key=lambda entry: -float(entry.loss)):
        threshold = epsilon - entry.loss
        while j < size and not losses[j] > threshold:
            j += 1  # the order by floats may be off by their rounding
        while j > 0 and losses[j - 1] > threshold:
            j -= 1
        total += entry.mass * (p_above[size - j] - threshold.exp() * q_above[size - j])
        i = j - 1
        while i >= 0 and not losses[i] < threshold:
            total += arb(0).union((entry.mass * masses[i] * (1 - (threshold - losses[i]).exp()).max(arb(0))).upper())
            i -= 1
    lost = sum((law.lost * k for law, k in runs), arb(0))
    return total + arb(0).union(lost.upper()) if lost > 0 else total
