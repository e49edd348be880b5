"""Noise of integers: the referee's table, law and distances, and records that it refuses."""

import copy
import hashlib
from fractions import Fraction

import numpy as np
import pytest

pytest.importorskip("flint")
from flint import arb, ctx, fmpq, fmpz_poly
from helpers.thorough import draws

from jaxacct.train import integer_noise
from jaxacct.verify import drawn_noise


def a_record(samples=1_000_000, each=100):
    """A record as a trainer writes it."""
    parts = integer_noise.bill(samples)
    words = integer_noise.table()
    return {
        "arithmetic": "integer", "generator": drawn_noise.GENERATORS[0], "draws": 2,
        "scale_squared": str(integer_noise.VARIANCES[2]),
        "table_sha256": hashlib.sha256(words.astype("<u4").tobytes()).hexdigest(), "entries": each - 2, "counts": 2,
        "samples_per_step": each, "steps": samples // each, "steps_per_run": 1, "samples": samples,
        "total_variation": parts, "delta": 0.0,
    }  # fmt: skip


def distance_of(record):
    return float(sum(map(Fraction, record["total_variation"].values())) * Fraction(1 + 2.0**-50))


def test_the_referees_table_is_the_one_that_is_drawn_by():
    assert drawn_noise.masses()[0] == integer_noise.masses() == integer_noise.law_of(integer_noise.table())
    assert drawn_noise.table_sha256() == a_record()["table_sha256"]
    assert 6.2e-33 < drawn_noise.masses()[1] < 6.29e-33
    assert {k: Fraction(v) for k, v in drawn_noise.SQUARES.items()} == integer_noise.VARIANCES


def test_a_bill_is_nowhere_below_the_referees_distances():
    for samples in (1, 3, *(int(10**u) for u in np.random.default_rng(5).uniform(0, 18, draws(40, 2000)))):
        found, billed = drawn_noise.distances(samples), integer_noise.bill(samples)
        assert found.keys() == billed.keys()
        for name, least in found.items():
            assert least <= arb(billed[name]) <= least * 1.03, (samples, name)


def test_a_record_of_a_trainer_is_proved():
    record = a_record()
    assert drawn_noise.refute(record, distance_of(record), 10_000, 10_000) == ""
    for generator in drawn_noise.GENERATORS:
        assert drawn_noise.refute(record | {"generator": generator}, distance_of(record), 10_000, 0) == ""
    cycles = record | {"steps_per_run": 20}
    assert drawn_noise.refute(cycles, distance_of(record), 500, 9_990) == ""
    assert "and 10020 are composed" in drawn_noise.refute(cycles, distance_of(record), 501, 9_990)
    three = record | {"draws": 3, "scale_squared": str(integer_noise.VARIANCES[3])}
    assert drawn_noise.refute(three, 1e-9, 1, 1) == ""


def of_other_words():
    words = integer_noise.table().copy()
    words[9000, 3] ^= 1
    return hashlib.sha256(words.astype("<u4").tobytes()).hexdigest()


RECORD = a_record()
PARTS = RECORD["total_variation"]
WRONG = {
    "one bit of a table": ({"table_sha256": of_other_words()}, "has the hash"),
    "four draws": ({"draws": 4}, "of 4 draws has not the variance"),
    "another variance": ({"scale_squared": str(2**40 - 3)}, "has not the variance"),
    "the variance of three": ({"draws": 3}, "has not the variance"),
    "another generator": ({"generator": "Mersenne Twister seeded 42"}, "'Mersenne Twister seeded 42' is none of a tr"),
    "a generator and more words": ({"generator": drawn_noise.GENERATORS[0] + ", then zeros"}, "is none of a trainer's"),
    "no generator": ({"generator": None}, "None is none of a trainer's"),
    "fewer values than steps": ({"samples_per_step": 101}, "not those of 10000 steps of 98 + 2"),
    "more parameters": ({"entries": 99}, "not those of 10000 steps of 99 + 2"),
    "fewer values": ({"samples": 999_900}, "999900 values of noise are not those of 10000 steps"),
    "a step's values alone": ({"samples": 100}, "100 values of noise are not those of"),
    "fewer steps": ({"samples": 999_900, "steps": 9_999}, "noise is drawn for 9999 steps, and 10000 are composed"),
    "runs of more steps": ({"steps_per_run": 2}, "noise is drawn for 10000 steps, and 20000 are composed"),
    "steps without noise": ({"samples_per_step": 0}, "samples_per_step = 0 is no number"),
    "parameters taken off": ({"entries": 102, "counts": -2}, "counts = -2 is no number"),
    "half a value": ({"entries": 97.5, "counts": 2.5}, "entries = 97.5 is no number"),
    "a bill of fewer values": ({"total_variation": integer_noise.bill(990_000)}, "the distance of bridge"),
    "a part left out": ({"total_variation": {k: v for k, v in PARTS.items() if k != "suffix"}}, "are those of the th"),
    "a part of 0": ({"total_variation": PARTS | {"suffix": 0.0}}, "the distance of suffix is 0.0"),
    "a part that is taken off": ({"total_variation": PARTS | {"gain": -1e-22}}, "bridge, sums, table, suffix are"),
    "no number": ({"total_variation": PARTS | {"sums": float("inf")}}, "not what a trainer writes"),
    "a text": ({"total_variation": PARTS | {"sums": "1"}}, "the distance of sums is '1'"),
    "no values": ({"samples": None}, "samples = None is no number"),
    "a fraction of nothing": ({"scale_squared": "1/0"}, "has not the variance '1/0'"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_record_that_says_too_little_is_refuted(name):
    change, why = WRONG[name]
    assert why in drawn_noise.refute(copy.deepcopy(RECORD) | change, 1e-6, 10_000, 10_000)


def test_what_is_paid_has_to_be_all_of_it():
    record = a_record()
    assert "below the sum" in drawn_noise.refute(record, distance_of(record) * (1 - 1e-12), 1, 1)
    assert drawn_noise.refute({}, 1.0, 1, 1) != ""
    for key in record.keys() - {"arithmetic", "delta"}:
        left = {name: value for name, value in record.items() if name != key}
        assert f"not what a trainer writes (KeyError('{key}'))" in drawn_noise.refute(left, 1.0, 1, 1)


# ----------------------------------------------------------------------------------------------------
# The law of noise, in whole numbers. The masses of X are over 2^128, those of X1 + 765 X2 over 2^256.
# ----------------------------------------------------------------------------------------------------


def signed_masses():
    sizes = integer_noise.masses()
    return [*reversed(sizes[1:]), 2 * sizes[0], *sizes[1:]]


@pytest.mark.exhaustive
def test_the_sum_of_two_draws_is_within_the_bound_of_the_discrete_gaussian():
    """All 25,098,757 values: each class modulo 765 is one product of polynomials, and mirrored ones are alike."""
    coarse, bits = integer_noise.COARSE, 400
    law, least = signed_masses(), 1 - integer_noise.ROWS
    whole, off, inside, count = fmpz_poly(law), 0, 0, 0
    with ctx.workprec(bits + 64):
        square = arb(2) ** 40
        total = (2 * arb.pi() * square).sqrt() * (1 + 2 * (-2 * arb.pi() ** 2 * square).exp())

        def fixed(value):
            return int((value * arb(2) ** bits).floor().mid().unique_fmpz())

        ratio = fixed((-arb(coarse**2) / square).exp())
        for residue in range(coarse):
            mirror = (-2 * least - residue) % coarse
            times = (residue <= mirror) + (residue < mirror)
            if not times:
                continue
            sums = fmpz_poly(law[residue::coarse]) * whole
            # Values n = first + 765 k: e^(-n^2/(2 s^2)) by its ratios. A fixed point of 400 bits errs by less than
            # 2^-270 of each.
            first = least * (1 + coarse) + residue
            mass = fixed((-arb(first**2) / (2 * square)).exp() / total)
            factor = fixed((-arb(coarse * (2 * first + coarse)) / (2 * square)).exp())
            wanted = []
            for _ in range(sums.degree() + 1):
                wanted.append(mass >> bits - 256)
                mass, factor = mass * factor >> bits, factor * ratio >> bits
            off += times * sum(map(abs, (sums - fmpz_poly(wanted)).coeffs()))
            inside, count = inside + times * sum(wanted), count + times * len(wanted)
    assert count == 25_098_757
    found = float((off + 2**256 - inside) / fmpq(2**257))  # half of all differences, those outside included
    print(f"total variation of X1 + 765 X2 from the discrete Gaussian: {found:.6g}")
    bound = integer_noise.bill(1)
    assert 1e-30 < found <= bound["sums"] + 2 * 6.29e-33 <= 1e-27


@pytest.mark.exhaustive
def test_three_draws_have_the_masses_of_the_discrete_gaussian():
    """Masses at some values exactly. A ratio is off 1 by twice theta(3.2) = 6.0e-28 at most, and by the table."""
    law, edge, coarse = signed_masses(), integer_noise.ROWS - 1, integer_noise.COARSE
    square = integer_noise.VARIANCES[3]

    def at(m):
        return law[m + edge] if abs(m) <= edge else 0

    def of_two(v):
        first = -edge + (v + edge) % coarse
        return sum(at(m) * at((v - m) // coarse) for m in range(first, edge + 1, coarse))

    scale = float(square) ** 0.5
    for n in np.random.default_rng(0).uniform(-3 * scale, 3 * scale, draws(10, 200)).astype(int).tolist():
        first = -edge + (n + edge) % 32
        mass = sum(at(m) * of_two((n - m) // 32) for m in range(first, edge + 1, 32))
        with ctx.workprec(500):
            v = arb(fmpq(square.numerator, square.denominator))
            wanted = (-(arb(n) ** 2) / (2 * v)).exp() / (2 * arb.pi() * v).sqrt()
            assert abs(arb(mass) / arb(2) ** 384 / wanted - 1) < 2e-27, n
