"""Counters of an engine (`runtime.md` 14)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counters:
    """Monotonic since the engine started."""

    prefill_tokens: int = 0  # evaluated; reused ones are not
    decode_tokens: int = 0  # committed by rounds: the first token of each prompt is not among them
    decode_rounds: int = 0
    decode_row_rounds: int = 0


@dataclass(frozen=True)
class EngineStats:
    """A snapshot."""

    computed_prefill_tokens: int
    committed_decode_tokens: int
    decode_rounds: int
    decode_row_rounds: int
    running_requests: int
    prefilling_requests: int
    decode_ready_requests: int
    waiting_requests: int
    free_pages: int
    retained_pages: int
    host_seconds: float  # of decode rounds, outside the wait for the device
