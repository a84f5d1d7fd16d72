"""What an engine reports: load, memory, one generation (`runtime.md` 4 and 14)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..frontend.output import StopString
from .sampling import SamplingParams

if TYPE_CHECKING:
    from .plan import Resolved


@dataclass(frozen=True)
class LoadSummary:
    """How the artifact came in. Upload figures are None on a backend that reads it where it lies."""

    target: str
    model_id: str
    weights_id: str
    engine_seconds: float
    materialize_seconds: float
    upload_seconds: float | None
    artifact_bytes_read: int
    upload_bytes: int | None
    staging_bytes: int | None
    tensors: int
    resources: int


@dataclass(frozen=True)
class MemorySummary:
    """Bytes by region. On the reference backend these count host memory, and what it never reserves is None."""

    device: str
    max_context: int
    kv_policy: str
    kv_tokens: int
    kv_pages: int
    kv_max_pages: int
    kv_dtype: str
    kv_payload: int
    weights_used: int
    weights_capacity: int
    sequence_used: int
    sequence_capacity: int
    workspace_peak: int
    workspace_capacity: int
    runtime_reservation: int | None = None
    free_after_weights: int | None = None
    free_after_startup: int | None = None
    kv_headroom: int | None = None
    planned_slack: int | None = None
    graph_observed: int | None = None
    graph_allowance: int | None = None
    planned_total: int | None = None

    def on_device(
        self, limits: Resolved, free_after_weights: int | None, free_after_startup: int | None, graphs: int | None
    ) -> MemorySummary:
        """With the figures that only a device has."""
        capacity = limits.capacity
        return replace(
            self,
            runtime_reservation=capacity.bytes,
            free_after_weights=free_after_weights,
            free_after_startup=free_after_startup,
            kv_headroom=capacity.headroom,
            planned_slack=capacity.slack,
            graph_observed=graphs,
            graph_allowance=limits.graph_allowance,
            planned_total=self.weights_capacity + capacity.bytes,
        )


@dataclass
class Timings:
    """Wall seconds of one request. `first_token` runs from submission; prefill excludes vision."""

    prepare: float = 0.0
    first_token: float = 0.0
    vision: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    total: float = 0.0

    @property
    def model(self) -> float:
        return self.vision + self.prefill + self.decode


@dataclass
class SpeculativeStats:
    """What became of the drafts of one request."""

    window: int = 0
    rounds: int = 0  # that verified at least one draft
    drafted: int = 0
    accepted: int = 0
    fallback_steps: int = 0  # rounds without a draft
    accepted_at: list[int] = field(default_factory=list)  # of each draft position

    def add(self, drafted: int, accepted: int) -> None:
        """Count one round of a row."""
        if drafted == 0:
            self.fallback_steps += 1
            return
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.accepted_at += [0] * (self.window - len(self.accepted_at))
        for i in range(accepted):
            self.accepted_at[i] += 1


@dataclass
class GenerationResult:
    """One finished request. `token_ids` includes the stop token; text fields exclude it."""

    sampling: SamplingParams
    prompt_tokens: int
    reused_prompt_tokens: int = 0
    token_ids: list[int] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    reasoning_tokens: int = 0
    finish_reason: str = "none"
    stop_string: StopString | None = None
    ended_in_reasoning: bool = False  # the reasoning was never closed
    prefix_reuse_path: str = ""
    prefix_reuse_reason: str = ""  # why the path is not a better one
    speculative: SpeculativeStats = field(default_factory=SpeculativeStats)
    timings: Timings = field(default_factory=Timings)


def byte_text(count: int | None) -> str:
    """1024-based, two decimals; None is a figure that the backend does not have."""
    if count is None:
        return "n/a"
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count} B"
