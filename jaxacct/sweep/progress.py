"""A progress bar on standard error: how many entries are done, how many a second, how long the rest takes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.0f}/s" if task.speed else "-/s", style="cyan")


@contextlib.contextmanager
def shown(name: str, total: int, *, wanted: bool) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told of entries done. Nothing is shown where standard error is no terminal."""
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not (wanted and console.is_terminal)) as progress:
        task = progress.add_task(name, total=total)
        yield lambda count: progress.advance(task, count)
