"""An instance of every public pytree of the package, for tests that go through all of them."""

import dataclasses
import importlib
import pkgutil
from inspect import isabstract

import jax
import jax.numpy as jnp
import numpy as np

import jaxacct
import jaxacct as ja
from helpers.mechanisms import EXAMPLES
from jaxacct import selection, strategies
from jaxacct.iteration import ProjectedNoisySGD


def registered():
    """All dataclasses of the package that are pytrees."""
    for entry in pkgutil.walk_packages(jaxacct.__path__, "jaxacct."):
        if not entry.name.endswith("__main__"):
            importlib.import_module(entry.name)
    found, waiting = set(), [object]
    while waiting:
        for kind in type.__subclasses__(waiting.pop()):
            waiting.append(kind)
            known = (
                str(kind.__module__).startswith("jaxacct.") and dataclasses.is_dataclass(kind) and not isabstract(kind)
            )
            if known and not jax.tree_util.all_leaves([blank(kind)]):
                found.add(kind)
    return sorted(found, key=lambda kind: kind.__qualname__)


def blank(kind):
    made = object.__new__(kind)
    for field in dataclasses.fields(kind):
        object.__setattr__(made, field.name, 0)
    return made


MECHANISMS = {f"{name}[{i}]": made for name, examples in EXAMPLES.items() for i, made in enumerate(examples)}
"""Every public mechanism."""


def others(*, ledgers: bool = False):
    """Every other public pytree: laws, strategies, participations, rules, states, brackets; and all ledgers, if asked.

    Making the ledgers compiles their programs, so that a light test has one filter and one odometer of them.
    """
    from jaxacct.train import PrivateGradients
    from jaxacct.train.clipping import AdaptiveQuantile, Automatic, Flat, PerLayer
    from jaxacct.train.planned import PlannedLedger

    private = PrivateGradients.planned(
        lambda w, x: jnp.sum((w - x) ** 2), 1000, epsilon=2.0, delta=1e-5, epochs=4, expected_batch_size=100,
        clip_norm=1.0,
    )  # fmt: skip
    made = [
        *(selection.Poisson(10.0), selection.TruncatedNegativeBinomial(10.0, 0.5), selection.Geometric(10.0)),
        *(selection.Logarithmic(10.0), selection.Binomial(20, 0.5), selection.Fixed(3)),
        *(strategies.BandedToeplitz([1.0, 0.5]), strategies.BufferedToeplitz([0.5], [0.5])),
        *(strategies.Dense([[2.0, 0.0], [1.0, 2.0]]), strategies.HonakerTree(4), strategies.Workload(0.9)),
        strategies.Restarted(strategies.identity(), 4),
        *(strategies.SinglePass(8), strategies.MinSeparation(8, 2, 3), strategies.FixedEpochs(4, 2)),
        *(strategies.CyclicPoisson(8, 4, 0.1), strategies.square_root(4).start(jnp.zeros(3))),
        *(Flat(0.5), Automatic(1.0), PerLayer.of({"a": 1.0, "b": 2.0}), AdaptiveQuantile(1.0)),
        *(PlannedLedger.of(40, certified=2.0), private.start(), ProjectedNoisySGD(0.05, 1.0, 5.0, 100)),
        *(ja.Bounds(1.0, 1.5, 2.0), ja.Bounds(np.zeros(2), np.ones(2), np.ones(2), np.array([True, False]))),
        *(ja.filters.RenyiFilter(1.0, 1e-5), ja.odometers.FilterOdometer(1e-5)),
    ]
    if ledgers:
        menu = ja.filters.MenuFilter(1.0, 1e-5, [ja.Gaussian(20.0), ja.Gaussian(30.0)])
        made += [
            *(ja.filters.ZCDPFilter(1.0, 1e-5), ja.filters.GDPFilter(1.0, 1e-5)),
            *(ja.filters.ApproximateDPFilter(1.0, 1e-5), ja.filters.IndividualRenyiFilter.create(2, 1.0, 1e-5)),
            *(ja.odometers.RenyiOdometer(1e-5), ja.odometers.VilleOdometer(1e-5), ja.odometers.MixtureOdometer(1e-5)),
            *(ja.odometers.StitchedOdometer(1e-5), ja.odometers.RogersOdometer(1e-5), menu),
            ja.odometers.MenuOdometer.of(menu.menu),
        ]
    return {f"{type(each).__name__}[{i}]": each for i, each in enumerate(made)}
