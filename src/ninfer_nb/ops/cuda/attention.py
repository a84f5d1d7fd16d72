"""Attention on CUDA: head norms, rotation and append, then split-key attention over the paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...cuda.kernels import attention_combine, attention_decode, attention_tiles, rope_append
from ...cuda.memory import DeviceArray
from .. import Columns, KvLayer, Rope
from .weights import CudaWeight

if TYPE_CHECKING:
    from . import CudaOps


def append(
    ops: CudaOps,
    q: DeviceArray,
    k: DeviceArray,
    v: DeviceArray,
    q_gain: CudaWeight,
    k_gain: CudaWeight,
    eps: float,
    rope: Rope,
    cache: KvLayer,
    columns: Columns,
) -> None:
    """See `Ops.rope_append`."""
    query_heads, kv_heads = q.shape[1] // rope_append.DIM, cache.keys.shape[1]
    frequencies = ops.constant(("rope", rope.inv_freq.tobytes()), lambda: rope.inv_freq, "f32")
    axes = columns.rope_positions.shape[0] if len(columns.rope_positions.shape) == 2 else 1
    ops.launch(
        rope_append.rope_append_spec(query_heads, kv_heads, int8=cache.key_scales is not None, axes=axes),
        rope_append.rope_append_grid(query_heads, kv_heads, columns.count), rope_append.THREADS,
        q.ptr, k.ptr, v.ptr, q.row_stride, q_gain.codes, k_gain.codes, eps, frequencies.ptr, rope.mscale,
        columns.rope_positions.ptr, columns.cache_positions.ptr, columns.lanes.ptr, _address(columns.valid),
        columns.width, cache.keys.ptr, cache.values.ptr, _address(cache.key_scales), _address(cache.value_scales),
        cache.table.ptr, cache.table.shape[1],
    )  # fmt: skip


def attention(
    ops: CudaOps, q: DeviceArray, gate: DeviceArray, cache: KvLayer, columns: Columns, scale: float, out: DeviceArray
) -> None:
    """See `Ops.attention`."""
    int8 = cache.key_scales is not None
    visible = columns.max_visible or cache.table.shape[1] * attention_decode.PAGE
    found = attention_decode.plan(
        columns.rows, columns.width, q.shape[1] // attention_tiles.DIM, cache.keys.shape[1], int8, visible,
        ops.multiprocessors,
    )  # fmt: skip
    valid, positions = _address(columns.valid), columns.cache_positions.ptr
    with ops.scope():
        partial = ops.take((found.scratch,), "f32")
        ops.launch(
            found.spec, found.grid, found.threads,
            q.ptr, q.row_stride, cache.keys.ptr, cache.values.ptr, _address(cache.key_scales),
            _address(cache.value_scales), cache.table.ptr, cache.table.shape[1], columns.lanes.ptr, valid, positions,
            columns.width, scale, partial.ptr,
        )  # fmt: skip
        ops.launch(
            found.combine, found.combine_grid, attention_combine.THREADS,
            partial.ptr, found.splits, valid, positions, columns.width,
            1 / attention_tiles.VALUE_SHIFT if int8 else 1.0, gate.ptr, gate.row_stride, out.ptr, out.row_stride,
        )  # fmt: skip


def _address(array: DeviceArray | None) -> int:
    return array.ptr if array is not None else 0
