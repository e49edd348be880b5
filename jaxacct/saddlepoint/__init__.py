"""The exact accountant: characteristic-function inversion on a contour through the saddle point.

The cost does not depend on the number of steps; the answer is right to about ten digits, differentiable, and comes with
a certified bracket in float64:

* :mod:`.laws`: a loss as nodes, its moments without cancellation.
* One module for each kind of loss: :mod:`.subsampled_gaussian`, :mod:`.shifted_noise`, :mod:`.laplace`,
  :mod:`.without_replacement`, :mod:`.atoms`; :mod:`.panels`: what those with atoms and a density share.
* :mod:`.contour`: the line through the saddle point, the rule on it, and a bound on each thing it leaves out.
* :mod:`.solve`: the bracket of one direction; :mod:`.accountant`: what is called.
"""

from jaxacct.saddlepoint import atoms, shifted_noise, subsampled_gaussian, without_replacement
from jaxacct.saddlepoint.accountant import delta, epsilon

__all__ = ["atoms", "delta", "epsilon", "shifted_noise", "subsampled_gaussian", "without_replacement"]
