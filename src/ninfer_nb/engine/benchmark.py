"""Prefill and decode speed of a text model, without text (`cli.md` 12).

Drives the same rounds as generation does, with random ids. Knows nothing of reports or terminals.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from ..model.state import StateShape, pages_for
from ..model.text import TextModel
from ..ops import PAGE, Progress
from .options import EngineOptions
from .plan import build_program
from .program import Chunk, Row
from .sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0, top_p=1.0, top_k=0)


@dataclass(frozen=True)
class Case:
    """`prompt` tokens (0: a single seed token), then `generate` decode rounds over `rows` sequences at once."""

    prompt: int
    generate: int
    rows: int = 1

    @property
    def name(self) -> str:
        parts = [f"pp{self.prompt}"] if self.prompt else []
        parts += [f"tg{self.generate}"] if self.generate else []
        return "+".join(parts) + (f" x{self.rows}" if self.rows > 1 else "")

    @property
    def context(self) -> int:
        """Positions that one sequence needs."""
        return max(self.prompt, 1) + self.generate


@dataclass
class Result:
    """Seconds of each repetition, and what one decode round reads of device memory, on average."""

    case: Case
    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    host: list[float] = field(default_factory=list)  # host seconds of one round
    bytes_per_round: int = 0

    @property
    def prefill_rate(self) -> float:
        """Median prompt tokens per second."""
        return self.case.prompt * self.case.rows / float(np.median(self.prefill))

    @property
    def decode_rate(self) -> float:
        """Median committed tokens per second over all rows."""
        return self.case.generate * self.case.rows / float(np.median(self.decode))

    @property
    def read_rate(self) -> float:
        """Bytes per second of decode rounds."""
        return self.bytes_per_round * self.case.generate / float(np.median(self.decode))


class Workbench:
    """A model with enough lanes and pages for every case."""

    def __init__(
        self,
        model: TextModel,
        weight_bytes: int,
        cases: list[Case],
        options: EngineOptions,
        progress: Progress | None = None,
    ):
        """`weight_bytes` are the payload bytes of the resident weights. Raises OutOfDeviceMemory."""
        lanes = max(case.rows for case in cases)
        context = options.max_context or max(case.context for case in cases)
        self.row_pages = pages_for(context)
        pages = lanes * self.row_pages
        self.chunk = min(options.prefill_chunk, self.row_pages * PAGE)
        shape = StateShape(lanes, pages, self.row_pages, options.kv_dtype)
        self.program = build_program(model, None, shape, self.chunk, context)
        self.program.get_ready(progress)
        state = self.program.state
        table = model.weights.embedding
        self._weight_bytes = weight_bytes - table.nbytes  # of the table a round reads single rows
        self._token_bytes = state.kv_bytes // (pages * 64)
        self._lane_bytes = state.slot_bytes // lanes  # half of the slots are checkpoints: read and written once

    def run(self, case: Case, repetitions: int, warmup: int, seed: int = 0) -> Result:
        result = Result(case)
        rng = np.random.default_rng(seed)
        for repetition in range(-warmup, repetitions):
            prefill, decode, host = self._once(case, rng)
            if repetition >= 0:
                result.prefill.append(prefill)
                result.decode.append(decode)
                result.host.append(host)
        middle = max(case.prompt, 1) + case.generate // 2
        result.bytes_per_round = self._weight_bytes + case.rows * (self._lane_bytes + middle * self._token_bytes)
        return result

    def _once(self, case: Case, rng: np.random.Generator) -> tuple[float, float, float]:
        program, length = self.program, max(case.prompt, 1)
        rows, started = [], time.perf_counter()
        for lane in range(case.rows):
            ids = tuple(rng.integers(0, program.domain, length).tolist())
            program.reset(lane)
            program.start(lane)
            program.publish(0, lane, 0, range(lane * self.row_pages, (lane + 1) * self.row_pages))
            for base in range(0, length, self.chunk):
                end = min(base + self.chunk, length)
                following = ids[end] if end < length else None
                outcome = program.prefill(Chunk(lane, ids[base:end], base, length, following, GREEDY))
            rows.append(Row(lane, outcome.tokens[0], length, GREEDY))
        prefilled = time.perf_counter()
        count, host = program.rounds, program.host_seconds
        for _ in range(case.generate):
            outcomes = program.decode(rows)
            rows = [Row(r.lane, o.tokens[0], r.position + 1, GREEDY) for r, o in zip(rows, outcomes, strict=True)]
        decoded = time.perf_counter()
        host_round = (program.host_seconds - host) / max(program.rounds - count, 1)
        return prefilled - started, decoded - prefilled, host_round
