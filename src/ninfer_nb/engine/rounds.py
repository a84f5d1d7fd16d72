"""Units of work on the backend: one prefill chunk, or one decode round over B rows. Knows lanes and tokens only."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..errors import NInferError
from ..model.state import DecoderState, reset_lane
from ..model.text import TextModel
from ..ops import Buf, Columns, Progress, SamplingRows
from ..ops.rng import DECODE, PREFILL
from .options import Limits
from .sampling import SamplingParams

_SAMPLING_FIELDS = {  # frame field -> SamplingParams field
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence": "presence_penalty",
    "frequency": "frequency_penalty",
    "seed": "seed",
}


FEW = 16  # columns up to which backends have kernels of their own


@dataclass(frozen=True)
class Row:
    """One sequence's place in a decode round."""

    lane: int
    token: int  # the anchor: last committed token, not executed yet
    position: int  # its cache position
    sampling: SamplingParams


class Rounds:
    """Owns the state of all lanes, and the frames in which tokens enter and leave the model."""

    def __init__(self, model: TextModel, state: DecoderState, limits: Limits, lanes: int):
        self.model, self.ops, self.state = model, model.ops, state
        geometry, ops, chunk = model.geometry, model.ops, limits.prefill_chunk
        self.domain, self.chunk, self.max_context = geometry.token_domain, chunk, limits.max_context
        self.hidden = ops.empty((max(chunk, lanes), geometry.hidden), "bf16")
        self.logits = ops.empty((lanes, geometry.vocab_rows), "bf16")
        self.counts = ops.empty((lanes, geometry.token_domain), "i32")
        self.prompt = ops.frame({"ids": ((chunk,), "i32"), "positions": ((chunk,), "i32"), "lanes": ((1,), "i32")})
        floats = dict.fromkeys(("temperature", "top_p", "min_p", "presence", "frequency"), ((lanes,), "f32"))
        words = dict.fromkeys(("ids", "positions", "lanes", "top_k"), ((lanes,), "i32"))
        self.ingress = ops.frame({"seed": ((lanes,), "u64"), **words, **floats})
        self.egress = ops.frame({"tokens": ((lanes,), "i32")})
        self._owner: object | None = None
        self.rounds = 0  # decode rounds so far
        self.host_seconds = 0.0  # of them, outside the wait for the device
        self._decode: dict[int, Callable[[], None]] = {}  # exact row count -> graph

    @property
    def bytes(self) -> int:
        """Bytes of everything that lives as long as the engine, weights excluded."""
        return self.state.bytes + sum(buf.nbytes for buf in (self.hidden, self.logits, self.counts))

    def check_free(self) -> None:
        """Raises NInferError while a request is running."""
        if self._owner is not None:
            raise NInferError("the engine is already generating; it runs one request at a time")

    def claim(self, owner: object) -> None:
        """Take the lane for a request that starts."""
        self.check_free()
        self._owner = owner

    def release(self) -> None:
        self._owner = None

    def get_ready(self, progress: Progress | None = None) -> None:
        """Rehearse every kind of work, so that nothing is compiled or allocated while a request runs."""
        lanes = self.logits.shape[0]
        chunks = sorted({1, min(FEW, self.chunk), min(FEW + 1, self.chunk), self.chunk})
        bodies = [partial(self._prefill_body, n, self.max_context) for n in chunks]
        bodies += [partial(self._decode_body, n) for n in range(1, lanes + 1)]
        bodies.append(partial(self._choose, self.hidden[:1], 1, PREFILL))
        self.ops.rehearse(bodies, progress)

    def begin(self, lane: int, pages: Sequence[int]) -> None:
        """Give a lane its KV pages and a clean recurrent state."""
        reset_lane(self.ops, self.state, lane)
        row = np.zeros((1, self.state.table.shape[1]), np.int32)
        row[0, : len(pages)] = pages
        self.ops.write(self.state.table[lane : lane + 1], row)
        self.ops.clear(self.counts[lane : lane + 1])

    def prefill(self, lane: int, ids: Sequence[int], base: int) -> Buf:
        """Execute one chunk of prompt columns; returns its hidden columns [n, H]."""
        n, host = len(ids), self.prompt.host
        host["ids"][:n] = ids
        host["positions"][:n] = np.arange(base, base + n)
        host["lanes"][0] = lane
        self._prefill_body(n, base + n)
        self.ops.synchronize()
        return self.hidden[:n]

    def _prefill_body(self, n: int, visible: int) -> None:
        device = self.prompt.device
        self.prompt.upload()
        where = device["positions"][:n]
        columns = Columns(1, n, where, where, device["lanes"], None, visible)
        self.model.forward(device["ids"][:n], columns, self.state, self.hidden[:n])

    def first_token(self, hidden: Buf, lane: int, prompt_tokens: int, sampling: SamplingParams) -> int:
        """Sample after the last prompt column."""
        self._fill([Row(lane, 0, prompt_tokens, sampling)])
        self.ingress.upload()
        self._choose(hidden[hidden.shape[0] - 1 : hidden.shape[0]], 1, PREFILL)
        self.ops.synchronize()
        return self._tokens(1)[0]

    def decode(self, rows: Sequence[Row]) -> list[int]:
        """Execute every row's anchor and sample its next token."""
        n, started = len(rows), time.perf_counter()
        self._fill(rows)
        if n not in self._decode:
            self._decode[n] = self.ops.graph(lambda: self._decode_body(n))
        self._decode[n]()
        queued = time.perf_counter()
        self.ops.synchronize()
        finished = time.perf_counter()
        tokens = self._tokens(n)
        self.host_seconds += queued - started + time.perf_counter() - finished
        self.rounds += 1
        return tokens

    def _decode_body(self, n: int) -> None:
        device = self.ingress.device
        self.ingress.upload()
        where = device["positions"][:n]
        columns = Columns(n, 1, where, where, device["lanes"][:n], None, self.max_context)
        self.model.forward(device["ids"][:n], columns, self.state, self.hidden[:n])
        self._choose(self.hidden[:n], n, DECODE)

    def _choose(self, hidden: Buf, n: int, purpose: int) -> None:
        device = self.ingress.device
        fields = {name: device[name][:n] for name in (*_SAMPLING_FIELDS, "lanes")}
        rows = SamplingRows(position=device["positions"][:n], counts=self.counts, **fields)
        self.model.logits(hidden, self.logits[:n])
        self.ops.sample(self.logits[:n], self.domain, rows, purpose, self.egress.device["tokens"][:n])
        self.egress.download()

    def _fill(self, rows: Sequence[Row]) -> None:
        host = self.ingress.host
        for i, row in enumerate(rows):
            host["ids"][i], host["positions"][i], host["lanes"][i] = row.token, row.position, row.lane
            for name, attribute in _SAMPLING_FIELDS.items():
                host[name][i] = getattr(row.sampling, attribute)

    def _tokens(self, n: int) -> list[int]:
        tokens = self.egress.host["tokens"][:n].tolist()
        if min(tokens) < 0:
            raise NInferError("the model produced non-finite logits")
        return tokens
