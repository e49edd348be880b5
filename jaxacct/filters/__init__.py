"""Privacy filters: they grant a release while a budget fixed in advance still covers it, and refuse it after.

What is released may be chosen from earlier results (noise, batch size, when to stop); composing the realized
mechanisms as if they had been fixed in advance would not cover that. Each filter is a pytree: ``granted, new =
filter.spend(mechanism, steps)`` leaves it unchanged where it refuses, inside ``jit``, ``vmap`` and ``lax.scan``. Its
leaves are float32; a budget or delta that is traced and out of range grants nothing that costs anything. The leaves of
:class:`MenuFilter` are whole numbers: it knows the worst adaptive use of a finite menu, and charges for it nearly what
a plan costs.
"""

from jaxacct.filters.concentrated import ApproximateDPFilter, ZCDPFilter
from jaxacct.filters.gaussian import GDPFilter
from jaxacct.filters.individual import IndividualRenyiFilter
from jaxacct.filters.renyi import FILTER_ORDERS, RenyiFilter
from jaxacct.menus.filter import MenuFilter

__all__ = [
    "FILTER_ORDERS",
    "ApproximateDPFilter",
    "GDPFilter",
    "IndividualRenyiFilter",
    "MenuFilter",
    "RenyiFilter",
    "ZCDPFilter",
]
