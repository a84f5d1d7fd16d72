"""Server-sent events: frames of a stream, with something to read in every silence (`serving.md` 16.6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..frontend.jsontext import dumps

KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def data_frame(payload: Any) -> bytes:
    """`data: {json}`."""
    return f"data: {dumps(payload, compact=True)}\n\n".encode("utf-8", "replace")


def event_frame(name: str, payload: Any) -> bytes:
    """`event: name` and its data."""
    return f"event: {name}\n".encode() + data_frame(payload)


async def kept_alive(
    frames: AsyncIterator[bytes], interval: float, filler: Callable[[], bytes] = lambda: KEEP_ALIVE
) -> AsyncIterator[bytes]:
    """The frames, and `filler` whenever none has come for `interval` seconds (0: never)."""
    pending: asyncio.Task[bytes] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(frames))
            done, _ = await asyncio.wait([pending], timeout=interval or None)
            if not done:
                yield filler()
                continue
            task, pending = pending, None
            try:
                frame = task.result()
            except StopAsyncIteration:
                return
            yield frame
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        await frames.aclose()
