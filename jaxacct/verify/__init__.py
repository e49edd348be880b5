"""A referee in ball arithmetic: it proves or refutes a claimed bracket, without the accountants' numerical code.

A mechanism is judged by its JSON record, which ``border.py`` makes: no other file here knows a class of the library.

*The quantity judged.* A mechanism's dominating pair (P, Q), as its theorem states it (``statements.py``: the one file
that a reader has to compare with the papers), has the privacy loss Y = log P/Q under P. Let S be the sum of the losses
of all runs. Infinite losses are a term of their own:

    delta(eps) = P(S = inf) + E[(1 - e^(eps - S))+; S < inf]

for each direction of the neighbouring relation. The truth is the largest of these deltas, or the least eps >= 0 at
which every direction's delta is at most the one given. A float in a field stands for exactly the number that it is.

*Theorem.* For t > 0, M(z) = E[e^(zS); S < inf], z = t + i m h and L = 2 pi / h,

    h/(2 pi) sum over all whole m of M(z) e^(-z eps) / (z (z + 1)) = sum over all whole m of delta(eps + L m) e^(t L m).

All terms on the right are positive. Those with m < 0 are together at most M(0) / (e^(tL) - 1), those with m > 0 at most
a geometric series, by Chernoff's bound at any u > t. On the left, |M(t + iw)| falls: a bound on it beyond the last
frequency bounds the terms that are cut off. M itself is an integral over the noise, by Gauss's rule with the remainder
of functions analytic in an ellipse. Every number is a ball of `Arb <https://arblib.org>`_, whose radius includes the
rounding. ``contour.py`` has the proofs.

Some compositions have a shorter way, which is then taken. One run and compositions of Gaussians have a closed form.
Finitely many losses are composed by listing their sums, or by powers of a polynomial where they lie on a lattice. Plain
Laplace noise has a sum of residues, and two runs are an integral over the first one's outcome. For few runs at small
sampling rates, outcomes of negligible mass are left out and their mass is added to the ball (``statements.py``). Where
the transform falls too slowly, two laws on a lattice enclose delta: one with at least the true delta and one with at
most the true delta (``cells.py``).

Noise that a trainer drew in integers is judged by what its report says (``drawn_noise.py``): the referee makes the
table of its law, and bounds the distance of all that was drawn from what is composed.

PROVED and REFUTED are theorems, but for defects of Arb and of this code; UNDECIDED says what is missing. Unless they
are trivial, claims are always UNDECIDED on mechanisms without a statement, on :class:`~jaxacct.PrivacyLoss`, whose
functions return floats, and on random allocation other than over one batch or in one epoch over two. Shuffled batches
are stated from below by one event and from above by Gaussian noise, so that much too small and much too large claims
alone are decided. Claims within
about 1e-6 of the truth may be UNDECIDED for few steps with little noise at small sampling rates, or with noise that
leaves atoms.

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

from jaxacct.verify.verdict import Ruling, Verdict, delta, epsilon

__all__ = ["Ruling", "Verdict", "delta", "epsilon"]
