"""The life of a server (`serving.md` 1, 14.2, 16.11): bind, load, warm up, listen, drain."""

from __future__ import annotations

import asyncio
import importlib.metadata
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import uvicorn

from ..engine.engine import Engine
from ..engine.options import EngineOptions
from ..engine.request import Request
from ..errors import NInferError, UsageError
from ..frontend.messages import Conversation
from .access import Access
from .app import build_app
from .journal import Journal
from .metrics import Metrics
from .options import ServerOptions
from .serving import Serving

Progress = Callable[[str, int, int], None]  # phase, done, in all
SECOND_SIGNAL_GRACE = 2.0  # seconds for cancelled requests to say so


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; connections wait in its backlog until the model is there. Raises UsageError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise UsageError(f"failed to bind {host}:{port}: {error.strerror}") from None
    return listener


def serve(artifact: Path, engine_options: EngineOptions, options: ServerOptions, progress: Progress | None) -> None:
    """Run until a signal. Raises NInferError for what keeps the server from starting."""
    if options.request_log is not None and options.request_log.resolve() == artifact.resolve():
        raise UsageError("request JSONL log must not overwrite the model artifact")
    listener = bind(options.host, options.port)
    try:
        _serve(listener, artifact, engine_options, options, progress)
    finally:
        listener.close()


def _serve(
    listener: socket.socket,
    artifact: Path,
    engine_options: EngineOptions,
    options: ServerOptions,
    progress: Progress | None,
) -> None:
    started = time.perf_counter()
    version = importlib.metadata.version("ninfer-nb")
    console = Journal(Metrics(version, "", ""), options.request_log)
    console.say("loading model...")
    with Engine.open(artifact, engine_options, progress) as engine:
        model_id, weights_id = engine.identity.split("/")
        console.metrics = Metrics(version, model_id, weights_id)
        for notice in engine.notices:
            console.say(notice, "warning")
        console.say(f"model loaded in {time.perf_counter() - started:.1f} s")
        console.say(capacity_line(engine))
        serving = Serving(engine, options.model_id or model_id, options.defaults, console)
        console.record("server_start", server=_server_fields(serving, options), engine=_engine_fields(engine))
        console.say("warming up...")
        warm_up(engine, console)
        auth = "bearer" if options.api_key else "disabled"
        host, port = listener.getsockname()[:2]
        console.say(f"listening on http://{host}:{port} (model id: {serving.model_id}, auth: {auth})")
        Server(serving, options).run([listener])
        console.close()


def warm_up(engine: Engine, journal: Journal) -> None:
    """One short answer, so that the first client does not wait for first times."""
    try:
        engine.generate(Request(engine.prepare(Conversation.from_prompt("hi")), 4, reuse_prefix=False)).wait()
    except NInferError as error:
        journal.say(f"warmup failed (continuing): {error}", "warning")


def capacity_line(engine: Engine) -> str:
    """The KV pool and the memory around it."""
    from ..engine.results import byte_text

    memory = engine.memory_summary()
    return (
        f"KV capacity {memory.kv_policy} resolved={memory.kv_tokens} tokens pages={memory.kv_pages}/"
        f"{memory.kv_max_pages} runtime={byte_text(memory.runtime_reservation)} "
        f"free-after-weights={byte_text(memory.free_after_weights)} "
        f"free-after-startup={byte_text(memory.free_after_startup)} headroom={byte_text(memory.kv_headroom)} "
        f"slack={byte_text(memory.planned_slack)} "
        f"graphs={byte_text(memory.graph_observed)}/{byte_text(memory.graph_allowance)}"
    )


def _server_fields(serving: Serving, options: ServerOptions) -> dict[str, object]:
    return {
        "host": options.host,
        "port": options.port,
        "public_model_id": serving.model_id,
        "api_key_configured": options.api_key is not None,
        "cors_enabled": options.cors,
        "max_request_bytes": options.max_request_bytes,
        "default_output_tokens": options.defaults.max_tokens,
        "default_thinking": options.defaults.thinking,
        "default_preserve_thinking": options.defaults.preserve_thinking,
        "sse_keepalive_ms": options.keepalive_ms,
        "shutdown_timeout_ms": options.shutdown_timeout_ms,
        "metrics": options.metrics,
        "strip_system_lines": list(options.defaults.strip_prefixes),
    }


def _engine_fields(engine: Engine) -> dict[str, object]:
    options, limits = engine.options, engine.limits
    return {
        "device": engine.backend.device,
        "max_context": limits.max_context,
        "kv_capacity_mode": limits.capacity.policy,
        "kv_capacity": limits.capacity.tokens,
        "kv_capacity_page_groups": limits.capacity.pages,
        "kv_capacity_max_page_groups": limits.capacity.max_pages,
        "max_concurrency": options.max_concurrency,
        "max_pending_requests": options.max_pending_requests,
        "pending_timeout_ms": options.pending_timeout_ms,
        "prefill_chunk": limits.prefill_chunk,
        "kv_cache": {"bf16": "bf16", "int8": "int8-group64"}[options.kv_dtype],
        "prefix_reuse": options.prefix_reuse,
        "speculative_backend": options.spec,
        "speculative_draft_window": options.window,
        "proposal_head": "optimized" if options.lm_head_draft else "full",
    }


class Server(uvicorn.Server):
    """Uvicorn with this server's way of stopping: the first signal drains, the second cancels."""

    def __init__(self, serving: Serving, options: ServerOptions):
        app = Access(build_app(serving, options), options.api_key, options.cors)
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_keep_alive=75)
        super().__init__(config)
        self.serving, self.options = serving, options
        self._deadline: float | None = None

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        handled = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.serving.draining:
            self.force_exit = False
            self._deadline = time.monotonic()
        self.serving.draining = True
        if self._deadline is None:
            self._deadline = time.monotonic() + self.options.shutdown_timeout_ms / 1000
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._reports = asyncio.ensure_future(self._report())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the listener, let active requests finish within their time, then cancel them."""
        watch = asyncio.ensure_future(self._cancel_late())
        for running in list(self.serving.running):
            if running.generation.is_waiting:
                running.generation.cancel()
        await super().shutdown(sockets)
        watch.cancel()
        self._reports.cancel()
        throughput(self.serving, self._since, tail=True)

    async def _cancel_late(self) -> None:
        while time.monotonic() < (self._deadline or 0):
            await asyncio.sleep(0.05)
        self.serving.cancel_all()
        await asyncio.sleep(SECOND_SIGNAL_GRACE)
        self.force_exit = True

    async def _report(self) -> None:
        """Throughput at intervals; silent while nothing happens."""
        self._since = Snapshot.of(self.serving)
        interval = self.options.stats_interval_ms / 1000
        while interval:
            await asyncio.sleep(interval)
            throughput(self.serving, self._since)
            self._since = Snapshot.of(self.serving)


class Snapshot:
    """Counters at a time."""

    def __init__(self, at: float, counters: tuple[int, int, int, int]):
        self.at, self.counters = at, counters

    @classmethod
    def of(cls, serving: Serving) -> Snapshot:
        stats = serving.engine.stats()
        counters = (
            stats.computed_prefill_tokens,
            stats.committed_decode_tokens,
            stats.decode_rounds,
            stats.decode_row_rounds,
        )
        return cls(time.monotonic(), counters)


def throughput(serving: Serving, since: Snapshot, *, tail: bool = False) -> None:
    """One report of what happened since a snapshot."""
    now, stats = Snapshot.of(serving), serving.engine.stats()
    prefill, decode, rounds, rows = (b - a for a, b in zip(since.counters, now.counters, strict=True))
    idle = not stats.running_requests and not stats.waiting_requests
    if not any((prefill, decode, rounds, rows)) and (idle or tail):
        return
    seconds = max(now.at - since.at, 1e-9)
    average = rows / rounds if rounds else None
    serving.journal.say(
        f"throughput interval={seconds:.3f}s prefill={prefill / seconds:.1f}tok/s decode={decode / seconds:.1f}tok/s "
        f"running={stats.running_requests} prefilling={stats.prefilling_requests} "
        f"decode_ready={stats.decode_ready_requests} waiting={stats.waiting_requests} "
        f"avg_decode_batch={'n/a' if average is None else f'{average:.2f}'}"
    )
    serving.journal.record(
        "throughput",
        interval_seconds=seconds,
        tokens={"computed_prefill": prefill, "committed_decode": decode},
        throughput_tokens_per_second={"prefill": prefill / seconds, "decode": decode / seconds},
        scheduler={
            "running": stats.running_requests,
            "prefilling": stats.prefilling_requests,
            "decode_ready": stats.decode_ready_requests,
            "waiting": stats.waiting_requests,
        },
        decode_batch={"rounds": rounds, "row_rounds": rows, "average_size": average},
    )
