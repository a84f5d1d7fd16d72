"""Start-up options of an engine and the limits that follow from them (`runtime.md` 2 and 3, `cli.md` 2)."""

from __future__ import annotations

from dataclasses import dataclass

from ..artifact.geometry import Geometry
from ..errors import UsageError
from ..model.state import pages_for
from ..ops import PAGE

DEFAULT_MAX_CONTEXT = 2048
KV_DTYPES = ("bf16", "int8")


@dataclass(frozen=True)
class EngineOptions:
    """Everything that is fixed when an engine starts.

    `max_context` None means 2048, cut to the model's native context. `kv_capacity` is a token count, "auto" for the
    largest pool that fits, or None for one `max_context`. `device` is "auto", "cpu" or a CUDA device index.
    """

    device: str | int = "auto"
    max_context: int | None = None
    kv_capacity: int | str | None = None
    prefill_chunk: int = 1024
    kv_dtype: str = "bf16"

    def __post_init__(self) -> None:
        if self.max_context is not None and self.max_context < 1:
            raise UsageError(f"invalid max-context: {self.max_context}")
        if self.prefill_chunk < 1 or self.prefill_chunk % 128:
            raise UsageError("--prefill-chunk must be a multiple of 128")
        if self.kv_dtype not in KV_DTYPES:
            raise UsageError(f"invalid kv-dtype: {self.kv_dtype}")
        if isinstance(self.kv_capacity, int) and self.max_context and self.kv_capacity < self.max_context:
            raise UsageError("--kv-capacity must be at least --max-context")


DEFAULT_OPTIONS = EngineOptions()


@dataclass(frozen=True)
class Limits:
    """Resolved token limits of one engine with a single lane."""

    max_context: int  # tokens of one sequence
    pages: int  # KV pages in the pool
    max_pages: int  # pages that could ever be used
    kv_policy: str  # "auto" or "explicit"
    prefill_chunk: int

    @property
    def kv_tokens(self) -> int:
        return self.pages * PAGE


def resolve_limits(geometry: Geometry, options: EngineOptions) -> Limits:
    """Check the options against the model's ceiling. Raises UsageError naming both numbers."""
    ceiling = geometry.native_context
    context = options.max_context or min(DEFAULT_MAX_CONTEXT, ceiling)
    if context > ceiling:
        raise UsageError(f"max_context exceeds the variant native context capacity: {context} > {ceiling}")
    pages = pages_for(context)
    if isinstance(options.kv_capacity, int):
        if options.kv_capacity < context:
            raise UsageError("--kv-capacity must be at least --max-context")
        if pages_for(options.kv_capacity) != pages:
            raise UsageError(
                "kv_capacity is outside the usable range for max_context and max_concurrency: "
                f"{options.kv_capacity} tokens, usable {context}..{pages * PAGE}"
            )
    policy = "auto" if options.kv_capacity == "auto" else "explicit"
    return Limits(context, pages, pages, policy, min(options.prefill_chunk, pages * PAGE))
