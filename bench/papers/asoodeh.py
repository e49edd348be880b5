"""Asoodeh: "Privacy analysis of iterative algorithms via f-divergences": conversions, and randomly stopped SGD."""

from __future__ import annotations

import functools
import math

import numpy as np

from bench.papers.exhibits import Exhibit
from jaxacct import convert, iteration, prv
from jaxacct.mechanisms import PoissonSubsampledGaussian
from jaxacct.plot import Chart, Series

SAMPLING_RATE, NOISE, DELTA = 0.04, 4.0, 1e-5
"""Setting of the moments accountant's figure."""

STEPS = np.array([1, 25, 50, *range(100, 2001, 100)])
"""Numbers of steps; the reference's axis is not in its text."""

ORDERS = 1 + np.geomspace(1e-2, 1e3, 1200)
"""Orders for the infimum over all orders: neighbours differ by 1 %, which costs some 1e-5 of epsilon."""

STEPS_STOPPED, LIPSCHITZ = 100, 1.0
DIAMETER = 1.0
"""The corollary as printed has 1 where its proof has the diameter of the set projected onto."""

SMOOTHNESS = 1.0
"""Any value up to 2 / learning rate gives the same curves: Feldman et al.'s bound has it as a condition only."""


def conversion() -> Chart:
    """Epsilon against steps by the rules that turn one Rényi curve into it, and what is certified for the mechanism."""
    rho = SAMPLING_RATE**2 / ((1 - SAMPLING_RATE) * NOISE**2)
    divergences = rho * ORDERS[None, :] * STEPS[:, None]
    rules = {
        method: np.asarray(convert.rdp_to_epsilon(divergences, ORDERS, np.full(len(STEPS), DELTA), method))
        for method in ("optimal", "closed", "improved", "mironov")
    }
    printed = rho * STEPS + np.sqrt(4 * rho * STEPS * math.log(1 / DELTA))
    mechanism = PoissonSubsampledGaussian(NOISE, SAMPLING_RATE)
    certified = [float(prv.epsilon(mechanism, int(steps), DELTA).upper) for steps in STEPS]
    as_many = np.interp(rules["optimal"][-1], printed, STEPS)
    apart = np.max(rules["improved"] - rules["optimal"])
    return Chart(
        title=f"Epsilon of noisy SGD, q = {SAMPLING_RATE:g}, s = {NOISE:g}, delta = {DELTA:g}",
        x_name="steps",
        x_label="steps",
        y_label=f"epsilon at delta = {DELTA:g}",
        x=STEPS,
        curves=(
            Series("epsilon_abadi_printed", "Abadi et al., closed form as printed", printed, "reference"),
            Series("epsilon_mironov", "Mironov's rule", rules["mironov"]),
            Series("epsilon_improved", "Canonne et al., Balle et al.", rules["improved"]),
            Series("epsilon_closed", "Asoodeh et al., two branches", rules["closed"]),
            Series("epsilon_optimal", "optimal rule", rules["optimal"]),
            Series("epsilon_certified", "the mechanism itself, certified", np.array(certified)),
        ),
        notes=(
            "All rules but the last start from the reference's divergence, order q^2 steps / ((1-q) s^2), which holds "
            "for moderate orders only; the last is an upper bound on the true epsilon.",
            f"The optimal rule and the two below Mironov's differ by {apart:.1g} at most. What the optimal rule gives "
            f"for {STEPS[-1]} steps is what the printed form gives for {as_many:.0f}.",
        ),
    )


def order(alpha: float) -> Chart:
    """Epsilon against the divergence of one Rényi order, by the rules for that order alone."""
    divergences = np.linspace(0.0, 2.0, 81)
    rules = {
        method: np.asarray(convert.rdp_to_epsilon(divergences[:, None], [alpha], np.full(81, DELTA), method))
        for method in ("mironov", "improved", "closed", "optimal")
    }
    apart = np.max(rules["closed"] - rules["optimal"])
    return Chart(
        title=f"Epsilon of ({alpha:g}, divergence)-RDP at delta = {DELTA:g}",
        x_name="divergence",
        x_label=f"Rényi divergence of order {alpha:g}",
        y_label=f"epsilon at delta = {DELTA:g}",
        x=divergences,
        curves=(
            Series("epsilon_mironov", "Mironov's rule", rules["mironov"], "reference"),
            Series("epsilon_improved", "Canonne et al., Balle et al.", rules["improved"]),
            Series("epsilon_closed", "Asoodeh et al., two branches", rules["closed"]),
            Series("epsilon_optimal", "optimal rule", rules["optimal"]),
        ),
        notes=(f"All are upper bounds. The two branches are within {apart:.2g} of the optimal rule.",),
    )


def stopped(learning_rate: float, noise: float, *, diameter: float = DIAMETER) -> Chart:
    """Delta against epsilon of randomly stopped projected noisy SGD, T = 100, L = 1: both corollaries, and less.

    Args:
        learning_rate: of the SGD; the reference has 0.05 and 0.1.
        noise: standard deviation of the noise on the gradient; the reference has 5 and 3.
        diameter: of the set projected onto.
    """
    epsilons = np.linspace(0.0, 3.0, 61)
    sgd = iteration.ProjectedNoisySGD(
        learning_rate, LIPSCHITZ, noise, STEPS_STOPPED, diameter=diameter, smoothness=SMOOTHNESS
    )
    delta = {
        method: np.asarray(iteration.stopped_delta(sgd, epsilons, method=method))
        for method in ("contraction", "recursive", "renyi", "best")
    }
    highest = float(iteration.highest_order(LIPSCHITZ, noise))
    orders = 1 + (highest - 1) * np.geomspace(1e-4, 1.0, 200)
    divergence = iteration.stopped_rdp(sgd, orders, method="feldman")
    feldman = {
        rule: np.asarray(convert.rdp_to_delta(divergence, orders, epsilons, rule)) for rule in ("closed", "optimal")
    }
    return Chart(
        title=f"Randomly stopped SGD, rate {learning_rate:g}, L = 1, T = {STEPS_STOPPED}, s = {noise:g}",
        x_name="epsilon",
        x_label="epsilon",
        y_label="delta",
        x=epsilons,
        log_y=True,
        curves=(
            Series("delta_feldman", "Feldman et al., corollary as printed", feldman["closed"]),
            Series("delta_feldman_optimal", "Feldman et al., optimal rule", feldman["optimal"]),
            Series("delta_contraction", "Asoodeh et al., contraction", delta["contraction"]),
            Series("delta_moments", "Feldman et al., moments in place of weak convexity", delta["renyi"]),
            Series("delta_recursive", "contraction, recursive", delta["recursive"]),
            Series("delta_best", "best known here, convex losses", delta["best"]),
        ),
        notes=(
            f"All are upper bounds. Diameter of the projection set {diameter:g}; the contraction bounds need it, and "
            f"convexity they do not. Feldman et al.'s bound holds for orders up to {highest:.4g}.",
        ),
    )


SOURCE = "Asoodeh et al. (2020)"

EXHIBITS = (
    Exhibit(
        "asoodeh-conversion", f"{SOURCE}, improved moments accountant", "epsilon against steps by conversion rule",
        conversion,
    ),
    *(
        Exhibit(
            f"asoodeh-order-{alpha}", f"{SOURCE}, conversion, alpha = {alpha}", f"rules for the order {alpha} alone",
            functools.partial(order, alpha),
        )
        for alpha in (10, 5, 2)
    ),
    Exhibit(
        "asoodeh-stopped-5", f"{SOURCE}, DP-SGD, left figure", "randomly stopped SGD, learning rate 0.05, noise 5",
        lambda: stopped(0.05, 5.0),
    ),
    Exhibit(
        "asoodeh-stopped-3", f"{SOURCE}, DP-SGD, right figure", "randomly stopped SGD, learning rate 0.1, noise 3",
        lambda: stopped(0.1, 3.0),
    ),
)  # fmt: skip
