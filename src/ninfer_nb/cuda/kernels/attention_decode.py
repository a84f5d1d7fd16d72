"""Attention of single query columns over the paged cache: split keys, one combine (`model.md` 5).

    partial: a block takes one column, one KV head and a share of the visible keys; its warps walk the keys one by one,
             all query heads of the group at once, with running maxima (Milakov and Gimelshein, 2018).
    combine: merges the shares of a query head, multiplies by sigmoid(gate), rounds once.

The share of a block follows from the column's own position, which is read on the device, so that one grid serves every
length. Floor on H200: the visible keys and values, 4,096 bytes a token and layer at 27B in BF16, at 4.39 TB/s.
"""

from __future__ import annotations

import math

from numba import cuda
from numpy import float32, int32, int64, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.gdn_recurrent import sigmoid, valid_columns
from ninfer_nb.cuda.kernels.norm import warp_sum
from ninfer_nb.cuda.kernels.rope_append import DIM, GROUP, PAGE, unpack
from ninfer_nb.cuda.ptx import f32, i32, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

WARPS = 4
THREADS = 32 * WARPS
LANE_DIMS = DIM // 32
PARTIAL = DIM + 2  # floats of one share: weighted values, sum, maximum
LOW = float32(-3.0e38)  # below every score


def _share(splits):
    @cuda.jit(device=True, inline="always")
    def share(visible):
        """Keys of one block: whole warps' worth, at least 64."""
        return max(int32(64), (visible + int32(splits - 1)) // int32(splits))

    return share


def _loader(int8: bool):
    """Device function: eight dims of one cached row, float32."""

    @cuda.jit(device=True, inline="always")
    def load(plane, scales, slot, lane):
        if int8:
            low, up = ptx.ld_global_nc_v2_u32(ptx.at(plane, slot * int64(DIM) + int64(lane) * int64(LANE_DIMS)))
            group = slot * int64(DIM // GROUP) + int64(lane // int32(GROUP // LANE_DIMS))
            scale = ptx.cvt_f32_f16(ptx.ld_global_nc_u16(ptx.at(scales, group * int64(2))))
            return (
                float32(int32(low << uint32(24)) >> int32(24)) * scale,
                float32(int32(low << uint32(16)) >> int32(24)) * scale,
                float32(int32(low << uint32(8)) >> int32(24)) * scale,
                float32(int32(low) >> int32(24)) * scale,
                float32(int32(up << uint32(24)) >> int32(24)) * scale,
                float32(int32(up << uint32(16)) >> int32(24)) * scale,
                float32(int32(up << uint32(8)) >> int32(24)) * scale,
                float32(int32(up) >> int32(24)) * scale,
            )
        return unpack(
            ptx.ld_global_nc_v4_u32(ptx.at(plane, (slot * int64(DIM) + int64(lane) * int64(LANE_DIMS)) * int64(2)))
        )

    return load


def partial(*, group: int, kv_heads: int, splits: int, int8: bool) -> KernelSource:
    """q [T, ld] bf16 -> shares [T, Hkv, splits, group, 258] f32. Grid (splits, Hkv, T), block 128."""
    share, load = _share(splits), _loader(int8)

    def kernel(
        q,  # [T, ld] bf16
        ld,
        scale,
        keys, values,  # [M, Hkv, 64, 256]
        key_scales, value_scales,
        table, table_width,
        cache_positions,  # [T] i32
        lanes,  # [B] i32
        valid,  # [B] i32, or 0
        width,
        shares,
    ):  # fmt: skip
        merged = cuda.shared.array((WARPS, group, PARTIAL), f32)
        query = cuda.local.array((group, LANE_DIMS), f32)
        total = cuda.local.array((group, LANE_DIMS), f32)
        sums = cuda.local.array(group, f32)
        tops = cuda.local.array(group, f32)
        tid = int32(cuda.threadIdx.x)
        lane, warp = tid % int32(32), tid // int32(32)
        split, head, column = int32(cuda.blockIdx.x), int64(cuda.blockIdx.y), int64(cuda.blockIdx.z)
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        row = int32(column) // width
        if int32(column) - row * width >= valid_columns(valid, row, width):
            return
        visible = ptx.ld_global_s32(ptx.at(cache_positions, column * int64(4))) + int32(1)
        mine = share(visible)
        begin, end = split * mine, min((split + int32(1)) * mine, visible)
        if begin >= end:
            return
        owner = int64(ptx.ld_global_s32(ptx.at(lanes, int64(row) * int64(4))))
        pages = ptx.at(table, owner * int64(table_width) * int64(4))
        for h in range(group):
            at = column * int64(ld) + (head * int64(group) + int64(h)) * int64(DIM) + int64(lane) * int64(LANE_DIMS)
            x = unpack(ptx.ld_global_v4_u32(ptx.at(q, at * int64(2))))
            for i in range(LANE_DIMS):
                query[h, i] = x[i] * scale
                total[h, i] = float32(0)
            sums[h] = float32(0)
            tops[h] = LOW
        key = begin + warp
        while key < end:
            page = int64(ptx.ld_global_s32(ptx.at(pages, int64(key // int32(PAGE)) * int64(4))))
            slot = (page * int64(kv_heads) + head) * int64(PAGE) + int64(key % int32(PAGE))
            k = load(keys, key_scales, slot, lane)
            v = load(values, value_scales, slot, lane)
            for h in range(group):
                dot = query[h, 0] * k[0]
                for i in range(1, LANE_DIMS):
                    dot = ptx.fma_rn(query[h, i], k[i], dot)
                dot = warp_sum(dot)
                top = max(tops[h], dot)
                keep, weight = math.exp(tops[h] - top), math.exp(dot - top)
                tops[h] = top
                sums[h] = ptx.fma_rn(sums[h], keep, weight)
                for i in range(LANE_DIMS):
                    total[h, i] = ptx.fma_rn(total[h, i], keep, weight * v[i])
            key += int32(WARPS)
        for h in range(group):
            for i in range(LANE_DIMS):
                merged[warp, h, lane * int32(LANE_DIMS) + int32(i)] = total[h, i]
            if lane == 0:
                merged[warp, h, DIM] = sums[h]
                merged[warp, h, DIM + 1] = tops[h]
        cuda.syncthreads()
        place = ((column * int64(kv_heads) + head) * int64(splits) + int64(split)) * int64(group * PARTIAL)
        for h in range(group):
            top = LOW
            for w in range(WARPS):
                top = max(top, merged[w, h, DIM + 1])
            dim = tid
            while dim <= DIM:
                value = float32(0)
                for w in range(WARPS):
                    value += merged[w, h, dim] * math.exp(merged[w, h, DIM + 1] - top)
                ptx.st_global_f32(ptx.at(shares, (place + int64(h * PARTIAL) + int64(dim)) * int64(4)), value)
                dim += int32(THREADS)
            if tid == 0:
                ptx.st_global_f32(ptx.at(shares, (place + int64(h * PARTIAL + DIM + 1)) * int64(4)), top)

    arguments = (u64, i32, f32, u64, u64, u64, u64, u64, i32, u64, u64, u64, i32, u64)
    return KernelSource(kernel, arguments, KernelOptions(max_threads=THREADS))


def combine(*, group: int, kv_heads: int, splits: int) -> KernelSource:
    """shares -> out [T, Hq*256] bf16, times sigmoid(gate). Grid (Hq, T, 1), block 256; inert columns give zero."""
    share = _share(splits)

    def kernel(
        shares,
        gate,  # [T, ld] bf16
        ld,
        cache_positions,  # [T] i32
        valid,  # [B] i32, or 0
        width,
        out,  # [T, Hq*256] bf16
    ):
        dim, head, column = int64(cuda.threadIdx.x), int32(cuda.blockIdx.x), int64(cuda.blockIdx.y)
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        row = int32(column) // width
        target = ptx.at(out, (column * int64(group * kv_heads * DIM) + int64(head) * int64(DIM) + dim) * int64(2))
        if int32(column) - row * width >= valid_columns(valid, row, width):
            ptx.st_global_u16(target, uint32(0))
            return
        visible = ptx.ld_global_s32(ptx.at(cache_positions, column * int64(4))) + int32(1)
        mine = share(visible)
        count = (visible + mine - int32(1)) // mine
        first = (column * int64(kv_heads) + int64(head // int32(group))) * int64(splits * group)
        first = (first + int64(head % int32(group))) * int64(PARTIAL)
        top = LOW
        for s in range(count):
            place = first + int64(s) * int64(group * PARTIAL)
            top = max(top, ptx.ld_global_f32(ptx.at(shares, (place + int64(DIM + 1)) * int64(4))))
        value, total = float32(0), float32(0)
        for s in range(count):
            place = first + int64(s) * int64(group * PARTIAL)
            factor = math.exp(ptx.ld_global_f32(ptx.at(shares, (place + int64(DIM + 1)) * int64(4))) - top)
            value += ptx.ld_global_f32(ptx.at(shares, (place + dim) * int64(4))) * factor
            total += ptx.ld_global_f32(ptx.at(shares, (place + int64(DIM)) * int64(4))) * factor
        at = column * int64(ld) + int64(head) * int64(DIM) + dim
        g = ptx.f32_of_bf16_low(ptx.ld_global_u16(ptx.at(gate, at * int64(2))))
        word = ptx.cvt_rn_bf16x2_f32(value / total * sigmoid(g), float32(0))
        ptx.st_global_u16(target, word & uint32(0xFFFF))

    arguments = (u64, u64, i32, u64, u64, i32, u64)
    return KernelSource(kernel, arguments, KernelOptions(max_threads=DIM))


def splits_for(columns: int, kv_heads: int, multiprocessors: int) -> int:
    """Shares of a column's keys: about four blocks a multiprocessor, a power of two up to 64."""
    wanted = max(1, 4 * multiprocessors // (columns * kv_heads))
    return min(64, 1 << (wanted.bit_length() - 1))


def decode_specs(query_heads: int, kv_heads: int, splits: int, int8: bool) -> tuple[KernelSpec, KernelSpec]:
    group = query_heads // kv_heads
    return (
        KernelSpec.of(partial, group=group, kv_heads=kv_heads, splits=splits, int8=int8),
        KernelSpec.of(combine, group=group, kv_heads=kv_heads, splits=splits),
    )


def share_floats(columns: int, query_heads: int, splits: int) -> int:
    """Scratch between the two kernels."""
    return columns * query_heads * splits * PARTIAL
