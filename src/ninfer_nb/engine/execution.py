"""The program that runs a model: prefill chunks and decode rounds on the backend. Knows lanes and tokens only.

Tokens enter and leave in frames at fixed addresses, so that a decode round of B rows is one graph replay.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..model.mtp import MtpModel
from ..model.state import DecoderState, copy_slot, reset_slot
from ..model.text import TextModel
from ..ops import Buf, Columns, Progress, SamplingRows
from ..ops.rng import DECODE, PREFILL
from .program import Chunk, Commit, Outcome, Row
from .sampling import SamplingParams
from .speculation import Speculation

SAMPLING_FIELDS = {  # frame field -> SamplingParams field
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "presence": "presence_penalty",
    "frequency": "frequency_penalty",
    "seed": "seed",
}
FEW = 16  # columns up to which backends have kernels of their own


class ModelProgram:
    """Implements `engine.program.Program` over the state of all lanes."""

    def __init__(
        self,
        model: TextModel,
        state: DecoderState,
        *,
        lanes: int,
        chunk: int,
        max_context: int,
        mtp: MtpModel | None = None,
        window: int = 0,
    ):
        self.model, self.ops, self.state = model, model.ops, state
        geometry, ops = model.geometry, model.ops
        self.lanes, self.chunk, self.max_context, self.window = lanes, chunk, max_context, window
        self.domain = geometry.token_domain
        columns = lanes * (window + 1)
        self.hidden = ops.empty((max(chunk, columns), geometry.hidden), "bf16")
        self.tail = ops.empty((lanes, geometry.hidden), "bf16")
        self.kept_tail = ops.empty((lanes, geometry.hidden), "bf16")  # of the checkpoints
        self.logits = ops.empty((columns, geometry.vocab_rows), "bf16")
        self.counts = ops.empty((lanes, geometry.token_domain), "i32")
        self.prompt = ops.frame(
            dict.fromkeys(("ids", "positions", "next"), ((chunk,), "i32")) | {"lanes": ((1,), "i32")}
        )
        floats = dict.fromkeys(("temperature", "top_p", "min_p", "presence", "frequency"), ((lanes,), "f32"))
        words = dict.fromkeys(("lanes", "top_k", "base", *Speculation.FIELDS), ((lanes,), "i32"))
        wide = dict.fromkeys(("ids", "positions", "rope"), ((columns,), "i32"))
        self.ingress = ops.frame({"seed": ((lanes,), "u64"), **words, **wide, **floats})
        self.egress = ops.frame({"tokens": ((lanes,), "i32")})
        self.speculation = Speculation(self, mtp) if window else None
        self._decode: dict[int, Callable[[], None]] = {}  # exact row count -> graph
        self._stale: set[int] = set()  # pools whose block table has changed
        self.graph_bytes: int | None = None  # what the captured rounds took, where that is known
        self.rounds = 0
        self.host_seconds = 0.0  # of rounds, outside the wait for the device

    @property
    def bytes(self) -> int:
        """Bytes of everything that lives as long as the engine, weights excluded."""
        buffers = [self.hidden, self.tail, self.kept_tail, self.logits, self.counts]
        if self.speculation:
            buffers += self.speculation.buffers
        return self.state.bytes + sum(buf.nbytes for buf in buffers)

    def get_ready(self, progress: Progress | None = None) -> None:
        """Rehearse every kind of work and capture the rounds, so that nothing is made while a request runs."""
        self.ops.rehearse([body for bodies in self.phases().values() for body in bodies], progress)
        self.ops.synchronize()
        before = self.ops.free_bytes()
        body = self.speculation.verify_body if self.speculation else self._decode_body
        self._decode = {n: self.ops.graph(partial(body, n)) for n in range(1, self.lanes + 1)}
        if self.speculation:
            self.speculation.capture()
        self.ops.synchronize()
        after = self.ops.free_bytes()
        self.graph_bytes = None if before is None or after is None else max(0, before - after)

    def phases(self) -> dict[str, list[Callable[[], None]]]:
        """Everything that may be asked for, by the phase whose scratch it takes."""
        chunks = sorted({1, min(FEW, self.chunk), min(FEW + 1, self.chunk), self.chunk})
        prefill = [partial(self._prefill_body, n, self.max_context) for n in chunks]
        prefill.append(partial(self._choose, self.hidden[:1], 1, PREFILL))
        rows = range(1, self.lanes + 1)
        if self.speculation is None:
            return {"text prefill": prefill, "ordinary round": [partial(self._decode_body, n) for n in rows]}
        return {"text prefill": prefill, **self.speculation.phases(chunks)}

    # -- lanes -------------------------------------------------------------------------------------

    def publish(self, pool: int, lane: int, first: int, page_ids: Sequence[int]) -> None:
        self.state.tables[pool].host["table"][lane, first : first + len(page_ids)] = page_ids
        self._stale.add(pool)

    def upload_tables(self) -> None:
        """Block tables to the device, in order before the next unit."""
        for pool in self._stale:
            self.state.tables[pool].upload()
        self._stale.clear()

    def reset(self, lane: int) -> None:
        reset_slot(self.ops, self.state, lane)

    def start(self, lane: int) -> None:
        self.ops.clear(self.counts[lane : lane + 1])

    def capture(self, lane: int, chunk_offset: int) -> None:
        copy_slot(self.ops, self.state, lane, self.lanes + lane)
        self.ops.copy(self.hidden[chunk_offset : chunk_offset + 1], self.kept_tail[lane : lane + 1])

    def restore(self, lane: int, tail: bool) -> None:
        copy_slot(self.ops, self.state, self.lanes + lane, lane)
        self.ops.copy(self.kept_tail[lane : lane + 1], self.tail[lane : lane + 1])

    def recover(self) -> bool:
        try:
            self.ops.synchronize()
        except Exception:
            return False
        return True

    # -- prefill -----------------------------------------------------------------------------------

    def prefill(self, chunk: Chunk) -> Outcome | None:
        n, host = len(chunk.ids), self.prompt.host
        host["ids"][:n] = chunk.ids
        host["next"][: n - 1] = chunk.ids[1:]
        host["next"][n - 1] = chunk.following or 0
        host["positions"][:n] = np.arange(chunk.base, chunk.base + n)
        host["lanes"][0] = chunk.lane
        self.upload_tables()
        self._prefill_body(n, chunk.base + n)
        if chunk.following is not None:
            if self.speculation:
                self.speculation.append(n, self.hidden[:n], chunk.base + n)
            self.ops.synchronize()
            return None
        last = self.hidden[n - 1 : n]
        self.ops.copy(last, self.tail[chunk.lane : chunk.lane + 1])
        token = self._first_token(last, chunk)
        if self.speculation is None or token < 0:
            return _outcome(token)
        if n > 1:
            self.speculation.append(n - 1, self.hidden[: n - 1], chunk.base + n - 1)
        return _outcome(token, self.speculation.first_drafts(chunk, last, token))

    def finish(self, chunk: Chunk) -> Outcome:
        self.upload_tables()
        tail = self.tail[chunk.lane : chunk.lane + 1]
        token = self._first_token(tail, chunk)
        if self.speculation is None or token < 0:
            return _outcome(token)
        return _outcome(token, self.speculation.first_drafts(chunk, tail, token))

    def bridge(self, lane: int, position: int, token: int) -> None:
        host = self.prompt.host
        host["next"][0], host["positions"][0], host["lanes"][0] = token, position, lane
        self.upload_tables()
        self.prompt.upload()
        self.speculation.append(1, self.tail[lane : lane + 1], position + 1)
        self.ops.synchronize()

    def _prefill_body(self, n: int, visible: int) -> None:
        device = self.prompt.device
        self.prompt.upload()
        where = device["positions"][:n]
        columns = Columns(1, n, where, where, device["lanes"], None, visible)
        self.model.forward(device["ids"][:n], columns, self.state, self.hidden[:n])

    def _first_token(self, hidden: Buf, chunk: Chunk) -> int:
        self._fill_sampling(0, chunk.lane, chunk.prompt_tokens, chunk.sampling)
        self.ingress.upload()
        self._choose(hidden, 1, PREFILL)
        self.ops.synchronize()
        return int(self.egress.host["tokens"][0])

    # -- decode ------------------------------------------------------------------------------------

    def decode(self, rows: Sequence[Row]) -> list[Outcome]:
        started = time.perf_counter()
        self.upload_tables()
        for i, row in enumerate(rows):
            self._fill_sampling(i, row.lane, row.position, row.sampling)
        if self.speculation:
            self.speculation.fill(rows)
        else:
            host = self.ingress.host
            for i, row in enumerate(rows):
                host["ids"][i], host["positions"][i] = row.token, row.position
                host["rope"][i] = row.position + row.rope_delta
        n = len(rows)
        self._decode[n]()
        queued = time.perf_counter()
        self.ops.synchronize()
        finished = time.perf_counter()
        if self.speculation:
            outcomes = self.speculation.outcomes(rows)
        else:
            outcomes = [_outcome(token) for token in self.egress.host["tokens"][:n].tolist()]
        self.host_seconds += queued - started + time.perf_counter() - finished
        self.rounds += 1
        return outcomes

    def commit(self, commits: Sequence[Commit]) -> None:
        started = time.perf_counter()
        self.speculation.fold(commits)
        self.host_seconds += time.perf_counter() - started

    def _decode_body(self, n: int) -> None:
        device = self.ingress.device
        self.ingress.upload()
        columns = Columns(
            n, 1, device["positions"][:n], device["rope"][:n], device["lanes"][:n], None, self.max_context
        )
        hidden = self.hidden[:n]
        self.model.forward(device["ids"][:n], columns, self.state, hidden)
        self.ops.scatter_rows(hidden, device["lanes"][:n], self.tail)
        self._choose(hidden, n, DECODE)

    def _choose(self, hidden: Buf, n: int, purpose: int) -> None:
        self.model.logits(hidden, self.logits[:n])
        self.ops.sample(self.logits[:n], self.domain, self.sampling_rows(n), purpose, self.egress.device["tokens"][:n])
        self.egress.download()

    def sampling_rows(self, n: int) -> SamplingRows:
        """Settings of the first `n` rows; their logical positions are in `base`."""
        device = self.ingress.device
        fields = {name: device[name][:n] for name in (*SAMPLING_FIELDS, "lanes")}
        return SamplingRows(position=device["base"][:n], counts=self.counts, **fields)

    def _fill_sampling(self, i: int, lane: int, position: int, sampling: SamplingParams) -> None:
        host = self.ingress.host
        host["lanes"][i], host["base"][i] = lane, position
        for name, attribute in SAMPLING_FIELDS.items():
            host[name][i] = getattr(sampling, attribute)


def _outcome(token: int, drafts: tuple[int, ...] = ()) -> Outcome:
    return Outcome((token,) if token >= 0 else (), drafts)
