"""How far something is: a bar on a terminal, and in a log a line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

EVERY = 10.0
"""Seconds between two lines of a log, at least."""


@contextlib.contextmanager
def progress(name: str, total: int, *, done: int = 0, wanted: bool = True) -> Iterator[Callable[..., None]]:
    """Gives what is called with how many are done, and with words about them, to show it on standard error.

    A line has the rate since the beginning, at which ``done`` were done already, and the time left.

    >>> with progress("epsilon", 100, wanted=False) as show:
    ...     show(50, "so far")
    """
    if not wanted:
        yield lambda done, words="": None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        words_of_task = TextColumn("{task.fields[words]}")
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            words_of_task,
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(name, total=total, completed=done, words="")
            yield lambda done, words="": bar.update(task, completed=done, words=words)
    else:
        begun = said = time.monotonic()
        before = done

        def line(done: int, words: str = "") -> None:
            nonlocal said
            now = time.monotonic()
            if now - said < EVERY or done <= before:
                return
            said = now
            pace = (done - before) / (now - begun)
            print(
                f"{name}: {done:,} of {total:,} ({done / total:.0%}), {pace:.3g} a second, "
                f"{_duration((total - done) / pace)} left{', ' + words if words else ''}",
                file=sys.stderr, flush=True,
            )  # fmt: skip

        yield line


def _duration(seconds: float) -> str:
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
