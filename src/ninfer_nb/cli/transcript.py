"""What `ninfer run` writes where (`cli.md` 8.1): content to stdout, everything else to stderr."""

from __future__ import annotations

import os
import sys
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
