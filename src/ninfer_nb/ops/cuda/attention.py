"""Attention on CUDA: head norms, rotation and append, then split-key attention over the paged cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...cuda.kernels import attention_decode, rope_append
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
    positions = columns.rope_positions
    ops.launch(
        rope_append.append_spec(query_heads, kv_heads, cache.key_scales is not None),
        rope_append.append_grid(query_heads, kv_heads, columns.count), rope_append.THREADS,
        q.ptr, k.ptr, v.ptr, q.row_stride, q_gain.codes, k_gain.codes, eps, frequencies.ptr, rope.mscale,
        positions.ptr, positions.row_stride if len(positions.shape) == 2 else 0, columns.cache_positions.ptr,
        cache.table.ptr, cache.table.shape[1], columns.lanes.ptr, _address(columns.valid), columns.width,
        cache.keys.ptr, cache.values.ptr, _address(cache.key_scales), _address(cache.value_scales),
    )  # fmt: skip


def attention(
    ops: CudaOps, q: DeviceArray, gate: DeviceArray, cache: KvLayer, columns: Columns, scale: float, out: DeviceArray
) -> None:
    """See `Ops.attention`."""
    query_heads, kv_heads = q.shape[1] // rope_append.DIM, cache.keys.shape[1]
    splits = attention_decode.splits_for(columns.count, kv_heads, ops.multiprocessors)
    partial, combine = attention_decode.decode_specs(query_heads, kv_heads, splits, cache.key_scales is not None)
    valid, positions = _address(columns.valid), columns.cache_positions.ptr
    with ops.scope():
        shares = ops.take((attention_decode.share_floats(columns.count, query_heads, splits),), "f32")
        ops.launch(
            partial, (splits, kv_heads, columns.count), attention_decode.THREADS,
            q.ptr, q.row_stride, scale, cache.keys.ptr, cache.values.ptr, _address(cache.key_scales),
            _address(cache.value_scales), cache.table.ptr, cache.table.shape[1], positions, columns.lanes.ptr, valid,
            columns.width, shares.ptr,
        )  # fmt: skip
        ops.launch(
            combine, (query_heads, columns.count, 1), rope_append.DIM,
            shares.ptr, gate.ptr, gate.row_stride, positions, valid, columns.width, out.ptr,
        )  # fmt: skip


def _address(array: DeviceArray | None) -> int:
    return array.ptr if array is not None else 0
