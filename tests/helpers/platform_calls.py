"""Each public numerical function with small arguments, and what it promises: the rows of docs/accelerators.md."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

import jaxacct as ja
from jaxacct.train.noise import deviation_of_mean, privatize
from jaxacct.train.step import noisy_count

NUMBER, THREE = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.float32)
ORDERS, RISING, WITHIN = (2.0, 8.0), (2.0, 4.0, 8.0), (20.0, 80.0)


class Call(NamedTuple):
    """A function of traced arguments, and those."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Group(NamedTuple):
    """Functions of one room and one guarantee."""

    title: str
    guarantee: str
    calls: dict[str, Call]


def of_numbers(function: Callable[..., Any], *arguments: Any) -> Call:
    """Returns a call with scalars for what the function takes, or with ``arguments``."""
    return Call(function, arguments or (NUMBER,) * function.__code__.co_argcount)


def sampled(s, q):
    return ja.PoissonSubsampledGaussian(s, q)


def descent(noise):
    return ja.iteration.ProjectedNoisySGD(0.05, 1.0, noise, 4, smoothness=1.0)


def _ledgers() -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    filters, odometers = ja.filters, ja.odometers
    return {
        "RenyiFilter": (filters.RenyiFilter(3.0, 1e-5, orders=WITHIN), ja.Gaussian),
        "ZCDPFilter": (filters.ZCDPFilter(3.0, 1e-5, conversion="mironov"), ja.Gaussian),
        "GDPFilter": (filters.GDPFilter(3.0, 1e-5), ja.Gaussian),
        "ApproximateDPFilter": (filters.ApproximateDPFilter(3.0, 1e-5), ja.PureDP),
        "IndividualRenyiFilter": (filters.IndividualRenyiFilter.create(3, 1.0, 1e-5, orders=WITHIN), ja.Gaussian),
        "RenyiOdometer": (odometers.RenyiOdometer(1e-5, orders=WITHIN), ja.Gaussian),
        "VilleOdometer": (odometers.VilleOdometer(1e-5, orders=WITHIN), ja.Gaussian),
        "FilterOdometer": (odometers.FilterOdometer(1e-5), ja.Gaussian),
        "MixtureOdometer": (odometers.MixtureOdometer(1e-5), ja.Gaussian),
        "StitchedOdometer": (odometers.StitchedOdometer(1e-5), ja.Gaussian),
        "RogersOdometer": (odometers.RogersOdometer(1e-5), ja.PureDP),
    }


LEDGERS = _ledgers()


def of_ledgers(room: Any, verb: Callable[..., Any]) -> dict[str, Call]:
    """Returns a call of each ledger of a room, with one traced setting for each example that it has."""
    return {
        name: Call(
            lambda ledger, setting, of=mechanism: verb(ledger, of(setting)),
            (ledger, THREE if name == "IndividualRenyiFilter" else NUMBER),
        )
        for name, (ledger, mechanism) in LEDGERS.items()
        if hasattr(room, name)
    }


def groups() -> list[Group]:
    """Returns the rows of the page's table."""
    rdp, convert, gdp, tradeoff, iteration, calibrate = (
        ja.rdp, ja.convert, ja.gdp, ja.tradeoff, ja.iteration, ja.calibrate
    )  # fmt: skip
    key = jax.eval_shape(lambda: jax.random.key(0))
    return [
        Group("`ja`", "bracket", {
            "epsilon": of_numbers(lambda s, q, k, d: ja.epsilon(sampled(s, q), k, d, points=128)),
            "delta": of_numbers(lambda s, q, k, e: ja.delta(sampled(s, q), k, e, points=128)),
            "curve": of_numbers(lambda s, k, d: ja.curve(ja.Gaussian(s), k, deltas=d), NUMBER, NUMBER, THREE),
            "saddlepoint.epsilon": of_numbers(lambda s, q, k, d: ja.saddlepoint.epsilon(sampled(s, q), k, d)),
            "saddlepoint.delta": of_numbers(lambda s, q, k, e: ja.saddlepoint.delta(sampled(s, q), k, e)),
        }),
        Group("`ja`", "bracket; on a TPU one that says nothing", {
            "prv.epsilon": of_numbers(lambda s, q, k, d: ja.prv.epsilon(sampled(s, q), k, d, points=128)),
            "prv.delta": of_numbers(lambda s, q, k, e: ja.prv.delta(sampled(s, q), k, e, points=128)),
            "prv.curve": of_numbers(
                lambda s, k, e: ja.prv.curve(ja.Gaussian(s), k, e, points=128), NUMBER, NUMBER, THREE
            ),
        }),
        Group("`ja.rdp`", "upper bound", {
            "curve": of_numbers(lambda s, q: rdp.curve(sampled(s, q), ORDERS)),
            "composed_curve": of_numbers(lambda s, q, k: rdp.composed_curve(sampled(s, q), k, ORDERS)),
            "epsilon": of_numbers(lambda s, q, k, d: rdp.epsilon(sampled(s, q), k, d, orders=ORDERS)),
            "delta": of_numbers(lambda s, q, k, e: rdp.delta(sampled(s, q), k, e, orders=ORDERS)),
        }),
        Group("`ja.convert`", "upper bound", {
            "rdp_to_epsilon": of_numbers(lambda r, d: convert.rdp_to_epsilon(r, RISING, d, "improved"), THREE, NUMBER),
            "rdp_to_delta": of_numbers(lambda r, e: convert.rdp_to_delta(r, RISING, e, "improved"), THREE, NUMBER),
            "rdp_to_tcdp": of_numbers(lambda r: convert.rdp_to_tcdp(r, RISING), THREE),
            "zcdp_to_rdp": of_numbers(lambda rho: convert.zcdp_to_rdp(rho, ORDERS)),
            "tcdp_to_rdp": of_numbers(lambda rho, omega: convert.tcdp_to_rdp(rho, omega, ORDERS)),
            "zcdp_to_epsilon": of_numbers(lambda rho, d: convert.zcdp_to_epsilon(rho, d, "mironov")),
            "zcdp_to_delta": of_numbers(lambda rho, e: convert.zcdp_to_delta(rho, e, "mironov")),
            "tcdp_to_epsilon": of_numbers(lambda rho, w, d: convert.tcdp_to_epsilon(rho, w, d, "mironov")),
            "tcdp_to_delta": of_numbers(lambda rho, w, e: convert.tcdp_to_delta(rho, w, e, "mironov")),
            "gdp_to_epsilon": of_numbers(lambda mu, d: convert.gdp_to_epsilon(mu, d)),
            "gdp_to_delta": of_numbers(lambda mu, e: convert.gdp_to_delta(mu, e)),
            "gdp_to_rdp": of_numbers(lambda mu: convert.gdp_to_rdp(mu, ORDERS)),
            "pure_to_rdp": of_numbers(lambda e: convert.pure_to_rdp(e, ORDERS)),
            "pure_to_zcdp": of_numbers(lambda e: convert.pure_to_zcdp(e)),
            "mechanism_to_dp": of_numbers(lambda s, q: convert.mechanism_to_dp(ja.PoissonSubsampledLaplace(s, q))),
            "mechanism_to_zcdp": of_numbers(lambda s: convert.mechanism_to_zcdp(ja.Laplace(s))),
            "mechanism_to_gdp": of_numbers(lambda e: convert.mechanism_to_gdp(ja.PureDP(e))),
        }),
        Group("`ja.convert`", "lower bound: budgets", {
            "least_rdp": of_numbers(lambda e, d: convert.least_rdp(e, d, ORDERS, "g")),
            "dp_to_gdp": of_numbers(lambda e, d: convert.dp_to_gdp(e, d)),
        }),
        Group("`ja.calibrate`", "a setting that satisfies its budget", {
            "noise_multiplier": of_numbers(lambda e, d, q, k: calibrate.noise_multiplier(e, d, q, k)),
            "sampling_rate": of_numbers(lambda e, d, s, k: calibrate.sampling_rate(e, d, s, k)),
            "steps": of_numbers(lambda e, d, s, q: calibrate.steps(e, d, s, q)),
            "scale": of_numbers(lambda e, d: calibrate.scale(ja.Gaussian, 2, e, d)),
            "noise_multiplier_for_advantage": of_numbers(
                lambda a, q, k: calibrate.noise_multiplier_for_advantage(a, q, k)
            ),
            "noise_multiplier_for_tpr": of_numbers(
                lambda t, f, q, k: calibrate.noise_multiplier_for_tpr(t, f, q, k)
            ),
        }),
        Group("`ja.gdp`", "bracket", {
            "certified_mu": of_numbers(lambda s, q, k: gdp.certified_mu(sampled(s, q), k)),
        }),
        Group("`ja.gdp`", "estimate, or of one", {
            "mu": of_numbers(lambda s, q, k: gdp.mu(sampled(s, q), k)),
            "epsilon": of_numbers(lambda s, q, k, d: gdp.epsilon(sampled(s, q), k, d)),
            "delta": of_numbers(lambda s, q, k, e: gdp.delta(sampled(s, q), k, e)),
            "clt_error": of_numbers(lambda s, q, k: gdp.clt_error(sampled(s, q), k)),
        }),
        Group("`ja.tradeoff`", "bracket", {
            "curve": of_numbers(lambda s, k, a: tradeoff.curve(ja.Gaussian(s), k, a), NUMBER, NUMBER, THREE),
            "true_positive_rate": of_numbers(
                lambda s, k, a: tradeoff.true_positive_rate(ja.Gaussian(s), k, a), NUMBER, NUMBER, THREE
            ),
            "advantage": of_numbers(lambda s, k: tradeoff.advantage(ja.Gaussian(s), k)),
            "bayes_risk": of_numbers(lambda s, k: tradeoff.bayes_risk(ja.Gaussian(s), k)),
        }),
        Group("`ja.tradeoff`", "up to a few roundings of 1", {
            "gaussian": of_numbers(lambda mu, a: tradeoff.gaussian(mu, a)),
            "approximate_dp": of_numbers(lambda e, d, a: tradeoff.approximate_dp(e, d, a)),
            "perfect": of_numbers(lambda a: tradeoff.perfect(a)),
            "from_delta": of_numbers(lambda e, d, a: tradeoff.from_delta(e, d, a), THREE, THREE, THREE),
            "to_delta": of_numbers(lambda a, b, e: tradeoff.to_delta(a, b, e), THREE, THREE, THREE),
            "subsampled": of_numbers(lambda a, b, q: tradeoff.subsampled(a, b, q), THREE, THREE, NUMBER),
            "convex_minorant": of_numbers(lambda a, b: tradeoff.convex_minorant(a, b), THREE, THREE),
            "symmetrized": of_numbers(lambda a, b: tradeoff.symmetrized(a, b), THREE, THREE),
            "inverse": of_numbers(lambda a, b: tradeoff.inverse(a, b), THREE, THREE),
            "at": of_numbers(lambda a, b, r: tradeoff.at(a, b, r), THREE, THREE, THREE),
        }),
        Group("`ja.iteration`", "upper bound", {
            "theta": of_numbers(lambda e, r: iteration.theta(e, r)),
            "contracted_delta": of_numbers(lambda e, d, r, k: iteration.contracted_delta(e, d, r, k)),
            "last_iterate_delta": of_numbers(lambda s, e: iteration.last_iterate_delta(descent(s), e)),
            "last_iterate_rdp": of_numbers(lambda s: iteration.last_iterate_rdp(descent(s), ORDERS)),
            "stopped_delta": of_numbers(lambda s, e: iteration.stopped_delta(descent(s), e)),
            "stopped_epsilon": of_numbers(lambda s, d: iteration.stopped_epsilon(descent(s), d)),
            "stopped_rdp": of_numbers(lambda s: iteration.stopped_rdp(descent(s), ORDERS)),
            "amplified_mu": of_numbers(lambda x, s: iteration.amplified_mu(x, s), THREE, NUMBER),
            "amplified_rdp": of_numbers(lambda x, s: iteration.amplified_rdp(ORDERS, x, s), THREE, NUMBER),
        }),
        Group("`ja.iteration`", "lower bound", {
            "highest_order": of_numbers(lambda L, s: iteration.highest_order(L, s)),
        }),
        Group("`ja.filters`: `spend`", "within the budget", of_ledgers(ja.filters, lambda x, m: x.spend(m))),
        Group("`ja.filters`: `remaining`", "lower bound", of_ledgers(ja.filters, lambda x, m: x.remaining(m))),
        Group("`ja.filters`: `epsilon`", "upper bound", of_ledgers(ja.filters, lambda x, m: x.epsilon())),
        Group("`ja.odometers`: `spend`", "counts no less", of_ledgers(ja.odometers, lambda x, m: x.spend(m))),
        Group("`ja.odometers`: `remaining`", "lower bound", of_ledgers(ja.odometers, lambda x, m: x.remaining(m, 2.0))),
        Group("`ja.odometers`: `epsilon`", "upper bound", of_ledgers(ja.odometers, lambda x, m: x.epsilon())),
        Group("`ja.train`: noise", "normal numbers, within some roundings", {
            "privatize": of_numbers(
                lambda k, g, s: privatize(k, g, noise_multiplier=s, clip_norm=1.0, expected_batch_size=4.0),
                key, THREE, NUMBER,
            ),
            "noisy_count": of_numbers(lambda k, x, s: noisy_count(k, x, s), key, THREE, NUMBER),
            "deviation_of_mean": of_numbers(lambda s, c, n: deviation_of_mean(s, c, n)),
        }),
    ]  # fmt: skip


WIDE = (np.dtype(np.float64), np.dtype(np.complex128))


def operations(jaxpr, platform, found):
    """Counts the operations of float64 that are run on a platform, and programs in float32."""
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if params.get("branches_platforms") is not None:
            branches = zip(params["branches_platforms"], params["branches"], strict=True)
            operations(
                next(branch for names, branch in branches if not names or platform in names).jaxpr, platform, found
            )
        elif name == "later":
            found["float32" if params["narrow"] else name] += 1
        elif inner := list(jaxprs_in_params(params)):
            for each in inner:
                operations(getattr(each, "jaxpr", each), platform, found)
        elif any(getattr(value.aval, "dtype", None) in WIDE for value in (*equation.invars, *equation.outvars)):
            found[name] += 1
    return found
