"""Prometheus counters of the server (`serving.md` 16.10). No label comes from the content of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from .serving import Running

_OUTCOMES = {
    "output_limit": "length",
    "context_capacity": "length",
    "tool_calls": "tool_calls",
    "cancelled": "cancelled",
}
_SHORT = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 1200)
_TOKEN = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)


class Metrics:
    """One registry a server."""

    def __init__(self, version: str, model: str, weights: str):
        self.registry = CollectorRegistry()
        build = Gauge(
            "ninfer_build_info", "Version and model.", ["version", "model", "weights"], registry=self.registry
        )
        build.labels(version, model, weights).set(1)
        self.up = self._gauge("engine_up", "1 while the engine takes requests.")
        self.running = self._gauge("requests_running", "Requests on lanes.")
        self.waiting = self._gauge("requests_waiting", "Requests in the queue.")
        self.pages = Gauge("ninfer_kv_pages", "Pages of the main KV pool.", ["state"], registry=self.registry)
        self.requests = self._counter("requests", "Ended requests.", "protocol", "outcome")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens.", "source")
        self.generated = self._counter("generation_tokens", "Generated tokens.")
        self.rounds = self._counter("decode_rounds", "Decode rounds.")
        self.rows = self._counter("decode_rows", "Rows of decode rounds.")
        self.drafts = self._counter("draft_tokens", "Guessed tokens.", "outcome")
        self.reuse = self._counter("prefix_reuse", "Requests by how their prompt began.", "path")
        self.first_token = self._histogram("time_to_first_token_seconds", "From arrival.", _SHORT)
        self.queue = self._histogram("queue_seconds", "Before the prompt was begun.", _SHORT)
        self.per_token = self._histogram("time_per_output_token_seconds", "Of decode rounds.", _TOKEN)
        self.request = self._histogram("request_seconds", "Whole requests.", _SHORT)
        self._seen = (0, 0)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"ninfer_{name}", text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"ninfer_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"ninfer_{name}", text, buckets=buckets, registry=self.registry)

    def finished(self, running: Running, finish: str) -> None:
        """Count a request that ended well."""
        result, timings = running.generation.result, running.generation.result.timings
        self.requests.labels(running.work.protocol, _OUTCOMES.get(finish, "stop")).inc()
        self.prompt_tokens.labels("cached").inc(result.reused_prompt_tokens)
        self.prompt_tokens.labels("computed").inc(result.prompt_tokens - result.reused_prompt_tokens)
        self.generated.inc(len(result.token_ids))
        self.drafts.labels("accepted").inc(result.speculative.accepted)
        self.drafts.labels("rejected").inc(result.speculative.drafted - result.speculative.accepted)
        self.reuse.labels(result.prefix_reuse_path or "none").inc()
        self.first_token.observe(timings.first_token)
        self.queue.observe(max(0.0, timings.first_token - timings.prefill - timings.prepare))
        self.request.observe(timings.total)
        if len(result.token_ids) > 1:
            self.per_token.observe(timings.decode / (len(result.token_ids) - 1))

    def text(self, engine: Engine) -> bytes:
        """The exposition; from counters alone."""
        stats = engine.stats()
        self.up.set(engine.failure is None)
        self.running.set(stats.running_requests)
        self.waiting.set(stats.waiting_requests)
        total = engine.limits.shape.pages
        self.pages.labels("free").set(stats.free_pages)
        self.pages.labels("retained").set(stats.retained_pages)
        self.pages.labels("active").set(max(0, total - stats.free_pages - stats.retained_pages))
        rounds, rows = self._seen
        self.rounds.inc(stats.decode_rounds - rounds)
        self.rows.inc(stats.decode_row_rounds - rows)
        self._seen = stats.decode_rounds, stats.decode_row_rounds
        return generate_latest(self.registry)
