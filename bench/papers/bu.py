"""Bu, Dong, Long and Su (2020), "Deep learning with Gaussian differential privacy": tables, Figures 2 to 4 and A.1."""

from __future__ import annotations

import functools

import numpy as np

from bench.papers.bu_tables import SECTION_4_2, TABLES, NoiseScales, Row
from bench.papers.exhibits import Cell, Exhibit, Table
from jaxacct import calibrate, convert, gdp, prv, rdp, tradeoff
from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.plot import Chart, Series

SECOND, THIRD = (row for row in TABLES if row.name in ("MNIST 2", "MNIST 3"))
"""Rows of Table 1: Figures 3 and A.1 discuss the second one, Figure 2 has the third one's setting."""

CLT = "central-limit estimate: it may under-report"
MOMENTS = "moments accountant, Mironov's rule"
CERTIFIED = "certified upper bound"

COLUMNS = {
    "model": None,
    "noise_multiplier": None,
    "sampling_rate": None,
    "epochs": None,
    "steps": None,
    "delta": None,
    "mu_printed": 2,
    "mu_estimate": 2,
    "epsilon_clt_printed": 2,
    "epsilon_clt_estimate": 2,
    "epsilon_ma_printed": 2,
    "epsilon_ma": 2,
    "epsilon_certified_lower": 4,
    "epsilon_certified_upper": 4,
}
"""Columns of the tables, and decimal places in Markdown; "printed" ones are the paper's."""


def _mechanism(row: Row) -> PoissonSubsampledGaussian:
    return PoissonSubsampledGaussian(row.noise_multiplier, row.sampling_rate)


def table(number: int) -> Table:
    """The privacy columns of one of Tables 1 to 4, as printed and computed anew."""
    rows: list[list[Cell]] = []
    for row in TABLES:
        if row.table != number:
            continue
        mechanism, steps = _mechanism(row), row.steps
        certified = prv.epsilon(mechanism, steps, row.delta)
        rows.append(
            [
                row.name,
                row.noise_multiplier,
                row.sampling_rate,
                row.epochs,
                steps,
                row.delta,
                row.mu,
                float(gdp.mu(mechanism, steps)),
                row.clt_epsilon,
                float(gdp.epsilon(mechanism, steps, row.delta)),
                row.ma_epsilon,
                float(rdp.epsilon(mechanism, steps, row.delta, conversion="mironov")),
                float(certified.lower),
                float(certified.upper),
            ]
        )
    return Table(
        title=f"Bu, Dong, Long and Su (2020), Table {number}: privacy",
        header=tuple(COLUMNS),
        rows=rows,
        digits={name: places for name, places in COLUMNS.items() if places is not None},
        rounded_up=("epsilon_ma", "epsilon_certified_upper"),
        rounded_down=("epsilon_certified_lower",),
        notes=(
            "mu_estimate and epsilon_clt_estimate are estimates by the central limit theorem: they may under-report, "
            "and do where they are below epsilon_certified_lower. epsilon_ma is an upper bound, by Rényi divergences "
            "and Mironov's rule; the certified bracket holds the true epsilon, rounding included.",
            "Steps are epochs over the sampling rate, rounded to a whole number. Adding or removing one example.",
        ),
    )


def deltas() -> Chart:
    """Figure 2, top: delta against epsilon after training."""
    mechanism = _mechanism(THIRD)
    epsilons = np.linspace(0.0, 8.0, 33)
    moments = [float(rdp.delta(mechanism, THIRD.steps, each, conversion="mironov")) for each in epsilons]
    return Chart(
        title=f"Delta after {THIRD.epochs} epochs, {_setting(THIRD)}",
        x_name="epsilon",
        x_label="epsilon",
        y_label="delta",
        x=epsilons,
        log_y=True,
        curves=(
            Series(
                "delta_clt", CLT, np.asarray(gdp.gaussian_delta(gdp.mu(mechanism, THIRD.steps), epsilons)), "estimate"
            ),
            Series("delta_moments", MOMENTS, np.array(moments)),
            Series("delta_certified", CERTIFIED, np.asarray(prv.curve(mechanism, THIRD.steps, epsilons).delta.upper)),
        ),
    )


def epochs() -> Chart:
    """Figure 2, bottom: epsilon against epochs."""
    mechanism, delta = _mechanism(THIRD), THIRD.delta
    numbers = np.array([1, 2, 5, *range(10, 101, 10)])
    steps = [round(number / THIRD.sampling_rate) for number in numbers]
    estimates = [float(gdp.epsilon(mechanism, count, delta)) for count in steps]
    moments = [float(rdp.epsilon(mechanism, count, delta, conversion="mironov")) for count in steps]
    certified = [float(prv.epsilon(mechanism, count, delta).upper) for count in steps]
    return Chart(
        title=f"Epsilon at delta = {delta:g}, {_setting(THIRD)}",
        x_name="epochs",
        x_label="epochs",
        y_label=f"epsilon at delta = {delta:g}",
        x=numbers,
        curves=(
            Series("epsilon_clt", CLT, np.array(estimates), "estimate"),
            Series("epsilon_moments", MOMENTS, np.array(moments)),
            Series("epsilon_certified", CERTIFIED, np.array(certified)),
        ),
    )


def scales() -> Chart:
    """Figure 2, fourth panel: the noise that the CLT says suffices for what the moments accountant says of another."""
    noises, steps, delta, rate = np.linspace(0.5, 1.5, 21), THIRD.steps, THIRD.delta, THIRD.sampling_rate
    budgets = [
        float(rdp.epsilon(PoissonSubsampledGaussian(noise, rate), steps, delta, conversion="mironov"))
        for noise in noises
    ]
    mu = np.array([float(convert.dp_to_gdp(epsilon, delta)) for epsilon in budgets])
    by_clt = 1 / np.sqrt(np.log1p((mu / rate) ** 2 / steps))  # equation 3.4
    needed = np.array([float(calibrate.noise_multiplier(epsilon, delta, rate, steps).value) for epsilon in budgets])
    return Chart(
        title=f"Noise for the same epsilon after {THIRD.epochs} epochs, p = {THIRD.batch_size}/{THIRD.examples}",
        x_name="noise",
        x_label="noise multiplier under the moments accountant",
        y_label="noise multiplier for that epsilon",
        x=noises,
        curves=(
            Series("noise_moments", MOMENTS, noises, "reference"),
            Series("noise_certified", "least noise, certified", needed),
            Series("noise_clt", "by the central limit: an estimate", by_clt, "estimate"),
        ),
        notes=(
            f"The central limit asks for {np.min(by_clt / needed):.1%} to {np.max(by_clt / needed):.1%} of the noise "
            "that is needed.",
        ),
    )


def spending(pair: NoiseScales) -> Chart:
    """Figure 4, right: epsilon over epochs of two noises that are said to end at the same one."""
    epochs = np.arange(1, pair.epochs + 1)
    steps = [round(epoch / THIRD.sampling_rate) for epoch in epochs]
    more, less = (PoissonSubsampledGaussian(noise, THIRD.sampling_rate) for noise in pair[:2])
    values = {
        "moments": [float(rdp.epsilon(more, count, 1e-5, conversion="mironov")) for count in steps],
        "clt": [float(gdp.epsilon(less, count, 1e-5)) for count in steps],
        "certified_more": [float(prv.epsilon(more, count, 1e-5).upper) for count in steps],
        "certified_less": [float(prv.epsilon(less, count, 1e-5).upper) for count in steps],
    }
    curves = (
        Series("epsilon_moments", f"s = {pair[0]:g}: {MOMENTS}", np.array(values["moments"])),
        Series("epsilon_certified_more", f"s = {pair[0]:g}: {CERTIFIED}", np.array(values["certified_more"])),
        Series("epsilon_clt", f"s = {pair[1]:g}: {CLT}", np.array(values["clt"]), "estimate"),
        Series("epsilon_certified_less", f"s = {pair[1]:g}: {CERTIFIED}", np.array(values["certified_less"])),
    )
    return Chart(
        title=f"Epsilon at delta = 1e-05 over epochs, p = {THIRD.batch_size}/{THIRD.examples}",
        x_name="epoch",
        x_label="epochs",
        y_label="epsilon at delta = 1e-05",
        x=epochs,
        curves=curves,
        notes=(
            f"At the end {values['moments'][-1]:.3f} by the moments accountant and {values['clt'][-1]:.3f} by the "
            f"central limit, where {values['certified_more'][-1]:.3f} and {values['certified_less'][-1]:.3f} are "
            f"certified; printed is {pair.epsilon:g} for both. The accuracies beside it are not drawn: they take a "
            "training with each noise.",
        ),
    )


def errors(row: Row = SECOND) -> Chart:
    """Figure 3, a model: errors of the best attack by the CLT, by the moments accountant, and certified."""
    mechanism, steps, delta = _mechanism(row), row.steps, row.delta
    rates = np.linspace(0.0, 1.0, 201)
    mu = float(gdp.mu(mechanism, steps))
    epsilon = float(rdp.epsilon(mechanism, steps, delta, conversion="mironov"))
    bounds = tradeoff.curve(mechanism, steps, rates)
    # The least sum of both errors is 1 less the total variation distance, delta at epsilon = 0.
    by_clt = 1 - float(gdp.gaussian_delta(mu, 0.0))
    by_moments = 2 * (1 - delta) / (1 + np.exp(epsilon))
    # The middle row: all pairs of the moments accountant at once.
    epsilons = np.linspace(0.0, 1.5 * epsilon, 40)
    pairs = [float(rdp.delta(mechanism, steps, each, conversion="mironov")) for each in epsilons]
    certified = 1 - float(tradeoff.advantage(mechanism, steps).upper)
    return Chart(
        title=f"Errors of any attack after {row.epochs} epochs, {_setting(row)}",
        x_name="fpr",
        x_label="false-positive rate (type I error)",
        y_label="false-negative rate (type II error)",
        x=rates,
        curves=(
            Series("fnr_lower", "certified: the least false-negative rate is in this band", bounds.lower, "band"),
            Series("fnr_upper", "certified, upper", bounds.upper, "band"),
            Series("fnr_clt", f"G_mu, mu = {mu:.2f}, {CLT}", np.asarray(tradeoff.gaussian(mu, rates)), "estimate"),
            Series(
                "fnr_moments",
                f"({epsilon:.2f}, {delta:g})-DP by the {MOMENTS}",
                np.asarray(tradeoff.approximate_dp(epsilon, delta, rates)),
            ),
            Series(
                "fnr_moments_all",
                f"all pairs by the {MOMENTS}",
                np.asarray(tradeoff.from_delta(epsilons, pairs, rates)),
            ),
        ),
        notes=(
            f"Least sum of both errors: {by_clt:.1%} by the estimate, at least {by_moments:.1%} by the moments "
            f"accountant, at least {certified:.1%} certified.",
        ),
    )


def limit() -> Chart:
    """Figure A.1: one epoch, with the sampling rate raised so that p sqrt(T) stays, against its Gaussian limit."""
    steps = round(1 / SECOND.sampling_rate)
    rate = SECOND.sampling_rate * float(np.sqrt(SECOND.real_steps / steps))
    mechanism = PoissonSubsampledGaussian(SECOND.noise_multiplier, rate)
    rates = np.linspace(0.0, 1.0, 201)
    # Of p G + (1-p) Id the null hypothesis is the data set without the example.
    bounds = tradeoff.curve(mechanism, steps, rates, relation="remove")
    mu = float(gdp.mu(mechanism, steps))
    gaussian = np.asarray(tradeoff.gaussian(mu, rates))
    apart = max(np.max(np.abs(gaussian - np.asarray(end))) for end in (bounds.lower, bounds.upper))
    return Chart(
        title=f"One epoch of {steps} steps, s = {SECOND.noise_multiplier:g}, p = {rate:.4g}, against its limit",
        x_name="fpr",
        x_label="false-positive rate (type I error)",
        y_label="false-negative rate (type II error)",
        x=rates,
        curves=(
            Series("fnr_lower", "(p G + (1-p) Id) composed, certified band", bounds.lower, "band"),
            Series("fnr_upper", "certified, upper", bounds.upper, "band"),
            Series("fnr_limit", f"G_mu, mu = {mu:.2f}: the limit, an estimate", gaussian, "estimate"),
        ),
        notes=(f"The two are within {apart:.2g} of one another.",),
    )


def _setting(row: Row) -> str:
    return f"s = {row.noise_multiplier:g}, p = {row.batch_size}/{row.examples}"


SOURCE = "Bu et al. (2020)"

EXHIBITS = (
    *(
        Exhibit(
            f"bu-table-{n}",
            f"{SOURCE}, Table {n}",
            "privacy of its models, as printed and computed",
            functools.partial(table, n),
        )
        for n in range(1, 5)
    ),
    Exhibit("bu-figure-2-delta", f"{SOURCE}, Figure 2", "delta against epsilon, CLT and moments accountant", deltas),
    Exhibit("bu-figure-2-epochs", f"{SOURCE}, Figure 2", "epsilon against epochs, CLT and moments accountant", epochs),
    Exhibit(
        "bu-figure-2-noise", f"{SOURCE}, Figure 2", "noise for the same epsilon, CLT and moments accountant", scales
    ),
    Exhibit("bu-figure-3", f"{SOURCE}, Figure 3", "trade-off functions, second row of Table 1", errors),
    *(
        Exhibit(
            f"bu-figure-3-{n}",
            f"{SOURCE}, Figure 3",
            f"trade-off functions, row {n} of Table 1",
            functools.partial(errors, TABLES[n - 1]),
        )
        for n in (1, 3, 4, 5, 6)
    ),
    *(
        Exhibit(
            f"bu-figure-4-{pair.moments_accountant:g}",
            f"{SOURCE}, Figure 4, right",
            "epsilon over epochs of two noises",
            functools.partial(spending, pair),
        )
        for pair in SECTION_4_2
    ),
    Exhibit("bu-figure-a1", f"{SOURCE}, Figure A.1", "composed trade-off function against its limit", limit),
)
