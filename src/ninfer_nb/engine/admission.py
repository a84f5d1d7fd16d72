"""Which waiting request starts next (`runtime.md` 9.2 and 9.3): first come first served, with safe backfill.

When the head of the queue does not fit, it is protected: a frozen set of running requests, the donors, will free enough
for it, and later requests may run meanwhile only if they cannot delay that. Persistent backfills fit beside the head;
temporal ones end before the donors do. Plain bookkeeping over numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from .job import NOTHING, Job, Vector


@dataclass
class Protection:
    """An epoch: it lasts until its head is admitted, cancelled, expired or rejected."""

    head: Job
    incumbents: tuple[Job, ...]
    donors: tuple[Job, ...]
    credit: int  # work that temporal backfills may still take on, never refunded
    epoch: int
    draining: bool = False
    persistent: list[Job] = field(default_factory=list)
    temporal: list[Job] = field(default_factory=list)


def total(jobs: Iterable[Job]) -> Vector:
    """What these requests hold together."""
    held = NOTHING
    for job in jobs:
        held = held + job.budget.vector
    return held


class Admission:
    """Decides one admission turn at a time."""

    def __init__(self, capacity: Vector):
        self.capacity = capacity
        self.protection: Protection | None = None
        self.epochs = 0

    def forget(self, job: Job) -> None:
        """The job no longer waits: if it was the protected head, the epoch is over."""
        if self.protection and self.protection.head is job:
            self.protection = None

    def choose(self, pending: Sequence[Job], active: Sequence[Job], work: Callable[[Job], int | None]) -> Job | None:
        """The request to admit now, if any. `work(job)` is its planned work on the best lane, None if none fits now.

        `pending` holds live, feasible requests in order of arrival.
        """
        if not pending:
            self.protection = None
            return None
        head = pending[0]
        if self.protection and self.protection.head is not head:
            self.protection = None
        if work(head) is not None:
            self.protection = None
            return head
        if not active:
            raise RuntimeError(f"request {head.id} fits alone, nothing runs, and yet it does not fit")
        if self.protection is None:
            self.protection = self._protect(head, active)
        guard = self.protection
        others = [job for job in active if job not in guard.temporal]
        if (total(others) + head.budget.vector).fits(self.capacity):
            guard.draining = True
        if guard.draining:
            return None
        return next((job for job in pending[1:] if self._backfills(guard, job, active, work)), None)

    def _protect(self, head: Job, active: Sequence[Job]) -> Protection:
        order = sorted(active, key=lambda job: (job.work, job.id))
        donors = 0
        while not (total(order[donors:]) + head.budget.vector).fits(self.capacity):
            donors += 1
        self.epochs += 1
        return Protection(head, tuple(active), tuple(order[:donors]), order[donors - 1].work, self.epochs)

    def _backfills(self, guard: Protection, job: Job, active: Sequence[Job], work: Callable[[Job], int | None]) -> bool:
        """Admit `job` beside the protected head, if that can never delay the head."""
        planned = work(job)
        if planned is None:
            return False
        running = set(active)
        stays = [j for j in guard.incumbents if j in running and j not in guard.donors]
        beside = total(stays) + total(j for j in guard.persistent if j in running)
        if (beside + guard.head.budget.vector + job.budget.vector).fits(self.capacity):
            guard.persistent.append(job)
            return True
        distance = max((j.work for j in guard.donors if j in running), default=0)
        if planned <= distance and planned <= guard.credit:
            guard.credit -= planned
            guard.temporal.append(job)
            return True
        return False
