"""Prompt execution, one chunk a step (`runtime.md` 9.5 and 12)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model.state import pages_for
from .lanes import Lane
from .program import Chunk, Outcome, Program
from .reuse import CheckpointAction, Path
from .sequence import Checkpoint, Ledger

if TYPE_CHECKING:
    from .scheduler import Settings


class Prefill:
    """Takes the prefill owner from where its plan starts to its first token."""

    def __init__(self, program: Program, settings: Settings):
        self.program, self.settings = program, settings

    def step(self, lane: Lane) -> Outcome | None:
        """One unit; the outcome when the prompt is done. The scheduler handles what it raises."""
        job = lane.job
        job.spend()
        if not lane.started:
            lane.started = True
            self._start(lane)
        prompt = job.prompt.ids
        if lane.cursor == len(prompt):
            lane.last_chunk = 0
            return self.program.finish(self._chunk(lane, len(prompt)))
        end = self._chunk_end(lane)
        chunk = self._chunk(lane, end)
        outcome = self.program.prefill(chunk)
        lane.last_chunk, lane.cursor = end - lane.cursor, end
        self._capture(lane)
        if job.on_prefill:
            job.on_prefill(end, len(prompt))
        return outcome

    def _start(self, lane: Lane) -> None:
        """Bring the lane's device state to the plan's base, and own the pages of the whole prompt."""
        program, sequence, job, plan = self.program, lane.sequence, lane.job, lane.plan
        prompt, base = job.prompt, plan.reuse.base
        if plan.reuse.path is Path.RESET:
            program.reset(lane.index)
        elif plan.reuse.path is not Path.APPEND:
            program.restore(lane.index, base == len(prompt.ids))
        self._plan_checkpoint(lane)
        program.start(lane.index)
        for allocation in sequence.kv:
            allocation.bind(lane.index)
        sequence.kv[0].materialize(pages_for(len(prompt.ids)))
        if program.window:
            ahead = min(self.settings.max_context, len(prompt.ids) + max(self._first_drafts(lane) - 1, 0))
            sequence.kv[1].materialize(pages_for(ahead))
        sequence.ledger = Ledger(prompt)
        sequence.executed = sequence.text_valid = base
        if program.window and 0 < base < len(prompt.ids):
            program.bridge(lane.index, base - 1, prompt.ids[base])
        sequence.mtp_valid = base

    def _plan_checkpoint(self, lane: Lane) -> None:
        sequence, wish = lane.sequence, lane.job.wish.checkpoint
        match lane.plan.action:
            case CheckpointAction.DROP | CheckpointAction.CAPTURE:
                sequence.checkpoint = None
            case CheckpointAction.RECLASSIFY:
                sequence.checkpoint = Checkpoint(wish.kind, sequence.checkpoint.frontier)

    def _first_drafts(self, lane: Lane) -> int:
        """Drafts for the first round (`model.md` 11.2)."""
        job, prompt = lane.job, len(lane.job.prompt.ids)
        return max(0, min(self.program.window, job.budget.tokens - 2, self.settings.max_context - prompt - 1))

    def _chunk_end(self, lane: Lane) -> int:
        end = min(lane.cursor + self.settings.prefill_chunk, len(lane.job.prompt.ids))
        if lane.plan.action is CheckpointAction.CAPTURE:
            frontier = lane.job.wish.checkpoint.frontier
            if lane.cursor < frontier < end:
                return frontier
        return end

    def _chunk(self, lane: Lane, end: int) -> Chunk:
        job = lane.job
        ids = job.prompt.ids
        last = end == len(ids)
        return Chunk(
            lane.index,
            ids[lane.cursor : end],
            lane.cursor,
            len(ids),
            None if last else ids[end],
            job.sampling,
            self._first_drafts(lane) if last else 0,
        )

    def _capture(self, lane: Lane) -> None:
        wish = lane.job.wish.checkpoint
        if lane.plan.action is CheckpointAction.CAPTURE and lane.cursor == wish.frontier:
            self.program.capture(lane.index, lane.last_chunk - 1)
            lane.captured = wish
