"""A referee in ball arithmetic: it proves or refutes a claimed bracket, without the accountants' numerical code.

*What is judged.* A mechanism's dominating pair (P, Q), as its theorem states it (``statements.py``: the one file that a
reader has to compare with the papers), has the loss Y = log P/Q under P. With S the sum of the losses of all runs, and
the masses at infinity apart,

    delta(eps) = P(S = inf) + E[(1 - e^(eps - S))+; S < inf]

for each direction of the neighbouring relation, and the truth is the larger delta, or the least eps >= 0 at which every
direction's delta is at most the one given. Fields count as the numbers that their floats are, exactly.

*Theorem.* For t > 0, M(z) = E[e^(zS); S < inf], z = t + i m h and L = 2 pi / h,

    h/(2 pi) sum over all whole m of M(z) e^(-z eps) / (z (z + 1)) = sum over all whole m of delta(eps + L m) e^(t L m).

All terms on the right are positive. Those with m < 0 are together at most M(0) / (e^(tL) - 1), those with m > 0 at most
a geometric series, by Chernoff's bound at any u > t. On the left, |M(t + iw)| falls: a bound on it beyond the last
frequency bounds what is cut off. M itself is an integral over the noise, by Gauss's rule with the remainder of
functions analytic in an ellipse. Every number is a ball of `Arb <https://arblib.org>`_, which holds the rounding.
``contour.py``, ``quadrature.py`` and ``decay.py`` have the proofs.

Where there is a shorter way it is taken: one run and compositions of Gaussians in closed form; finitely many losses by
listing their sums, or by powers of a polynomial where they lie on a lattice; plain Laplace noise by residues; two runs
by an integral over the first one's outcome. Of few runs at small rates outcomes are left out that no one sees, whose
mass is added to the ball (``outcomes.py``). Where the transform falls too slowly two laws on a lattice, one never
better and one never worse, hold delta between them (``sandwich.py``).

PROVED and REFUTED are theorems, but for defects of Arb and of this code; UNDECIDED says what is missing. Always so:
random allocation over more than one batch, and :class:`~jaxacct.PrivacyLoss`, whose functions return floats. Few steps
with little noise at small sampling rates, or with noise that leaves atoms, may be, where a claim is within about 1e-6
of the truth.

Source: the contour integral as in :mod:`jaxacct.saddlepoint`; Trefethen and Weideman (2014), "The exponentially
convergent trapezoidal rule"; Trefethen (2013), "Approximation theory and approximation practice", Theorem 19.3;
Johansson (2017), "Arb: efficient arbitrary-precision midpoint-radius interval arithmetic".
"""

try:
    import flint as _flint  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        'jaxacct.verify computes in ball arithmetic and needs python-flint: pip install "jaxacct[verify]"', name="flint"
    ) from missing

from jaxacct.verify.verdict import Status, Verdict, delta, epsilon

__all__ = ["Status", "Verdict", "delta", "epsilon"]
