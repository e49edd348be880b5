"""Menus: what the worst adaptive use of finitely many mechanisms comes to, and filters that spend it.

* :mod:`.game`: the dynamic program over the privacy loss, with its proof; :mod:`.losses`: what it is played with.
* :mod:`.menu`: a menu with its certified budget; :mod:`.costs`: what its items cost.
* :mod:`.filter`, :mod:`.odometer`: granting and reading in the loop; :mod:`.dominance`: what is paid for as which item.
"""

from jaxacct.menus.filter import MenuFilter
from jaxacct.menus.menu import Item, Menu, certify, limit
from jaxacct.menus.odometer import MenuOdometer

__all__ = ["Item", "Menu", "MenuFilter", "MenuOdometer", "certify", "limit"]
