"""Menus: what the worst adaptive use of finitely many mechanisms comes to, and filters that spend it.

* :mod:`.game`: the dynamic program over the privacy loss, with its proof; :mod:`.game`: what it is played with.
* :mod:`.menu`: a menu with its certified budget; :mod:`.game`: what its items cost.
* :mod:`.filter`, :mod:`.filter`: granting and reading in the loop; :mod:`.game`: what is paid for as which item.
"""

from jaxacct.menus.filter import MenuFilter, MenuOdometer
from jaxacct.menus.menu import Item, Menu, certify, limit

__all__ = ["Item", "Menu", "MenuFilter", "MenuOdometer", "certify", "limit"]
