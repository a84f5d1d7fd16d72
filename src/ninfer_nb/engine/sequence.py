"""What a lane remembers of its sequence (`runtime.md` 8 and 12): tokens, frontiers, and the identity of a prefix."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from .pages import Allocation


@dataclass(frozen=True)
class MediaItem:
    """One picture or video in a prompt: what of it decides whether two prompts are the same."""

    begin: int  # first token
    end: int  # after the last token
    modality: str
    grid: tuple[int, int, int]  # frames, rows and columns of patches
    patches: tuple[int, int]  # begin, count
    digest: bytes  # SHA-256 of the encoded media
    timestamps: tuple[float, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()  # token ranges


@dataclass(frozen=True)
class Tokens:
    """Token ids with what else identifies them. `types` (0 text, 1 image, 2 video) and `positions` [3, n] describe
    the first tokens; those beyond, and all where they are None, are text at index + rope_delta on each axis."""

    ids: tuple[int, ...]
    types: np.ndarray | None = None  # [p] u8
    positions: np.ndarray | None = None  # [3, p] i32
    items: tuple[MediaItem, ...] = ()
    rope_delta: int = 0


class Ledger:
    """The committed tokens of a sequence, prompt and generated."""

    def __init__(self, tokens: Tokens | None = None):
        self.tokens = tokens or Tokens(())
        self.ids: list[int] = list(self.tokens.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, ids: SequenceOf[int]) -> None:
        self.ids += ids

    def matches(self, other: Tokens, length: int) -> bool:
        """Whether the first `length` tokens are the same as `other`'s in every component of their identity."""
        if length > min(len(self.ids), len(other.ids)) or self.ids[:length] != list(other.ids[:length]):
            return False
        if self.tokens.types is None and other.types is None and self.tokens.rope_delta == other.rope_delta == 0:
            return True
        mine, theirs = (_axes(tokens, length) for tokens in (self.tokens, other))
        return bool((mine == theirs).all()) and _items(self.tokens, length) == _items(other, length) is not None


def _axes(tokens: Tokens, length: int) -> np.ndarray:
    """[4, length]: type, and position on three axes, of each token."""
    out = np.zeros((4, length), np.int64)
    out[1:] = np.arange(length) + tokens.rope_delta
    if tokens.types is not None:
        known = min(length, len(tokens.types))
        out[0, :known] = tokens.types[:known]
        out[1:, :known] = tokens.positions[:, :known]
    return out


def _items(tokens: Tokens, length: int) -> tuple[MediaItem, ...] | None:
    """The items that end within `length`; None when one crosses it, or they are not in order."""
    inside = tuple(item for item in tokens.items if item.end <= length)
    crosses = any(item.begin < length < item.end for item in tokens.items)
    return None if crosses or inside != tokens.items[: len(inside)] else inside


class CheckpointKind(StrEnum):
    """Where a conversation may be taken up again although its later tokens were rewritten."""

    TURN = "turn"  # end of the first assistant opener after the last user message
    RESPONSE = "response"  # end of the prompt


@dataclass(frozen=True)
class Checkpoint:
    kind: CheckpointKind
    frontier: int


@dataclass
class Sequence:
    """State of one lane that outlives a request. Frontiers count positions."""

    lane: int
    ledger: Ledger = field(default_factory=Ledger)
    executed: int = 0  # E: positions whose KV and recurrent state are committed
    text_valid: int = 0
    mtp_valid: int = 0
    drafts: tuple[int, ...] = ()
    tail_valid: bool = False  # the hidden column of position E - 1 is kept
    retained: bool = False
    checkpoint: Checkpoint | None = None
    kv: list[Allocation] = field(default_factory=list)  # main pool, then the draft layer's
    version: int = 0  # plans made for another version are stale

    @property
    def frontier(self) -> int:
        """F: committed tokens."""
        return len(self.ledger)

    def entitlement(self, pool: int) -> int:
        return self.kv[pool].entitlement if self.kv else 0

    def release(self) -> None:
        """Forget everything and give the pages back."""
        for allocation in self.kv:
            allocation.release()
        fresh = Sequence(self.lane, version=self.version + 1)
        self.__dict__.update(fresh.__dict__)

    def snapshot(self) -> Sequence:
        """A copy for comparison in tests; allocations are shared."""
        return replace(self, kv=list(self.kv))
