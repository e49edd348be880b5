"""Menus: the worst adaptive use of finitely many mechanisms, and filters and odometers that spend from one.

* :mod:`.game`: the dynamic program over the privacy loss, with its proof; the costs of a menu's items, their losses on
  a lattice, and the item by which a mechanism off the menu is paid for.
* :mod:`.menu`: a menu with its certified budget.
* :mod:`.filter`: granting in the loop (:class:`MenuFilter`), and reading as well (:class:`MenuOdometer`).
"""

from jaxacct.menus.filter import MenuFilter, MenuOdometer
from jaxacct.menus.menu import Item, Menu, certify, limit

__all__ = ["Item", "Menu", "MenuFilter", "MenuOdometer", "certify", "limit"]
