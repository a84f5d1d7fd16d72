"""Start-up options of an engine and the limits that follow from them (`runtime.md` 2, `cli.md` 2)."""

from __future__ import annotations

from dataclasses import dataclass

from ..artifact.geometry import Geometry
from ..errors import UsageError

DEFAULT_MAX_CONTEXT = 2048
KV_DTYPES = ("bf16", "int8")
MAX_LANES = 8
MAX_MTP_DRAFTS = 5


@dataclass(frozen=True)
class EngineOptions:
    """Everything that is fixed when an engine starts.

    `max_context` None means 2048, cut to the model's native context. `kv_capacity` is a token count, "auto" for the
    largest pool that fits, or None for one `max_context`. `device` is "auto", "cpu" or a CUDA device index. `spec` is
    "none" or "mtp", with `draft_tokens` guesses a round; `lm_head_draft` takes them from the smaller proposal head.
    """

    device: str | int = "auto"
    max_context: int | None = None
    kv_capacity: int | str | None = None
    prefill_chunk: int = 1024
    kv_dtype: str = "bf16"
    max_concurrency: int = 1
    max_pending_requests: int = 16
    pending_timeout_ms: int = 30_000
    spec: str = "none"
    draft_tokens: int = 0
    lm_head_draft: bool = False
    prefix_reuse: bool = True

    def __post_init__(self) -> None:
        if self.max_context is not None and self.max_context < 1:
            raise UsageError(f"invalid max-context: {self.max_context}")
        if self.prefill_chunk < 1 or self.prefill_chunk % 128:
            raise UsageError("--prefill-chunk must be a multiple of 128")
        if self.kv_dtype not in KV_DTYPES:
            raise UsageError(f"invalid kv-dtype: {self.kv_dtype}")
        if isinstance(self.kv_capacity, int) and self.max_context and self.kv_capacity < self.max_context:
            raise UsageError("--kv-capacity must be at least --max-context")
        if not 1 <= self.max_concurrency <= MAX_LANES:
            raise UsageError(f"--max-concurrency must be in [1,{MAX_LANES}]")
        if self.max_pending_requests < 1:
            raise UsageError("--max-pending-requests must be positive")
        if self.pending_timeout_ms < 1:
            raise UsageError("--pending-timeout-ms must be positive")
        self._check_speculation()

    def _check_speculation(self) -> None:
        if self.spec == "dflash":
            raise UsageError("DFlash is not supported by this target")
        if self.spec not in ("none", "mtp"):
            raise UsageError(f"invalid speculative backend: {self.spec}")
        if self.spec == "none" and (self.draft_tokens or self.lm_head_draft):
            raise UsageError("--draft-tokens and --lm-head-draft require --spec mtp|dflash")
        if self.spec == "mtp" and not 1 <= self.draft_tokens <= MAX_MTP_DRAFTS:
            raise UsageError(f"--spec mtp requires --draft-tokens in [1,{MAX_MTP_DRAFTS}]")

    @property
    def window(self) -> int:
        """Drafts of a round; 0 without speculation."""
        return self.draft_tokens if self.spec == "mtp" else 0


DEFAULT_OPTIONS = EngineOptions()


def resolve_context(geometry: Geometry, options: EngineOptions) -> int:
    """Tokens of one sequence at most. Raises UsageError naming both numbers."""
    ceiling = geometry.native_context
    context = options.max_context or min(DEFAULT_MAX_CONTEXT, ceiling)
    if context > ceiling:
        raise UsageError(f"max_context exceeds the variant native context capacity: {context} > {ceiling}")
    if isinstance(options.kv_capacity, int) and options.kv_capacity < context:
        raise UsageError("--kv-capacity must be at least --max-context")
    return context
