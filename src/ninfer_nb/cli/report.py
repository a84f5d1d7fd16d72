"""The end-of-run report of `ninfer run` (`cli.md` 9): fixed-width lines on stderr."""

from __future__ import annotations

from collections.abc import Iterator

from ..engine.results import GenerationResult, LoadSummary, MemorySummary, SpeculativeStats, byte_text
from ..engine.sampling import SamplingParams

HEADER = f"{'phase':<12}{'detail':<28}elapsed/progress"


def format_rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.2f} tok/s" if tokens > 0 and seconds > 0 else "n/a"


def stage(group: str, detail: str, seconds: float | None) -> str:
    value = "n/a" if seconds is None else f"{seconds:.3f} s"
    return f"{group:<12}{detail:<26}{value:>12}"


def metric(label: str, value: object) -> str:
    return f"{'summary':<12}{label:<26}{value}"


def format_sampling(sampling: SamplingParams) -> str:
    if sampling.is_greedy:
        return "greedy (temperature 0)"
    return (
        f"temp={sampling.temperature:.2f} top_p={sampling.top_p:.2f} top_k={sampling.top_k} "
        f"min_p={sampling.min_p:.2f} presence={sampling.presence_penalty:.2f} "
        f"freq={sampling.frequency_penalty:.2f} seed={sampling.seed}"
    )


def load_lines(load: LoadSummary) -> Iterator[str]:
    """Rows 1 to 9a."""
    yield stage("load", "engine construction", load.engine_seconds)
    yield stage("load", "artifact/materialize", load.materialize_seconds)
    yield stage("load", "host to device", load.upload_seconds)
    yield metric("target", load.target)
    yield metric("weights", load.weights_id)
    yield metric("artifact file read", byte_text(load.artifact_bytes_read))
    yield metric("weight H2D", byte_text(load.upload_bytes))
    yield metric("pinned staging peak", byte_text(load.staging_bytes))
    yield metric("tensors/resources", f"{load.tensors} / {load.resources}")
    yield metric("rope", "native")


def result_lines(result: GenerationResult, memory: MemorySummary) -> Iterator[str]:
    """Rows 11 to 41."""
    timings, prompt, generated = result.timings, result.prompt_tokens, len(result.token_ids)
    yield stage("prepare", "render/preprocess", timings.prepare)
    yield stage("generate", "vision", timings.vision)
    yield stage("generate", "text prefill", timings.prefill)
    yield stage("generate", "decode", timings.decode)
    yield stage("generate", "total", timings.total)
    yield metric("sampling", format_sampling(result.sampling))
    yield metric("finish reason", result.finish_reason)
    yield metric("prompt tokens", prompt)
    yield metric("reused prompt tokens", result.reused_prompt_tokens)
    yield metric("generated tokens", generated)
    yield metric("model elapsed", f"{timings.model:.3f} s")
    yield metric("prefill speed", format_rate(prompt, timings.prefill))
    yield metric("decode speed", format_rate(generated - 1, timings.decode))
    yield metric("throughput (overall)", format_rate(generated, timings.model))
    yield from memory_lines(memory)
    if result.speculative.window:
        yield from speculation_lines(result.speculative)


def speculation_lines(stats: SpeculativeStats) -> Iterator[str]:
    """What became of the guesses; rows without a figure are left out."""
    yield metric("mtp draft window", stats.window)
    yield metric("mtp rounds", stats.rounds)
    yield metric("mtp fallback steps", stats.fallback_steps)
    yield metric("mtp drafted tokens", stats.drafted)
    yield metric("mtp accepted tokens", stats.accepted)
    rate = f"{100 * stats.accepted / stats.drafted:.2f}%" if stats.drafted else "n/a"
    yield metric("mtp acceptance rate", rate)
    if stats.rounds:
        yield metric("mtp acceptance length", f"{1 + stats.accepted / stats.rounds:.2f} tok/round")
    if stats.accepted_at:
        yield metric("mtp accepted by pos", ",".join(map(str, stats.accepted_at)))


def memory_lines(memory: MemorySummary) -> Iterator[str]:
    """Rows 25 to 41."""

    def pair(used: int | None, capacity: int | None) -> str:
        return "n/a" if used is None else f"{byte_text(used)} / {byte_text(capacity)}"

    yield metric("device", memory.device)
    yield metric("max context", memory.max_context)
    yield metric("KV capacity policy", memory.kv_policy)
    yield metric("KV capacity", memory.kv_tokens)
    yield metric("KV page groups", f"{memory.kv_pages} / {memory.kv_max_pages}")
    yield metric("gpu weights used", pair(memory.weights_used, memory.weights_capacity))
    yield metric("gpu sequence used", pair(memory.sequence_used, memory.sequence_capacity))
    yield metric("kv cache dtype", {"bf16": "bf16", "int8": "int8-group64"}[memory.kv_dtype])
    yield metric("kv cache payload", byte_text(memory.kv_payload))
    yield metric("gpu workspace peak", pair(memory.workspace_peak, memory.workspace_capacity))
    yield metric("runtime reservation", byte_text(memory.runtime_reservation))
    yield metric("free after weights", byte_text(memory.free_after_weights))
    yield metric("free after startup", byte_text(memory.free_after_startup))
    yield metric("KV capacity headroom", byte_text(memory.kv_headroom))
    yield metric("planned slack", byte_text(memory.planned_slack))
    yield metric("CUDA Graph memory", pair(memory.graph_observed, memory.graph_allowance))
    yield metric("planned device total", byte_text(memory.planned_total))
