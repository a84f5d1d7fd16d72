"""Runs a text model over golden cases: last-position logits, and a greedy continuation with its margins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_nb.engine.plan import build_program
from ninfer_nb.engine.program import Chunk, Row
from ninfer_nb.engine.sampling import SamplingParams
from ninfer_nb.model.state import StateShape, pages_for
from ninfer_nb.model.text import TextModel

GREEDY = SamplingParams(temperature=0.0, top_p=1.0, top_k=0)


@dataclass
class Runner:
    """One lane of a model. `prefill_chunk` is a multiple of 128."""

    model: TextModel
    prefill_chunk: int = 1024
    kv_dtype: str = "bf16"

    def __post_init__(self) -> None:
        context = self.model.geometry.native_context
        pages = pages_for(context)
        shape = StateShape(1, pages, pages, self.kv_dtype)
        self.program = build_program(self.model, None, shape, self.prefill_chunk, context)
        self.program.get_ready()
        self.program.publish(0, 0, 0, range(pages))

    def prefill(self, ids: list[int]) -> np.ndarray:
        """Logits [V] float32 after the last prompt token."""
        self.program.reset(0)
        for base in range(0, len(ids), self.prefill_chunk):
            end = min(base + self.prefill_chunk, len(ids))
            following = ids[end] if end < len(ids) else None
            outcome = self.program.prefill(Chunk(0, tuple(ids[base:end]), base, len(ids), following, GREEDY))
        (self.first,) = outcome.tokens
        return self._logits()

    def _logits(self) -> np.ndarray:
        return self.model.ops.read(self.program.logits[:1])[0]

    def greedy(self, ids: list[int], count: int, stops: frozenset[int]) -> tuple[list[int], list[float]]:
        """Continuation (stop token kept) and the gap between the two best logits at each step."""
        logits, token = self.prefill(ids), self.first
        out, margins = [], []
        while True:
            best, second = np.sort(logits[: self.model.geometry.token_domain])[-2:][::-1]
            out.append(token)
            margins.append(float(best - second))
            if token in stops or len(out) == count:
                return out, margins
            (outcome,) = self.program.decode([Row(0, token, len(ids) + len(out) - 1, GREEDY)])
            (token,) = outcome.tokens
            logits = self._logits()


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want.astype(np.float64)))
