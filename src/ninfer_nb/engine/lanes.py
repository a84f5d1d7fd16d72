"""The physical lanes: which request is on which, what their sequences hold, and where a new request would go best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..model.state import pages_for
from .job import Job, State
from .pages import AccountingError, PagePool, reserve_bundle, resize_bundle
from .reuse import CheckpointAction, Path, Reuse, Wish, checkpoint_action, choose
from .sequence import Checkpoint
from .sequence import Sequence as LaneSequence

if TYPE_CHECKING:
    from .scheduler import Settings


@dataclass(frozen=True)
class LanePlan:
    """A request on a lane: where its prefill starts, what happens to the checkpoint, and how much work that is."""

    lane: Lane
    reuse: Reuse
    action: CheckpointAction
    work: int
    evicts: bool  # retained sequences of other lanes have to go
    version: int


class Lane:
    """One lane. `job` is None while it is free; its sequence may then be retained."""

    def __init__(self, index: int):
        self.index = index
        self.sequence = LaneSequence(index)
        self.job: Job | None = None
        self.plan: LanePlan | None = None
        self.started = False  # the prefill's first step has begun
        self.cursor = 0  # prompt tokens executed
        self.last_chunk = 0
        self.captured: Checkpoint | None = None  # by this prefill, valid when it completes
        self.used = 0  # when a request last ended here, in requests

    def first_token(self, token: int, drafts: Sequence[int]) -> None:
        """The prompt is executed: its first token is the anchor."""
        sequence = self.sequence
        sequence.executed = sequence.text_valid = sequence.mtp_valid = len(self.job.prompt.ids)
        sequence.ledger.extend([token])
        sequence.drafts, sequence.tail_valid = tuple(drafts), True
        if self.captured:
            sequence.checkpoint = self.captured

    def advance(self, tokens: Sequence[int], drafts: Sequence[int]) -> None:
        """A round's tokens are committed; pages beyond the new frontier go back."""
        sequence = self.sequence
        sequence.ledger.extend(tokens)
        sequence.executed += len(tokens)
        sequence.text_valid = sequence.mtp_valid = sequence.executed
        sequence.drafts = tuple(drafts)
        for allocation in sequence.kv:
            needed = pages_for(sequence.executed)
            if needed < len(allocation.page_ids):
                allocation.trim(needed)

    def retain(self) -> None:
        """The request is over; its sequence stays for a later prompt to continue."""
        sequence = self.sequence
        for allocation in sequence.kv:
            allocation.trim(min(len(allocation.page_ids), pages_for(sequence.executed)))
            allocation.cancel_unmapped()
            allocation.unbind()
        sequence.drafts, sequence.retained = (), True
        sequence.version += 1
        self.job = None


class Lanes:
    """All lanes over their pools."""

    def __init__(self, pools: Sequence[PagePool], settings: Settings, window: int):
        self.pools, self.settings, self.window = list(pools), settings, window
        self._lanes = [Lane(index) for index in range(settings.lanes)]
        self._uses = 0

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes)

    def of_state(self, state: State) -> list[Lane]:
        return [lane for lane in self._lanes if lane.job and lane.job.state is state]

    pages = staticmethod(pages_for)

    def plan(self, job: Job) -> LanePlan | None:
        """The best free lane for `job` now, or None: most reuse, else empty, else longest unused."""
        free = [lane for lane in self._lanes if lane.job is None]
        for evicts in (False, True):
            plans = [self._plan_on(lane, job, evicts) for lane in free if self._fits(lane, job, evicts)]
            if plans:
                return max(
                    plans,
                    key=lambda p: (p.reuse.base, not p.lane.sequence.retained, -p.lane.used, -p.lane.index),
                )
        return None

    def _needs(self, job: Job) -> list[tuple[PagePool, int]]:
        vector = job.budget.vector
        return list(zip(self.pools, (vector.main_pages, vector.draft_pages), strict=False))

    def _fits(self, lane: Lane, job: Job, evicts: bool) -> bool:
        for index, (pool, pages) in enumerate(self._needs(job)):
            others = [other.sequence.entitlement(index) for other in self._lanes if other.job or not evicts]
            if not evicts and lane.job is None:
                others.append(-lane.sequence.entitlement(index))
            if pages > pool.pages - sum(others):
                return False
        return True

    def _plan_on(self, lane: Lane, job: Job, evicts: bool) -> LanePlan:
        wish = job.wish if self.settings.prefix_reuse else Wish(False, job.wish.checkpoint)
        reuse = choose(lane.sequence, job.prompt, wish, mtp=self.window > 0)
        action = checkpoint_action(lane.sequence, job.prompt, reuse, wish.checkpoint)
        prompt = len(job.prompt.ids)
        suffix = prompt - reuse.base
        inside = action is CheckpointAction.CAPTURE and wish.checkpoint.frontier < prompt
        units = 1 if suffix == 0 else 1 + (suffix - 1) // self.settings.prefill_chunk + inside
        return LanePlan(lane, reuse, action, units + job.budget.tokens - 1, evicts, lane.sequence.version)

    def claim(self, job: Job, plan: LanePlan) -> Lane:
        """Put `job` on its lane with its whole entitlement; what stands in the way is evicted. Host state only."""
        lane, sequence = plan.lane, plan.lane.sequence
        if plan.version != sequence.version or lane.job is not None:
            raise AccountingError(f"the plan for lane {lane.index} is stale")
        reset = plan.reuse.path is Path.RESET
        if reset:
            sequence.release()
        for other in self._lanes:
            if self._fits(lane, job, evicts=False):
                break
            if other is not lane and other.job is None:
                other.sequence.release()
        base = plan.reuse.base
        if reset:
            allocations = reserve_bundle(self._needs(job))
            if allocations is None:
                raise AccountingError(f"request {job.id} was admitted but its pages do not fit")
            sequence.kv = allocations
        else:
            kept = (pages_for(base), pages_for(base - 1))
            changes = [
                (allocation, min(keep, len(allocation.page_ids)), pages)
                for allocation, keep, (_, pages) in zip(sequence.kv, kept, self._needs(job), strict=False)
            ]
            if not resize_bundle(changes):
                raise AccountingError(f"request {job.id} was admitted but its pages do not fit")
        sequence.retained = False
        sequence.version += 1
        self._uses += 1
        lane.used = self._uses
        lane.job, lane.plan, lane.started, lane.captured = job, plan, False, None
        lane.cursor, lane.last_chunk = base, 0
        job.state, job.work = State.PREFILL, plan.work
        job.result.reused_prompt_tokens = base
        job.result.prefix_reuse_path, job.result.prefix_reuse_reason = str(plan.reuse.path), plan.reuse.reason
        return lane

    def check_integrity(self) -> None:
        """Raises AccountingError unless lanes, sequences and pools agree."""
        owned = [set() for _ in self.pools]
        for lane in self._lanes:
            sequence = lane.sequence
            if lane.job and sequence.retained:
                raise AccountingError(f"lane {lane.index} is active and retained")
            if sequence.kv and not lane.job and not sequence.retained:
                raise AccountingError(f"lane {lane.index} is free and keeps pages")
            for index, allocation in enumerate(sequence.kv):
                owned[index].add(allocation)
            if lane.job and lane.job.state is State.ACTIVE:
                self._check_active(lane)
        for pool, mine in zip(self.pools, owned, strict=True):
            if pool.allocations != mine:
                raise AccountingError(f"{pool.name}: an allocation belongs to no lane")

    def _check_active(self, lane: Lane) -> None:
        sequence = lane.sequence
        if sequence.frontier != sequence.executed + 1 or sequence.text_valid != sequence.executed:
            raise AccountingError(f"lane {lane.index}: frontiers {sequence.frontier}, {sequence.executed}")
        if lane.job.remaining < 1 or lane.job.work < 1:
            raise AccountingError(f"lane {lane.index} is active with nothing left to do")
