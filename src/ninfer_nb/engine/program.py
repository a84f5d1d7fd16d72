"""What the scheduler asks of whatever executes tokens: units of work on lanes, nothing of requests.

`engine/execution.py` implements it with a model; the tests also with a scripted one. A unit that fails raises; then
`recover` tells whether the devices are sound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .sampling import SamplingParams


@dataclass(frozen=True)
class Chunk:
    """Prompt columns `ids` from position `base` on.

    `following` is the prompt token after them; None for the last chunk, which samples the first token. `drafts` are
    then to be made for the first round.
    """

    lane: int
    ids: tuple[int, ...]
    base: int
    prompt_tokens: int
    following: int | None
    sampling: SamplingParams
    drafts: int = 0


@dataclass(frozen=True)
class Row:
    """One sequence in a decode round: its anchor token (committed, not executed) at cache position `position`."""

    lane: int
    token: int
    position: int
    sampling: SamplingParams
    rope_delta: int = 0
    drafts: tuple[int, ...] = ()  # guesses to verify
    remaining: int = 1  # tokens that may still be produced


@dataclass(frozen=True)
class Outcome:
    """What a unit produced for one lane; no tokens at all means that its logits were not finite."""

    tokens: tuple[int, ...]
    drafts: tuple[int, ...] = ()  # guesses for the next round


@dataclass(frozen=True)
class Commit:
    """How many tokens of a verified row count. `partial`: fewer than it produced."""

    lane: int
    tokens: int
    partial: bool = False


class Program(Protocol):
    """Executes units in the order they are asked for."""

    window: int  # drafts of a round at most; 0: no speculation

    def publish(self, pool: int, lane: int, first: int, page_ids: Sequence[int]) -> None:
        """Block-table entries of a lane, before the next unit. Pool 0 is the main one, 1 the draft layer's."""

    def reset(self, lane: int) -> None:
        """Zero the lane's recurrent state."""

    def start(self, lane: int) -> None:
        """A request begins on the lane: its token counts are zero."""

    def capture(self, lane: int, chunk_offset: int) -> None:
        """Keep the lane's recurrent state, and the hidden column at `chunk_offset` of the last chunk, as checkpoint."""

    def restore(self, lane: int, tail: bool) -> None:
        """Recurrent state back from the checkpoint; `tail`: its hidden column becomes the lane's tail too."""

    def prefill(self, chunk: Chunk) -> Outcome | None:
        """Execute a chunk; the outcome of the last one."""

    def bridge(self, lane: int, position: int, token: int) -> None:
        """Draft layer: one column at `position` from the lane's tail hidden and the token after it."""

    def finish(self, chunk: Chunk) -> Outcome:
        """First token of a prompt that was executed before (`chunk.ids` is empty, `base` the prompt's length)."""

    def decode(self, rows: Sequence[Row]) -> list[Outcome]:
        """One round over all rows."""

    def commit(self, commits: Sequence[Commit]) -> None:
        """After a verified round, once for all its rows, in their order."""

    def recover(self) -> bool:
        """After an exception: wait for the devices; False when they are lost."""
