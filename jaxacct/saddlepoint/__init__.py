"""The exact accountant: characteristic-function inversion on a contour through the saddle point.

The cost does not depend on the number of steps; the answer is right to about ten digits, differentiable, and comes with
a certified bracket in float64:

* :meth:`.DominatingPair.law`: a loss as nodes, with bounds on what they miss; in the file of its kind of loss.
* :mod:`.contour`: the saddle point; :mod:`.contour`: the moments of the sum of all losses.
* :mod:`.contour`: the line through the saddle point, the rule on it, and a bound on each thing it leaves out.
* :mod:`.search`: the larger bracket of the directions, of which those that cannot decide are ruled out by a few nodes;
  :mod:`.accountant`: what is called.
"""

from jaxacct.saddlepoint.accountant import delta, epsilon

__all__ = ["delta", "epsilon"]
