"""Rough lines: upper bounds of delta from few nodes, and directions that they rule out."""

import jax
import numpy as np
import pytest
from helpers.thorough import draws, program

import jaxacct as ja
from jaxacct.composition import ForDelta, ForEpsilon, directed_parts
from jaxacct.saddlepoint import solve
from jaxacct.saddlepoint.contour import log_above, read_at
from jaxacct.saddlepoint.solve import Wanted

COUNT = draws(8, 24)
SETTINGS = np.exp(np.random.default_rng(7).uniform(np.log([0.5, 1e-3, 10]), np.log([6.0, 0.3, 1e5]), (24, 3)))[:COUNT]
"""Noise, rate, steps."""


def directions(noise, rate, steps):
    return directed_parts(ja.PoissonSubsampledGaussian(noise, rate), np.round(steps), "add_or_remove")


@program
def bound(parts, epsilon, delta, order):
    line = solve.open_line(parts, Wanted(epsilon, delta, np.False_, order), np.True_).line
    return log_above(line, epsilon, read_at(line, epsilon)), line.blocks


@pytest.mark.exhaustive
def test_a_rough_line_bounds_delta_from_above_at_any_order():
    tight = 0
    with jax.enable_x64(True):
        for row, setting in enumerate(SETTINGS):
            for parts in directions(*setting):
                asked = np.float64(10.0 ** -(1 + row % 10))
                exact, _ = solve.bounds_of([parts], ForEpsilon(asked))
                if not exact.converged:
                    continue
                epsilon = np.asarray(exact.upper)
                line = solve.open_line(parts, solve._first_line(ForEpsilon(asked)), np.True_).line
                # At that order, and at others; for its delta, and for one a million times as large or small.
                for factor, other in ((1.0, 1.0), (0.2, 1.0), (3.0, 1.0), (1.0, 1e6), (1.0, 1e-6)):
                    limit = np.float64(min(asked * other, 0.9))
                    found, blocks = bound(parts, epsilon, limit, np.asarray(line.order) * factor)
                    # Delta at that eps is at most a share of 1e-7 below the one asked for.
                    assert not found < np.log(asked * (1 - 1e-7))
                    # Where there is no line, Chernoff's bound has ruled the larger delta out.
                    assert blocks > 0 or found <= np.log(limit)
                    tight += factor == other == 1.0 and found < np.log(asked) + 0.01
    assert tight >= 1.25 * COUNT


@pytest.mark.exhaustive
@pytest.mark.parametrize("question", [ForEpsilon(np.float64(1e-5)), ForDelta(np.float64(0.5))])
def test_what_is_ruled_out_is_what_alone_would_not_have_decided(question):
    ruled_out = 0
    with jax.enable_x64(True):
        for setting in SETTINGS:
            both = directions(*setting)
            found, decides = solve.bounds_of(both, question)
            alone = [solve.bounds_of([parts], question)[0] for parts in both]
            if not found.converged:
                continue
            ruled_out += 1
            assert found.upper == max(bounds.upper for bounds in alone if bounds.converged)
            assert alone[int(decides)].converged
            assert alone[int(decides)].lower <= found.lower
            # In either order.
            turned, which = solve.bounds_of(both[::-1], question)
            assert turned.converged
            assert turned.lower <= found.upper
            assert found.lower <= turned.upper
            assert which == 1 - decides or alone[0].upper == alone[1].upper
    assert ruled_out >= 0.6 * COUNT


@pytest.mark.exhaustive
def test_a_direction_that_is_larger_is_never_ruled_out():
    with jax.enable_x64(True):
        for setting in SETTINGS:
            for question in (ForEpsilon(np.float64(1e-5)), ForDelta(np.float64(0.5))):
                both = directions(*setting)
                known, _ = solve.bounds_of(both[1:], question)
                state = solve._start(question)
                if not known.converged:
                    continue
                state = solve._read_line(solve.open_line(both[1], state.wanted, np.True_), question, state)
                read = solve._read_line(solve.open_line(both[0], state.wanted, np.True_), question, state)
                larger = solve.bounds_of(both[:1], question)[0].lower > known.upper
                assert read.direction == 1 or not larger
