"""`ninfer plan`: the memory an engine would take, from a file's directory or the registry alone (`cli.md` 14)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..engine.results import byte_text
from ..errors import NInferError, UsageError
from .engine_flags import (
    Device,
    DraftTokens,
    KvCapacity,
    KvDtype,
    LmHeadDraft,
    MaxConcurrency,
    MaxContext,
    NoPrefixReuse,
    PrefillChunk,
    Spec,
    engine_options,
)
from .flags import U64_MAX, nonempty, option, switch, unsigned

if TYPE_CHECKING:
    from ..engine.report import PlanReport


def plan(
    artifact: Annotated[
        str | None, typer.Argument(metavar="ARTIFACT", help="A .ninfer file or a short name.", show_default=False)
    ] = None,
    synthetic: Annotated[
        str | None, option("--synthetic", nonempty, "MODEL/PROFILE", "A registered identity instead of a file.")
    ] = None,
    max_context: MaxContext = None,
    kv_capacity: KvCapacity = None,
    kv_dtype: KvDtype = "bf16",
    prefill_chunk: PrefillChunk = 1024,
    max_concurrency: MaxConcurrency = 1,
    spec: Spec = None,
    draft_tokens: DraftTokens = 0,
    lm_head_draft: LmHeadDraft = False,
    no_prefix_reuse: NoPrefixReuse = False,
    device: Device = "auto",
    free_bytes: Annotated[
        int | None, option("--free-bytes", unsigned(1, U64_MAX), "N", "Plan for a device with this much free memory.")
    ] = None,
    as_json: Annotated[bool, switch("--json", "One JSON object.")] = False,
) -> int:
    """Show the memory that an engine would take."""
    if bool(artifact) == bool(synthetic):
        raise UsageError("pass exactly one of ARTIFACT or --synthetic")
    from ..artifact.registry import lookup
    from ..engine.backend import planning_backend
    from ..engine.report import make_plan, specs_of

    options = engine_options(
        device=device, max_context=max_context, kv_capacity=kv_capacity, prefill_chunk=prefill_chunk,
        kv_dtype=kv_dtype, spec=spec, draft_tokens=draft_tokens, lm_head_draft=lm_head_draft,
        no_prefix_reuse=no_prefix_reuse, max_concurrency=max_concurrency,
    )  # fmt: skip
    identity, specs = specs_of(lookup(artifact) if artifact else None, _identity(synthetic) if synthetic else None)
    backend = planning_backend(device)
    free = free_bytes if free_bytes is not None else backend.free_bytes
    report = make_plan(
        identity, specs, options, device=backend.on_device, scratch=backend.scratch, fixed=backend.fixed_bytes,
        free=free,
    )  # fmt: skip
    if as_json:
        print(json.dumps(_document(report, backend.name)))
    else:
        print(f"{'plan':<12}{report.identity} on {backend.name}")
        for line in _lines(report):
            print(line)
    return 0


def _identity(text: str) -> Any:
    from ..artifact.directory import Identity
    from ..artifact.inventory import PROFILES

    known = [str(identity) for identity in PROFILES]
    if text not in known:
        raise NInferError(f"unknown synthetic identity: {text}; known are {', '.join(known)}")
    return Identity(*text.split("/"))


def _lines(report: PlanReport) -> Iterator[str]:
    resolved, capacity = report.resolved, report.resolved.capacity
    largest = max(report.workspace, key=report.workspace.get)

    def row(group: str, name: str, size: int | None, note: str = "") -> str:
        return f"{group:<12}{name:<26}{byte_text(size):>12}  {note}".rstrip()

    for name, size in report.weights.items():
        yield row("weights", name, size)
    for name, size in report.state.items():
        note = f"{resolved.shape.pages} pages" if name == "KV pool, main" else ""
        note = f"{resolved.shape.draft_pages} pages" if name == "KV pool, draft" else note
        yield row("state", name, size, note)
    yield row("state", "KV, a token", report.token_bytes)
    for name, size in report.workspace.items():
        yield row("workspace", name, size, "largest" if name == largest else "")
    yield row("graphs", "allowance", report.graph_allowance)
    yield row("total", "", report.total)
    yield row("free", "before loading", report.free)
    yield row("free", "slack", capacity.slack)
    yield (
        f"{'capacity':<12}{capacity.policy}: {capacity.tokens} tokens in {capacity.pages} page groups, "
        f"at least {max(capacity.row_pages, resolved.shape.lanes)}, at most {capacity.max_pages}"
    )
    if report.largest_context is not None:
        yield f"{'fits':<12}--max-context {report.largest_context}, --max-concurrency {report.largest_concurrency}"


def _document(report: PlanReport, backend: str) -> dict[str, Any]:
    resolved = report.resolved
    return {
        "artifact_type": "ninfer_plan_report",
        "schema_version": 1,
        "identity": report.identity,
        "backend": backend,
        "max_context": resolved.max_context,
        "prefill_chunk": resolved.prefill_chunk,
        "weights": report.weights,
        "state": report.state,
        "workspace": report.workspace,
        "graph_allowance": report.graph_allowance,
        "kv_bytes_per_token": report.token_bytes,
        "capacity": asdict(resolved.capacity),
        "total": report.total,
        "free": report.free,
        "largest_max_context": report.largest_context,
        "largest_max_concurrency": report.largest_concurrency,
    }
