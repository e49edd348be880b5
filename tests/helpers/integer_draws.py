"""Integer noise in Python's own integers, from RFC 8439 and the words of a table: a reference, entry by entry."""

import functools

WORD = 0xFFFFFFFF
FACTORS = {2: (1, 765), 3: (1, 32, 32 * 765)}


def quarter(x, a, b, c, d):
    for target, added, turned, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x[target] = (x[target] + x[added]) & WORD
        mixed = x[turned] ^ x[target]
        x[turned] = (mixed << bits | mixed >> (32 - bits)) & WORD


@functools.lru_cache(2**16)
def block(key, counter, nonce):
    """The sixteen words of RFC 8439's block function, section 2.3."""
    start = [int.from_bytes(b"expand 32-byte k"[i : i + 4], "little") for i in range(0, 16, 4)]
    start += [*key, counter, *nonce]
    x = list(start)
    for _ in range(10):
        for columns in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
            quarter(x, *columns)
        for diagonals in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
            quarter(x, *diagonals)
    return tuple((a + b) & WORD for a, b in zip(x, start, strict=True))


def look_up(words, bits):
    """X from 128 bits: a sign, 14 bits of a row, 113 of a fraction, which is below the row's cut or not."""
    sign, row, fraction = bits >> 127, bits >> 113 & 2**14 - 1, bits & 2**113 - 1
    head, *rest = (int(word) for word in words[row])
    cut = (head & 2**17 - 1) << 96 | rest[0] << 64 | rest[1] << 32 | rest[2]
    size = row if fraction < cut else head >> 17
    return -size if sign else size


def entry(words, key, leaf, place, draws):
    """Z at one place of a leaf: 64 entries to a unit of 8 groups of 8, whose fractions end in shared words."""
    unit, group, lane = place // 64, place // 8, place % 8
    z = 0
    for i, factor in enumerate(FACTORS[draws]):
        own = block(key, group * draws + i, (0, leaf, 0))[2 * lane : 2 * lane + 2]
        shared = block(key, unit * draws + i, (1, leaf, 0))[2 * (group % 8) : 2 * (group % 8) + 2]
        z += factor * look_up(words, own[0] << 96 | own[1] << 64 | shared[0] << 32 | shared[1])
    return z
