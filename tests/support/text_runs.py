"""Runs a text model over golden cases: last-position logits, and a greedy continuation with its margins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ninfer_nb.engine.options import EngineOptions, resolve_limits
from ninfer_nb.engine.rounds import Rounds, Row
from ninfer_nb.engine.sampling import SamplingParams
from ninfer_nb.model.state import allocate_state
from ninfer_nb.model.text import TextModel

GREEDY = SamplingParams(temperature=0.0, top_p=1.0, top_k=0)


@dataclass
class Runner:
    """One lane of a model. `prefill_chunk` is a multiple of 128."""

    model: TextModel
    prefill_chunk: int = 1024
    kv_dtype: str = "bf16"

    def __post_init__(self) -> None:
        geometry = self.model.geometry
        options = EngineOptions(
            max_context=geometry.native_context, prefill_chunk=self.prefill_chunk, kv_dtype=self.kv_dtype
        )
        self.limits = resolve_limits(geometry, options)
        pages = self.limits.pages
        state = allocate_state(self.model.ops, geometry, 1, pages, pages, self.kv_dtype)
        self.rounds = Rounds(self.model, state, self.limits, lanes=1)

    def prefill(self, ids: list[int]) -> np.ndarray:
        """Logits [V] float32 after the last prompt token."""
        self.rounds.begin(0, range(self.limits.pages))
        for base in range(0, len(ids), self.limits.prefill_chunk):
            hidden = self.rounds.prefill(0, ids[base : base + self.limits.prefill_chunk], base)
        self.first = self.rounds.first_token(hidden, 0, len(ids), GREEDY)
        return self._logits()

    def _logits(self) -> np.ndarray:
        return self.model.ops.read(self.rounds.logits[:1])[0]

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
            (token,) = self.rounds.decode([Row(0, token, len(ids) + len(out) - 1, GREEDY)])
            logits = self._logits()


def relative_l2(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - want) / np.linalg.norm(want.astype(np.float64)))
