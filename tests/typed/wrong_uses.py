"""Calls that a type checker has to refuse, line by line: each expects its error, and an error too few is one, too.

Nothing here is run; what the same mistakes raise is in tests/project/test_wrong_uses.py.
"""

import jaxacct as ja
from jaxacct import calibrate, convert, filters, rdp

NOISY = ja.Gaussian(noise_multiplier=2.0)


def wrong_arguments() -> None:
    """What is no mechanism, no number of steps, no relation; and what is missing."""
    ja.epsilon("oops", steps="x", delta=1e-5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ja.epsilon(ja.Gaussian, steps=1, delta=1e-5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ja.epsilon(2.0, steps=1, delta=1e-5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ja.epsilon(NOISY, steps="x", delta=1e-5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ja.epsilon(NOISY, steps=None, delta=1e-5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ja.epsilon(NOISY, steps=1, delta="1e-5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ja.epsilon(NOISY, steps=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ja.epsilon(NOISY, 1, 1e-5, "remove")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ja.delta(NOISY, 1, 1.0, relation="swap")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ja.Gaussian("2.0")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ja.Gaussian(sigma=2.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def wrong_relations(relation: str) -> None:
    """A string that may be anything is no relation."""
    ja.epsilon(NOISY, 1, 1e-5, relation=relation)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    rdp.curve(NOISY, [2.0], relation="neighbours")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def wrong_rooms() -> None:
    """The same in the rooms."""
    rdp.epsilon([1.0], steps=[1], delta=1e-5)  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    rdp.curve((NOISY, NOISY), [2.0])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    convert.rdp_to_epsilon("rdp", [2.0], 1e-5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    convert.mechanism_to_zcdp(1.0)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    filters.ZCDPFilter("1", 1e-5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    filters.ZCDPFilter(1.0, 1e-5).spend("oops")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    calibrate.scale("oops", 1.0, 1e-5, 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def wrong_results(bounds: ja.Bounds) -> None:
    """What a bracket is not."""
    print(bounds + 1.0)  # type: ignore[operator]  # pyright: ignore[reportOperatorIssue, reportUnknownArgumentType]
    len(bounds)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Incomplete(ja.Mechanism):
    """A mechanism without a pair."""

    relations = ("add_or_remove",)


Incomplete()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
