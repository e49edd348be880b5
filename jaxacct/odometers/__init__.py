"""Privacy odometers: a running bound on the privacy loss of whatever has been released, to stop at any moment.

A filter promises a budget fixed in advance. An odometer can be read: training may stop because a model is good enough,
and the reading at that moment holds, for mechanisms chosen adaptively, too. The price is a somewhat larger bound. Each
odometer is a pytree: ``counted, new = odometer.spend(mechanism, steps)``, inside ``jit``, ``vmap`` and ``lax.scan``.

* :mod:`.renyi`: odometers that add up Rényi divergences, for any mechanism.
* :mod:`.time_uniform`: odometers of one number, for pure, approximate and concentrated mechanisms.
"""

from jaxacct.menus.filter import MenuOdometer
from jaxacct.odometers.renyi import LECUYER_ORDERS, RenyiOdometer, VilleOdometer
from jaxacct.odometers.time_uniform import FilterOdometer, MixtureOdometer, RogersOdometer, StitchedOdometer

__all__ = [
    "LECUYER_ORDERS",
    "FilterOdometer",
    "MenuOdometer",
    "MixtureOdometer",
    "RenyiOdometer",
    "RogersOdometer",
    "StitchedOdometer",
    "VilleOdometer",
]
