"""Attention over the paged KV cache, reference form.

Every sum runs in an order that depends only on the position of a query, never on how many columns share the call,
so that a token's result is the same bits in a long prefill chunk, a short one, or a decode step.
"""

from __future__ import annotations

import numpy as np

from .. import PAGE, Columns, KvLayer, Rope
from .linear import matmul_nt
from .numeric import dequantise_int8_groups, quantise_int8_groups, rms

KEY_BLOCK = 256  # keys of one product: BLAS orders a sum by the shape of its operands, so that must not vary


def norm_heads(x: np.ndarray, gain: np.ndarray, eps: float) -> np.ndarray:
    """Offset RMS norm of each head: x [T, heads, D], gain [D]."""
    return x * rms(x, eps) * (np.float32(1) + gain)


def rotate(x: np.ndarray, positions: np.ndarray, rope: Rope) -> np.ndarray:
    """Split-half RoPE on the first R dims of x [T, heads, D]; positions [T], or [3, T] with pair i on axis i % 3."""
    half = rope.inv_freq.size
    if positions.ndim == 2:
        positions = positions[np.arange(half) % 3].T  # [T, R/2]
    else:
        positions = positions[:, None]
    angle = positions.astype(np.float32) * rope.inv_freq
    cos = (np.cos(angle) * np.float32(rope.mscale))[:, None, :]
    sin = (np.sin(angle) * np.float32(rope.mscale))[:, None, :]
    low, high = x[..., :half], x[..., half : 2 * half]
    return np.concatenate([low * cos - high * sin, high * cos + low * sin, x[..., 2 * half :]], axis=-1)


def live_columns(columns: Columns, row: int) -> int:
    return columns.width if columns.valid is None else int(columns.valid[row])


def append(k: np.ndarray, v: np.ndarray, cache: KvLayer, columns: Columns) -> None:
    """Write the live columns of k, v [T, Hkv, D] to their pages."""
    for row in range(columns.rows):
        start, n = row * columns.width, live_columns(columns, row)
        positions = columns.cache_positions[start : start + n]
        pages = cache.table[columns.lanes[row], positions // PAGE]
        slots = positions % PAGE
        for x, plane, scales in ((k, cache.keys, cache.key_scales), (v, cache.values, cache.value_scales)):
            live = x[start : start + n]
            if scales is None:
                plane[pages, :, slots] = live
            else:
                plane[pages, :, slots], scales[pages, :, slots] = quantise_int8_groups(live)


def gather(plane: np.ndarray, scales: np.ndarray | None, pages: np.ndarray) -> np.ndarray:
    """Decoded cache of a page list: [Hkv, S, D] float32, zero filled to whole key blocks."""
    if scales is None:
        chosen = plane[pages]
    else:
        chosen = dequantise_int8_groups(plane[pages], scales[pages])
    n, heads, page, dim = chosen.shape
    out = np.zeros((heads, -(-n * page // KEY_BLOCK) * KEY_BLOCK, dim), np.float32)
    out[:, : n * page] = chosen.transpose(1, 0, 2, 3).reshape(heads, n * page, dim)
    return out


def attend(q: np.ndarray, keys: np.ndarray, values: np.ndarray, positions: np.ndarray, scale: float) -> np.ndarray:
    """Causal attention of one sequence: q [n, Hq, D], keys and values [Hkv, S, D], positions [n] -> [n, Hq, D].

    The denominator is one more column of the value product, so numerator and denominator share one order of sums.
    """
    n, query_heads, dim = q.shape
    kv_heads, span, _ = keys.shape
    group = query_heads // kv_heads
    visible = np.repeat(np.arange(span)[None, :] <= positions[:, None], group, axis=0)  # [n*group, S]
    out = np.empty((n, query_heads, dim), np.float32)
    for head in range(kv_heads):
        mine = slice(head * group, (head + 1) * group)
        rows = q[:, mine].reshape(n * group, dim)
        blocks = [matmul_nt(rows, keys[head, start : start + KEY_BLOCK]) for start in range(0, span, KEY_BLOCK)]
        scores = np.where(visible, np.concatenate(blocks, axis=1) * np.float32(scale), np.float32(-np.inf))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        extended = np.concatenate([values[head], np.ones((span, 1), np.float32)], axis=1)
        total = np.zeros((n * group, dim + 1), np.float32)
        for start in range(0, span, KEY_BLOCK):
            block = slice(start, start + KEY_BLOCK)
            total += matmul_nt(weights[:, block], np.ascontiguousarray(extended[block].T))
        out[:, mine] = (total[:, :dim] / total[:, dim:]).reshape(n, group, dim)
    return out


def attention(q: np.ndarray, cache: KvLayer, columns: Columns, scale: float) -> np.ndarray:
    """q [T, Hq, D] -> [T, Hq, D]; inert columns give zero."""
    out = np.zeros(q.shape, np.float32)
    for row in range(columns.rows):
        start, n = row * columns.width, live_columns(columns, row)
        if n == 0:
            continue
        positions = columns.cache_positions[start : start + n]
        pages = cache.table[columns.lanes[row], : int(positions.max()) // PAGE + 1]
        keys = gather(cache.keys, cache.key_scales, pages)
        values = gather(cache.values, cache.value_scales, pages)
        for plane in (keys, values):  # what lies beyond the frontier may be anything, NaN included
            plane[:, int(positions.max()) + 1 :] = 0
        out[start : start + n] = attend(q[start : start + n], keys, values, positions, scale)
    return out
