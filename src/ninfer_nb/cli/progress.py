"""Progress on stderr: the lines of `cli.md` 9 for a model that loads or runs, a bar for long work on files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

TERMINAL_SECONDS = 0.2
FILE_SECONDS = 10.0


class ProgressLines:
    """Redrawn in place on a terminal, one line in ten seconds elsewhere; first and last of a phase are always shown."""

    def __init__(self, group: str, err: TextIO | None = None, *, quiet_seconds: float = 0.0):
        """Nothing is shown before `quiet_seconds` have passed since a phase began."""
        self._group, self._err, self._quiet = group, err or sys.stderr, quiet_seconds
        self._in_place = self._err.isatty()
        self._phase, self._started, self._shown = "", 0.0, 0.0
        self._last = False

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = time.perf_counter()
        first = phase != self._phase or self._last
        if first:
            self._phase, self._started, self._shown = phase, now, 0.0
        self._last = done >= total
        interval = TERMINAL_SECONDS if self._in_place else FILE_SECONDS
        due = first or self._last or now - self._shown >= interval
        if not due or now - self._started < self._quiet:
            return
        self._shown = now
        percent = f"{100 * done / total:.1f}%" if total else "n/a"
        seconds = f"{now - self._started:.3f} s"
        line = f"{self._group:<12}{phase:<26}{percent:>8}{done:>14} / {total:>14}{seconds:>12}"
        if self._in_place:
            self._err.write(f"\r{line}" + ("\n" if self._last else ""))
        else:
            self._err.write(line + "\n")
        self._err.flush()


@contextmanager
def bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar with bytes, rate and time left; without a terminal nothing is drawn."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
