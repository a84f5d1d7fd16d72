"""GPU-side units of work: one prefill chunk, or one decode round over B rows. Knows lanes and tokens, no requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import NInferError
from ..model.state import DecoderState, reset_lane
from ..model.text import TextModel
from ..ops import Buf, Columns, Ops, SamplingRows
from ..ops.rng import DECODE, PREFILL
from .options import Limits
from .sampling import SamplingParams


@dataclass(frozen=True)
class Row:
    """One sequence's place in a decode round."""

    lane: int
    token: int  # the anchor: last committed token, not executed yet
    position: int  # its cache position
    sampling: SamplingParams


class Rounds:
    """Owns the state of all lanes, and the buffers in which tokens enter and leave the model."""

    def __init__(self, model: TextModel, state: DecoderState, limits: Limits, lanes: int):
        self.model, self.ops, self.state, self.limits = model, model.ops, state, limits
        geometry = model.geometry
        self.domain = geometry.token_domain
        self.hidden = self.ops.empty((limits.prefill_chunk, geometry.hidden), "bf16")
        self.logits = self.ops.empty((lanes, geometry.vocab_rows), "bf16")
        self.counts = self.ops.empty((lanes, geometry.token_domain), "i32")
        self.sampled = self.ops.empty((lanes,), "i32")

    @property
    def sequence_bytes(self) -> int:
        """Bytes of everything that lives as long as the engine, weights excluded."""
        own = (self.hidden, self.logits, self.counts, self.sampled)
        return self.state.kv_bytes + self.state.gdn_bytes + sum(buf.nbytes for buf in own)

    def begin(self, lane: int, pages: Sequence[int]) -> None:
        """Give a lane its KV pages and a clean recurrent state."""
        reset_lane(self.ops, self.state, lane)
        row = np.zeros((1, self.state.table.shape[1]), np.int32)
        row[0, : len(pages)] = pages
        self.ops.write(self.state.table[lane : lane + 1], row)
        self.ops.write(self.counts[lane : lane + 1], np.zeros((1, self.domain), np.int32))

    def prefill(self, lane: int, ids: Sequence[int], base: int) -> Buf:
        """Execute one chunk of prompt columns; returns its hidden columns [n, H]."""
        n = len(ids)
        hidden = self.hidden[:n]
        columns = self._columns([lane], n, np.arange(base, base + n), base + n)
        self.model.forward(self.ops.upload(np.asarray(ids), "i32"), columns, self.state, hidden)
        return hidden

    def first_token(self, lane: int, hidden: Buf, prompt: int, sampling: SamplingParams) -> int:
        """Sample after the last prompt column."""
        last = hidden[hidden.shape[0] - 1 : hidden.shape[0]]
        return self._choose(last, [Row(lane, 0, prompt, sampling)], PREFILL)[0]

    def decode(self, rows: Sequence[Row]) -> list[int]:
        """Execute every row's anchor and sample its next token."""
        positions = np.array([row.position for row in rows])
        columns = self._columns([row.lane for row in rows], 1, positions, int(positions.max()) + 1)
        hidden = self.hidden[: len(rows)]
        ids = self.ops.upload(np.array([row.token for row in rows]), "i32")
        self.model.forward(ids, columns, self.state, hidden)
        return self._choose(hidden, rows, DECODE)

    def _columns(self, lanes: Sequence[int], width: int, positions: np.ndarray, visible: int) -> Columns:
        where = self.ops.upload(positions, "i32")
        return Columns(len(lanes), width, where, where, self.ops.upload(np.array(lanes), "i32"), None, visible)

    def _choose(self, hidden: Buf, rows: Sequence[Row], purpose: int) -> list[int]:
        ops, n = self.ops, len(rows)
        logits, sampled = self.logits[:n], self.sampled[:n]
        self.model.logits(hidden, logits)
        if all(row.sampling.is_greedy for row in rows):
            ops.argmax(logits, self.domain, sampled)
        else:
            ops.sample(logits, self.domain, sampling_rows(ops, rows, self.counts), purpose, sampled)
        tokens = [int(token) for token in ops.download(sampled)]
        if min(tokens) < 0:
            raise NInferError("the model produced non-finite logits")
        return tokens


def sampling_rows(ops: Ops, rows: Sequence[Row], counts: Buf) -> SamplingRows:
    """Sampler inputs of a round; `counts` takes part only when some row has a penalty."""

    def column(name: str, dtype: str) -> Buf:
        return ops.upload(np.array([getattr(row.sampling, name) for row in rows]), dtype)

    return SamplingRows(
        temperature=column("temperature", "f32"),
        top_k=column("top_k", "i32"),
        top_p=column("top_p", "f32"),
        min_p=column("min_p", "f32"),
        presence=column("presence_penalty", "f32"),
        frequency=column("frequency_penalty", "f32"),
        seed=ops.upload(np.array([row.sampling.seed for row in rows], np.uint64), "u64"),
        position=ops.upload(np.array([row.position for row in rows]), "i32"),
        lanes=ops.upload(np.array([row.lane for row in rows]), "i32"),
        counts=counts if any(row.sampling.counts_tokens for row in rows) else None,
    )
