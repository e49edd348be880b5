"""The certified accountant: privacy random variables on a mesh that evolves while their sum grows.

Everything rests on one order. For positive measures on losses write ``mu <= nu`` if ``E_mu[(1 - e^(eps-Y))+] <=
E_nu[(1 - e^(eps-Y))+]`` for every real eps. As a function of v = e^-Y the integrand is convex and falls, so mu rises
when mass is added, when mass moves to a larger loss, and when mass at y is split between y0 < y < y1 so that the sum
and the mean of e^-Y stay (Jensen). The reverse moves make it fall. Convolution with a positive measure keeps the order:
fix one summand, and eps shifts. So a composition of raised measures is an upper bound on delta, and one of lowered
measures a lower bound, by construction. Floating-point errors are measures too, and are carried as one number
(``slack``).

Ghazi, Kamath, Kumar and Manurangsi (2022) let the mesh evolve: runs are added by Fourier transforms of a constant
number of points, and the mesh doubles as the window grows. :class:`~jaxacct.prv.Method` is the choice of meshes: their
recursion, their two stages, or a fixed mesh.

In reading order: :mod:`.evolving`, from laws to sums on a mesh, and from these to bounds; :mod:`.accountant`, the
verbs.
"""

from jaxacct.prv.accountant import Curve, Diagnostics, curve, delta, epsilon
from jaxacct.prv.evolving import Method
from jaxacct.refinement import ToleranceWarning

__all__ = ["Curve", "Diagnostics", "Method", "ToleranceWarning", "curve", "delta", "epsilon"]
