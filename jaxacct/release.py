"""Statistics of people, released with noise that is drawn here, and a budget in a file that pays for them.

A release (:func:`count`, :func:`histogram`, :func:`sum`, :func:`mean`, :func:`quantile`) asks the :class:`Budget`
first. It draws noise only when the file says that it is paid for, on the disk.

Why the law is the one that is accounted
----------------------------------------
What is released is a function of an integer: each person's value becomes a whole number of public steps by itself,
whatever the types of other rows, so the sensitivity is a whole number, and no sum is rounded. Noise is a random integer
whose law is exact: it is made of uniform integers of the system's entropy (:mod:`secrets`), by comparisons of rational
numbers, and no floating-point operation takes part. Its parameter is the float64 in the mechanism that is charged.
Rounding happens where the noisy integer is given its unit: that is post-processing. How long a draw takes depends on
the noise, and in a quantile on the scores: whoever may time the process learns something that is not accounted.

Why nothing that got out is missing in the file
-----------------------------------------------
One process at a time has the file, from reading what is spent until the new line is on the disk (``fsync``). Only then
noise is drawn. So a draw whose process ended before it is counted all the same, and two processes never pay with the
same money. A last line that was cut has no digest that fits. Its process had not come back from writing it, so it has
drawn nothing: it does not count, and the next line takes its place. A last line that is whole counts, with or without
its end. Each digest covers all lines before it: a line that was changed, lost or exchanged is noticed, and nothing more
is released. No file can show that it was set back to an earlier state as a whole, nor who cut its last line.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import math
import os
import pathlib
import re
import secrets
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jaxacct import json_files, validation
from jaxacct.choices import Relation
from jaxacct.display import round_up, rounded_up
from jaxacct.filters import RenyiFilter
from jaxacct.mechanisms import DiscreteGaussian, DiscreteLaplace, ExponentialMechanism, ZeroConcentratedDP
from jaxacct.mechanisms.finite import LARGEST_SENSITIVITY, NoiseOnIntegers
from jaxacct.mechanisms.mechanism import Mechanism
from jaxacct.mechanisms.records import mechanism_of, record_of
from jaxacct.validation import shorten

__all__ = ["Account", "Budget", "Noise", "Paid", "Statistic", "count", "histogram", "mean", "quantile", "sum"]

Noise = type[DiscreteLaplace] | type[DiscreteGaussian]
"""Type of the law of noise: the class of the mechanism that adds it."""

# ----------------------------------------------------------------------------------------------------
# Noise of exact law. ``below(n)`` is a uniform integer from 0 to n - 1; all else is integer arithmetic.
#
# Canonne, Kamath and Steinke (2020), "The discrete Gaussian for differential privacy", Algorithms 1 to 3, with the
# proofs in full. In short:
#
# * For x in [0, 1] let a trial k = 1, 2, ... succeed with probability x/k, until one fails. All of the first k succeed
#   with probability x^k/k!, so that the first failure is an odd one with probability 1 - x + x^2/2! - ... = e^-x.
# * A geometric number of law prop. to e^(-n/t) is u + t v with u below t of law prop. to e^(-u/t), by rejection, and v
#   of law prop. to e^-v. Its integer part after division by s has law prop. to e^(-n s/t). A random sign, of two zeros
#   one refused, makes it discrete Laplace of scale t/s.
# * Discrete Laplace noise of scale t, kept with probability e^(-(|y| - q/t)^2/(2 q)), q the square of the Gaussian's
#   scale, has a law prop. to e^(-y^2/(2 q)): the terms that are linear in |y| cancel.
# ----------------------------------------------------------------------------------------------------

Below = Callable[[int], int]


def _bernoulli_exp(x: Fraction, below: Below) -> bool:
    """Returns true with probability e^-x, for x of at least 0."""
    while x > 1:
        if not _bernoulli_exp(Fraction(1), below):
            return False
        x -= 1
    k = 1
    while below(x.denominator * k) < x.numerator:
        k += 1
    return k % 2 == 1


def _discrete_laplace(scale: Fraction, below: Below) -> int:
    """Returns an integer n with probability proportional to e^(-|n|/scale)."""
    t, s = scale.numerator, scale.denominator
    while True:
        u = below(t)
        if not _bernoulli_exp(Fraction(u, t), below):
            continue
        v = 0
        while _bernoulli_exp(Fraction(1), below):
            v += 1
        size, is_negative = (u + t * v) // s, below(2)
        if size or not is_negative:
            return -size if is_negative else size


def _discrete_gaussian(scale: Fraction, below: Below) -> int:
    """Returns an integer n with probability proportional to e^(-n^2/(2 scale^2))."""
    square, t = scale**2, math.floor(scale) + 1
    while True:
        n = _discrete_laplace(Fraction(t), below)
        if _bernoulli_exp((abs(n) - square / t) ** 2 / (2 * square), below):
            return n


def _choose(scores: Sequence[int], rate: Fraction, below: Below) -> int:
    """Returns an index i with probability proportional to e^(rate scores[i]): a uniform one, kept in proportion."""
    best = max(scores)
    while True:
        i = below(len(scores))
        if _bernoulli_exp(rate * (best - scores[i]), below):
            return i


# ----------------------------------------------------------------------------------------------------
# The budget: a file with a line for what is kept, and one for each release.
# ----------------------------------------------------------------------------------------------------


class Paid(NamedTuple):
    """A release that the file has paid for.

    Attributes:
        number: from 1 on.
        name: what was released, in words.
        mechanism: what it cost.
        runs: how many runs of it.
        date: of the payment, as ISO 8601 has it.
        remaining: how many more such releases the budget grants.
    """

    number: int
    name: str
    mechanism: Mechanism
    runs: int
    date: str
    remaining: int


@dataclass(frozen=True)
class Account:
    """State of a budget: what its file says.

    Attributes:
        epsilon: the budget.
        delta: its failure probability.
        unit: whose data one change is, in words.
        relation: "add_or_remove" or "replace", of one row of a table.
        begun: the date.
        spent: epsilon of the releases so far as if they had been fixed beforehand, an upper bound; what holds whatever
            was chosen is ``epsilon``.
        releases: in their order.
    """

    epsilon: float
    delta: float
    unit: str
    relation: Relation
    begun: str
    spent: float
    releases: tuple[Paid, ...]


class Budget:
    """A budget of (epsilon, delta) in a file, from which releases are paid; processes may share it.

    Args:
        path: a file that :meth:`begin` made. It is read anew for every payment.

    Formal guarantee: all that was released on payments from one file, whatever was chosen from earlier releases
    (statistics, noise, when to stop), is together (epsilon, delta)-DP, for one unit that has at most one row in each
    table, and for the file's relation. The account is a :class:`.RenyiFilter`, whose proof this is. A payment counts
    although its process ended before it drew anything. The file is for its owner alone (mode 0600), and no copy of it
    may pay as well.

    Raises ValueError where the file is damaged, or none of these; OSError where it is not there.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     budget = Budget.begin(pathlib.Path(folder, "year.jsonl"), epsilon=1.0, delta=1e-6, unit="one patient")
    ...     number = budget.pay("patients", DiscreteLaplace(scale=20.0))
    ...     number, budget.read().releases[0].remaining
    (1, 18)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        self._terms = self._parse(self.path.read_bytes())[0][0]

    @classmethod
    def begin(
        cls,
        path: str | os.PathLike[str],
        *,
        epsilon: float,
        delta: float,
        unit: str,
        relation: Relation = "add_or_remove",
    ) -> Budget:
        """Returns a new budget, whose file must not be there.

        Args:
            path: the file.
            epsilon: above 0 and finite.
            delta: in (0, 1); 0 pays for Laplace noise and quantiles alone.
            unit: whose data one change is, in words: "one patient's rows of the year", where a patient has at most one
                row in each table.
            relation: what makes two tables neighbours: a row that is there or not, or with "replace" a row in place
                of another one. Sensitivities are for it.

        Raises ValueError where a number is out of range, FileExistsError where a file is there.
        """
        validation.check_scalar(epsilon, "epsilon")
        validation.check_positive(epsilon, "epsilon")
        validation.check_one_of(relation, "relation", ("add_or_remove", "replace"))
        _check_text(unit, "unit", "whose data one change is")
        orders = RenyiFilter(float(epsilon), float(delta)).orders
        terms = {"epsilon": float(epsilon), "delta": float(delta), "unit": unit, "relation": relation}
        terms |= {"begun": datetime.date.today().isoformat(), "orders": list(orders)}
        path = pathlib.Path(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, json_files.PRIVATE)
        with os.fdopen(descriptor, "wb") as file:
            _append(file, _seal("", terms))
        json_files.synchronize(path.parent)
        return cls(path)

    @property
    def relation(self) -> Relation:
        """The relation that sensitivities are for."""
        return self._terms["relation"]

    def pay(self, name: str, mechanism: Mechanism, runs: int = 1) -> int:
        """Writes that so many runs of a mechanism are released, and returns the release's number.

        Call it before anything is drawn; also for what another program releases of the same people. ``mechanism`` is
        asked for the budget's relation; that of noise on an integer has its sensitivity under that relation.

        A payment has no delta of its own: for releases that have one, such as models whose batches are cut or whose
        noise is drawn in integers, :meth:`begin` the budget with a delta that is less by the sum of theirs, fixed
        before the first release, and pay for the rest of each.

        Raises ValueError where the budget does not grant it, with what is left, or the mechanism has no such relation;
        TypeError where it is none. Then nothing is written.
        """
        _check_text(name, "name", "what is released")
        validation.check_type(mechanism, "mechanism", Mechanism)
        with json_files.lock(self.path, wait=True, flags=os.O_RDWR) as file:
            content = file.read()
            records, digest, kept = self._parse(content)
            if records[0] != self._terms:
                raise ValueError(f"{self.path} is another budget than the one that was opened: open it anew.")
            ledger, relation = self._replay(records), _relation_of(mechanism, self.relation)
            runs = validation.check_count(runs, "runs", "a whole number of runs")
            record = {"number": len(records), "name": name, "mechanism": record_of(mechanism), "runs": runs}
            record["date"] = datetime.date.today().isoformat()
            mechanism = mechanism_of(record["mechanism"])  # as it will be read
            if not ledger.spend_cost(ledger.cost(mechanism, relation=relation), runs)[0]:
                raise ValueError(self._refusal(ledger, mechanism, record))
            file.seek(kept)
            file.truncate()
            _append(file, (b"" if content[kept - 1 : kept] == b"\n" else b"\n") + _seal(digest, record))
        return len(records)

    def read(self) -> Account:
        """Returns what the file says. It looks at no data, and costs nothing."""
        with json_files.lock(self.path, wait=True, flags=os.O_RDONLY) as file:
            records = self._parse(file.read())[0]
        ledger = self._replay(records)
        remaining: dict[str, int] = {}
        releases = []
        for record in records[1:]:
            mechanism, key = mechanism_of(record["mechanism"]), json_files.dumps(record["mechanism"])
            if key not in remaining:
                remaining[key] = int(ledger.remaining(mechanism, relation=_relation_of(mechanism, self.relation)))
            left = remaining[key] // record["runs"]
            releases.append(Paid(record["number"], record["name"], mechanism, record["runs"], record["date"], left))
        terms = {name: value for name, value in records[0].items() if name != "orders"}
        return Account(spent=float(ledger.epsilon()), releases=tuple(releases), **terms)

    def _parse(self, content: bytes) -> tuple[list[dict[str, Any]], str, int]:
        """Returns the records, the last digest, and how many bytes hold them."""
        lines = content.split(b"\n")  # the last has no end, and most often nothing in it
        records: list[dict[str, Any]] = []
        digest, kept = "", len(content)
        for place, line in enumerate(lines):
            try:
                record = json_files.loads(line)
                claimed = record.pop("digest")
                is_whole = claimed == _digest(digest, record)
            except (ValueError, TypeError, KeyError, AttributeError):
                is_whole = False
            if is_whole:
                digest = claimed
                records.append(record)
            elif place == len(lines) - 1 and not re.search(rb'"digest": "[0-9a-f]{64}"}', line):  # a part of a line
                kept -= len(line)
            else:
                raise ValueError(
                    f"{self.path} is damaged in line {place + 1}{'' if place else ', or no budget'}, and nothing is "
                    "released from it: restore it from a copy that has every release, or count its whole budget as "
                    "spent."
                )
        if not records:
            raise ValueError(f"{self.path} is no budget: make one by jaxacct release begin, or by Budget.begin.")
        return records, digest, kept

    def _replay(self, records: list[dict[str, Any]]) -> RenyiFilter:
        """Returns the filter after what was paid."""
        terms, *paid = records
        ledger = RenyiFilter(terms["epsilon"], terms["delta"], [float(order) for order in terms["orders"]])
        costs: dict[str, Any] = {}
        for record in paid:
            key = json_files.dumps(record["mechanism"])
            if key not in costs:
                mechanism = mechanism_of(record["mechanism"])
                costs[key] = ledger.cost(mechanism, relation=_relation_of(mechanism, terms["relation"]))
            granted, ledger = ledger.spend_cost(costs[key], record["runs"])
            if not granted:  # the filter would leave it out
                raise ValueError(f"{self.path} has paid for more than its budget: nothing more is released from it.")
        return ledger

    def _refusal(self, ledger: RenyiFilter, mechanism: Mechanism, record: dict[str, Any]) -> str:
        """Returns the message for a release that is not granted."""
        relation = _relation_of(mechanism, self.relation)
        refused = f"{shorten(record['name'])} is refused, and nothing "
        if not np.isfinite(ledger.cost(mechanism, relation=relation)).any():
            return (
                f"{refused}was drawn: {shorten(mechanism)} has no finite divergence, which is what this budget adds "
                "up, and would have none with more noise. If it has a delta of its own, begin a budget with a delta "
                "that is less by it, and pay for the mechanism without."
            )
        tried = ((factor, _with_noise(mechanism, factor)) for factor in (2, 4, 8, 16, 32))
        granted = (f for f, m in tried if ledger.spend(m, record["runs"], relation=_relation_of(m, self.relation))[0])
        factor = next(granted, None)
        remedy = f"{factor} times as much noise would be granted" if factor else "what is left pays for no such release"
        return (
            f"{refused}was drawn: {record['number'] - 1} releases have spent epsilon = "
            f"{rounded_up(float(ledger.epsilon()))} of {rounded_up(self._terms['epsilon'])} at delta = "
            f"{rounded_up(self._terms['delta'])}, and this one does not fit into what is left; {remedy}. Give more "
            "noise, or wait for the next budget."
        )


def _relation_of(mechanism: Mechanism, relation: Relation) -> Relation:
    """Returns the relation that a mechanism is asked for in a budget of ``relation``.

    Noise on an integer has one pair, that of its sensitivity, which is one under the budget's relation.
    """
    return "add_or_remove" if isinstance(mechanism, NoiseOnIntegers) else relation


def _check_text(value: object, name: str, meaning: str) -> None:
    """Raises ValueError where a value is no text that a file can hold, or an empty one."""
    if not isinstance(value, str) or not value.strip() or value.encode(errors="replace").decode() != value:
        raise ValueError(f"{name} = {shorten(value)}: say in words {meaning}.")


def _with_noise(mechanism: Mechanism, factor: int) -> Mechanism:
    """Returns a mechanism with so many times as much noise, where it is one that this file makes."""
    if isinstance(mechanism, DiscreteLaplace):
        return replace(mechanism, scale=np.asarray(mechanism.scale) * factor)
    if isinstance(mechanism, DiscreteGaussian):
        return ZeroConcentratedDP((mechanism.sensitivity / np.asarray(mechanism.scale) / factor) ** 2 / 2)
    if isinstance(mechanism, ZeroConcentratedDP):
        return replace(mechanism, rho=np.asarray(mechanism.rho) / factor**2)
    if isinstance(mechanism, ExponentialMechanism):
        return replace(mechanism, epsilon=np.asarray(mechanism.epsilon) / factor)
    return mechanism


def _digest(before: str, record: dict[str, Any]) -> str:
    """Returns the digest of a record and of all before it."""
    return hashlib.sha256((before + json_files.dumps(record)).encode()).hexdigest()


def _seal(before: str, record: dict[str, Any]) -> bytes:
    """Returns the line of a record behind those of a digest."""
    return (json_files.dumps(record | {"digest": _digest(before, record)}) + "\n").encode()


def _append(file: IO[bytes], line: bytes) -> None:
    """Returns when a line is on the disk."""
    file.write(line)
    file.flush()
    os.fsync(file.fileno())


# ----------------------------------------------------------------------------------------------------
# Releases. Whatever is wrong with arguments or the column is said before anything is paid. An error about a column
# shows none of its rows; that there is one depends on them.
# ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Statistic:
    """A released statistic.

    Attributes:
        name: what it is.
        value: the noisy number; of a histogram one for each category, in their order.
        deviation: standard deviation of the noise, in the unit of the value; of Gaussian noise an upper bound, and of
            a quantile None.
        mechanism: what was accounted.
        runs: how many runs of it.
        number: of the release in the budget's file.
        date: of the release.

    Its text shows all of that.
    """

    name: str
    value: float | tuple[float, ...]
    deviation: float | None
    mechanism: Mechanism
    runs: int
    number: int
    date: datetime.date

    def __str__(self) -> str:
        values = self.value if isinstance(self.value, tuple) else (self.value,)
        noise = "" if self.deviation is None else f", with noise of deviation {self.deviation:.4g}"
        shown = ", ".join(f"{value:,.10g}" for value in values)
        return f"{self.name}: {shown}{noise} ({self.mechanism}; release {self.number}, {self.date})"


def count(
    chosen: ArrayLike, budget: Budget, *, scale: float, noise: Noise = DiscreteLaplace, name: str = "count"
) -> Statistic:
    """Returns a noisy number of rows.

    Args:
        chosen (n,): truth values, whether a row counts: ``ages > 60``; ``np.ones(n, bool)`` counts all.
        budget: pays for it, before anything is drawn.
        scale: that of the noise, in rows. The deviation is 1.41 times that of Laplace noise, and that of Gaussian
            noise.
        noise: its law, :class:`.DiscreteLaplace` or :class:`.DiscreteGaussian`.
        name: what it is, for the file.

    One row changes it by at most 1, in either relation. It may come out negative.

    Formal guarantee: that of the :class:`Budget`. Raises ValueError where the budget does not grant it or a number is
    out of range, TypeError where ``chosen`` has no truth values.

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     budget = Budget.begin(pathlib.Path(folder, "year.jsonl"), epsilon=1.0, delta=1e-6, unit="one patient")
    ...     released = count(np.arange(100) >= 60, budget, scale=20.0)
    >>> released.mechanism, 0 < abs(released.value - 40) + 1 < 1000
    (DiscreteLaplace(scale=20.0, sensitivity=1), True)
    """
    column = _entries(chosen, "chosen")
    if not all(isinstance(entry, bool) for entry in column):
        raise TypeError("chosen has other entries than truth values: give a column of these, whether a row counts.")
    return _release(budget, name, column.count(True), 1, Fraction(1), scale, noise)


def histogram(
    values: Sequence[Hashable] | np.ndarray,
    budget: Budget,
    *,
    categories: Sequence[Hashable],
    scale: float,
    noise: Noise = DiscreteLaplace,
    name: str = "histogram",
) -> Statistic:
    """Returns noisy numbers of rows, one for each category.

    Args:
        values (n,): the category of each row, as Python's ``==`` has it. One that is not among ``categories`` is
            counted nowhere. Give a list where rows have several types: an array has one, which a row may have chosen.
        budget: as of :func:`count`.
        categories: public, each once.
        scale: as of :func:`count`; each number has noise of its own.
        noise: likewise.
        name: likewise.

    One row is in one cell, which it changes by 1; a row that replaces another one changes two cells, which are two
    runs.

    Formal guarantee and errors as of :func:`count`; ValueError where a category stands twice.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     budget = Budget.begin(pathlib.Path(folder, "year.jsonl"), epsilon=1.0, delta=1e-6, unit="one patient")
    ...     released = histogram(["a", "b", "a", None], budget, categories=["a", "b", "c"], scale=20.0)
    >>> len(released.value), released.runs
    (3, 1)
    """
    places = {category: place for place, category in enumerate(_entries(categories, "categories"))}
    if not len(places) == len(categories) > 0:
        raise ValueError(f"categories = {shorten(categories)}: give at least one, and each once.")
    counts = [0] * len(places)
    # Each row is looked up once, by itself: it is in one cell at most, and in the same one whatever other rows are.
    for entry in _entries(values, "values"):
        with contextlib.suppress(KeyError, TypeError):  # TypeError: it has no hash, and is no category
            counts[places[entry]] += 1
    runs = 2 if _replaces(budget) else 1
    return _release(budget, name, counts, 1, Fraction(1), scale, noise, runs)


def sum(
    values: ArrayLike,
    budget: Budget,
    *,
    lower: float,
    upper: float,
    scale: float,
    granularity: float | None = None,
    noise: Noise = DiscreteLaplace,
    name: str = "sum",
) -> Statistic:
    """Returns a noisy sum of values, each clipped to bounds.

    Args:
        values (n,): numbers; one that is missing (NaN) counts as 0, which is clipped as any other.
        budget: as of :func:`count`.
        lower: each value is raised to this, chosen without a look at the data.
        upper: each value is lowered to this, likewise.
        scale: that of the noise, in the unit of the sum.
        granularity: each value is rounded to a multiple of it, the bounds as well; by default a thousandth of the
            larger bound's size.
        noise: its law, as of :func:`count`.
        name: likewise.

    One row changes the sum by the larger size of a bound, and one that replaces another by ``upper - lower``. The
    mechanism has both scale and sensitivity in steps of the granularity. Gaussian noise beyond a scale of 1700 steps is
    accounted as the :class:`.ZeroConcentratedDP` that it is.

    Formal guarantee and errors as of :func:`count`; ValueError where the bounds are more than 65,536 steps.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     budget = Budget.begin(pathlib.Path(folder, "year.jsonl"), epsilon=1.0, delta=1e-6, unit="one patient")
    ...     released = sum([3.0, 99.0, float("nan")], budget, lower=0.0, upper=60.0, scale=1200.0, granularity=0.5)
    >>> released.mechanism
    DiscreteLaplace(scale=2400.0, sensitivity=120)
    """
    return _clipped_sum(values, budget, lower, upper, granularity, Fraction(1), scale, noise, name)


def mean(
    values: ArrayLike,
    budget: Budget,
    *,
    lower: float,
    upper: float,
    size: int,
    scale: float,
    granularity: float | None = None,
    noise: Noise = DiscreteLaplace,
    name: str = "mean",
) -> Statistic:
    """Returns a noisy mean: the noisy sum of clipped values over a public size.

    Args:
        values (n,): as of :func:`sum`.
        budget: likewise.
        lower: likewise.
        upper: likewise.
        size: what the sum is divided by, a number that is public: beds, places, people invited. The number of rows
            is public where the relation is "replace"; otherwise it is a :func:`count`.
        scale: that of the noise, in the unit of the mean.
        granularity: as of :func:`sum`, of the values.
        noise: likewise.
        name: likewise.

    Formal guarantee, sensitivity and errors as of :func:`sum`.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     budget = Budget.begin(pathlib.Path(folder, "year.jsonl"), epsilon=1.0, delta=1e-6, unit="one patient")
    ...     released = mean([3.0, 99.0], budget, lower=0.0, upper=60.0, size=1000, scale=0.48, noise=DiscreteGaussian)
    >>> released.deviation, released.mechanism
    (0.48, ZeroConcentratedDP(rho=0.0078125, xi=0.0))
    """
    size = validation.check_count(size, "size", "the public number that divides")
    return _clipped_sum(values, budget, lower, upper, granularity, Fraction(1, size), scale, noise, name)


def quantile(
    values: ArrayLike,
    budget: Budget,
    *,
    level: float,
    candidates: ArrayLike,
    epsilon: float,
    name: str = "quantile",
) -> Statistic:
    """Returns one of public candidates, drawn by the exponential mechanism: the closer to the quantile, the likelier.

    Args:
        values (n,): numbers; one that is missing (NaN) is left out.
        budget: as of :func:`count`.
        level: in (0, 1); 0.5 is the median.
        candidates (m,): what may come out, chosen without a look at the data. Between two of them nothing does.
        epsilon: what it costs. A candidate has a probability prop. to e^(-epsilon distance/(2 S)), where distance is
            |(1 - level) below - level above|, with the numbers of rows below and above it.
        name: as of :func:`count`.

    S is what one row changes a distance by: the larger of level and 1 - level; 1 where it replaces another row.

    Formal guarantee and errors as of :func:`count`. Source: that of :class:`.ExponentialMechanism`.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     budget = Budget.begin(pathlib.Path(folder, "year.jsonl"), epsilon=1.0, delta=1e-6, unit="one patient")
    ...     released = quantile([1.0, 2.0, 2.0, 9.0], budget, level=0.5, candidates=range(10), epsilon=0.1)
    >>> released.value in range(10), released.mechanism
    (True, ExponentialMechanism(epsilon=0.1))
    """
    rows, places = np.sort(_numbers(values, "values")), _numbers(candidates, "candidates")
    validation.check_scalar(level, "level")
    validation.check_scalar(epsilon, "epsilon")
    validation.check_positive(epsilon, "epsilon")
    if not 0 < level < 1 or not len(places) or not np.all(np.isfinite(places)):
        raise ValueError(
            f"level = {shorten(level)}, candidates = {shorten(candidates)}: give a level in (0, 1), and finite numbers."
        )
    rows, part = rows[~np.isnan(rows)], Fraction(float(level))
    below = np.searchsorted(rows, places, "left").tolist()
    above = (len(rows) - np.searchsorted(rows, places, "right")).tolist()
    # In units of 1/denominator, in which scores are whole numbers.
    a, b = part.numerator, part.denominator
    scores = [-abs((b - a) * low - a * high) for low, high in zip(below, above, strict=True)]
    most = b if _replaces(budget) else max(a, b - a)
    mechanism = ExponentialMechanism(float(epsilon))
    number = budget.pay(name, mechanism)
    place = _choose(scores, Fraction(float(epsilon)) / (2 * most), secrets.randbelow)
    return Statistic(name, float(places[place]), None, mechanism, 1, number, datetime.date.today())


def _clipped_sum(
    values: ArrayLike, budget: Budget, lower: float, upper: float, granularity: float | None, share: Fraction,
    scale: float, noise: Noise, name: str,
) -> Statistic:  # fmt: skip
    """Returns the noisy sum, of which ``share`` is released."""
    for argument, value in (("lower", lower), ("upper", upper)):
        validation.check_scalar(value, argument)
        validation.check_finite(value, argument)
    if not lower < upper:
        raise ValueError(f"lower = {lower}, upper = {upper}: give a lower bound that is below the upper one.")
    step = max(abs(float(lower)), abs(float(upper))) / 1000 if granularity is None else granularity
    validation.check_scalar(step, "granularity")
    validation.check_positive(step, "granularity")
    column = _numbers(values, "values")
    low, high = (round(Fraction(float(bound)) / Fraction(float(step))) for bound in (lower, upper))
    sensitivity = high - low if _replaces(budget) else max(abs(low), abs(high))
    if not low < high or sensitivity > LARGEST_SENSITIVITY or max(abs(low), abs(high)) > 2**31:
        raise ValueError(
            f"lower = {lower}, upper = {upper}, granularity = {step}: give bounds at least one step apart, and a "
            f"granularity of which a row changes the sum by at most {LARGEST_SENSITIVITY} steps."
        )
    with np.errstate(over="ignore"):
        # Each row becomes a whole number from low to high by itself, whatever it was and however it was rounded.
        steps = np.rint(np.where(np.isnan(column), 0.0, column) / step)
    total = int(np.add.reduce(np.clip(steps, low, high).astype(np.int64)))
    return _release(budget, name, total, sensitivity, share * Fraction(float(step)), scale, noise)


def _release(
    budget: Budget, name: str, totals: int | list[int], sensitivity: int, unit: Fraction, scale: float, noise: Noise,
    runs: int = 1,
) -> Statistic:  # fmt: skip
    """Returns whole numbers of units with noise, having paid for it. One unit is worth ``unit`` of what is released."""
    validation.check_type(budget, "budget", Budget)
    validation.check_scalar(scale, "scale")
    validation.check_positive(scale, "scale")
    ratio = Fraction(float(scale)) / unit
    own = float(ratio) if ratio < 2**1000 else math.inf  # in units; from here on this is the scale
    validation.check_positive(own, "scale")
    if noise is DiscreteLaplace:
        mechanism: Mechanism = DiscreteLaplace(own, sensitivity)
        draw, deviation = _discrete_laplace, 1 / (math.sqrt(2) * math.sinh(min(1 / (2 * own), 700.0)))
    elif noise is DiscreteGaussian:
        # The divergence of every order a is a (sensitivity/scale)^2/2: Canonne, Kamath and Steinke (2020), Theorem 4.
        rho = round_up(Fraction(sensitivity) ** 2 / (2 * Fraction(own) ** 2))
        mechanism = DiscreteGaussian(own, sensitivity) if own <= 1700 else ZeroConcentratedDP(rho)
        draw, deviation = _discrete_gaussian, own
    else:
        raise TypeError(f"noise = {shorten(noise)}: give DiscreteLaplace or DiscreteGaussian.")
    number = budget.pay(name, mechanism, runs)
    several = [totals] if isinstance(totals, int) else totals
    noisy = [total + draw(Fraction(own), secrets.randbelow) for total in several]
    values = tuple(n if unit == 1 else _as_float(n * unit) for n in noisy)
    value = values[0] if isinstance(totals, int) else values
    return Statistic(name, value, deviation * float(unit), mechanism, runs, number, datetime.date.today())


def _as_float(value: Fraction) -> float:
    """Returns the nearest float, infinite beyond all: what is paid for comes out, however large its noise."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _replaces(budget: Budget) -> bool:
    """Returns whether a neighbour has a row in place of another one."""
    validation.check_type(budget, "budget", Budget)
    return budget.relation == "replace"


def _entries(values: Any, name: str) -> list[Any]:
    """Returns a column's entries, each as a Python object, by itself: no type is made that would hold all of them."""
    if isinstance(values, (str, bytes)) or not hasattr(values, "__len__") or getattr(values, "ndim", 1) != 1:
        raise ValueError(f"{name}: give a column, with one entry for each row.")
    entries = values.tolist() if hasattr(values, "tolist") else list(values)
    return [entry.item() if isinstance(entry, np.generic) else entry for entry in entries]


def _numbers(values: Any, name: str) -> np.ndarray:
    """Returns a column in float64, each entry converted by itself; what is missing is NaN."""
    try:
        column = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name} of type {type(values).__name__}: give a column of numbers.") from None
    if column.ndim != 1:
        raise ValueError(f"{name} of shape {column.shape}: give a column, with one entry for each row.")
    return column
