"""`ninfer serve`: the HTTP server (`cli.md` 3.1)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..errors import UsageError
from .engine_flags import (
    Artifact,
    Device,
    DraftTokens,
    KvCapacity,
    KvDtype,
    LmHeadDraft,
    MaxConcurrency,
    MaxContext,
    NoPrefixReuse,
    NoProgress,
    PrefillChunk,
    Spec,
    engine_options,
)
from .flags import INT32_MAX, U64_MAX, decimal, nonempty, option, switch, unsigned


def positive(flag: str, high: int = 2**32 - 1):
    """A number of at least one, with the words of `cli.md` for anything else."""
    return unsigned(1, high, f"{flag} must be positive")


def serve(
    artifact: Artifact,
    host: Annotated[str, option("--host", nonempty, "HOST", "Address to bind (127.0.0.1).")] = "127.0.0.1",
    port: Annotated[int, option("--port", unsigned(1, 65535, "--port must be in [1,65535]"), "N", "(8080)")] = 8080,
    api_key: Annotated[str | None, option("--api-key", lambda _: str, "KEY", "Clients must send it.")] = None,
    model_id: Annotated[str | None, option("--model-id", nonempty, "ID", "What clients call the model.")] = None,
    max_context: MaxContext = None,
    kv_capacity: KvCapacity = None,
    kv_dtype: KvDtype = "bf16",
    prefill_chunk: PrefillChunk = 1024,
    max_concurrency: MaxConcurrency = 1,
    max_pending_requests: Annotated[
        int, option("--max-pending-requests", positive("--max-pending-requests"), "N", "Requests that may wait (16).")
    ] = 16,
    pending_timeout_ms: Annotated[
        int, option("--pending-timeout-ms", positive("--pending-timeout-ms"), "N", "How long they may wait (30000).")
    ] = 30_000,
    spec: Spec = None,
    draft_tokens: DraftTokens = 0,
    lm_head_draft: LmHeadDraft = False,
    no_prefix_reuse: NoPrefixReuse = False,
    device: Device = "auto",
    default_max_tokens: Annotated[
        int, option("--default-max-tokens", positive("--default-max-tokens", INT32_MAX), "N", "Output limit (8192).")
    ] = 8192,
    no_thinking: Annotated[bool, switch("--no-thinking", "Answer without reasoning unless asked.")] = False,
    preserve_thinking: Annotated[bool, switch("--preserve-thinking", "Keep old reasoning in prompts.")] = False,
    temperature: Annotated[float | None, option("--temperature", decimal(0, 2), "F", "Default; 0 is greedy.")] = None,
    top_p: Annotated[float | None, option("--top-p", decimal(0, 1), "F", "Default nucleus mass.")] = None,
    top_k: Annotated[
        int | None, option("--top-k", unsigned(0, INT32_MAX, "--top-k exceeds INT32_MAX"), "N", "Default.")
    ] = None,
    min_p: Annotated[float | None, option("--min-p", decimal(0, 1), "F", "Share of the best token.")] = None,
    presence_penalty: Annotated[float | None, option("--presence-penalty", decimal(-2, 2), "F", "Default.")] = None,
    frequency_penalty: Annotated[float | None, option("--frequency-penalty", decimal(-2, 2), "F", "Default.")] = None,
    seed: Annotated[int | None, option("--seed", unsigned(0, U64_MAX), "N", "Seed where a request has none.")] = None,
    max_request_mib: Annotated[
        int,
        option("--max-request-mib", unsigned(1, 2**24, "--max-request-mib is out of range"), "N", "Body limit (384)."),
    ] = 384,
    request_log_jsonl: Annotated[
        str | None, option("--request-log-jsonl", nonempty, "FILE", "Append one line an event.")
    ] = None,
    response_store_max_records: Annotated[
        int,
        option("--response-store-max-records", positive("--response-store-max-records"), "N", "Responses kept (1024)."),
    ] = 1024,
    response_store_max_mib: Annotated[
        int,
        option(
            "--response-store-max-mib",
            unsigned(1, 2**24, "--response-store-max-mib is out of range"),
            "N",
            "And their size (256).",
        ),
    ] = 256,
    log_stats_interval_ms: Annotated[
        int, option("--log-stats-interval-ms", unsigned(), "N", "Throughput reports (5000), 0: none.")
    ] = 5000,
    sse_keepalive_ms: Annotated[
        int, option("--sse-keepalive-ms", unsigned(), "N", "Longest silence of a stream (5000), 0: any.")
    ] = 5000,
    shutdown_timeout_ms: Annotated[
        int, option("--shutdown-timeout-ms", unsigned(), "N", "Time to finish after a signal (30000).")
    ] = 30_000,
    no_metrics: Annotated[bool, switch("--no-metrics", "No /metrics.")] = False,
    cors: Annotated[bool, switch("--cors", "Let pages from anywhere call.")] = False,
    keep_nonce_lines: Annotated[bool, switch("--keep-nonce-lines", "Keep billing-header lines in prompts.")] = False,
    strip_system_line: Annotated[
        list[str] | None, option("--strip-system-line", nonempty, "PREFIX", "Drop such a first line too; repeatable.")
    ] = None,
    no_progress: NoProgress = False,
) -> None:
    """Serve the OpenAI and Anthropic protocols."""
    if keep_nonce_lines and strip_system_line:
        raise UsageError("--strip-system-line cannot be combined with --keep-nonce-lines")
    from ..artifact.registry import lookup
    from ..engine.sampling import SamplingOverrides
    from ..server.options import ServerOptions
    from ..server.run import serve as run_server
    from ..server.work import NONCE_PREFIX, Defaults
    from .progress import ProgressLines

    overrides = SamplingOverrides(temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, seed)
    prefixes = () if keep_nonce_lines else (NONCE_PREFIX, *(strip_system_line or ()))
    options = ServerOptions(
        host=host, port=port, api_key=api_key or None, model_id=model_id, cors=cors, metrics=not no_metrics,
        max_request_mib=max_request_mib, request_log=Path(request_log_jsonl) if request_log_jsonl else None,
        store_records=response_store_max_records, store_mib=response_store_max_mib,
        stats_interval_ms=log_stats_interval_ms, keepalive_ms=sse_keepalive_ms,
        shutdown_timeout_ms=shutdown_timeout_ms,
        defaults=Defaults(default_max_tokens, not no_thinking, preserve_thinking, overrides, prefixes),
    )  # fmt: skip
    engine = engine_options(
        device=device, max_context=max_context, kv_capacity=kv_capacity, prefill_chunk=prefill_chunk,
        kv_dtype=kv_dtype, spec=spec, draft_tokens=draft_tokens, lm_head_draft=lm_head_draft,
        no_prefix_reuse=no_prefix_reuse, max_concurrency=max_concurrency,
        max_pending_requests=max_pending_requests, pending_timeout_ms=pending_timeout_ms,
    )  # fmt: skip
    phases = {"weights": ProgressLines("load"), "kernels": ProgressLines("load")}

    def progress(phase: str, done: int, total: int) -> None:
        if phase in phases and not no_progress:
            phases[phase](phase, done, total)

    run_server(lookup(artifact), engine, options, progress)
