"""The process that computes: progress on standard error, the state that a fork inherits, and interruption by Ctrl-C.

In reading order: :func:`progress`, a bar on a terminal and, in a log, a line now and then; :func:`check_not_forked`;
:class:`Interrupts`.
"""

from __future__ import annotations

import _thread
import contextlib
import datetime
import inspect
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


@contextlib.contextmanager
def progress(name: str, total: int, *, done: int = 0, wanted: bool = True) -> Iterator[Callable[..., None]]:
    """Gives a function to call with the number done, and words about it, which shows them on standard error.

    A line has the rate and the time left (:class:`_Pace`). A log gets a line every ten seconds, and the words that come
    before anything is done.

    >>> with progress("epsilon", 100, wanted=False) as show:
    ...     show(50, "so far")
    """
    if not wanted:
        yield lambda done, words="": None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.errors import LiveError
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        about = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[words]}")
        bar = Progress(*about, TextColumn("{task.fields[left]}"), console=Console(stderr=True))
        task = bar.add_task(name, total=total, completed=done, words="", left="")
        of_bar = _Pace(done)

        def move(done: int, words: str = "") -> None:
            of_bar.note(done)
            bar.update(task, completed=done, words=words, left=of_bar.left(total))

        try:
            bar.start()
        except LiveError:  # the caller has a display of its own, and a terminal shows only one
            yield lambda done, words="": None
            return
        try:
            yield move
        finally:
            bar.stop()
    else:
        pace, before = _Pace(done), done
        said = pace.last

        def line(done: int, words: str = "") -> None:
            nonlocal said
            now = pace.note(done)
            if done == before and pace.waits < 0:
                if words:
                    said = now
                    print(f"{name}: {words}", file=sys.stderr, flush=True)
                return
            if now - said >= 10.0:
                said = now
                text = f"{name}: {done:,} of {total:,} ({done / total:.0%})"
                print(", ".join(filter(None, (text, pace.left(total), words))), file=sys.stderr, flush=True)

        yield line


class _Pace:
    """The rate at which pieces get done, and the time that is left.

    The first piece of each kind includes the compilation for its kind, and takes longer than many others. So the clock
    starts once something was done, and neither the longest wait after that nor the pieces done in it count. An estimate
    from one wait may be wrong by a hundred times: the first estimate comes with the second wait.
    """

    def __init__(self, done: int) -> None:
        self.done, self.last = done, time.monotonic()
        self.waits = -1  # the first call in which something is done starts the clock
        self.seconds, self.pieces, self.longest = 0.0, 0, (0.0, 0)

    def note(self, done: int) -> float:
        """Counts what was done since the last call, and returns the time (seconds)."""
        now = time.monotonic()
        if done != self.done:
            wait = now - self.last, done - self.done
            self.waits += 1
            if self.waits > 0:
                self.seconds, self.pieces = self.seconds + wait[0], self.pieces + wait[1]
                self.longest = max(self.longest, wait)
            self.done, self.last = done, now
        return now

    def left(self, total: int) -> str:
        """Returns the rate and the time left in words; an empty text where they are unknown."""
        seconds, pieces = self.seconds - self.longest[0], self.pieces - self.longest[1]
        if self.waits < 2 or seconds <= 0 or pieces <= 0:
            return ""
        pace = pieces / seconds
        left = datetime.timedelta(seconds=math.ceil((total - self.done) / pace))
        return f"{pace:.3g} a second" + (f", {left} left" if self.done < total else "")


# ----------------------------------------------------------------------------------------------------
# Forks and interrupts.
#
# JAX's threads do not survive a fork, and a computation in a forked process never ends.
#
# Once JAX has started, other processes have to be started anew: by ``multiprocessing.get_context("spawn")``, the
# default on macOS and Windows, or by running a command. A fork before JAX computes anything does no harm. This file
# knows whether this library has computed; about other uses of JAX, JAX itself warns when the fork is made.
# ----------------------------------------------------------------------------------------------------

COMPUTING = {"here": False, "before a fork": False}
"""Flags: whether this process has computed anything, which who computes sets; and whether it was forked from one that
had."""


def _in_child() -> None:
    COMPUTING.update({"here": False, "before a fork": any(COMPUTING.values())})


if hasattr(os, "register_at_fork"):  # Unix
    os.register_at_fork(after_in_child=_in_child)


def check_not_forked() -> None:
    """Raises RuntimeError in a process that was forked from one that had computed: a computation would never end.

    >>> check_not_forked()
    """
    if COMPUTING["before a fork"]:
        raise RuntimeError(
            "this process was forked (os.fork, or multiprocessing's start method 'fork') from one in which JAX had "
            "started, whose threads it lacks: what it computes would never end. Start processes by "
            'multiprocessing.get_context("spawn"), or fork before anything is computed.'
        )


class Interrupts:
    """A block that loses no Ctrl-C: one sets :attr:`is_pending`, and the end of the block raises KeyboardInterrupt.

    Python raises a KeyboardInterrupt for the signal wherever the main thread happens to be. Where that is a callback
    whose errors nobody can catch, such as JAX's in the garbage collector, Python prints the exception, and the
    interrupt is lost. A flag stays until somebody reads it.

    The state that C code sets up in an import does not survive an exception: an import that the block began ends before
    the first Ctrl-C raises; a second one raises at once.

    Args:
        deferred: whether the block itself reads :attr:`is_pending` where nothing is half done, and only a second Ctrl-C
            raises at once. Otherwise the first one does.

    It has an effect only where the main thread enters it, as signals go to that thread, and only in place of Python's
    own handler or that of a block around it: a caller's own handler stays.

    >>> with Interrupts(deferred=True) as interrupts:
    ...     interrupts.is_pending
    False
    """

    def __init__(self, *, deferred: bool = False) -> None:
        self.is_pending, self.deferred = False, deferred
        self._before: Any = None
        self._within: FrameType | None = None
        self._is_sent_again = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            around = getattr(before, "__self__", None)
            if isinstance(around, Interrupts) and around.is_pending:  # the exception was lost
                raise KeyboardInterrupt
            if before is signal.default_int_handler or isinstance(around, Interrupts):
                here = inspect.currentframe()
                self._within = None if here is None else here.f_back
                self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        self._within = None
        if self.is_pending and kind is None:
            raise KeyboardInterrupt

    def send_again(self) -> None:
        """Sends Ctrl-C's signal once more in a moment, unless the block is over then, or one inside it handles it."""

        def send() -> None:
            main = threading.main_thread().ident
            if signal.getsignal(signal.SIGINT) == self._note and main is not None:
                self._is_sent_again = True
                if hasattr(signal, "pthread_kill"):
                    signal.pthread_kill(main, signal.SIGINT)  # this ends a wait of the main thread, too
                else:
                    _thread.interrupt_main()

        timer = threading.Timer(0.05, send)
        timer.daemon = True  # nothing waits for it
        timer.start()

    def _note(self, signum: int, frame: FrameType | None) -> None:
        is_first = not self.is_pending or self._is_sent_again
        self._is_sent_again = False
        at_once, self.is_pending = self.is_pending or not self.deferred, True
        if at_once and is_first and self._is_importing(frame):
            self.send_again()
        elif at_once:
            raise KeyboardInterrupt

    def _is_importing(self, frame: FrameType | None) -> bool:
        """Returns whether the main thread is inside an import that began within the block."""
        # Up the stack, frame by frame, to that which entered the block: it may itself be a module being imported.
        while frame is not None and frame is not self._within:
            if frame.f_code.co_filename.startswith("<frozen importlib"):
                return True
            frame = frame.f_back
        return False
