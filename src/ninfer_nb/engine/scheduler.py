"""The loop that owns all engine state (`runtime.md` 9): at each boundary one unit of work, a prefill chunk or a round.

`step` runs one unit. Everything here happens on one thread, apart from `Job.cancelled`. The scheduler knows jobs, lanes
and pages; a `Program` executes. Faults of one request end that request; faults of a shared round end the engine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ..errors import NonFiniteLogits, QueueTimeout, Unavailable
from ..frontend.output import FinishReason
from .admission import Admission
from .job import Job, State, Vector
from .lanes import Lane, LanePlan, Lanes
from .pages import AccountingError, PagePool
from .prefill import Prefill
from .program import Commit, Outcome, Program, Row
from .stats import Counters


class Unit(Enum):
    PREFILL = auto()
    DECODE = auto()


@dataclass(frozen=True)
class Settings:
    """Fixed for the life of a scheduler."""

    lanes: int
    max_context: int
    prefill_chunk: int
    pages: int
    draft_pages: int = 0  # of the draft layer's pool
    row_pages: int = 0  # of one sequence
    prefix_reuse: bool = True


class Scheduler:
    """Requests in, units of work out."""

    def __init__(self, program: Program, settings: Settings, clock: Callable[[], float] = time.monotonic):
        self.program, self.settings, self.clock = program, settings, clock
        sizes = [settings.pages, settings.draft_pages] if program.window else [settings.pages]
        self.pools = [
            PagePool(name, pages, settings.row_pages, settings.lanes, self._publisher(index))
            for index, (name, pages) in enumerate(zip(("main", "draft"), sizes, strict=False))
        ]
        self.capacity = Vector(settings.lanes, settings.pages, settings.draft_pages if program.window else 0)
        self.lanes = Lanes(self.pools, settings, program.window)
        self.admission = Admission(self.capacity)
        self.prefill = Prefill(program, settings)
        self.pending: deque[Job] = deque()
        self.owner: Lane | None = None  # of the one prefill
        self.last: Unit | None = None
        self.failure: Exception | None = None
        self.counters = Counters()

    def _publisher(self, pool: int) -> Callable[[int, int, Sequence[int]], None]:
        return lambda lane, first, ids: self.program.publish(pool, lane, first, ids)

    # -- from outside ------------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """The job waits for its turn; what can never run ends at once."""
        if self.failure is not None:
            job.finish(Unavailable(f"the engine has failed: {self.failure}"))
        else:
            self.pending.append(job)

    @property
    def idle(self) -> bool:
        return not self.pending and not any(lane.job for lane in self.lanes)

    def stop(self, reason: Exception) -> None:
        """End every request with `reason`; nothing runs afterwards."""
        self.failure = reason
        for lane in self.lanes:
            if lane.job:
                job, lane.job = lane.job, None
                job.finish(reason)
        while self.pending:
            self.pending.popleft().finish(reason)
        self.owner = None

    def check_integrity(self) -> None:
        """Raises AccountingError when pools, lanes and requests contradict each other."""
        for pool in self.pools:
            pool.check_integrity()
        self.lanes.check_integrity()
        if self.owner is not None and self.owner not in self.lanes.of_state(State.PREFILL):
            raise AccountingError("the prefill owner is not in prefill")
        if len(self.lanes.of_state(State.PREFILL)) > 1:
            raise AccountingError("two lanes are in prefill")

    # -- one unit ------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Run one unit; False when there was nothing to do. Raises when the engine has to end."""
        if self.failure is not None:
            return False
        self._sweep()
        members = self.lanes.of_state(State.ACTIVE)
        if self.owner is not None:
            if members and self.last is not Unit.DECODE:
                self._decode(members)
            else:
                self._prefill_step()
            return True
        if self.pending and (not members or self.last is Unit.DECODE) and self._admit():
            self._prefill_step()
            return True
        if members:
            self._decode(members)
            return True
        return False

    def _sweep(self) -> None:
        """Drop cancelled and expired requests; free lanes whose request was cancelled."""
        for job in list(self.pending):
            if job.cancelled or self.clock() >= job.deadline:
                self.pending.remove(job)
                self.admission.forget(job)
                if job.cancelled:
                    self._cancel(job)
                else:
                    job.finish(QueueTimeout("the request waited longer than its deadline"))
        for lane in self.lanes:
            if lane.job and lane.job.cancelled:
                self._abort(lane)

    def _cancel(self, job: Job) -> None:
        job.session.preview_terminal(FinishReason.CANCELLED)
        job.emit(job.session.commit_preview())
        job.finish()

    def _abort(self, lane: Lane, error: Exception | None = None) -> None:
        """End a lane's request without keeping its sequence; without an error it was cancelled."""
        job, lane.job = lane.job, None
        if self.owner is lane:
            self.owner = None
        lane.sequence.release()
        if error is None:
            self._cancel(job)
        else:
            job.finish(error)

    # -- admission -------------------------------------------------------------------------------------

    def _admit(self) -> bool:
        plans: dict[int, LanePlan | None] = {}

        def work(job: Job) -> int | None:
            if job.id not in plans:
                plans[job.id] = self.lanes.plan(job)
            plan = plans[job.id]
            return None if plan is None else plan.work

        active = [lane.job for lane in self.lanes if lane.job]
        job = self.admission.choose(tuple(self.pending), active, work)
        if job is None:
            return False
        self.pending.remove(job)
        self.owner = self.lanes.claim(job, plans[job.id])
        return True

    # -- prefill ---------------------------------------------------------------------------------------

    def _prefill_step(self) -> None:
        lane, started = self.owner, self.clock()
        job = lane.job
        try:
            outcome = self.prefill.step(lane)
        except AccountingError:
            raise
        except Exception as error:
            if not self.program.recover():
                raise
            self._abort(lane, error)
            self.last = Unit.PREFILL
            return
        self.last = Unit.PREFILL
        job.result.timings.prefill += self.clock() - started
        self.counters.prefill_tokens += lane.last_chunk
        if outcome is None:
            return
        self.owner = None
        job.state = State.ACTIVE
        job.result.timings.first_token = self.clock() - job.submitted + job.result.timings.prepare
        self._settle(lane, outcome)

    # -- decode ----------------------------------------------------------------------------------------

    def _decode(self, members: Sequence[Lane]) -> None:
        """One round over every decode-ready lane, in lane order."""
        self.last, started = Unit.DECODE, self.clock()
        rows = [self._row(lane) for lane in members]
        outcomes = self.program.decode(rows)
        kept = [self._keep(lane, row, outcome) for lane, row, outcome in zip(members, rows, outcomes, strict=True)]
        if self.program.window:
            self.program.commit(kept)
        taken = self.clock() - started
        self.counters.decode_rounds += 1
        self.counters.decode_row_rounds += len(rows)
        for lane, row, outcome, commit in zip(members, rows, outcomes, kept, strict=True):
            lane.job.result.timings.decode += taken
            self._resolve(lane, row, outcome, commit)

    def _row(self, lane: Lane) -> Row:
        sequence, job = lane.sequence, lane.job
        extent = self._extent(lane)
        sequence.kv[0].materialize(max(self.lanes.pages(sequence.executed + extent + 1), len(sequence.kv[0].page_ids)))
        if self.program.window:
            ahead = min(self.settings.max_context, sequence.executed + extent + self.program.window)
            sequence.kv[1].materialize(max(self.lanes.pages(ahead), len(sequence.kv[1].page_ids)))
        return Row(
            lane.index,
            sequence.ledger.ids[-1],
            sequence.executed,
            job.sampling,
            sequence.ledger.tokens.rope_delta,
            sequence.drafts[:extent],
            job.remaining,
        )

    def _extent(self, lane: Lane) -> int:
        """Drafts that this round can verify (`runtime.md` 10)."""
        sequence = lane.sequence
        room = self.settings.max_context - sequence.executed - 1
        return max(0, min(len(sequence.drafts), self.program.window, lane.job.remaining - 1, room))

    def _keep(self, lane: Lane, row: Row, outcome: Outcome) -> Commit:
        """How many of the tokens the output takes; the preview stays open until `_resolve`."""
        job, tokens = lane.job, outcome.tokens
        if not tokens or job.cancelled:
            return Commit(lane.index, 0)
        if len(tokens) > min(job.remaining, len(row.drafts) + 1):
            raise RuntimeError(f"lane {lane.index} produced {len(tokens)} tokens of {job.remaining}")
        preview = job.session.preview(tokens, job.remaining, job.budget.limit_reason)
        if preview.finish is None and preview.accepted != len(tokens):
            raise RuntimeError("an output that goes on must take every token")
        return Commit(lane.index, preview.accepted, preview.accepted < len(tokens))

    def _resolve(self, lane: Lane, row: Row, outcome: Outcome, commit: Commit) -> None:
        job = lane.job
        if not outcome.tokens:
            self._poisoned(lane)
            return
        if job.cancelled:
            self._abort(lane)
            return
        accepted = len(outcome.tokens) - 1
        job.result.speculative.add(len(row.drafts), accepted)
        lane.advance(outcome.tokens[: commit.tokens], outcome.drafts)
        for _ in range(commit.tokens):
            job.spend()
        self._publish(lane, commit.tokens)
        self.counters.decode_tokens += commit.tokens

    def _settle(self, lane: Lane, outcome: Outcome) -> None:
        """The first token of a prompt."""
        job = lane.job
        if not outcome.tokens:
            self._poisoned(lane)
            return
        if job.cancelled:
            self._abort(lane)
            return
        job.session.preview(outcome.tokens, job.remaining, job.budget.limit_reason)
        lane.first_token(outcome.tokens[0], outcome.drafts)
        self._publish(lane, 1)

    def _poisoned(self, lane: Lane) -> None:
        self.program.reset(lane.index)
        self._abort(lane, NonFiniteLogits("the model produced non-finite logits for this request"))

    def _publish(self, lane: Lane, count: int) -> None:
        """Commit the open preview of a lane whose state has moved on; end its request if that was its last token."""
        job = lane.job
        job.result.token_ids += lane.sequence.ledger.ids[-count:]
        job.produced += count
        deltas = job.session.commit_preview()
        if job.session.finish is not None:
            lane.retain()
        if deltas:
            job.emit(deltas)
        if job.session.finish is not None:
            job.finish()
