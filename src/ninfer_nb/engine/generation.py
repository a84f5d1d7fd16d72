"""What a caller holds of its request: an iterator over text deltas, then the result. Any thread, or an event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

from ..frontend.output import Delta
from .job import Job, State
from .results import GenerationResult


class Generation:
    """Iterate (or `async for`) for text deltas; `result` is complete when the iteration ends.

    A generation runs whether or not it is iterated. `cancel` may be called from any thread or from a signal handler: it
    ends at the next token or chunk. Dropping it unread cancels it too. An error of the request is raised where the
    deltas end.
    """

    def __init__(self, result: GenerationResult):
        self.result = result
        self._events = _Events()
        self._job: Job | None = None
        self._wake: Callable[[], None] = lambda: None
        self._finalizer: weakref.finalize | None = None

    def attach(self, job: Job, wake: Callable[[], None], release: Callable[[], None]) -> None:
        """The engine's side, after the job was accepted."""
        self._job, self._wake = job, wake
        self._finalizer = weakref.finalize(self, _drop, job, wake, release)

    @property
    def events(self) -> _Events:
        """Where the engine's thread puts what happens."""
        return self._events

    @property
    def done(self) -> bool:
        """Whether the engine has ended the request; deltas may still wait to be read."""
        return self._events.done

    @property
    def is_waiting(self) -> bool:
        """Whether the request has not been given a lane yet."""
        return self._job is not None and self._job.state is State.WAITING

    def cancel(self) -> None:
        if self._job:
            self._job.cancelled = True
        # a signal handler may have interrupted this very thread inside a lock, so only a flag is set here

    def close(self) -> None:
        """Cancel, and take no more deltas."""
        if self._finalizer:
            self._finalizer()

    def wait(self) -> GenerationResult:
        """Read everything; the result. Raises what ended the request."""
        for _ in self:
            pass
        return self.result

    def __iter__(self) -> Iterator[Delta]:
        while True:
            delta = self._events.get()
            if delta is None:
                break
            yield delta
        self._finish()

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while True:
            delta = await self._events.aget()
            if delta is None:
                break
            yield delta
        self._finish()

    def _finish(self) -> None:
        if self._finalizer:
            self._finalizer()
        if self._events.error is not None:
            raise self._events.error


def _drop(job: Job, wake: Callable[[], None], release: Callable[[], None]) -> None:
    job.cancelled = True
    wake()
    release()


class _Events:
    """A queue from the engine's thread to one reader, who waits on a thread or in an event loop."""

    def __init__(self) -> None:
        self._ready = threading.Condition()
        self._deltas: deque[Delta] = deque()
        self._loop: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self.done = False
        self.error: Exception | None = None

    def put(self, deltas: list[Delta]) -> None:
        with self._ready:
            self._deltas.extend(deltas)
            self._notify()

    def finish(self, error: Exception | None) -> None:
        with self._ready:
            self.done, self.error = True, error
            self._notify()

    def _notify(self) -> None:
        self._ready.notify_all()
        if self._loop:
            loop, event = self._loop
            if not loop.is_closed():
                loop.call_soon_threadsafe(event.set)

    def get(self) -> Delta | None:
        """The next delta; None when there are no more."""
        with self._ready:
            while not self._deltas and not self.done:
                self._ready.wait()
            return self._deltas.popleft() if self._deltas else None

    async def aget(self) -> Delta | None:
        with self._ready:
            if self._loop is None:
                self._loop = asyncio.get_running_loop(), asyncio.Event()
        event = self._loop[1]
        while True:
            event.clear()
            with self._ready:
                if self._deltas:
                    return self._deltas.popleft()
                if self.done:
                    return None
            await event.wait()
