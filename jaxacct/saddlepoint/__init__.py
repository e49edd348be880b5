"""The exact accountant: characteristic-function inversion on a contour through the saddle point.

The cost does not depend on the number of steps; the answer is right to about ten digits, differentiable, and comes with
a certified bracket in float64:

* :meth:`.DominatingPair.law`: a loss as quadrature nodes, with bounds on what they miss; in the file of its kind of
  loss.
* :mod:`.contour`: the moments of the sum of all losses, the saddle point, the line through it, the quadrature rule on
  the line, and a bound on each thing the rule leaves out.
* :mod:`.solve`: the largest bracket of the directions; those that cannot decide are ruled out by a few nodes.
* :mod:`.closed_forms`: closed forms, for one run of any mechanism and for plain Gaussian ones.
* :mod:`.accountant`: the two verbs and their derivatives.

Beside it stands the contour over atoms, which needs no law that is integrated, and has a bracket for every mechanism:
:mod:`.composer`, and :mod:`.of_atoms`, which chooses sizes.
"""

from jaxacct.saddlepoint.accountant import delta, epsilon

__all__ = ["delta", "epsilon"]
