"""NumPy backend: the oracle of every kernel, and the backend of `--device cpu`.

BF16 buffers are float32 arrays that hold BF16 values: each op computes in float32 or wider and rounds once where
the specification puts a public boundary. With `round_bf16=False` nothing is rounded, which gives the float32
reference of an unquantised checkpoint. Knows nothing of models or requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from .. import Columns, GdnLayer, KvLayer, Rope, SamplingRows
from . import attention as attn
from . import gdn, sampling
from .linear import ReferenceWeight, matmul_nt
from .numeric import rms, round_bf16, sigmoid, silu

__all__ = ["ReferenceOps", "ReferenceWeight"]

_DTYPES = {
    "bf16": np.float32,
    "f16": np.float16,
    "f32": np.float32,
    "i8": np.int8,
    "i32": np.int32,
    "u64": np.uint64,
}


class ReferenceOps:
    """Implements `ninfer_nb.ops.Ops` on the host.

    `chunked_gdn` evaluates prompts by 64-token WY chunks instead of token by token: faster on long prompts, but a
    token's bits then depend on where its chunk began.
    """

    name = "reference"

    def __init__(self, round_bf16: bool = True, chunked_gdn: bool = False):
        self.rounds = round_bf16
        self.delta_rule = gdn.chunked if chunked_gdn else gdn.recurrent

    def _store(self, out: np.ndarray, value: np.ndarray) -> None:
        out[...] = round_bf16(value) if self.rounds else value

    # -- memory ------------------------------------------------------------------------------------

    def empty(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        return np.zeros(shape, _DTYPES[dtype])

    def upload(self, array: np.ndarray, dtype: str) -> np.ndarray:
        return np.array(array, dtype=_DTYPES[dtype])

    def write(self, out: np.ndarray, array: np.ndarray) -> None:
        out[...] = np.reshape(array, out.shape)

    def download(self, buf: np.ndarray) -> np.ndarray:
        return buf.copy()

    @contextmanager
    def scope(self) -> Iterator[None]:
        yield

    def take(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        return np.empty(shape, _DTYPES[dtype])

    def weight(self, payload: np.ndarray, format: str, shape: Sequence[int]) -> ReferenceWeight:
        return ReferenceWeight(payload, format, tuple(shape))

    # -- elementwise and norms -----------------------------------------------------------------------

    def embed(self, ids: np.ndarray, table: ReferenceWeight, out: np.ndarray) -> None:
        self._store(out, table.rows(ids))

    def rms_norm(self, x: np.ndarray, gain: ReferenceWeight, out: np.ndarray, eps: float) -> None:
        self._store(out, x * rms(x, eps) * (np.float32(1) + gain.array))

    def gated_rms_norm(
        self, x: np.ndarray, z: np.ndarray, gain: ReferenceWeight, out: np.ndarray, eps: float
    ) -> None:
        heads = x.reshape(x.shape[0], -1, gain.shape[0])
        normed = heads * rms(heads, eps) * gain.array
        self._store(out, normed.reshape(x.shape) * silu(z))

    def sigmoid_gate(self, x: np.ndarray, gate: np.ndarray) -> None:
        self._store(x, x * sigmoid(gate))

    def gather_rows(self, x: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
        out[...] = x[index]

    def scatter_rows(self, x: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
        out[index] = x

    # -- linear ---------------------------------------------------------------------------------------

    def linear(self, x: np.ndarray, weights: Sequence[ReferenceWeight], out: np.ndarray) -> None:
        column = 0
        for weight in weights:
            rows = weight.shape[0]
            self._store(out[:, column : column + rows], matmul_nt(x, weight.array))
            column += rows

    def linear_add(self, x: np.ndarray, weight: ReferenceWeight, residual: np.ndarray) -> None:
        self._store(residual, residual + matmul_nt(x, weight.array))

    def linear_swiglu(self, x: np.ndarray, gate_up: ReferenceWeight, out: np.ndarray) -> None:
        both = matmul_nt(x, gate_up.array)
        width = out.shape[1]
        self._store(out, silu(both[:, :width]) * both[:, width:])

    # -- attention --------------------------------------------------------------------------------------

    def qk_norm_rope(
        self,
        q: np.ndarray,
        k: np.ndarray,
        q_gain: ReferenceWeight,
        k_gain: ReferenceWeight,
        columns: Columns,
        rope: Rope,
        eps: float,
    ) -> None:
        for x, gain in ((q, q_gain), (k, k_gain)):
            heads = x.reshape(x.shape[0], -1, gain.shape[0])
            turned = attn.rotate(attn.norm_heads(heads, gain.array, eps), columns.rope_positions, rope)
            self._store(x, turned.reshape(x.shape))

    def kv_append(self, k: np.ndarray, v: np.ndarray, cache: KvLayer, columns: Columns) -> None:
        heads, dim = cache.keys.shape[1], cache.keys.shape[3]
        attn.append(k.reshape(-1, heads, dim), v.reshape(-1, heads, dim), cache, columns)

    def attention(self, q: np.ndarray, cache: KvLayer, columns: Columns, out: np.ndarray, scale: float) -> None:
        heads = q.reshape(q.shape[0], -1, cache.keys.shape[3])
        self._store(out, attn.attention(heads, cache, columns, scale).reshape(out.shape))

    # -- gated delta net ----------------------------------------------------------------------------------

    def gdn_controls(
        self,
        x: np.ndarray,
        controls: Sequence[ReferenceWeight],
        a_log: ReferenceWeight,
        dt_bias: ReferenceWeight,
        g: np.ndarray,
        beta: np.ndarray,
    ) -> None:
        ab = np.concatenate([matmul_nt(x, w.array) for w in controls], axis=1)
        heads = g.shape[1]
        g[...], beta[...] = gdn.controls(ab[:, :heads], ab[:, heads:], a_log.array, dt_bias.array)

    def causal_conv(
        self, u: np.ndarray, taps: ReferenceWeight, layer: GdnLayer, columns: Columns, out: np.ndarray
    ) -> None:
        out[...] = 0
        for row in range(columns.rows):
            lane, start, n = columns.lanes[row], row * columns.width, attn.live_columns(columns, row)
            live = slice(start, start + n)
            convolved, layer.history[lane] = gdn.causal_conv(u[live], taps.array, layer.history[lane])
            self._store(out[live], convolved)

    def gated_delta(
        self, qkv: np.ndarray, g: np.ndarray, beta: np.ndarray, layer: GdnLayer, columns: Columns, out: np.ndarray
    ) -> None:
        value_heads, dv, dk = layer.state.shape[1:]
        key_width = (qkv.shape[1] - value_heads * dv) // 2
        q, k, v = np.split(qkv, [key_width, 2 * key_width], axis=1)
        out[...] = 0
        for row in range(columns.rows):
            start, n = row * columns.width, attn.live_columns(columns, row)
            live = slice(start, start + n)
            result = self.delta_rule(
                q[live].reshape(n, -1, dk),
                k[live].reshape(n, -1, dk),
                v[live].reshape(n, value_heads, dv),
                g[live],
                beta[live],
                layer.state[columns.lanes[row]],
            )
            self._store(out[live], result.reshape(n, value_heads * dv))

    # -- tokens -----------------------------------------------------------------------------------------

    def argmax(self, logits: np.ndarray, domain: int, out: np.ndarray) -> None:
        out[...] = np.argmax(logits[:, :domain], axis=1)

    def sample(self, logits: np.ndarray, domain: int, rows: SamplingRows, purpose: int, out: np.ndarray) -> None:
        for b in range(logits.shape[0]):
            row = logits[b, :domain]
            if rows.temperature[b] <= 0:
                out[b] = sampling.argmax(row)
                continue
            counts = None if rows.counts is None else rows.counts[rows.lanes[b]]
            row = sampling.penalise(row, counts, rows.presence[b], rows.frequency[b])
            kept = sampling.filtered(row, rows.temperature[b], int(rows.top_k[b]), rows.top_p[b], rows.min_p[b])
            out[b] = sampling.draw(kept, int(rows.seed[b]), int(rows.position[b]), purpose)
            if counts is not None:
                counts[out[b]] += 1

    def finite_rows(self, logits: np.ndarray, domain: int) -> np.ndarray:
        return np.isfinite(logits[:, :domain]).all(axis=1)
