"""Head norms, partial rotary embedding, and the append of keys and values to the paged cache (`model.md` 5 and 6).

One warp a head; a lane holds eight neighbouring dims of 256, so that the first eight lanes hold the 64 rotary ones and
the partner of dim i, 32 further on, is four lanes away.

Floor on H200, 27B, one row: 21 KB read and written, the launch itself; a chunk of 1,024 tokens moves 32 MB, 7.4 us.
"""

from __future__ import annotations

import math

from numba import cuda
from numpy import float32, int32, int64, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.gdn_recurrent import valid_columns
from ninfer_nb.cuda.kernels.norm import square_sum, warp_sum
from ninfer_nb.cuda.ptx import f32, i32, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

DIM = 256
PAGE = 64
WARPS = 4
THREADS = 32 * WARPS
GROUP = 64  # dims that share one scale of the INT8 codec


@cuda.jit(device=True, inline="always")
def unpack(words):
    """Eight bf16 values as float32."""
    return (
        ptx.f32_of_bf16_low(words[0]), ptx.f32_of_bf16_high(words[0]),
        ptx.f32_of_bf16_low(words[1]), ptx.f32_of_bf16_high(words[1]),
        ptx.f32_of_bf16_low(words[2]), ptx.f32_of_bf16_high(words[2]),
        ptx.f32_of_bf16_low(words[3]), ptx.f32_of_bf16_high(words[3]),
    )  # fmt: skip


@cuda.jit(device=True, inline="always")
def pack(x):
    """Eight float32 values as bf16, rounded once."""
    return (
        ptx.cvt_rn_bf16x2_f32(x[0], x[1]), ptx.cvt_rn_bf16x2_f32(x[2], x[3]),
        ptx.cvt_rn_bf16x2_f32(x[4], x[5]), ptx.cvt_rn_bf16x2_f32(x[6], x[7]),
    )  # fmt: skip


@cuda.jit(device=True, inline="always")
def normed(words, gains, eps):
    """x * (1 + gain) / sqrt(mean(x^2) + eps) over the 256 dims of a warp."""
    factor = float32(1) / math.sqrt(warp_sum(square_sum(words)) / float32(DIM) + eps)
    x, g = unpack(words), unpack(gains)
    one = float32(1)
    return (
        x[0] * factor * (one + g[0]), x[1] * factor * (one + g[1]),
        x[2] * factor * (one + g[2]), x[3] * factor * (one + g[3]),
        x[4] * factor * (one + g[4]), x[5] * factor * (one + g[5]),
        x[6] * factor * (one + g[6]), x[7] * factor * (one + g[7]),
    )  # fmt: skip


@cuda.jit(device=True, inline="always")
def turned(value, other, lane, i, positions, axis_stride, column, inv_freq, mscale):
    """One dim after rotation; `other` is its partner, and lanes beyond the rotary ones keep their value."""
    if lane >= 8:
        return value
    pair = (lane % int32(4)) * int32(8) + int32(i)
    axis = int64(pair % int32(3)) * int64(axis_stride)
    position = float32(ptx.ld_global_s32(ptx.at(positions, (axis + column) * int64(4))))
    angle = position * ptx.ld_global_nc_f32(ptx.at(inv_freq, int64(pair) * int64(4)))
    cos, sin = math.cos(angle) * mscale, math.sin(angle) * mscale
    if lane < 4:
        return value * cos - other * sin
    return value * cos + other * sin


@cuda.jit(device=True, inline="always")
def rotated(x, lane, positions, axis_stride, column, inv_freq, mscale):
    o0 = cuda.shfl_xor_sync(0xFFFFFFFF, x[0], 4)
    o1 = cuda.shfl_xor_sync(0xFFFFFFFF, x[1], 4)
    o2 = cuda.shfl_xor_sync(0xFFFFFFFF, x[2], 4)
    o3 = cuda.shfl_xor_sync(0xFFFFFFFF, x[3], 4)
    o4 = cuda.shfl_xor_sync(0xFFFFFFFF, x[4], 4)
    o5 = cuda.shfl_xor_sync(0xFFFFFFFF, x[5], 4)
    o6 = cuda.shfl_xor_sync(0xFFFFFFFF, x[6], 4)
    o7 = cuda.shfl_xor_sync(0xFFFFFFFF, x[7], 4)
    return (
        turned(x[0], o0, lane, 0, positions, axis_stride, column, inv_freq, mscale),
        turned(x[1], o1, lane, 1, positions, axis_stride, column, inv_freq, mscale),
        turned(x[2], o2, lane, 2, positions, axis_stride, column, inv_freq, mscale),
        turned(x[3], o3, lane, 3, positions, axis_stride, column, inv_freq, mscale),
        turned(x[4], o4, lane, 4, positions, axis_stride, column, inv_freq, mscale),
        turned(x[5], o5, lane, 5, positions, axis_stride, column, inv_freq, mscale),
        turned(x[6], o6, lane, 6, positions, axis_stride, column, inv_freq, mscale),
        turned(x[7], o7, lane, 7, positions, axis_stride, column, inv_freq, mscale),
    )


@cuda.jit(device=True, inline="always")
def code(value, inverse):
    """INT8 code of a value: nearest even, clamped."""
    return uint32(min(max(ptx.cvt_rni_s32_f32(value * inverse), int32(-127)), int32(127))) & uint32(0xFF)


@cuda.jit(device=True, inline="always")
def store_int8(plane, scales, slot, lane, words):
    """The codec of `runtime.md` 6 on eight bf16 values a lane; a group is eight lanes."""
    x = unpack(words)
    largest = max(max(abs(x[0]), abs(x[1])), max(abs(x[2]), abs(x[3])))
    largest = max(largest, max(max(abs(x[4]), abs(x[5])), max(abs(x[6]), abs(x[7]))))
    for shift in (4, 2, 1):
        largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, shift))
    half = ptx.cvt_rn_f16_f32(largest / float32(127))
    scale = ptx.cvt_f32_f16(half)
    inverse = float32(0)
    if scale > float32(0):
        inverse = float32(1) / scale
    low = code(x[0], inverse) | code(x[1], inverse) << uint32(8)
    low |= code(x[2], inverse) << uint32(16) | code(x[3], inverse) << uint32(24)
    up = code(x[4], inverse) | code(x[5], inverse) << uint32(8)
    up |= code(x[6], inverse) << uint32(16) | code(x[7], inverse) << uint32(24)
    ptx.st_global_v2_u32(ptx.at(plane, slot * int64(DIM) + int64(lane) * int64(8)), low, up)
    if lane % int32(8) == 0:
        at = slot * int64(DIM // GROUP) + int64(lane // int32(8))
        ptx.st_global_u16(ptx.at(scales, at * int64(2)), half)


def rope_append(*, query_heads: int, kv_heads: int, int8: bool) -> KernelSource:
    """q in place, k and v to the cache. Grid (ceil(heads / 4), T, 1) with Hq + 2 Hkv heads, block 128.

    Inert columns leave q as it is and write nothing.
    """
    heads = query_heads + 2 * kv_heads

    def kernel(
        q, k, v,  # [T, ld] bf16, columns of one projection
        ld,
        q_gain, k_gain,  # [256] bf16
        eps,
        inv_freq,  # [32] f32
        mscale,
        rope_positions,  # [T] i32, or [3, T]
        axis_stride,  # 0, or T
        cache_positions,  # [T] i32
        table,  # [C, L] i32
        table_width,
        lanes,  # [B] i32
        valid,  # [B] i32, or 0
        width,
        keys, values,  # [M, Hkv, 64, 256]
        key_scales, value_scales,  # [M, Hkv, 64, 4] f16
    ):  # fmt: skip
        lane = int32(cuda.threadIdx.x) % int32(32)
        head = int32(cuda.blockIdx.x) * int32(WARPS) + int32(cuda.threadIdx.x) // int32(32)
        if head >= heads:
            return
        column = int64(cuda.blockIdx.y)
        row = int32(column) // width
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        if int32(column) - row * width >= valid_columns(valid, row, width):
            return
        at = (column * int64(ld) + int64(lane) * int64(8)) * int64(2)
        if head < query_heads:
            place = ptx.at(q, at + int64(head) * int64(DIM * 2))
            gains = ptx.ld_global_nc_v4_u32(ptx.at(q_gain, int64(lane) * int64(16)))
            x = normed(ptx.ld_global_v4_u32(place), gains, eps)
            words = pack(rotated(x, lane, rope_positions, axis_stride, column, inv_freq, mscale))
            ptx.st_global_v4_u32(place, words[0], words[1], words[2], words[3])
            return
        is_key = head < query_heads + kv_heads
        mine = head - int32(query_heads) if is_key else head - int32(query_heads + kv_heads)
        source = k if is_key else v
        words = ptx.ld_global_v4_u32(ptx.at(source, at + int64(mine) * int64(DIM * 2)))
        if is_key:
            gains = ptx.ld_global_nc_v4_u32(ptx.at(k_gain, int64(lane) * int64(16)))
            words = pack(
                rotated(normed(words, gains, eps), lane, rope_positions, axis_stride, column, inv_freq, mscale)
            )
        position = ptx.ld_global_s32(ptx.at(cache_positions, column * int64(4)))
        owner = int64(ptx.ld_global_s32(ptx.at(lanes, int64(row) * int64(4))))
        entry = owner * int64(table_width) + int64(position // int32(PAGE))
        page = int64(ptx.ld_global_s32(ptx.at(table, entry * int64(4))))
        slot = (page * int64(kv_heads) + int64(mine)) * int64(PAGE) + int64(position % int32(PAGE))
        plane = keys if is_key else values
        if int8:
            store_int8(plane, key_scales if is_key else value_scales, slot, lane, words)
        else:
            target = ptx.at(plane, (slot * int64(DIM) + int64(lane) * int64(8)) * int64(2))
            ptx.st_global_v4_u32(target, words[0], words[1], words[2], words[3])

    arguments = (
        u64, u64, u64, i32, u64, u64, f32, u64, f32, u64, i32, u64, u64, i32, u64, u64, i32, u64, u64, u64, u64,
    )  # fmt: skip
    return KernelSource(kernel, arguments, KernelOptions(max_threads=THREADS))


def append_spec(query_heads: int, kv_heads: int, int8: bool) -> KernelSpec:
    return KernelSpec.of(rope_append, query_heads=query_heads, kv_heads=kv_heads, int8=int8)


def append_grid(query_heads: int, kv_heads: int, columns: int) -> tuple[int, int, int]:
    return -(-(query_heads + 2 * kv_heads) // WARPS), columns, 1
