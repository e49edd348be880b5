"""Tests that pictures show no value at steps that it is not of, and no run in the style of another."""

import matplotlib as mpl
import numpy as np
import pytest

import jaxacct as ja

mpl.use("agg")


def lines(axes):
    return {line.get_label(): (line.get_color(), line.get_linestyle()) for line in axes.get_lines() if line.get_gid()}


@pytest.mark.parametrize("steps", [[1.5, 2.0], [0.0, 1.0], np.geomspace(1, 50, 4)])
def test_steps_that_are_none_are_refused(steps):
    with pytest.raises(ValueError, match="not all whole and at least 1"):
        ja.plot.epsilon_over_steps(ja.Gaussian(2.0), steps, 1e-5)


@pytest.mark.exhaustive
def test_a_run_has_one_style_in_both_scales():
    rates = np.array([0.0, 1e-3, 1e-2, 0.1, 0.5, 1.0])
    axes = ja.plot.tradeoff(ja.Gaussian(2.0), 1, fpr=[0.0, 0.5, 1.0])
    assert not axes.child_axes
    ja.plot.tradeoff(ja.Gaussian(0.5), 1, fpr=rates, axes=axes)
    (inner,) = axes.child_axes
    assert len(lines(axes)) == 2
    ((label, style),) = lines(inner).items()
    assert lines(axes)[label] == style
    assert sum(line.get_gid() is None for line in axes.get_lines()) == 1  # guessing, once


@pytest.mark.parametrize("values", [lambda x, y: 1e5 ** (x * y), lambda x, y: 1 + x + y, lambda x, y: 1 + 0.02 * x * y])
def test_every_contour_has_its_number(values):
    """A line without a number tells nothing: each level that is drawn has one, within the picture."""
    figure = ja.plot.chart.own_figure()
    axes = figure.subplots()
    x, y = np.geomspace(1e-3, 0.1, 7), np.linspace(1.0, 8.0, 5)
    grid = values(np.linspace(0, 1, 7)[None], np.linspace(0, 1, 5)[:, None])
    ja.plot.curves._fill(axes, x, y, grid, "epsilon")
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")
    (lines,) = [drawn for drawn in axes.collections if hasattr(drawn, "levels")]
    assert sorted(float(text.get_text()) for text in axes.texts) == pytest.approx(sorted(lines.levels))
    assert len(lines.levels) >= 3


@pytest.mark.exhaustive
def test_an_accountant_without_an_answer_draws_nothing():
    """The pairs of an epoch are of two kinds, and their moments are not known: the estimate is infinite, no error."""
    epoch = ja.RandomAllocation(2.0, 10)
    axes = ja.plot.epsilon_over_steps(epoch, [10], 1e-5, accountants={"limit": ja.gdp.epsilon})
    assert all(np.isnan(line.get_ydata()).all() for line in axes.get_lines() if line.get_gid())


def test_lines_of_changed_plans_meet_at_the_plan_and_are_its_least_noise():
    axes = ja.plot.what_if(3.0, 1e-5, 0.02, 500, factors=[0.5, 1.0, 100.0])
    drawn = {line.get_label(): line for line in axes.get_lines() if line.get_label()[0] != "_"}
    assert list(drawn) == ["epsilon", "delta", "sampling rate", "steps"]
    noise = {name: dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) for name, line in drawn.items()}
    assert {round(values[1.0], 12) for values in noise.values()} == {
        round(float(ja.calibrate.noise_multiplier(3.0, 1e-5, 0.02, 500).value), 12)
    }
    assert noise["epsilon"][0.5] > noise["epsilon"][1.0] > noise["steps"][0.5]
    assert not np.isfinite(noise["sampling rate"].get(100.0, np.nan))  # there is no rate of 2
