"""What a process inherits: JAX's threads do not survive a fork, and what a forked process computes never ends.

Where JAX has started, other processes have to be started anew: by ``multiprocessing.get_context("spawn")``, the default
on macOS and Windows, or by running a command. A fork before JAX computes anything does no harm.
"""

from __future__ import annotations

import os

import jax

_started = _forked = False
"""Whether JAX had started when a fork began, and whether this process is the child of such a fork."""


def _jax_has_started() -> bool:
    """JAX answers this by what it refuses: the number of its devices cannot be changed from then on."""
    number: int = jax.config.jax_num_cpu_devices  # type: ignore[attr-defined]
    try:
        jax.config.update("jax_num_cpu_devices", max(number, 1) + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", number)
    return False


def _before_fork() -> None:
    global _started
    _started = _forked or _jax_has_started()


def _in_child() -> None:
    global _forked
    _forked = _started


if hasattr(os, "register_at_fork"):  # Unix
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def check_not_forked() -> None:
    """Raises RuntimeError in a process that was forked from one where JAX had started: it would wait for ever.

    >>> check_not_forked()
    """
    if _forked:
        raise RuntimeError(
            "this process was forked from one in which JAX had started, whose threads it lacks: what it computes would "
            'never end. Start processes by multiprocessing.get_context("spawn"), or fork before JAX computes anything.'
        )
