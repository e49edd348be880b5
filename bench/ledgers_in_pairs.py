"""Rényi curves, conversions, filters and odometers in pairs of float32, on a CPU, beside float64.

Run: python -m bench.ledgers_in_pairs --settings 2000

Both count their rounding, and a pair's is coarser: so its upper bounds are to be no smaller, lower bounds and grants no
larger. How many are not is counted, none may; and how far apart the two are, relatively.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxacct as ja
from jaxacct.numerics.float_pairs.interpret import as_pairs

ORDERS = (1.5, 2.0, 8.0, 64.0)
RANGES = {
    "noise": (0.5, 8.0), "rate": (1e-4, 0.5), "steps": (1.0, 1e5), "delta": (1e-12, 0.1), "epsilon": (0.01, 20.0),
    "rho": (1e-6, 10.0), "mu": (0.01, 8.0), "few": (1.0, 50.0), "large": (5.0, 50.0),
}  # fmt: skip


def sampled(noise: Any, rate: Any) -> ja.PoissonSubsampledGaussian:
    """Returns the mechanism of a step."""
    return ja.PoissonSubsampledGaussian(noise, rate)


ABOVE: dict[str, tuple[str, Callable[..., Any]]] = {
    "rdp.curve": ("noise rate", lambda s, q: ja.rdp.curve(sampled(s, q), ORDERS)),
    "rdp.epsilon": ("noise rate steps delta", lambda s, q, k, d: ja.rdp.epsilon(sampled(s, q), k, d, orders=ORDERS)),
    "rdp.delta": ("noise rate steps epsilon", lambda s, q, k, e: ja.rdp.delta(sampled(s, q), k, e, orders=ORDERS)),
    "zcdp_to_epsilon": ("rho delta", ja.convert.zcdp_to_epsilon),
    "zcdp_to_delta": ("rho epsilon", ja.convert.zcdp_to_delta),
    "gdp_to_epsilon": ("mu delta", ja.convert.gdp_to_epsilon),
    "gdp_to_delta": ("mu epsilon", ja.convert.gdp_to_delta),
    "pure_to_rdp": ("epsilon", lambda e: ja.convert.pure_to_rdp(e, ORDERS)),
    "mechanism_to_gdp": ("epsilon", lambda e: ja.convert.mechanism_to_gdp(ja.PureDP(e))),
    "iteration.theta": ("epsilon mu", ja.iteration.theta),
    "contracted_delta": ("epsilon delta mu", lambda e, d, mu: ja.iteration.contracted_delta(e, d, mu, 5.0)),
}
BELOW: dict[str, tuple[str, Callable[..., Any]]] = {
    "least_rdp": ("epsilon delta", lambda e, d: ja.convert.least_rdp(e, d, ORDERS)),
    "dp_to_gdp": ("epsilon delta", ja.convert.dp_to_gdp),
}
LEDGERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "RenyiFilter": ("epsilon delta", lambda e, d: ja.filters.RenyiFilter(e, d, orders=(4.0, 16.0))),
    "ZCDPFilter": ("epsilon delta", ja.filters.ZCDPFilter),
    "GDPFilter": ("epsilon delta", ja.filters.GDPFilter),
    "VilleOdometer": ("delta", lambda d: ja.odometers.VilleOdometer(d, orders=(4.0, 16.0))),
    "FilterOdometer": ("delta", ja.odometers.FilterOdometer),
    "MixtureOdometer": ("delta", ja.odometers.MixtureOdometer),
    "StitchedOdometer": ("delta", ja.odometers.StitchedOdometer),
}


def of_ledgers() -> None:
    """Adds what each ledger reads after some steps, and what it grants then."""
    for name, (fields, make) in LEDGERS.items():

        def after(s: Any, k: Any, *settings: Any, make: Callable[..., Any] = make) -> Any:
            return make(*settings).spend(ja.Gaussian(s), k)

        def read(*args: Any, after: Callable[..., Any] = after) -> Any:
            _, ledger = after(*args)
            return ledger.spent, ledger.epsilon()

        def granted(*args: Any, after: Callable[..., Any] = after) -> Any:
            grant, ledger = after(*args)
            return 1.0 * grant, 1.0 * ledger.remaining(ja.Gaussian(args[0]))

        ABOVE[f"{name}: spent, epsilon"] = f"large few {fields}", read
        BELOW[f"{name}: grants, remaining"] = f"large few {fields}", granted


def main() -> None:
    """Prints a line for each function."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=200)
    parser.add_argument("--only", default="", help="a part of the names of functions")
    options = parser.parse_args()
    count, only = options.settings, options.only
    of_ledgers()
    random = np.random.default_rng(0)
    given = {
        name: np.exp(random.uniform(*np.log(ends), count)).astype(np.float32) for name, ends in RANGES.items()
    }  # fmt: skip
    given |= {name: np.floor(given[name]) for name in ("steps", "few")}
    print(f"{'':32}{'wrong':>12}{'median off':>12}{'most':>10}{'CPU s':>8}")
    for side, functions in ((1, ABOVE), (-1, BELOW)):
        for name, (fields, function) in functions.items():
            if only not in name:
                continue
            batch, arguments = jax.vmap(function), [given[field] for field in fields.split()]
            native = jax.tree.leaves(jax.jit(batch)(*arguments))
            start = time.process_time()
            with jax.enable_x64(True):
                pairs = jax.tree.leaves(as_pairs(batch, stepwise=True)(*map(jnp.asarray, arguments)))
            took = time.process_time() - start
            x, y = (
                np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in found]) for found in (pairs, native)
            )
            wrong = np.sum(~((side * (x - y) >= 0) | (x == y)))
            off = np.abs(x - y)[np.isfinite(x) & (y != 0)] / np.abs(y)[np.isfinite(x) & (y != 0)]
            print(
                f"{name:32}{wrong:>5} /{len(x):>5}{np.median(off):>12.1e}{np.max(off):>10.1e}{took:>8.1f}", flush=True
            )


if __name__ == "__main__":
    main()
