"""Which part of a retained sequence a prompt can continue (`runtime.md` 12).

Only complete states are reusable: a lane's frontier, and its one checkpoint. A match of tokens without recurrent state
is a miss; the reason is kept for the reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .sequence import Checkpoint, CheckpointKind, Sequence, Tokens


class Path(StrEnum):
    APPEND = "append_frontier"
    TURN = "restore_turn_checkpoint"
    RESPONSE = "restore_response_checkpoint"
    RESET = "full_reset"


class CheckpointAction(StrEnum):
    DROP = "drop"
    KEEP = "keep"
    RECLASSIFY = "reclassify"
    CAPTURE = "capture"
    DEFER = "defer"


@dataclass(frozen=True)
class Reuse:
    """How a prefill starts: at `base`, on `path`; `reason` says why it is not better."""

    path: Path
    base: int
    reason: str = ""


@dataclass(frozen=True)
class Wish:
    """What a prompt wants of the cache: whether it may reuse, and the checkpoint that it would like to leave."""

    reusable: bool = True
    checkpoint: Checkpoint | None = None


def choose(sequence: Sequence, prompt: Tokens, wish: Wish, *, mtp: bool) -> Reuse:
    """The best start for `prompt` on this lane."""
    if not sequence.retained:
        return Reuse(Path.RESET, 0, "the lane keeps no sequence")
    if not wish.reusable:
        return Reuse(Path.RESET, 0, "reuse is off")
    ledger, stored = sequence.ledger, sequence.checkpoint
    if sequence.executed > 0 and ledger.matches(prompt, sequence.executed):
        if not sequence.tail_valid:
            return Reuse(Path.RESET, 0, "the hidden column at the frontier was not kept")
        if mtp and sequence.mtp_valid < sequence.executed - 1:
            return Reuse(Path.RESET, 0, "the draft cache is shorter than the sequence")
        return Reuse(Path.APPEND, sequence.executed)
    if stored and 0 < stored.frontier <= len(prompt.ids) and ledger.matches(prompt, stored.frontier):
        if mtp and sequence.mtp_valid < stored.frontier - 1:
            return Reuse(Path.RESET, 0, "the draft cache is shorter than the checkpoint")
        return Reuse(Path.TURN if stored.kind is CheckpointKind.TURN else Path.RESPONSE, stored.frontier)
    return Reuse(Path.RESET, 0, _difference(sequence, prompt))


def _difference(sequence: Sequence, prompt: Tokens) -> str:
    same = 0
    for ours, theirs in zip(sequence.ledger.ids, prompt.ids, strict=False):
        if ours != theirs:
            break
        same += 1
    kept = f"states are kept at {sequence.executed}"
    if sequence.checkpoint:
        kept += f" and {sequence.checkpoint.frontier}"
    return f"the prompt shares {same} tokens, {kept}"


def checkpoint_action(sequence: Sequence, prompt: Tokens, reuse: Reuse, desired: Checkpoint | None) -> CheckpointAction:
    """What becomes of the lane's checkpoint while this prompt is executed."""
    stored = sequence.checkpoint
    if desired is None:
        return CheckpointAction.DROP
    continues = reuse.path is not Path.RESET and stored is not None and stored.frontier == desired.frontier
    if continues and sequence.ledger.matches(prompt, desired.frontier):
        return CheckpointAction.KEEP if stored.kind is desired.kind else CheckpointAction.RECLASSIFY
    if desired.frontier > reuse.base:
        return CheckpointAction.CAPTURE
    return CheckpointAction.DEFER
