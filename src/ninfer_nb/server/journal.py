"""What an operator sees of the server: console lines, the JSONL request log and metrics (`serving.md` 14, 16.10)."""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import UsageError
from .errors import ApiError
from .metrics import Metrics
from .work import Work

if TYPE_CHECKING:
    from .serving import Running


class Journal:
    """Console, request log and counters. All calls come from the event loop's thread."""

    def __init__(self, metrics: Metrics, log_path: Path | None = None, console: TextIO | None = None):
        """Raises UsageError when the log cannot be opened."""
        self.metrics = metrics
        self._console = console or sys.stderr
        self._instance = f"serve-{os.getpid()}-{time.time_ns() // 1000}"
        self._warned: set[str] = set()
        self._log: TextIO | None = None
        if log_path is not None:
            try:
                self._log = open(log_path, "a", encoding="utf-8")  # noqa: SIM115 - lives as long as the server
            except OSError as error:
                message = f"failed to open request JSONL log for append: {log_path}: {error.strerror}"
                raise UsageError(message) from None

    # -- outputs -----------------------------------------------------------------------------------

    def say(self, text: str, level: str = "info") -> None:
        """One console line."""
        stamp = datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        print(f"[{stamp}] [{level}] ninfer-serve: {text}", file=self._console, flush=True)

    def record(self, event: str, **more: Any) -> None:
        """One JSONL object. A failed write is said once and ends the log."""
        if self._log is None:
            return
        base = {
            "artifact_type": "ninfer_serve_request_log",
            "schema_version": 10,
            "event": event,
            "timestamp_unix_ms": time.time_ns() // 1_000_000,
            "server_instance_id": self._instance,
        }
        try:
            self._log.write(json.dumps(base | more, ensure_ascii=False, separators=(",", ":")) + "\n")
            self._log.flush()
        except OSError as error:
            self.say(f"request log stopped: {error.strerror}", "error")
            self._log = None

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None

    # -- requests ----------------------------------------------------------------------------------

    def started(self, running: Running) -> None:
        work, result = running.work, running.generation.result
        for name in work.ignored:
            if name not in self._warned:
                self._warned.add(name)
                self.say(f"requests carry {name}, which is accepted and not used", "warning")
        sampling = result.sampling
        sampler = "greedy"
        if not sampling.is_greedy:
            sampler = f"temp={sampling.temperature:.2f} top_p={sampling.top_p:.2f} top_k={sampling.top_k}"
            extras = (
                ("min_p", sampling.min_p),
                ("pres", sampling.presence_penalty),
                ("freq", sampling.frequency_penalty),
            )
            sampler += "".join(f" {name}={value:.2f}" for name, value in extras if value)
            sampler += f" seed={sampling.seed}"
        origin = "client" if work.max_tokens_from_client else "server default"
        self.say(
            f"[req {running.number}] {work.protocol} {_mode(work)} msgs={len(work.conversation.messages)} "
            f"max_tokens={work.max_tokens} ({origin}) tools={work.offered_tools} tool_choice={work.tool_choice} "
            f"tool_history={'yes' if _tool_history(work) else 'no'} thinking={'on' if work.thinking else 'off'} "
            f"preserve_thinking={'on' if work.preserve_thinking else 'off'} preserve_change=no sampler=[{sampler}]"
            " → submitted"
        )
        prepare = result.timings.prepare
        self.record("request_start", request=request_fields(running), preparation_seconds={"total": prepare})

    def rejected(self, number: int, work: Work, error: ApiError) -> None:
        code = f" (code={error.code})" if error.code else ""
        self.say(
            f"[req {number}] rejected phase=prepare protocol={work.protocol} {_mode(work)} "
            f"msgs={len(work.conversation.messages)} media=0 tools={work.offered_tools} status={error.status}{code} "
            f"message={error.message}",
            "warning",
        )
        self.metrics.requests.labels(work.protocol, "rejected").inc()
        fields = {"status": error.status, "type": error.type, "code": error.code, "param": error.param}
        self.record(
            "request_rejected",
            phase="prepare",
            request=_work_fields(number, work),
            error=fields | {"message": error.message},
        )

    def ended(self, running: Running, error: ApiError | None) -> None:
        result, work = running.generation.result, running.work
        if error is not None:
            outcome = "cancelled" if error.code == "client_disconnected" else "error"
            self.metrics.requests.labels(work.protocol, outcome).inc()
            self.say(f"[req {running.number}] error {error.message}", "warning")
            self.record("request_error", request=request_fields(running), error={"message": error.message})
            return
        calls = len(running.outcome.calls)
        finish = "tool_calls" if calls else result.finish_reason.replace("-", "_")
        self.metrics.finished(running, finish)
        timings, prompt, generated = result.timings, result.prompt_tokens, len(result.token_ids)
        stats = result.speculative
        speculative = "off"
        if stats.window:
            rate = 100 * stats.accepted / stats.drafted if stats.drafted else 0.0
            speculative = f"mtp {1 + stats.accepted / max(stats.rounds, 1):.2f}tok/round ({rate:.1f}%)"
        self.say(
            f"[req {running.number}] done finish={finish}{f' (tool_calls={calls})' if calls else ''} prompt={prompt} "
            f"gen={generated} cache={result.reused_prompt_tokens} reuse={result.prefix_reuse_path or 'none'} "
            f"ttft={timings.first_token * 1000:.0f}ms "
            f"prefill={_rate(prompt - result.reused_prompt_tokens, timings.prefill)} "
            f"decode={_rate(generated - 1, timings.decode)} wall={timings.total:.2f}s speculative={speculative}"
        )
        self.record(
            "request_done",
            request=request_fields(running),
            result={
                "finish_reason": result.finish_reason.replace("-", "_"),
                "prompt_tokens": prompt,
                "completion_tokens": generated,
                "computed_prefill_tokens": prompt - result.reused_prompt_tokens,
                "prefix_cache_hit_tokens": result.reused_prompt_tokens,
                "prefix_reuse_path": result.prefix_reuse_path,
                "prefix_reuse_reason": result.prefix_reuse_reason,
                "tool_call_count": calls,
                "tool_calls_dropped": running.outcome.dropped_calls,
            },
            timings_seconds={
                "prepare": timings.prepare,
                "ttft": timings.first_token,
                "vision": timings.vision,
                "prefill": timings.prefill,
                "decode": timings.decode,
                "total": timings.total,
            },
            speculative={
                "backend": "mtp" if stats.window else "none",
                "draft_window": stats.window,
                "rounds": stats.rounds,
                "drafted_tokens": stats.drafted,
                "accepted_tokens": stats.accepted,
                "fallback_steps": stats.fallback_steps,
                "accepted_per_position": stats.accepted_at,
            },
        )


def _mode(work: Work) -> str:
    return "stream" if work.stream else "non-stream"


def _tool_history(work: Work) -> bool:
    return any(message.tool_calls or message.role == "tool" for message in work.conversation.messages)


def _rate(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f}tok/s" if tokens > 0 and seconds > 0 else "n/a"


def _work_fields(number: int, work: Work) -> dict[str, Any]:
    return {
        "request_id": number,
        "protocol": work.protocol,
        "model": work.model,
        "stream": work.stream,
        "message_count": len(work.conversation.messages),
        "media_item_count": 0,
        "requested_output_tokens": work.max_tokens,
        "requested_output_tokens_source": "client" if work.max_tokens_from_client else "server_default",
        "tool_count": work.offered_tools,
        "tool_choice": work.tool_choice,
        "has_tool_history": _tool_history(work),
        "ignored": list(work.ignored),
    }


def request_fields(running: Running) -> dict[str, Any]:
    """R of `serving.md` 14.3."""
    work, sampling = running.work, running.generation.result.sampling
    return _work_fields(running.number, work) | {
        "enable_thinking": work.thinking,
        "preserve_thinking": work.preserve_thinking,
        "preserve_thinking_semantic_change": False,
        "sampling": {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "seed": sampling.seed,
        },
    }
