"""What a process inherits: JAX's threads do not survive a fork, and what a forked process computes never ends.

Where JAX has started, other processes have to be started anew: by ``multiprocessing.get_context("spawn")``, the default
on macOS and Windows, or by running a command. A fork before JAX computes anything does no harm. Whether it has is known
here of what this library computed; of the rest JAX warns when the fork is made.
"""

from __future__ import annotations

import os

_uses = {"here": False, "before a fork": False}
"""Whether this process has computed anything, and whether it was forked from one that had."""


def _in_child() -> None:
    _uses.update({"here": False, "before a fork": _uses["here"] or _uses["before a fork"]})


if hasattr(os, "register_at_fork"):  # Unix
    os.register_at_fork(after_in_child=_in_child)


def note_computing() -> None:
    """Notes that this process computes; raises as :func:`check_not_forked` does where it cannot."""
    check_not_forked()
    _uses["here"] = True


def check_not_forked() -> None:
    """Raises RuntimeError in a process that was forked from one that had computed: it would wait for ever.

    >>> check_not_forked()
    """
    if _uses["before a fork"]:
        raise RuntimeError(
            "this process was forked (os.fork, or multiprocessing's start method 'fork') from one in which JAX had "
            "started, whose threads it lacks: what it computes would never end. Start processes by "
            'multiprocessing.get_context("spawn"), or fork before anything is computed.'
        )
