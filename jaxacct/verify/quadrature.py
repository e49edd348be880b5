"""The transform M(z) = E[e^(zY)] on a line z = t + iw, and how far it falls, with every error in the balls.

On a piece the integrand is F(x) = p(x)^(1+z) q(x)^(-z), entire but for the zeros of p and q. At x + iv, write a for the
least and b for the largest exponent of a sum sum c_k e^(alpha_k x): the terms' arguments lie within v (b - a) of each
other. So while that is below pi the sum is not 0, and its modulus is at most its value at x. With w_j the terms' shares
at x, the square of the ratio is 1 - sum over all i, j of w_i w_j (1 - cos(v (alpha_i - alpha_j))) >= 1 - A, where A =
min(1/2, 1 - max w_j^2) (1 - cos(v (b - a))); the half is that of cos^2(v (b - a) / 2). With the common factor
e^(-kappa x^2 / 2), whose modulus grows by e^(kappa v^2 / 2), and A of q,

    |F(x + iv)| <= f(x) e^(kappa v^2 / 2) (1 - A)^(-t/2) e^(-w arg r(x + iv)),    f = p^(1+t) q^(-t), r = p/q.

*Gauss's rule* of n nodes on a panel of half-width H misses at most 64/15 H sup|F| rho^(-2n) / (1 - rho^(-2)), the
supremum over the ellipse of semi-axes H (rho +- 1/rho) / 2 (Trefethen 2013, Theorem 19.3). f is bounded on an interval
by its middle value and its logarithmic slope -kappa x + (1 + t) E_p[alpha] - t E_q[alpha]: the posterior means are
nondecreasing in x, so their values at the interval's ends bound them. The argument
of a sum that is 1 + u times its base, the term nearest to the other distribution, is at most v (b - a). With R the
other terms' sum over the base at x it is at most pi/2 R where R < 1, since |arg(1 + u)| <= pi/2 |u|; and at most
v (b - a) R where v (b - a) < pi/2, for there Re u >= 0 and |Im u| <= R sin(v (b - a)). R is monotone in x, and the
interval's ends bound it.

*Tails.* Beyond an end where -kappa x + lambda, with lambda the largest value of the other two terms, is below 0, f
falls at least as e^(-(x - end) (kappa end - lambda)): its integral is at most f(end) / (kappa end - lambda).

*Decay.* arg r(x + iv) >= 0 for v > 0 where the loss rises (P's exponents are at or above Q's), v < 0 where it falls. So
moving the path to Im x = v bounds |M(t + iw)| by integrals that only fall as w rises: one value holds for all w beyond.
Where the interval ends the path goes up there. Smaller w: |phi|^2 is the transform of a symmetric law, 1 - cos(n u)
<= n^2 (1 - cos u), so 1 - |phi(w)|^2 >= (1 - |phi(n w)|^2) / n^2.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from flint import acb, acb_mat, arb, ctx

from jaxacct.verify.losses import Loss, Piece, Terms, mean, total

RHOS = tuple(arb(rho) for rho in (1.25, 1.5, 1.8, 2.2, 2.7, 3.3, 4, 5, 6.5, 8.5, 11, 15))
MOST_NODES = 48
"""Nodes of a panel; where more are needed it is halved."""

MOST_IN_ALL = 100_000

LEAST_REACH = 18
"""Standard deviations of Gaussian noise that panels reach beyond the outermost tilted place: e^(-18^2/2) = 2^-233."""

WIDEST = 2.9
"""Arguments within which terms may lie, below pi."""

BLOCK = 1000
"""Nodes that are summed at once."""

MOST_CELLS = 20_000


class TooMuch(Exception):
    """More work than a verdict is worth; says of what."""


def spread(terms: Terms) -> arb:
    """Returns the largest exponent less the least."""
    values = [alpha for _, alpha in terms]
    return functools.reduce(arb.max, values) - functools.reduce(arb.min, values)


@dataclass(frozen=True, eq=False)
class Tilt:
    """A piece under the tilt t: its density f(x) = p^(1+t) q^(-t), and bounds on it."""

    piece: Piece
    t: arb

    def log_density(self, x: arb) -> arb:
        """Returns log f(x)."""
        p, q = total(self.piece.p, x).log(), total(self.piece.q, x).log()
        return p + self.t * (p - q) - self.piece.curvature * x * x / 2

    def supremum(self, middle: arb, half: arb) -> arb:
        """Returns an upper bound of f on an interval."""
        piece, t = self.piece, self.t
        low, high = middle - half, middle + half
        p, q = ([mean(terms, end) for end in (low, high)] for terms in (piece.p, piece.q))
        rise = -piece.curvature * low + (1 + t) * p[1] - t * q[0]
        fall = -piece.curvature * high + (1 + t) * p[0] - t * q[1]
        return (self.log_density(middle) + half * rise.max(-fall).max(arb(0))).exp().upper()

    def growth(self, v: arb, low: arb | None = None, high: arb | None = None) -> arb:
        """Returns a bound on |F(x + iu)| / f(x), but for the argument, for x in [low, high] or any, and u up to v."""
        q, mixed = self.piece.q, arb(0.5)
        if low is not None:
            # The share of an outermost term is least at an end.
            largest = (1 / (1 + _rest(q, high, least=True))).max(1 / (1 + _rest(q, low, least=False)))
            mixed = (1 - largest**2).min(mixed)
        apart = mixed * (1 - (spread(q) * v).cos())
        return (self.piece.curvature * v * v / 2 - self.t / 2 * (1 - apart).log()).exp()

    def argument(self, low: arb, high: arb, v: arb) -> arb:
        """Returns a bound on |arg r(x + iu)| for x in [low, high] and u up to v."""
        rises = self.piece.rises
        near_p = _rest(self.piece.p, high if rises else low, least=rises)
        near_q = _rest(self.piece.q, low if rises else high, least=not rises)
        local = []
        for rest, terms in ((near_p, self.piece.p), (near_q, self.piece.q)):
            widest = spread(terms) * v
            least = widest.min(arb.pi() / 2 * rest) if rest < 1 else widest
            local.append(least.min(rest * widest) if widest < arb.pi() / 2 else least)
        apart = abs(_base(self.piece.p, least=rises)[1] - _base(self.piece.q, least=not rises)[1]) * v
        return (local[0] + local[1] + apart).upper()

    def ends(self) -> tuple[arb, arb, arb]:
        """Returns an interval outside of which f is negligible, and a bound on its integral there."""
        piece, t = self.piece, self.t
        if piece.low is not None and piece.high is not None:
            return piece.low, piece.high, arb(0)
        p, q = [a for _, a in piece.p], [a for _, a in piece.q]
        least = (1 + t) * functools.reduce(arb.min, p) - t * functools.reduce(arb.max, q)
        most = (1 + t) * functools.reduce(arb.max, p) - t * functools.reduce(arb.min, q)
        kappa, reach = piece.curvature, LEAST_REACH / piece.curvature.sqrt()
        low = (least / kappa - reach).mid() if piece.low is None else piece.low
        high = (most / kappa + reach).mid() if piece.high is None else piece.high
        if piece.low is not None:
            high = high.max(low + reach).mid()
        elif piece.high is not None:
            low = low.min(high - reach).mid()
        beyond = arb(0)
        if piece.low is None:
            beyond += self.log_density(low).exp() / (least - kappa * low)
        if piece.high is None:
            beyond += self.log_density(high).exp() / (kappa * high - most)
        return low, high, beyond.upper()

    def cells(self, width: float, tiny: arb) -> Iterator[tuple[arb, arb, arb]]:
        """Yields middles and half-widths of parts between the ends, in their order, and bounds on f's integrals there.

        Parts are equal cells, or many of them together where they hold less than ``tiny``: under a strong tilt f is
        narrow and its ends lie far apart.
        """
        low, high, _ = self.ends()
        unit = 1 / self.piece.curvature.sqrt() if self.piece.curvature > 0 else high - low
        count = max(1, int(float((high - low) / (unit * width))) + 1)
        half = (high - low) / (2 * count)
        left, found = [(0, count)], 0
        while left:
            first, last = left.pop()
            middle, reach = low + (first + last) * half, (last - first) * half
            above = 2 * reach * self.supremum(middle, reach)
            if last - first == 1 or above < tiny:
                found += 1
                if found > MOST_CELLS:
                    raise TooMuch(f"the tilted density reaches over {count} cells")
                yield middle, reach, above
            else:
                between = (first + last) // 2
                left += [(between, last), (first, between)]


def _base(terms: Terms, least: bool) -> tuple[arb, arb]:
    return functools.reduce(lambda a, b: a if (a[1] < b[1]) == least else b, terms)


def _rest(terms: Terms, x: arb, least: bool) -> arb:
    """Returns the sum of all terms but the base's, over the base's."""
    if len(terms) == 1:
        return arb(0)
    c, alpha = _base(terms, least)
    return total(terms, x) / (c * (alpha * x).exp()) - 1


@functools.lru_cache(maxsize=400)
def _gauss(n: int, bits: int) -> tuple[tuple[arb, arb], ...]:
    with ctx.workprec(bits):
        return tuple(arb.legendre_p_root(n, k, weight=True) for k in range(n))


@dataclass(frozen=True)
class Nodes:
    """Points of a law under a tilt: weights e^(tY) times mass, losses, and what sums may miss for |w| up to a limit."""

    weights: list[arb]
    losses: list[arb]
    error: arb


def nodes(law: Loss, t: arb, limit: float, scale: arb, accuracy: int, most: float = MOST_IN_ALL) -> Nodes:
    """Returns nodes for |w| <= ``limit``; errors are kept near 2^-accuracy of ``scale``, about M(t).

    Raises TooMuch where it takes more than ``most``.
    """
    goal = scale * arb(2) ** -accuracy
    weights = [p * (t * y).exp() for p, y in law.atoms]
    error = arb(0)
    if law.lost > 0:
        # The atoms left out: their tilted masses fall off faster than a geometric series beyond the outermost kept.
        for near, far in ((weights[1], weights[0]), (weights[-2], weights[-1])):
            ratio = far / near
            error += far * ratio / (1 - ratio) if ratio < 1 else arb.pos_inf()
    counts = [len(weights) < 20 or not weight < goal / 1e4 for weight in weights]
    error += sum((weight for weight, count in zip(weights, counts, strict=True) if not count), arb(0))
    losses = [y for (_, y), count in zip(law.atoms, counts, strict=True) if count]
    weights = [weight for weight, count in zip(weights, counts, strict=True) if count]
    panels: list[tuple[Tilt, arb, arb]] = []
    for piece in law.pieces:
        tilt = Tilt(piece, t)
        error += tilt.ends()[2]
        run: list[tuple[arb, arb]] = []
        tiny = goal / 1000
        for middle, half, above in tilt.cells(0.5 if piece.curvature > 0 else 0.125, tiny):
            if above < tiny:
                error += above
                panels += [(tilt, *panel) for panel in _merged(run)]
                run = []
            else:
                run.append((middle, half))
        panels += [(tilt, *panel) for panel in _merged(run)]
    for tilt, middle, half in panels:
        if len(weights) <= most:
            error += _panel(tilt, middle, half, arb(limit), goal, weights, losses)
    if len(weights) > most:
        raise TooMuch(f"more than {int(most)} nodes")
    return Nodes(weights, losses, error.upper())


def _merged(run: list[tuple[arb, arb]]) -> list[tuple[arb, arb]]:
    """Returns panels of up to eight cells."""
    found = []
    for i in range(0, len(run), 8):
        part = run[i : i + 8]
        low, high = part[0][0] - part[0][1], part[-1][0] + part[-1][1]
        found.append((((low + high) / 2), (high - low) / 2))
    return found


def _panel(
    tilt: Tilt, middle: arb, half: arb, limit: arb, goal: arb, weights: list[arb], losses: list[arb], depth: int = 0
) -> arb:
    """Adds the nodes of a panel, halved as often as it takes; returns a bound on what they miss."""
    best: tuple[int, arb] = (10**9, arb.pos_inf())
    widest = spread(tilt.piece.p).max(spread(tilt.piece.q))
    for rho in RHOS:
        v, reach = half * (rho - 1 / rho) / 2, half * (rho + 1 / rho) / 2
        if widest * v > WIDEST:
            break
        bound = tilt.supremum(middle, reach) * tilt.growth(v, middle - reach, middle + reach)
        bound *= (limit * tilt.argument(middle - reach, middle + reach, v)).exp()
        bound *= half * 64 / 15 / (1 - rho**-2)
        needed = float((bound / goal).log() / (2 * rho.log()))
        n = max(4, int(min(needed, 1e8)) + 1) if needed == needed else 10**9
        if n < best[0]:
            best = n, bound * rho ** (-2 * n)
    n, error = best
    if n > MOST_NODES:
        if depth > 14 or len(weights) > MOST_IN_ALL:
            raise TooMuch(f"more than {MOST_IN_ALL} nodes")
        parts = [(middle - half / 2, half / 2), (middle + half / 2, half / 2)]
        return sum((_panel(tilt, m, h, limit, goal, weights, losses, depth + 1) for m, h in parts), arb(0))
    kappa, t = tilt.piece.curvature, tilt.t
    for node, weight in _gauss(n, ctx.prec):
        x = middle + half * node
        p = total(tilt.piece.p, x)
        loss = (p / total(tilt.piece.q, x)).log()
        weights.append(half * weight * p * (t * loss - kappa * x * x / 2).exp())
        losses.append(loss)
    return error


def values(found: Nodes, step: arb, count: int) -> list[acb]:
    """Returns M(t + i m step) for m = 0 .. count - 1, by a product of two matrices: small steps and large ones."""
    rows = max(1, int(count**0.5))
    columns = -(-count // rows)
    table = acb_mat(rows, columns)
    for i in range(0, len(found.losses), BLOCK):
        losses, weights = found.losses[i : i + BLOCK], found.weights[i : i + BLOCK]
        small = _powers([acb(0, step * y).exp() for y in losses], rows)
        large = _powers([acb(0, step * rows * y).exp() for y in losses], columns)
        weighted = [row[j] * weight for j, weight in enumerate(weights) for row in large]
        size = len(losses)
        table += acb_mat(rows, size, [v for row in small for v in row]) * acb_mat(size, columns, weighted)
    entries = table.entries()
    missed = arb(0, found.error)
    miss = acb(missed, missed)
    return [entries[(m % rows) * columns + m // rows] + miss for m in range(count)]


def _powers(bases: list[acb], count: int) -> list[list[acb]]:
    """Returns the powers 0 .. count - 1, each from two of about half its order.

    One by one a rectangle would grow by up to sqrt 2 each time that it is turned.
    """
    found = [[acb(1)] * len(bases), bases][:count]
    for i in range(2, count):
        found.append([a * b for a, b in zip(found[i // 2], found[i - i // 2], strict=True)])
    return found
