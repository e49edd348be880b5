"""The certified accountant: privacy random variables on a mesh that is dense for a step and wide for their sum.

Everything rests on one order. For positive measures on losses write ``mu <= nu`` if ``E_mu[(1 - e^(eps-Y))+] <=
E_nu[(1 - e^(eps-Y))+]`` for every real eps. As a function of v = e^-Y the integrand is convex and falls, so mu rises
when mass is added, when mass moves to a larger loss, and when mass at y is split between y0 < y < y1 so that the sum
and the mean of e^-Y stay (Jensen). The reverse moves make it fall. Convolution with a positive measure keeps the order:
fix one summand, and eps shifts. So a composition of raised measures is an upper bound on delta, and one of lowered
measures a lower bound, by construction. Floating-point errors are measures too, and are carried as one number
(``slack``).

Ghazi, Kamath, Kumar and Manurangsi (2022) let the mesh evolve: it doubles as the window grows with every squaring, so
that a constant number of points does for any number of steps. Here the mesh grows in one move, in the frequencies: as
many are known for the sum as for a step, on a circle as long as the sum (:mod:`.compose`), and nothing is coarsened on
the way.

In reading order: :mod:`.plan` chooses the tilt, the windows and the points; :mod:`.compose` puts losses on them and
composes; :mod:`.accountant` refines until the bracket is as tight as was asked.
"""

from jaxacct.prv.accountant import Curve, Diagnostics, ToleranceWarning, curve, delta, epsilon

__all__ = ["Curve", "Diagnostics", "ToleranceWarning", "curve", "delta", "epsilon"]
