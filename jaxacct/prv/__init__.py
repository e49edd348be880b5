"""The certified accountant: privacy random variables on an evolving mesh.

Everything rests on one order. For positive measures on losses write ``mu <= nu`` if ``E_mu[(1 - e^(eps-Y))+] <=
E_nu[(1 - e^(eps-Y))+]`` for every real eps. As a function of v = e^-Y the integrand is convex and falls, so mu rises
when mass is added, when mass moves to a larger loss, and when mass at y is split between y0 < y < y1 so that the sum
and the mean of e^-Y stay (Jensen). The reverse moves make it fall. Convolution with a positive measure keeps the order:
fix one summand, and eps shifts. So a composition of raised measures is an upper bound on delta, and one of lowered
measures a lower bound, by construction. Floating-point errors are measures too, and are carried as one number
(``slack``).
"""

from jaxacct.prv.accountant import delta, epsilon
from jaxacct.prv.curve import Curve, curve
from jaxacct.prv.diagnostics import Diagnostics
from jaxacct.prv.refine import ToleranceWarning

__all__ = ["Curve", "Diagnostics", "ToleranceWarning", "curve", "delta", "epsilon"]
