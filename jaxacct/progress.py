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

    A line has the rate and the time left. Both count from the first ones that were done here: what comes before them is
    mostly compilation. In a log, words that come before anything is done have a line at once.

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
        before, begun, is_first = done, time.monotonic(), True
        said = begun

        def line(done: int, words: str = "") -> None:
            nonlocal before, begun, said, is_first
            now = time.monotonic()
            if is_first and done == before:
                if words:
                    said = now
                    print(f"{name}: {words}", file=sys.stderr, flush=True)
            elif is_first:
                before, begun, is_first = done, now, False
            if now - said >= EVERY and not (is_first and done == before):
                said = now
                text = f"{name}: {done:,} of {total:,} ({done / total:.0%})"
                if done > before:
                    pace = (done - before) / (now - begun)
                    left = datetime.timedelta(seconds=round((total - done) / pace))
                    text += f", {pace:.3g} a second, {left} left"
                print(", ".join(filter(None, (text, words))), file=sys.stderr, flush=True)

        yield line
