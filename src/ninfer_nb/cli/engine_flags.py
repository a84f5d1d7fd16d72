"""Flags that describe an engine (`cli.md` 2), shared by every command that opens or plans one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from .flags import option, switch, unsigned, word, word_or_unsigned

if TYPE_CHECKING:
    from ..engine.options import EngineOptions

Artifact = Annotated[
    str, typer.Argument(metavar="ARTIFACT", help="A .ninfer file or a short name.", show_default=False)
]
MaxContext = Annotated[int | None, option("--max-context", unsigned(1), "N", "Prompt and output together (2048).")]
KvCapacity = Annotated[
    str | None, option("--kv-capacity", word_or_unsigned("auto", low=1), "N|auto", "KV cache tokens.")
]
KvDtype = Annotated[str, option("--kv-dtype", word("bf16", "int8"), "bf16|int8", "KV storage (bf16).")]
PrefillChunk = Annotated[
    int, option("--prefill-chunk", unsigned(), "N", "Prompt tokens in one step, a multiple of 128 (1024).")
]
Spec = Annotated[
    str | None,
    option("--spec", word("mtp", "dflash", what="speculative backend"), "mtp|dflash", "Guess tokens ahead."),
]
DraftTokens = Annotated[int, option("--draft-tokens", unsigned(0), "N", "Guesses of a round, 1 to 5 with mtp.")]
LmHeadDraft = Annotated[bool, switch("--lm-head-draft", "Guess with the smaller proposal head.")]
NoPrefixReuse = Annotated[bool, switch("--no-prefix-reuse", "Always compute the whole prompt.")]
Device = Annotated[str, option("--device", word_or_unsigned("auto", "cpu"), "auto|cpu|N", "Where to run (auto).")]
MaxConcurrency = Annotated[
    int,
    option("--max-concurrency", unsigned(1, 8, "--max-concurrency must be in [1,8]"), "N", "Requests at once (1)."),
]
NoProgress = Annotated[bool, switch("--no-progress", "No progress lines.")]


def engine_options(
    *,
    device: str,
    max_context: int | None,
    kv_capacity: str | None,
    prefill_chunk: int,
    kv_dtype: str,
    spec: str | None,
    draft_tokens: int,
    lm_head_draft: bool,
    no_prefix_reuse: bool,
    **more: int,
) -> EngineOptions:
    """The options that the flags stand for. Raises UsageError for a combination that does not work."""
    from ..engine.options import EngineOptions

    return EngineOptions(
        device, max_context, kv_capacity, prefill_chunk, kv_dtype,
        spec=spec or "none", draft_tokens=draft_tokens, lm_head_draft=lm_head_draft,
        prefix_reuse=not no_prefix_reuse, **more,
    )  # fmt: skip
