"""NumPy backend: the oracle of every kernel, and the backend of `--device cpu`.

BF16 buffers are float32 arrays that hold BF16 values: each op computes in float32 or wider and rounds once where
the specification puts a public boundary. With `round_bf16=False` nothing is rounded, which gives the float32
reference of an unquantised checkpoint. Knows nothing of models or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from ...artifact.inventory import TensorSpec
from ...artifact.synthetic import payload
from .. import Columns, Drafts, GdnLayer, GdnRecord, KvLayer, Progress, Rope, SamplingRows, Verdict
from . import attention as attn
from . import gdn, sampling, speculation
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


class HostFrame:
    """Host and backend are the same arrays here."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.host = self.device = arrays

    def upload(self) -> None:
        pass

    def download(self) -> None:
        pass


class ReferenceOps:
    """Implements `ninfer_nb.ops.Ops` on the host.

    `chunked_gdn` evaluates prompts by 64-token WY chunks instead of token by token: faster on long prompts, but a
    token's bits then depend on where its chunk began.
    """

    name = "reference"

    def __init__(self, round_bf16: bool = True, chunked_gdn: bool = False):
        self.rounds = round_bf16
        self.delta_rule = gdn.chunked if chunked_gdn else gdn.recurrent
        self.workspace_peak = 0
        self._workspace = 0

    def _store(self, out: np.ndarray, value: np.ndarray) -> None:
        out[...] = round_bf16(value) if self.rounds else value

    # -- readiness ----------------------------------------------------------------------------------

    @contextmanager
    def loading(self) -> Iterator[None]:
        yield

    def rehearse(self, bodies: Iterable[Callable[[], None]], progress: Progress | None = None) -> None:
        """NumPy needs no preparation."""

    def attach(self) -> None:
        """Arrays belong to no thread."""

    def free_bytes(self) -> int | None:
        return None

    # -- memory ------------------------------------------------------------------------------------

    def empty(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        return np.zeros(shape, _DTYPES[dtype])

    def frame(self, fields: Mapping[str, tuple[tuple[int, ...], str]]) -> HostFrame:
        return HostFrame({name: np.zeros(shape, _DTYPES[dtype]) for name, (shape, dtype) in fields.items()})

    def clear(self, out: np.ndarray) -> None:
        out[...] = 0

    def write(self, out: np.ndarray, array: np.ndarray) -> None:
        out[...] = array

    def read(self, buf: np.ndarray) -> np.ndarray:
        return buf.copy()

    def synchronize(self) -> None:
        pass

    def graph(self, body: Callable[[], None]) -> Callable[[], None]:
        return body

    @contextmanager
    def scope(self) -> Iterator[None]:
        held = self._workspace
        try:
            yield
        finally:
            self._workspace = held

    def take(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        taken = np.empty(shape, _DTYPES[dtype])
        self._workspace += taken.nbytes
        self.workspace_peak = max(self.workspace_peak, self._workspace)
        return taken

    def weight(self, payload: np.ndarray, format: str, shape: Sequence[int]) -> ReferenceWeight:
        return ReferenceWeight(payload, format, tuple(shape))

    def synthetic(self, spec: TensorSpec, seed: int, index: int) -> ReferenceWeight:
        return self.weight(payload(spec, seed, index), spec.format, spec.shape)

    # -- embedding, norms, linear ---------------------------------------------------------------------

    def embed(self, ids: np.ndarray, table: ReferenceWeight, out: np.ndarray) -> None:
        self._store(out, table.rows(np.maximum(ids, 0)))

    def rms_norm(self, x: np.ndarray, gain: ReferenceWeight, out: np.ndarray, eps: float) -> None:
        self._store(out, self._normed(x, gain, eps))

    def linear(self, x: np.ndarray, weight: ReferenceWeight, out: np.ndarray) -> None:
        self._store(out, matmul_nt(x, weight.array))

    def linear_add(self, x: np.ndarray, weight: ReferenceWeight, residual: np.ndarray) -> None:
        self._store(residual, residual + matmul_nt(x, weight.array))

    def norm_linear(
        self, x: np.ndarray, gain: ReferenceWeight, eps: float, weights: Sequence[ReferenceWeight], out: np.ndarray
    ) -> None:
        h = self._normed(x, gain, eps)
        column = 0
        for weight in weights:
            self.linear(h, weight, out[:, column : column + weight.shape[0]])
            column += weight.shape[0]

    def norm_swiglu(
        self, x: np.ndarray, gain: ReferenceWeight, eps: float, gate_up: ReferenceWeight, out: np.ndarray
    ) -> None:
        both = matmul_nt(self._normed(x, gain, eps), gate_up.array)
        width = out.shape[1]
        self._store(out, silu(both[:, :width]) * both[:, width:])

    def _normed(self, x: np.ndarray, gain: ReferenceWeight, eps: float) -> np.ndarray:
        """The norm inside a fused op: nothing is rounded before the product (`model.md` 1)."""
        return x * rms(x, eps) * (np.float32(1) + gain.array)

    # -- attention --------------------------------------------------------------------------------------

    def rope_append(
        self,
        q: np.ndarray,
        k: np.ndarray,
        v: np.ndarray,
        q_gain: ReferenceWeight,
        k_gain: ReferenceWeight,
        eps: float,
        rope: Rope,
        cache: KvLayer,
        columns: Columns,
    ) -> None:
        for x, gain in ((q, q_gain), (k, k_gain)):
            heads = x.reshape(x.shape[0], -1, gain.shape[0])
            turned = attn.rotate(attn.norm_heads(heads, gain.array, eps), columns.rope_positions, rope)
            self._store(x, turned.reshape(x.shape))
        heads, dim = cache.keys.shape[1], cache.keys.shape[3]
        attn.append(k.reshape(-1, heads, dim), v.reshape(-1, heads, dim), cache, columns)

    def attention(
        self, q: np.ndarray, gate: np.ndarray, cache: KvLayer, columns: Columns, scale: float, out: np.ndarray
    ) -> None:
        heads = q.reshape(q.shape[0], -1, cache.keys.shape[3])
        self._store(out, attn.attention(heads, cache, columns, scale).reshape(out.shape) * sigmoid(gate))

    # -- gated delta net ----------------------------------------------------------------------------------

    def gdn_project(
        self,
        x: np.ndarray,
        gain: ReferenceWeight,
        eps: float,
        projections: Sequence[ReferenceWeight],
        controls: Sequence[ReferenceWeight],
        a_log: ReferenceWeight,
        dt_bias: ReferenceWeight,
        joint: np.ndarray,
        g: np.ndarray,
        beta: np.ndarray,
    ) -> None:
        self.norm_linear(x, gain, eps, projections, joint)
        h = self._normed(x, gain, eps)
        ab = np.concatenate([matmul_nt(h, w.array) for w in controls], axis=1)
        heads = g.shape[1]
        g[...], beta[...] = gdn.controls(ab[:, :heads], ab[:, heads:], a_log.array, dt_bias.array)

    def gdn_mix(
        self,
        joint: np.ndarray,
        taps: ReferenceWeight,
        g: np.ndarray,
        beta: np.ndarray,
        gain: ReferenceWeight,
        eps: float,
        layer: GdnLayer,
        columns: Columns,
        out: np.ndarray,
        convolved: np.ndarray | None = None,
    ) -> None:
        channels = layer.history.shape[2]
        out[...] = 0
        for row in range(columns.rows):
            lane, start, n = columns.lanes[row], row * columns.width, attn.live_columns(columns, row)
            if n == 0:
                continue
            live = slice(start, start + n)
            kept = np.empty((n, channels), np.float32) if convolved is None else convolved[live]
            value, history = gdn.causal_conv(joint[live, :channels], taps.array, layer.history[lane])
            self._store(kept, value)
            state = layer.state[lane] if convolved is None else layer.state[lane].copy()
            mixed = self._delta(kept, g[live], beta[live], state)
            self._store(out[live], self._gated_norm(mixed, joint[live, channels:], gain.array, eps))
            if convolved is None:
                layer.history[lane] = history

    def gdn_fold(self, record: GdnRecord, layer: GdnLayer, columns: Columns) -> None:
        taps, channels = layer.history.shape[1:]
        for row in range(columns.rows):
            lane, start, n = columns.lanes[row], row * columns.width, attn.live_columns(columns, row)
            if n:
                live = slice(start, start + n)
                self._delta(record.convolved[live], record.g[live], record.beta[live], layer.state[lane])
                stream = np.concatenate([layer.history[lane], record.joint[live, :channels]])
                layer.history[lane] = stream[-taps:]

    def _delta(self, qkv: np.ndarray, g: np.ndarray, beta: np.ndarray, state: np.ndarray) -> np.ndarray:
        n, (value_heads, dv, dk) = qkv.shape[0], state.shape
        key_width = (qkv.shape[1] - value_heads * dv) // 2
        q, k, v = np.split(qkv, [key_width, 2 * key_width], axis=1)
        heads = q.reshape(n, -1, dk), k.reshape(n, -1, dk), v.reshape(n, value_heads, dv)
        return self.delta_rule(*heads, g, beta, state).reshape(n, -1)

    @staticmethod
    def _gated_norm(x: np.ndarray, z: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
        heads = x.reshape(x.shape[0], -1, gain.shape[0])
        return (heads * rms(heads, eps) * gain).reshape(x.shape) * silu(z)

    # -- rows and tokens ----------------------------------------------------------------------------------

    def gather_rows(self, x: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
        out[...] = x[index]

    def scatter_rows(self, x: np.ndarray, index: np.ndarray, out: np.ndarray) -> None:
        out[index] = x

    def copy(self, source: np.ndarray, out: np.ndarray) -> None:
        out[...] = source

    def lookup(self, table: ReferenceWeight, index: np.ndarray) -> None:
        index[...] = np.where(index < 0, index, table.array[np.maximum(index, 0)])

    def argmax(self, logits: np.ndarray, domain: int, out: np.ndarray) -> None:
        finite = np.isfinite(logits[:, :domain]).all(axis=1)
        out[...] = np.where(finite, np.argmax(logits[:, :domain], axis=1), -1)

    def sample(self, logits: np.ndarray, domain: int, rows: SamplingRows, purpose: int, out: np.ndarray) -> None:
        self.argmax(logits, domain, out)
        for b in np.flatnonzero((out >= 0) & (rows.temperature > 0)):
            settings = sampling.Settings.of_row(rows, b)
            counts = rows.counts[rows.lanes[b]]
            kept = settings.distribution(logits[b, :domain], counts)
            out[b] = sampling.draw(kept, settings.seed, int(rows.position[b]), purpose)
            if settings.penalised:
                counts[out[b]] += 1

    def accept(self, logits: np.ndarray, domain: int, drafts: Drafts, rows: SamplingRows, verdict: Verdict) -> None:
        best = np.empty(logits.shape[0], np.int32)
        self.argmax(logits, domain, best)
        for b, extent in enumerate(drafts.extents):
            mine = slice(b * drafts.width, b * drafts.width + int(extent) + 1)
            settings = sampling.Settings.of_row(rows, b)
            guesses, position = drafts.ids[mine][1:], int(drafts.positions[b])
            if settings.temperature <= 0:
                tokens = speculation.accept_greedy(guesses, best[mine])
            else:
                counts = rows.counts[rows.lanes[b]]
                found = logits[mine, :domain]
                tokens = speculation.accept_sampled(found, best[mine], guesses, settings, counts, position)
            speculation.plan_drafts(drafts, verdict, b, tokens)
