"""The one thread that owns the scheduler. Callers hand it jobs and take events from their own generation."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ..errors import Overloaded, Unavailable
from .job import Job
from .scheduler import Scheduler

IDLE_SECONDS = 0.05  # between looks at deadlines and cancellations while nothing runs


class Worker:
    """Runs `scheduler.step` while there is work. `prepare` is called first on the thread (device context)."""

    def __init__(self, scheduler: Scheduler, outstanding: int, prepare: Callable[[], None]):
        self._scheduler, self._limit = scheduler, outstanding
        self._wake = threading.Condition()
        self._inbox: list[Job] = []
        self._outstanding = 0
        self._stopping = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(prepare,), name="ninfer-engine", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Raises Overloaded or Unavailable; afterwards the job ends exactly once."""
        with self._wake:
            if self._stopping or self._failure is not None:
                raise Unavailable(
                    f"the engine has failed: {self._failure}" if self._failure else "the engine is closed"
                )
            if self._outstanding >= self._limit:
                raise Overloaded(f"{self._outstanding} requests are outstanding, no more than {self._limit} are taken")
            self._outstanding += 1
            self._inbox.append(job)
            self._wake.notify()

    def release(self) -> None:
        """A caller has taken its result, or dropped it."""
        with self._wake:
            self._outstanding -= 1

    def wake(self) -> None:
        """Something changed that the thread should look at, such as a cancellation."""
        with self._wake:
            self._wake.notify()

    @property
    def is_full(self) -> bool:
        return self._outstanding >= self._limit

    @property
    def failure(self) -> Exception | None:
        return self._failure

    def close(self) -> None:
        """End every request as unavailable and stop the thread."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self, prepare: Callable[[], None]) -> None:
        try:
            prepare()
            while not self._stopping:
                self._take()
                if not self._scheduler.step():
                    self._rest()
            error: Exception = Unavailable("the engine is closed")
        except Exception as caught:
            error = caught
        with self._wake:
            if not self._stopping:
                self._failure = error
            jobs, self._inbox = self._inbox, []
        for job in jobs:
            self._scheduler.pending.append(job)
        self._scheduler.stop(error)

    def _take(self) -> None:
        with self._wake:
            jobs, self._inbox = self._inbox, []
        for job in jobs:
            self._scheduler.submit(job)

    def _rest(self) -> None:
        """Nothing to do: wait for a submission, or look again at deadlines while requests wait."""
        if self._scheduler.idle:
            self._scheduler.check_integrity()
        with self._wake:
            if not self._inbox and not self._stopping:
                self._wake.wait(None if self._scheduler.idle else IDLE_SECONDS)


def deadline(timeout_ms: int, spent_seconds: float) -> float:
    """On the monotonic clock, for a request whose preparation took `spent_seconds` of its time."""
    return time.monotonic() + timeout_ms / 1000 - spent_seconds
