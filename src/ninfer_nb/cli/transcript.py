"""What `ninfer run` writes where (`cli.md` 8.1): content to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
import time
from typing import BinaryIO, TextIO

from ..frontend.output import Channel, Delta


class OutputClosed(Exception):
    """The reader of stdout went away."""


class Transcript:
    """Writes deltas as they come; each channel is flushed per delta and ends with a newline."""

    def __init__(self, out: BinaryIO | None = None, err: TextIO | None = None):
        self._out = out or sys.stdout.buffer
        self._err = err or sys.stderr
        self._content_end = b""
        self._reasoning_end = ""

    def write(self, delta: Delta) -> None:
        """Raises OutputClosed when stdout is a closed pipe."""
        if delta.channel is Channel.REASONING:
            self._err.write(delta.text)
            self._err.flush()
            self._reasoning_end = delta.text[-1]
        else:
            self._content_end = self._put(delta.text.encode())

    def finish(self) -> None:
        """End both channels: stdout always gets a final newline, reasoning only if there was any."""
        if self._reasoning_end not in ("", "\n"):
            self._err.write("\n")
        if self._content_end != b"\n":
            self._put(b"\n")

    def _put(self, data: bytes) -> bytes:
        try:
            self._out.write(data)
            self._out.flush()
        except BrokenPipeError:
            # the interpreter flushes stdout once more when it exits
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._out.fileno())
            raise OutputClosed from None
        return data[-1:]


class ProgressLines:
    """Progress lines of `cli.md` 9: redrawn in place on a terminal, one line in ten seconds elsewhere."""

    def __init__(self, group: str, err: TextIO | None = None, *, quiet_seconds: float = 0.0):
        """Nothing is shown before `quiet_seconds` have passed since a phase began."""
        self._group, self._err, self._quiet = group, err or sys.stderr, quiet_seconds
        self._interval = 0.2 if self._err.isatty() else 10.0
        self._phase, self._started, self._shown = "", 0.0, 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = time.perf_counter()
        first = phase != self._phase
        if first:
            self._phase, self._started = phase, now
        last = done >= total
        if now - self._started < self._quiet or not (first or last or now - self._shown >= self._interval):
            return
        self._shown = now
        percent = f"{100 * done / total:.1f}%" if total else "n/a"
        line = f"{self._group:<12}{phase:<26}{percent:>8}{done:>14} / {total:>14}{now - self._started:>10.3f} s"
        if self._interval < 1:
            self._err.write(f"\r{line}" + ("\n" if last else ""))
        else:
            self._err.write(line + "\n")
        self._err.flush()
