"""k runs of plain Laplace noise in closed form.

With a the largest loss and u = z + 1/2, M(z) = e^(-a/2)/2 [e^(au) (1 + v) + e^(-au) (1 - v)], v = 1/(2u), and
z (z + 1) = u^2 (1 - v) (1 + v). So the integrand of the contour integral is, for n = 0 .. k, a sum of

    C(k, n) (e^(-a/2)/2)^k e^(eps/2) e^(uy) (1 + v)^(n-1) (1 - v)^(k-n-1) / u^2,    y = a (2n - k) - eps.

For y <= 0 the path closes to the right and gives 0. For y > 0, n < k, it is a polynomial in v, and the residue of
e^(uy) u^(-2-j) at 0 is y^(1+j) / (1+j)!. For n = k, (1 + v)^(k-1) = (1 - v) R(v) + 2^(k-1), and 2^(k-1) e^(uy) / (u
(u - 1/2)) leaves 2^k (e^(y/2) - 1). The polynomials have whole coefficients with signs; more bits pay for what cancels.
"""

from __future__ import annotations

from flint import arb, arb_poly, ctx, fmpz_poly

MOST = 1000
"""Runs: the sum has k^2/2 terms."""


def delta(a: arb, count: int, epsilon: arb) -> arb:
    """Returns a ball that holds the delta at ``epsilon`` of ``count`` runs, for ``epsilon`` of any sign."""
    least = -count * a
    if not epsilon >= least:  # below all losses delta is 1 - e^eps, and nowhere less; it falls
        below = 1 - epsilon.exp()
        return below if epsilon < least else below.union(1 - least.exp())
    with ctx.workprec(ctx.prec + 4 * count + 64):
        value = arb(0)
        for n in range(count, 0, -1):
            y = a * (2 * n - count) - epsilon
            if y <= 0:
                continue
            y = y.max(arb(0))
            if n == count:
                rest = fmpz_poly([1, 1]) ** (count - 1) - fmpz_poly([2 ** (count - 1)])
                poly = rest // fmpz_poly([1, -1])
                extra = arb(2) ** count * ((y / 2).exp() - 1)
            else:
                poly = fmpz_poly([1, 1]) ** (n - 1) * fmpz_poly([1, -1]) ** (count - n - 1)
                extra = arb(0)
            series = arb_poly([c / arb.fac_ui(j + 1) for j, c in enumerate(arb_poly(poly).coeffs())])
            term = y * series(y / 2) + extra
            value += term * arb.bin_uiui(count, n)
        return value * ((-a / 2).exp() / 2) ** count * (epsilon / 2).exp()
