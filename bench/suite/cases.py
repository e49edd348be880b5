"""The questions of the suite, and who is asked.

A case is a list of runs, each a contender with settings from the cheapest to the dearest, as JSON; and how their truth
is known. Peers run at the settings that they publish as defaults or that their own examples use; those of ``--quick``
are coarser, and say little of a peer's best.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Setting = dict[str, Any]

DELTA = 1e-5
USUAL = [1.0, 0.01]
"""Noise multiplier and sampling rate that other libraries' examples use."""

ORDERS = [*(1 + x / 10 for x in range(1, 100)), *map(float, range(11, 64)), 128.0, 256.0, 512.0, 1024.0]
"""dp-accounting's default Rényi orders."""

TOLERANCES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
INTERVALS = tuple(3e-2 / 1.5**i for i in range(18))
FINE_INTERVALS = tuple(h for h in INTERVALS if 1e-4 < h < 5e-3)
"""For 10^7 steps: wider ones are slower there, up to a minute, and their errors several per cent and more."""
EPS_ERRORS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001, 0.0005)
"""Where the time for an error is asked: what each library's accuracy is set by, from the coarsest on."""

SOME_ORDERS = [1.5, 2.0, 3.0, 4.5, 8.0, 16.0, 32.0, 64.0]


class Contender(NamedTuple):
    name: str
    library: str
    settings: list[Setting]


class Case(NamedTuple):
    title: str
    task: str
    contenders: list[Contender]
    truth: str
    """How the truth is known: a function of :mod:`bench.suite.truths`."""
    same_question: bool = False
    """Whether all settings ask the same, in other ways: then a contender may have as many as it likes."""


def _everyone(runs: list[Setting], quick: bool) -> list[Contender]:
    """Returns all accountants of the subsampled Gaussian, on the same compositions."""

    def each(**options: Any) -> list[Setting]:
        return [run | options for run in runs]

    interval = {"interval": 1e-3 if quick else 1e-4}
    eps_error = {"eps_error": 0.1 if quick else 0.01}
    return [
        Contender("jaxacct", "jaxacct", each()),
        Contender("jaxacct, mesh", "jaxacct", each(route="mesh", **({"points": 2**10} if quick else {}))),
        Contender("jaxacct, Rényi", "jaxacct", each(route="renyi")),
        Contender("dp-accounting", "dp-accounting", each(**interval)),
        Contender("dp-accounting, Rényi", "dp-accounting", each(route="renyi")),
        Contender("prv-accountant", "prv-accountant", each(**eps_error)),
        Contender("PLD_accounting", "PLD_accounting", each(**interval)),
        Contender("autodp, Rényi", "autodp", each()),
        Contender("riskcal", "riskcal", each(**interval)),
        Contender("gdpnum", "gdpnum", each(**interval)),
        Contender("opacus, PRV", "opacus", each(**eps_error)),
        Contender("opacus, Rényi", "opacus", each(route="renyi")),
        Contender("jax-privacy", "jax-privacy", each(**interval)),
    ]


def _at_any_price(run: Setting, options: dict[str, tuple[str, Any]]) -> list[Contender]:
    """Returns contenders that answer one question at many settings: "NAME" -> ("OPTION", values)."""
    ours = [Contender("jaxacct", "jaxacct", [run])]
    libraries: dict[str, tuple[str, Setting]] = {
        "jaxacct, mesh": ("jaxacct", {"route": "mesh"}),
        "dp-accounting, optimistic": ("dp-accounting", {"pessimistic": False}),
    }
    for name, (option, values) in options.items():
        library, more = libraries.get(name, (name, {}))
        ours.append(Contender(name, library, [run | more | {option: value} for value in values]))
    return ours


def accuracy(quick: bool) -> Case:
    """The time that an error takes: prv-accountant's bound on its own failure probability is set below any error."""
    run = {"mechanisms": [[*USUAL, 10_000]], "delta": DELTA}
    options = {
        "jaxacct, mesh": ("tolerance", TOLERANCES[2:4] if quick else TOLERANCES),
        "dp-accounting": ("interval", INTERVALS[7:9] if quick else INTERVALS),
        "dp-accounting, optimistic": ("interval", INTERVALS[7:9] if quick else INTERVALS[7::3]),
        "prv-accountant": ("eps_error", EPS_ERRORS[:1] if quick else EPS_ERRORS),
    }
    contenders = _at_any_price(run | {"delta_error": 1e-8}, options)
    return Case("time against error, 10,000 steps, noise 1, rate 0.01", "epsilon", contenders, "epsilons", True)


def long_run(quick: bool) -> Case:
    run = {"mechanisms": [[*USUAL, 10**7]], "delta": DELTA}
    options = {
        "jaxacct, mesh": ("tolerance", TOLERANCES[2:4] if quick else TOLERANCES),
        "dp-accounting": ("interval", FINE_INTERVALS[3:4] if quick else FINE_INTERVALS),
    }
    contenders = _at_any_price(run, options)
    return Case("time against error, 10^7 steps, noise 1, rate 0.01", "epsilon", contenders, "epsilons", True)


def _only(contenders: list[Contender], *names: str) -> list[Contender]:
    return [one for one in contenders if one.name in names]


def single(quick: bool) -> Case:
    steps = 1_000 if quick else 10_000
    runs = [{"mechanisms": [[*USUAL, steps]], "delta": DELTA}]
    contenders = _everyone(runs, quick)
    if quick:
        contenders = [one for one in contenders if not one.name.endswith(", Rényi") or one.library == "autodp"]
    else:
        contenders.append(Contender("autodp, phi", "autodp", [run | {"route": "phi"} for run in runs]))
    return Case(f"epsilon of {steps:,} steps, noise 1, rate 0.01, delta 1e-5", "epsilon", contenders, "epsilons")


def growth(quick: bool) -> Case:
    counts = (10**2, 10**4) if quick else (10**2, 10**3, 10**4, 10**5, 10**6, 10**7)
    runs = [{"mechanisms": [[*USUAL, steps]], "delta": DELTA} for steps in counts]
    names = ("jaxacct", "dp-accounting")
    names += () if quick else ("jaxacct, mesh", "prv-accountant", "opacus, PRV")
    contenders = _only(_everyone(runs, quick), *names)
    if not quick:
        one_mesh = [run | {"route": "mesh", "points": 2**13} for run in runs]
        contenders.insert(2, Contender("jaxacct, one mesh", "jaxacct", one_mesh))
    title = f"epsilon against the number of steps, {counts[0]:,} to {counts[-1]:,}"
    return Case(title, "epsilon", contenders, "epsilons")


def batch(quick: bool) -> Case:
    count, sampled = (200, 3) if quick else (10_000, 20)
    generator = np.random.default_rng(0)
    low, high = np.log([0.5, 1e-3, 100]), np.log([8.0, 0.2, 1e5])
    rows = np.exp(generator.uniform(low, high, (count, 3)))
    rows[:, 2] = np.round(rows[:, 2])
    every, some = rows.tolist(), rows[:sampled].tolist()
    peer = {"rows": some, "delta": DELTA}
    ours = {"rows": every, "delta": DELTA, "judged": sampled}
    contenders = [
        Contender("jaxacct, one vmapped call", "jaxacct", [ours]),
        *([] if quick else [Contender("jaxacct, float32 estimates", "jaxacct", [ours | {"precision": "float32"}])]),
        Contender("dp-accounting", "dp-accounting", [peer | {"interval": 1e-3 if quick else 1e-4}]),
        *([] if quick else [Contender("prv-accountant", "prv-accountant", [peer | {"eps_error": 0.1}])]),
        *([] if quick else [Contender("C, estimates", "yardstick", [ours])]),
    ]
    title = f"epsilon of {count:,} random settings; peers, and everyone's errors, on the first {sampled}"
    return Case(title, "batch", contenders, "rows")


def renyi(quick: bool) -> Case:
    count, sampled = (100, 2) if quick else (1000, 20)
    orders = SOME_ORDERS if quick else ORDERS
    generator = np.random.default_rng(0)
    rows = np.exp(generator.uniform(np.log([0.5, 1e-4]), np.log([8.0, 0.2]), (count, 2)))
    ours = {"rows": rows.tolist(), "orders": orders, "judged": sampled}
    peer = {"rows": rows[:sampled].tolist(), "orders": orders}
    contenders = [
        Contender("jaxacct, one vmapped call", "jaxacct", [ours]),
        Contender("dp-accounting", "dp-accounting", [peer]),
        *([] if quick else [Contender("autodp", "autodp", [peer])]),
    ]
    title = f"Rényi curves of {count:,} settings at {len(orders)} orders; peers, and errors, on the first {sampled}"
    return Case(title, "curve", contenders, "curves")


def least_noise(quick: bool) -> Case:
    targets = [[1.0, 0.01, 10_000]] if quick else [[1.0, 0.01, 10_000], [3.0, 0.002, 20_000], [0.5, 0.05, 1_000]]
    setting = {"targets": targets, "delta": DELTA}
    contenders = [
        Contender("jaxacct", "jaxacct", [setting | {"tol": 1e-6}]),
        Contender("dp-accounting", "dp-accounting", [setting | {"tol": 1e-2 if quick else 1e-4}]),
        Contender("riskcal", "riskcal", [setting | {"tol": 1e-2 if quick else 1e-4}]),
        *([] if quick else [Contender("opacus, Rényi", "opacus", [setting])]),
    ]
    return Case(f"the least noise for (epsilon, 1e-5), {len(targets)} targets", "noise", contenders, "least_noises")


def budgets(quick: bool) -> Case:
    """Targets at random, and first the one that other libraries publish."""
    count, sampled = (8, 1) if quick else (1000, 6)
    generator = np.random.default_rng(0)
    rows = np.exp(generator.uniform(np.log([0.3, 1e-3, 300]), np.log([8, 0.1, 1e5]), (count - 1, 3)))
    rows[:, 2] = np.floor(rows[:, 2])
    targets = [[1.0, 0.01, 10_000], *rows.tolist()]
    ours = {"targets": targets, "delta": DELTA, "tol": 1e-4, "judged": sampled}
    peer = {"targets": targets[:sampled], "delta": DELTA, "tol": 1e-2 if quick else 1e-4}
    contenders = [
        Contender("jaxacct, one vmapped call", "jaxacct", [ours]),
        Contender("dp-accounting", "dp-accounting", [peer]),
        Contender("riskcal", "riskcal", [peer]),
    ]
    title = f"the least noise for {count:,} budgets; peers, and everyone's errors, on the first {sampled}"
    return Case(title, "noise", contenders, "least_noises")


def heterogeneous(quick: bool) -> Case:
    count = 4 if quick else 100
    generator = np.random.default_rng(0)
    noises, rates = generator.uniform(0.8, 3.0, count), generator.uniform(1e-3, 3e-2, count)
    rows = [[float(noise), float(rate), 100] for noise, rate in zip(noises, rates, strict=True)]
    run = {"mechanisms": rows, "delta": DELTA}
    names = ("prv-accountant", "PLD_accounting", "autodp, Rényi", "riskcal", "gdpnum", "opacus, PRV")
    options = {
        "jaxacct, mesh": ("tolerance", TOLERANCES[2:3] if quick else TOLERANCES[1:9]),
        "dp-accounting": ("interval", (1e-3,) if quick else (1e-2, 3e-3, 1e-3, 3e-4, 1e-4)),
    }
    contenders = _at_any_price(run, options) + ([] if quick else _only(_everyone([run], quick), *names))
    return Case(f"epsilon of {count} different mechanisms, 100 steps each", "epsilon", contenders, "epsilons", True)


def small_delta(quick: bool) -> Case:
    """Gaussians of noise sqrt(k) / mu, k of them: the answer does not depend on k, and has a closed form."""
    rows = [(1.0, 10**4, 1e-12), (0.01, 10**4, 1e-9), (0.05, 10**6, 1e-9), (10.0, 1, 1e-9), (3.0, 10**8, 1e-6)]
    rows = rows[:1] if quick else [*rows, (3.0, 10**8, 1e-15)]
    runs = [{"mechanisms": [[float(np.sqrt(k) / mu), 1.0, k]], "delta": delta} for mu, k, delta in rows]
    names = ("jaxacct", "jaxacct, mesh", "jaxacct, Rényi", "dp-accounting", "prv-accountant", "riskcal", "opacus, PRV")
    contenders = _only(_everyone(runs, quick), *names)
    if quick:
        contenders = _only(contenders, "jaxacct", "dp-accounting", "prv-accountant")
    return Case("small delta: a Gaussian cut into many steps", "epsilon", contenders, "gaussians")


def mu(quick: bool) -> Case:
    """Where small rates make the least mu depend on the error rates that it covers, libraries answer differently.

    Here the rate is large, and they mean the same number.
    """
    run = {"mechanisms": [[9.4, 0.328, 2_000]], "delta": DELTA}
    contenders = [
        Contender("jaxacct", "jaxacct", [run]),
        Contender("gdpnum", "gdpnum", [run | {"interval": 1e-3 if quick else 1e-4}]),
    ]
    title = "the least mu of Gaussian differential privacy, noise 9.4, rate 0.328, 2,000 steps"
    return Case(title, "mu", contenders, "mus")


def step(model: str, quick: bool) -> Case:
    setting = {"model": model, "batch": 256, "seconds": 2.0 if quick else 20.0}
    kinds = {"jaxacct, ghost": "ghost", "jaxacct, ghost by 32": "ghost by 32", "jaxacct, per example": "vmap"}
    kinds |= {"jax-privacy": "jax-privacy", "jax-privacy by 16": "jax-privacy by 16"}
    contenders = [
        Contender(name, "jaxacct" if "jaxacct" in name else "jax-privacy", [setting | {"kind": kind}])
        for name, kind in kinds.items()
    ]
    contenders.append(Contender("opacus", "opacus", [setting]))
    title = f"a private step, {model}, batches of 256 expected, ours padded, beside the same library's plain one"
    return Case(title, "step", contenders, "none")


def in_loop(quick: bool) -> Case:
    setting = {"seconds": 4.0 if quick else 40.0}
    contenders = [Contender("jaxacct", "jaxacct", [setting])]
    return Case("what the accounting adds to a training step, MLP, batch 256", "in_loop", contenders, "none")


def roofline(quick: bool) -> Case:
    sizes = {"saddlepoint": 64, "mesh": 2**12, "renyi": 100} if quick else {
        "saddlepoint": 1024, "saddlepoint float32": 1024, "mesh": 2**14, "renyi": 1000
    }  # fmt: skip
    contenders = [Contender(kernel, "jaxacct", [{"kernel": kernel, "size": size}]) for kernel, size in sizes.items()]
    title = "our kernels beside the machine's limits, by the compiler's own counts"
    return Case(title, "roofline", contenders, "none")


CASES: dict[str, Callable[[bool], Case]] = {
    "single": single,
    "accuracy": accuracy,
    "long-run": long_run,
    "growth": growth,
    "batch": batch,
    "renyi": renyi,
    "least-noise": least_noise,
    "budgets": budgets,
    "heterogeneous": heterogeneous,
    "small-delta": small_delta,
    "mu": mu,
    "step": functools.partial(step, "MLP"),
    "step-mlp-670k": functools.partial(step, "MLP 670k"),
    "step-cnn": functools.partial(step, "CNN"),
    "step-resnet": functools.partial(step, "ResNet"),
    "step-transformer": functools.partial(step, "transformer"),
    "step-lstm": functools.partial(step, "LSTM"),
    "in-loop": in_loop,
    "roofline": roofline,
}
"""By name: makes the case, small with ``quick``."""

QUICK = ("single", "growth", "batch", "renyi", "least-noise", "heterogeneous", "small-delta", "step")
"""What runs with ``--quick`` where no case is named."""
