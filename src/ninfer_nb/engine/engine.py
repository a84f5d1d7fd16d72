"""The public face: open an artifact, prepare prompts, generate text.

    with Engine.open("mini", EngineOptions(max_concurrency=4)) as engine:
        prompt = engine.prepare(Conversation.from_prompt("What is prefill?"))
        for delta in engine.generate(Request(prompt)):
            print(delta.text, end="")

Any number of threads may submit; one thread of the engine does the work. Knows nothing of terminals or HTTP.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

from ..artifact.geometry import Geometry
from ..artifact.registry import lookup
from ..errors import ContextLengthExceeded, RequestError
from ..frontend.frontend import Frontend
from ..frontend.messages import Conversation
from ..frontend.output import FinishReason
from ..ops import Progress
from .backend import Backend, open_backend
from .generation import Generation
from .job import Budget, Job, State
from .loading import Loaded, Parts, load
from .options import DEFAULT_OPTIONS, EngineOptions
from .plan import Planner, Resolved, build_program, check_graph_memory
from .request import Prompt, Request
from .results import GenerationResult, LoadSummary, MemorySummary
from .reuse import Wish
from .sampling import resolve_sampling
from .scheduler import Scheduler, Settings
from .sequence import Checkpoint, CheckpointKind, Tokens
from .stats import EngineStats
from .worker import Worker, deadline


class Engine:
    """One resident model that serves up to `options.max_concurrency` requests at once."""

    def __init__(self, loaded: Loaded, backend: Backend, options: EngineOptions, progress: Progress | None = None):
        start = time.perf_counter()
        self.options, self.backend = options, backend
        self.frontend: Frontend = loaded.frontend
        self.geometry: Geometry = loaded.geometry
        self._loaded, self._progress = loaded, progress
        self.free_after_weights = backend.ops.free_bytes()
        planner = Planner(
            loaded.geometry,
            loaded.model.weights,
            loaded.mtp,
            options,
            device=backend.device != "cpu",
            scratch=backend.planning,
            fixed=backend.fixed_bytes,
        )
        self.limits: Resolved = planner.resolve(self.free_after_weights)
        limits = self.limits
        self._program = build_program(loaded.model, loaded.mtp, limits.shape, limits.prefill_chunk, limits.max_context)
        self._program.get_ready(progress)
        self.free_after_startup = backend.ops.free_bytes()
        self.notices = [backend.notice] if backend.notice else []
        if self._program.graph_bytes is not None:
            graphs, device = self._program.graph_bytes, str(backend.device)
            notice = check_graph_memory(graphs, limits.graph_allowance, self.free_after_startup, device)
            self.notices += [notice] if notice else []
        self._scheduler = Scheduler(self._program, self._settings())
        outstanding = options.max_concurrency + options.max_pending_requests
        self._worker = Worker(self._scheduler, outstanding, backend.ops.attach)
        self._ids = itertools.count(1)
        self._construction_seconds = time.perf_counter() - start

    def _settings(self) -> Settings:
        limits = self.limits
        return Settings(
            lanes=self.options.max_concurrency,
            max_context=limits.max_context,
            prefill_chunk=limits.prefill_chunk,
            pages=limits.shape.pages,
            draft_pages=limits.shape.draft_pages,
            row_pages=limits.shape.row_pages,
            prefix_reuse=self.options.prefix_reuse,
        )

    @classmethod
    def open(
        cls, artifact: str | Path, options: EngineOptions = DEFAULT_OPTIONS, progress: Progress | None = None
    ) -> Engine:
        """`artifact` is a path or a short name of `artifacts.toml`. `progress(phase, done, total)` is called often.

        Raises ArtifactError, UsageError (limits) or CudaError.
        """
        path = lookup(str(artifact))
        backend = open_backend(options.device)
        parts = Parts(mtp=options.window > 0, draft_head=options.lm_head_draft)
        return cls(load(path, backend.ops, parts, progress), backend, options, progress)

    @property
    def identity(self) -> str:
        """`model_id/weights_id` of the artifact."""
        return str(self._loaded.bound.identity)

    def prepare(
        self,
        conversation: Conversation,
        *,
        thinking: bool = True,
        effort: str | None = None,
        preserve_thinking: bool = False,
    ) -> Prompt:
        """Render and tokenise. Raises RequestError for what the template or the tokenizer refuses."""
        start = time.perf_counter()
        prepared = self.frontend.prepare(
            conversation, thinking=thinking, effort=effort, preserve_thinking=preserve_thinking
        )
        if preserve_thinking:
            checkpoint = Checkpoint(CheckpointKind.RESPONSE, len(prepared.ids))
        else:
            frontier = self.frontend.turn_frontier(prepared.ids)
            checkpoint = Checkpoint(CheckpointKind.TURN, frontier) if frontier else None
        ids, seconds = tuple(prepared.ids), time.perf_counter() - start
        return Prompt(ids, prepared.thinking, prepared.text, seconds, checkpoint)

    def generate(self, request: Request) -> Generation:
        """Start a generation; iterate over it for text deltas. The same as `submit`."""
        return self.submit(request)

    def submit(self, request: Request) -> Generation:
        """Queue a request. Raises RequestError for an invalid one, Overloaded or Unavailable."""
        job, generation = self._job(request)
        if job.budget.tokens == 0:
            job.session.preview_terminal(FinishReason.OUTPUT_LIMIT)
            generation.events.put(job.session.commit_preview())
            job.finish()
            return generation
        self._worker.submit(job)
        generation.attach(job, self._worker.wake, self._worker.release)
        return generation

    def _job(self, request: Request) -> tuple[Job, Generation]:
        """Check everything that can be checked before any work."""
        ids, domain, limits = request.prompt.ids, self.geometry.token_domain, self.limits
        if not ids:
            raise RequestError("the prompt has no tokens")
        for name, tokens in (("prompt", ids), ("stop", request.stop_token_ids)):
            bad = next((token for token in tokens if not 0 <= token < domain), None)
            if bad is not None:
                raise RequestError(f"{name} token id is outside the checkpoint vocabulary: {bad}")
        budget = Budget.of(len(ids), request.max_new_tokens, limits.max_context, self.options.window)
        if not budget.vector.fits(self._scheduler.capacity):
            raise ContextLengthExceeded("request reservation exceeds Engine shared KV capacity")
        checkpoint = request.prompt.checkpoint
        if checkpoint and not 1 <= checkpoint.frontier <= len(ids):
            raise RequestError(f"checkpoint frontier {checkpoint.frontier} is outside 1..{len(ids)}")
        sampling = resolve_sampling(self._loaded.bound.identity.model_id, request.prompt.thinking, request.sampling)
        result = GenerationResult(sampling, prompt_tokens=len(ids))
        result.timings.prepare = request.prompt.prepare_seconds
        result.speculative.window = self.options.window
        generation = Generation(result)
        session = self.frontend.output_session(
            thinking=request.prompt.thinking,
            stop_token_ids=request.stop_token_ids,
            stop_strings=request.stop_strings,
            model_stops=not request.ignore_eos,
            raw=request.raw_output,
        )
        progress = self._progress
        job = Job(
            next(self._ids),
            Tokens(ids),
            budget,
            sampling,
            session,
            result,
            emit=generation.events.put,
            done=generation.events.finish,
            wish=Wish(request.reuse_prefix, checkpoint),
            deadline=deadline(self.options.pending_timeout_ms, request.prompt.prepare_seconds),
            on_prefill=(lambda done, total: progress("text", done, total)) if progress else None,
        )
        return job, generation

    @property
    def is_full(self) -> bool:
        """Whether a request submitted now would be refused as too many."""
        return self._worker.is_full

    @property
    def failure(self) -> Exception | None:
        """What made the engine unusable, if anything did."""
        return self._worker.failure

    def stats(self) -> EngineStats:
        """A snapshot of counters and requests."""
        scheduler, counters = self._scheduler, self._scheduler.counters
        states = [lane.job.state for lane in scheduler.lanes if lane.job]
        pool = scheduler.pools[0]
        retained = sum(lane.sequence.entitlement(0) for lane in scheduler.lanes if lane.sequence.retained)
        return EngineStats(
            computed_prefill_tokens=counters.prefill_tokens,
            committed_decode_tokens=counters.decode_tokens,
            decode_rounds=counters.decode_rounds,
            decode_row_rounds=counters.decode_row_rounds,
            running_requests=len(states),
            prefilling_requests=states.count(State.PREFILL),
            decode_ready_requests=states.count(State.ACTIVE),
            waiting_requests=len(scheduler.pending),
            free_pages=len(pool.free),
            retained_pages=retained,
            host_seconds=self._program.host_seconds,
        )

    def check_integrity(self) -> None:
        """Raises when the engine's books do not balance. Call it while nothing runs."""
        self._scheduler.check_integrity()

    def load_summary(self) -> LoadSummary:
        """How the artifact came in."""
        loaded, identity = self._loaded, self._loaded.bound.identity
        return LoadSummary(
            target=loaded.geometry.target_key,
            model_id=identity.model_id,
            weights_id=identity.weights_id,
            engine_seconds=self._construction_seconds,
            materialize_seconds=loaded.seconds,
            upload_seconds=None,
            artifact_bytes_read=loaded.resident_bytes,
            upload_bytes=None,
            staging_bytes=None,
            tensors=loaded.tensors,
            resources=loaded.resources,
        )

    def memory_summary(self) -> MemorySummary:
        """Bytes by region as they are now."""
        limits, weights = self.limits, self._loaded.resident_bytes
        capacity, on_device = limits.capacity, self.backend.device != "cpu"
        peak = self.backend.ops.workspace_peak
        summary = MemorySummary(
            device=self.backend.device,
            max_context=limits.max_context,
            kv_policy=capacity.policy,
            kv_tokens=capacity.tokens,
            kv_pages=capacity.pages,
            kv_max_pages=capacity.max_pages,
            kv_dtype=self.options.kv_dtype,
            kv_payload=self._program.state.kv_bytes,
            weights_used=weights,
            weights_capacity=weights,
            sequence_used=self._program.bytes,
            sequence_capacity=limits.persistent_bytes if on_device else self._program.bytes,
            workspace_peak=peak,
            workspace_capacity=max(limits.workspace_bytes, peak) if on_device else peak,
        )
        if not on_device:
            return summary
        return summary.on_device(limits, self.free_after_weights, self.free_after_startup, self._program.graph_bytes)

    def close(self) -> None:
        """End every request and let go of the file; the engine cannot be used afterwards."""
        self._worker.close()
        self._loaded.bound.artifact.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
