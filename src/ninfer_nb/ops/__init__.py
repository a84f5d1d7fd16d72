"""The op protocol: everything the model asks of a backend, with the public boundaries of `model.md` section 1.

The model is written once against `Ops`. `ops/reference` (NumPy) is the oracle and the CPU backend; `ops/cuda`
launches kernels. Knows nothing of models, requests or files.

Conventions
  * Symbols: `T` token columns, `H` hidden, `D` head dim, `Hq Hkv` query and KV heads, `Hk Hv` GDN key and value
    heads, `B` rows (sequences), `W` columns per row, `C` lanes, `M` pages, `L` pages of one lane.
  * Arrays are C order with the token axis first: `[T, Hq*D]`. An op writes into the buffer that it is given.
  * `bf16` buffers hold BF16 values; an op computes in float32 or wider and rounds once, where it writes.
  * Nothing allocates outside `take` (scratch inside a `scope`) and `empty` (state, at start-up).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..artifact.inventory import TensorSpec

Buf = Any  # an ndarray (reference) or a DeviceArray (cuda): `.shape`, leading-axis and column slices
Weight = Any  # a backend's handle of one stored matrix: `.shape`, `.format`

Progress = Callable[[str, int, int], None]  # phase, done, in all

PAGE = 64  # tokens in one KV page

__all__ = [
    "PAGE",
    "Buf",
    "Columns",
    "Drafts",
    "Frame",
    "GdnLayer",
    "GdnRecord",
    "KvLayer",
    "Ops",
    "Progress",
    "Rope",
    "SamplingRows",
    "Verdict",
    "Weight",
]


@dataclass(frozen=True)
class Columns:
    """Where the `T = rows * width` token columns of one call live. Index arrays are on the device.

    Column `b * width + j` is column `j` of row `b`. Columns `j >= valid[b]` are inert: they write no state and
    their output is zero.
    """

    rows: int  # B
    width: int  # W
    cache_positions: Buf  # [T] i32, token index in the sequence
    rope_positions: Buf  # [T] i32, or [3, T] i32 (temporal, height, width)
    lanes: Buf  # [B] i32, block-table row and GDN slot of each row
    valid: Buf | None = None  # [B] i32, live columns of each row; None: all
    max_visible: int = 0  # host bound on the keys that any column sees, for launch sizes only

    @property
    def count(self) -> int:
        return self.rows * self.width


@dataclass(frozen=True)
class KvLayer:
    """One attention layer's planes in the paged pool (`runtime.md` 5.1)."""

    keys: Buf  # [M, Hkv, 64, D] bf16, or i8 codes
    values: Buf  # same
    key_scales: Buf | None  # [M, Hkv, 64, D/64] f16 with i8 codes
    value_scales: Buf | None
    table: Buf  # [C, L] i32 page ids


@dataclass(frozen=True)
class GdnLayer:
    """One gated-delta-net layer's state slots (`model.md` 8.7)."""

    history: Buf  # [slots, 3, channels] bf16, oldest first
    state: Buf  # [slots, Hv, Dv, Dk] f32


@dataclass(frozen=True)
class GdnRecord:
    """What one delta-net layer computed for the columns of a verify round, so that a fold can repeat it exactly."""

    joint: Buf  # [T, q | k | v | z] bf16, projections before the convolution
    convolved: Buf  # [T, channels] bf16
    g: Buf  # [T, Hv] f32
    beta: Buf  # [T, Hv] f32

    def first(self, count: int) -> GdnRecord:
        """The first `count` columns."""
        return GdnRecord(self.joint[:count], self.convolved[:count], self.g[:count], self.beta[:count])


@dataclass(frozen=True)
class Rope:
    """Rotary table: `inv_freq [R/2]` float32, and a factor on cos and sin (1.0 unless YaRN)."""

    inv_freq: np.ndarray
    mscale: float = 1.0


@dataclass(frozen=True)
class SamplingRows:
    """Per-row sampler inputs (`model.md` 12). Rows without a penalty leave `counts` alone."""

    temperature: Buf  # [B] f32; <= 0 is greedy
    top_k: Buf  # [B] i32
    top_p: Buf  # [B] f32
    min_p: Buf  # [B] f32
    presence: Buf  # [B] f32
    frequency: Buf  # [B] f32
    seed: Buf  # [B] u64
    position: Buf  # [B] i32, logical position of the draw
    lanes: Buf  # [B] i32, row of `counts`
    counts: Buf  # [C, domain] i32, generated tokens of each lane


@dataclass(frozen=True)
class Drafts:
    """A round's guesses that the target is to verify, B rows of W = K + 1 columns (`runtime.md` 10)."""

    width: int  # W
    capacity: int  # positions that a sequence may have
    ids: Buf  # [B*W] i32, anchor, drafts, then padding
    extents: Buf  # [B] i32, drafts of each row, at most K
    positions: Buf  # [B] i32, E: cache position of the anchor
    remaining: Buf  # [B] i32, tokens that the row may still produce
    rope_delta: Buf  # [B] i32, rope position minus cache position


@dataclass(frozen=True)
class Verdict:
    """What the target makes of the drafts, and where the next ones are to be made."""

    tokens: Buf  # [B*W] i32, row b: the accepted drafts, then the target's own token, then zeros
    counts: Buf  # [B] i32, tokens of each row, 1..extent+1; 0 if a logit that mattered is not finite
    aligned: Buf  # [B*W] i32, ids of the MTP columns: column j has the token after position E + j
    picks: Buf  # [B] i32, index among the B*W columns of each row's last accepted one
    draft_positions: Buf  # [K-1, B] i32, cache positions of the further draft steps
    draft_rope: Buf  # [K-1, B] i32
    draft_live: Buf  # [K-1, B] i32, 1 where that step's draft can be used


class Frame(Protocol):
    """A few small arrays that cross between host and backend together, at fixed addresses.

    `host[name]` is an ndarray to fill or read, `device[name]` the buffer that ops take.
    """

    host: Mapping[str, np.ndarray]
    device: Mapping[str, Buf]

    def upload(self) -> None:
        """Host to backend, in order with the ops around it."""

    def download(self) -> None:
        """Backend to host; `host` is valid after `Ops.synchronize`."""


class Ops(Protocol):
    """Backend protocol. Shapes as in the comments; every op is deterministic for a fixed shape."""

    name: str
    workspace_peak: int  # bytes of scratch that were taken at once, at most

    # -- readiness ----------------------------------------------------------------------------------
    def loading(self) -> AbstractContextManager[None]:
        """Weights are placed inside; on exit they have all arrived and what carried them is released."""

    def rehearse(self, bodies: Iterable[Callable[[], None]], progress: Progress | None = None) -> None:
        """Be ready to run each of `bodies`: kernels compiled, scratch in place. Nothing that they ask for happens."""

    def attach(self) -> None:
        """Make the backend usable from the calling thread."""

    def free_bytes(self) -> int | None:
        """Memory that is still free, None where it is not known."""

    # -- memory ------------------------------------------------------------------------------------
    def empty(self, shape: Sequence[int], dtype: str) -> Buf:
        """Zeroed persistent buffer; dtype one of bf16, f16, f32, i8, i32, u64."""

    def frame(self, fields: Mapping[str, tuple[tuple[int, ...], str]]) -> Frame:
        """Arrays (shape, dtype) that travel together."""

    def clear(self, out: Buf) -> None:
        """Fill with zero bytes."""

    def write(self, out: Buf, array: np.ndarray) -> None:
        """Overwrite a buffer of the same shape from the host; float32 into bf16 is rounded."""

    def read(self, buf: Buf) -> np.ndarray:
        """Host copy; bf16 comes back as float32."""

    def synchronize(self) -> None:
        """Wait until everything asked for so far has happened."""

    def graph(self, body: Callable[[], None]) -> Callable[[], None]:
        """A callable that repeats `body`'s ops on the buffers they named, at the least cost that the backend has.

        `body` may run once at this call.
        """

    def scope(self) -> AbstractContextManager[None]:
        """Scratch taken inside is released on exit."""

    def take(self, shape: Sequence[int], dtype: str) -> Buf:
        """Uninitialised scratch that lives until the enclosing scope ends."""

    def weight(self, payload: np.ndarray, format: str, shape: Sequence[int]) -> Weight:
        """Place one stored tensor (payload bytes of `artifact-format.md` 4 and 5) on the backend."""

    def synthetic(self, spec: TensorSpec, seed: int, index: int) -> Weight:
        """Place the made-up payload of object `index` of an inventory (`artifact.synthetic`)."""

    # -- embedding, norms, linear ---------------------------------------------------------------------
    def embed(self, ids: Buf, table: Weight, out: Buf) -> None:
        """ids [T] i32 -> out [T, H] bf16: row gather with exact decode; a negative id reads row 0."""

    def rms_norm(self, x: Buf, gain: Weight, out: Buf, eps: float) -> None:
        """x [T, H] -> out [T, H]: x * (1 + gain) / sqrt(mean(x^2) + eps)."""

    def linear(self, x: Buf, weight: Weight, out: Buf) -> None:
        """out [T, N] = x [T, K] @ weight [N, K].T"""

    def linear_add(self, x: Buf, weight: Weight, residual: Buf) -> None:
        """residual [T, N] += x [T, K] @ weight.T, rounded once."""

    def norm_linear(self, x: Buf, gain: Weight, eps: float, weights: Sequence[Weight], out: Buf) -> None:
        """out [T, sum N] = rms_norm(x [T, H]) @ concat(weights [N, H]).T"""

    def norm_swiglu(self, x: Buf, gain: Weight, eps: float, gate_up: Weight, out: Buf) -> None:
        """out [T, I] = SiLU(h @ gate.T) * (h @ up.T) with h = rms_norm(x [T, H]); gate rows precede up rows."""

    # -- attention --------------------------------------------------------------------------------------
    def rope_append(
        self,
        q: Buf,
        k: Buf,
        v: Buf,
        q_gain: Weight,
        k_gain: Weight,
        eps: float,
        rope: Rope,
        cache: KvLayer,
        columns: Columns,
    ) -> None:
        """Offset RMS norm of each head, then RoPE on its first R dims; k and v go to the cache through its codec.

        q [T, Hq*D] changes in place; k, v [T, Hkv*D] may. All three are column slices of one projection.
        """

    def attention(self, q: Buf, gate: Buf, cache: KvLayer, columns: Columns, scale: float, out: Buf) -> None:
        """out [T, Hq*D] = softmax(scale * q k^T) v * sigmoid(gate), causal over cached positions of its own lane."""

    # -- gated delta net ----------------------------------------------------------------------------------
    def gdn_project(
        self,
        x: Buf,
        gain: Weight,
        eps: float,
        projections: Sequence[Weight],
        controls: Sequence[Weight],
        a_log: Weight,
        dt_bias: Weight,
        joint: Buf,
        g: Buf,
        beta: Buf,
    ) -> None:
        """joint [T, 2*GK + 2*GV] = h @ projections.T; g, beta [T, Hv] f32 (`model.md` 8.2) from h and the a and b
        rows, nothing rounded between; h = rms_norm(x [T, H])."""

    def gdn_mix(
        self,
        joint: Buf,
        taps: Weight,
        g: Buf,
        beta: Buf,
        gain: Weight,
        eps: float,
        layer: GdnLayer,
        columns: Columns,
        out: Buf,
        convolved: Buf | None = None,
    ) -> None:
        """out [T, Hv*Dv] = gated_norm(delta_rule(SiLU(conv(qkv))), z) for joint [T, q | k | v | z].

        Each lane's convolution history and recurrent state move on by its live columns. With `convolved`
        [T, channels] they stay as they are, and the convolved columns are kept there for `gdn_fold`.
        """

    def gdn_fold(self, record: GdnRecord, layer: GdnLayer, columns: Columns) -> None:
        """Move each lane on by the first `columns.valid` columns of its row: the same bits as `gdn_mix` would give."""

    # -- rows and tokens ----------------------------------------------------------------------------------
    def gather_rows(self, x: Buf, index: Buf, out: Buf) -> None:
        """out[i] = x[index[i]], x [T, H], index [n] i32."""

    def scatter_rows(self, x: Buf, index: Buf, out: Buf) -> None:
        """out[index[i]] = x[i], x [n, H], index [n] i32."""

    def copy(self, source: Buf, out: Buf) -> None:
        """out = source, buffers of one shape and dtype."""

    def lookup(self, table: Weight, index: Buf) -> None:
        """index [n] i32 becomes table [m] i32 [index]; negative entries stay."""

    def argmax(self, logits: Buf, domain: int, out: Buf) -> None:
        """out [B] i32: lowest id among the maxima of logits [B, V] over ids 0..domain-1; -1 if one is not finite."""

    def sample(self, logits: Buf, domain: int, rows: SamplingRows, purpose: int, out: Buf) -> None:
        """out [B] i32 by `model.md` 12, -1 for a row with a non-finite logit; counts of the picked ids go up."""

    def accept(self, logits: Buf, domain: int, drafts: Drafts, rows: SamplingRows, verdict: Verdict) -> None:
        """Fill `verdict` (`model.md` 13) from logits [B*W, V]; `rows.position` is E. Counts of picked ids go up."""
