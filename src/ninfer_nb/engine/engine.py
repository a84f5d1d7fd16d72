"""The public face: open an artifact, prepare prompts, generate text.

    with Engine.open("mini") as engine:
        prompt = engine.prepare(Conversation.from_prompt("What is prefill?"))
        for delta in engine.generate(Request(prompt)):
            print(delta.text, end="")

One request at a time on the caller's thread. Knows nothing of terminals or HTTP.
"""

from __future__ import annotations

import time
from pathlib import Path

from ..artifact.geometry import Geometry
from ..artifact.registry import lookup
from ..errors import RequestError
from ..frontend.frontend import Frontend
from ..frontend.messages import Conversation
from ..model.state import allocate_state
from ..ops import Progress
from .backend import Backend, open_backend
from .generation import Generation
from .loading import Loaded, load
from .options import DEFAULT_OPTIONS, EngineOptions, Limits, resolve_limits
from .request import Prompt, Request
from .results import LoadSummary, MemorySummary
from .rounds import Rounds
from .sampling import resolve_sampling


class Engine:
    """One resident model with the state of one sequence."""

    def __init__(self, loaded: Loaded, backend: Backend, options: EngineOptions, progress: Progress | None = None):
        start = time.perf_counter()
        self.options, self.backend = options, backend
        self.limits: Limits = resolve_limits(loaded.geometry, options)
        self.frontend: Frontend = loaded.frontend
        self.geometry: Geometry = loaded.geometry
        self._loaded, self._progress = loaded, progress
        pages = self.limits.pages
        state = allocate_state(backend.ops, loaded.geometry, 1, pages, pages, options.kv_dtype)
        self._rounds = Rounds(loaded.model, state, self.limits, lanes=1)
        self._rounds.get_ready(progress)
        self._construction_seconds = time.perf_counter() - start

    @classmethod
    def open(
        cls, artifact: str | Path, options: EngineOptions = DEFAULT_OPTIONS, progress: Progress | None = None
    ) -> Engine:
        """`artifact` is a path or a short name of `artifacts.toml`. `progress(phase, done, total)` is called often.

        Raises ArtifactError, UsageError (limits) or CudaError.
        """
        path = lookup(str(artifact))
        backend = open_backend(options.device)
        return cls(load(path, backend.ops, progress), backend, options, progress)

    @property
    def identity(self) -> str:
        """`model_id/weights_id` of the artifact."""
        return str(self._loaded.bound.identity)

    def prepare(self, conversation: Conversation, *, thinking: bool = True, effort: str | None = None) -> Prompt:
        """Render and tokenise. Raises RequestError for what the template or the tokenizer refuses."""
        start = time.perf_counter()
        prepared = self.frontend.prepare(conversation, thinking=thinking, effort=effort)
        return Prompt(tuple(prepared.ids), prepared.thinking, prepared.text, time.perf_counter() - start)

    def generate(self, request: Request) -> Generation:
        """Start a generation; iterate over it for text deltas. Raises RequestError before any work is done."""
        self._rounds.check_free()
        domain = self.geometry.token_domain
        if not request.prompt.ids:
            raise RequestError("the prompt has no tokens")
        for token in request.stop_token_ids:
            if not 0 <= token < domain:
                raise RequestError(f"stop token id is outside the checkpoint vocabulary: {token}")
        model_id = self._loaded.bound.identity.model_id
        sampling = resolve_sampling(model_id, request.prompt.thinking, request.sampling)
        return Generation(request, sampling, self._rounds, self.limits, self.frontend, self._progress)

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
        limits, rounds, weights = self.limits, self._rounds, self._loaded.resident_bytes
        return MemorySummary(
            device=self.backend.device,
            max_context=limits.max_context,
            kv_policy=limits.kv_policy,
            kv_tokens=limits.kv_tokens,
            kv_pages=limits.pages,
            kv_max_pages=limits.max_pages,
            kv_dtype=self.options.kv_dtype,
            kv_payload=rounds.state.kv_bytes,
            weights_used=weights,
            weights_capacity=weights,
            sequence_used=rounds.bytes,
            sequence_capacity=rounds.bytes,
            workspace_peak=self.backend.ops.workspace_peak,
            workspace_capacity=self.backend.ops.workspace_peak,
        )

    def close(self) -> None:
        """Let go of the file; the engine cannot be used afterwards."""
        self._loaded.bound.artifact.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
