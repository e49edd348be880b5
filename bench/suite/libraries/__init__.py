"""The tasks of the suite as each library does them. A module holds a function for each task that its library can do.

A task takes a setting, a dictionary as of :mod:`bench.suite.cases`, and returns a dictionary of plain numbers:

* ``epsilon``: of ``mechanisms``, rows (noise multiplier, sampling rate, steps), at ``delta``: ``upper``, ``lower``,
  ``estimate``, as far as the library claims them;
* ``batch``: the same of each of ``rows``, one composition each: ``uppers`` or ``estimates``;
* ``curve``: Rényi divergences of ``rows`` (noise multiplier, sampling rate), one step, at ``orders``: ``curves``;
* ``noise``: the least noise multipliers for ``targets``, rows (epsilon, sampling rate, steps), at ``delta``:
  ``noises``;
* ``mu``: the least mu whose Gaussian trade-off curve is below the composition's: ``upper``;
* ``step``: a private training step beside the plain one, of ``model``: ``seconds`` and ``plain_seconds``;
* ``in_loop``: what accounting adds to a step, as shares: ``added``.
"""

from __future__ import annotations

from typing import NamedTuple


class Library(NamedTuple):
    package: str
    """What is imported."""
    module: str
    """The file beside this one that asks it."""


LIBRARIES = {
    "jaxacct": Library("jaxacct", "ours"),
    "dp-accounting": Library("dp_accounting", "dp_accounting_peer"),
    "prv-accountant": Library("prv_accountant", "prv_accountant_peer"),
    "PLD_accounting": Library("PLD_accounting", "pld_accounting_peer"),
    "autodp": Library("autodp", "autodp_peer"),
    "riskcal": Library("riskcal", "riskcal_peer"),
    "gdpnum": Library("gdpnum", "gdpnum_peer"),
    "opacus": Library("opacus", "opacus_peer"),
    "jax-privacy": Library("jax_privacy", "jax_privacy_peer"),
    "yardstick": Library("bench.suite.libraries.yardstick", "yardstick"),
}
