"""How far something is: a bar on a terminal, and in a log a line now and then."""

from __future__ import annotations

import contextlib
import datetime
import sys
import time
from collections.abc import Callable, Iterator

EVERY = 10.0
"""Seconds between two lines of a log, at least."""


@contextlib.contextmanager
def progress(name: str, total: int, *, done: int = 0, wanted: bool = True) -> Iterator[Callable[..., None]]:
    """Gives what is called with how many are done, and with words about them, to show it on standard error.

    A line has the rate since the beginning, when ``done`` were done already, and the time left.

    >>> with progress("epsilon", 100, wanted=False) as show:
    ...     show(50, "so far")
    """
    if not wanted:
        yield lambda done, words="": None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.errors import LiveError
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        about = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[words]}")
        bar = Progress(*about, TimeRemainingColumn(), console=Console(stderr=True))
        task = bar.add_task(name, total=total, completed=done, words="")
        try:
            bar.start()
        except LiveError:  # the caller has a display of its own, and a terminal shows one
            yield lambda done, words="": None
            return
        try:
            yield lambda done, words="": bar.update(task, completed=done, words=words)
        finally:
            bar.stop()
    else:
        before, begun = done, time.monotonic()
        said = begun

        def line(done: int, words: str = "") -> None:
            nonlocal said
            now = time.monotonic()
            if now - said >= EVERY and done > before:
                said, pace = now, (done - before) / (now - begun)
                left = datetime.timedelta(seconds=round((total - done) / pace))
                text = f"{name}: {done:,} of {total:,} ({done / total:.0%}), {pace:.3g} a second, {left} left"
                print(", ".join(filter(None, (text, words))), file=sys.stderr, flush=True)

        yield line
