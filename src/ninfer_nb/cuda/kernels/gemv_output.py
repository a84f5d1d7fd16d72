"""Last part of the few-row product: one warp adds the partial sums of a tile and writes results.

A tile that a block did not start (its units begin inside it) is left in the workspace with a flag; the block that
started the tile adds such pieces in block order, so results do not depend on timing.
"""

from __future__ import annotations

import math

from numba import cuda
from numpy import float32, int32, int64, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.decode_formats import FP4_SCALED, UNIT
from ninfer_nb.cuda.kernels.gemv_layout import BARRIERS, FACTORS, FLAG_BYTES, Layout
from ninfer_nb.cuda.kernels.gemv_ring import row_map

SPINS = 1 << 24  # looks at a flag before a broken launch is given up


@cuda.jit(device=True, forceinline=True)
def plus(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2], a[3] + b[3]


@cuda.jit(device=True, forceinline=True)
def first_unit(block, blocks, units):
    """Units of blocks before `block`."""
    return int32(int64(block) * int64(units) // int64(blocks))


@cuda.jit(device=True, forceinline=True)
def bf16_at(address):
    return ptx.f32_of_bf16_low(ptx.ld_global_u16(address))


@cuda.jit(device=True, forceinline=True)
def store_bf16(address, value):
    ptx.st_global_u16(address, uint32(ptx.f32_as_u32(ptx.round_bf16(value)) >> uint32(16)))


def _row_factor(format: str):
    """Device function: what the sum of a stored row is multiplied by."""
    if format == "NVFP4":

        @cuda.jit(device=True, forceinline=True)
        def factor_of(scales, divisor, row):
            return float32(1 / FP4_SCALED) / ptx.ld_global_nc_f32(divisor)
    elif format.startswith("FP8"):

        @cuda.jit(device=True, forceinline=True)
        def factor_of(scales, divisor, row):
            return ptx.f32_of_bf16_low(ptx.ld_global_nc_u16(ptx.at(scales, int64(row) * int64(2))))
    else:
        constant = 1 / UNIT.get(format, 1.0)

        @cuda.jit(device=True, forceinline=True)
        def factor_of(scales, divisor, row):
            return float32(constant)

    return factor_of


def _writer(format: str, epilogue: str, layout: Layout):
    """Device function: the four sums of a lane, for rows of x starting at `column`, become results."""
    factor_of, row_of = _row_factor(format), row_map(layout, epilogue == "swiglu", clamp=False)
    swiglu, add = epilogue == "swiglu", epilogue == "add"

    @cuda.jit(device=True, forceinline=True)
    def put(out, stride, n, x_row, row, value):
        if row < n:
            at = ptx.at(out, (int64(x_row) * int64(stride) + int64(row)) * int64(2))
            if add:
                value += bf16_at(at)
            store_bf16(at, value)

    @cuda.jit(device=True, forceinline=True)
    def pair(out, stride, n, x_row, upper, lower, a, b):
        if swiglu:
            put(out, stride, n // int32(2), x_row, upper, a / (float32(1) + math.exp(-a)) * b)
        else:
            put(out, stride, n, x_row, upper, a)
            put(out, stride, n, x_row, lower, b)

    @cuda.jit(device=True, forceinline=True)
    def write(base, lane, rows, column, acc, tile, n, scales, divisor, out, stride):
        g, t = lane // int32(4), lane % int32(4)
        upper, lower = row_of(tile, g, n), row_of(tile, g + int32(8), n)
        s_upper = factor_of(scales, divisor, min(upper, n - int32(1)))
        s_lower = factor_of(scales, divisor, min(lower, n - int32(1)))
        x_row = column + int32(2) * t
        factors = base + int32(BARRIERS + FACTORS) + x_row * int32(4)
        if x_row < rows:
            f = ptx.ld_shared_f32(factors)
            pair(out, stride, n, x_row, upper, lower, acc[0] * f * s_upper, acc[2] * f * s_lower)
        if x_row + 1 < rows:
            f = ptx.ld_shared_f32(factors + int32(4))
            pair(out, stride, n, x_row + int32(1), upper, lower, acc[1] * f * s_upper, acc[3] * f * s_lower)

    return write


def output_of(layout: Layout, format: str, epilogue: str):
    """Device function for the writing warp: see `drain`."""
    write, second, warps = _writer(format, epilogue, layout), layout.rows > 8, layout.warps
    red_full, red_empty, red_offset, red_bytes = layout.red_full, layout.red_empty, layout.red_offset, layout.red_bytes
    chunks, red_lane, zero = layout.chunks, 16 * layout.blocks_of_columns, (float32(0),) * 4
    warp_bytes = 32 * red_lane

    @cuda.jit(device=True, forceinline=True)
    def gathered(slot):
        acc = zero
        for warp in range(warps):
            acc = plus(acc, ptx.ld_shared_v4_f32(slot + int32(warp * warp_bytes)))
        return acc

    @cuda.jit(device=True, forceinline=True)
    def piece(workspace, block, lane):
        """Address of this lane's part of a block's unfinished tile."""
        return ptx.at(workspace, int64(FLAG_BYTES) + (int64(block) * int64(32) + int64(lane)) * int64(red_lane))

    @cuda.jit(device=True)
    def leave(workspace, block, lane, first, other):
        at = piece(workspace, block, lane)
        ptx.st_global_v4_f32(at, first[0], first[1], first[2], first[3])
        if second:
            ptx.st_global_v4_f32(ptx.at(at, int64(16)), other[0], other[1], other[2], other[3])
        ptx.fence_acq_rel_gpu()
        cuda.syncwarp()
        if lane == 0:
            ptx.st_release_gpu_u32(ptx.at(workspace, int64(block) * int64(4)), uint32(1))

    @cuda.jit(device=True)
    def collect(workspace, block, lane, first, other):
        flag = ptx.at(workspace, int64(block) * int64(4))
        for _ in range(SPINS):
            if ptx.ld_acquire_gpu_u32(flag) == 1:
                break
        at = piece(workspace, block, lane)
        first = plus(first, ptx.ld_global_v4_f32(at))
        if second:
            other = plus(other, ptx.ld_global_v4_f32(ptx.at(at, int64(16))))
        cuda.syncwarp()
        if lane == 0:
            ptx.st_global_u32(flag, uint32(0))
        return first, other

    @cuda.jit(device=True)
    def drain(base, lane, rows, n, scales, divisor, out, stride, workspace, block, blocks, origin, units):
        """block, blocks: of this matrix, the first being block `origin` of the grid; units: of the matrix."""
        ptx.griddepcontrol_wait()
        unit, end = first_unit(block, blocks, units), first_unit(block + int32(1), blocks, units)
        buffer, parity = int32(0), int32(0)
        while unit < end:
            tile = unit // int32(chunks)
            finish = (tile + int32(1)) * int32(chunks)
            ptx.mbarrier_wait_parity(base + int32(red_full) + buffer * int32(8), parity)
            slot = base + int32(red_offset) + buffer * int32(red_bytes) + lane * int32(red_lane)
            first, other = gathered(slot), zero
            if second:
                other = gathered(slot + int32(16))
            cuda.syncwarp()
            if lane == 0:
                ptx.mbarrier_arrive(base + int32(red_empty) + buffer * int32(8))
            buffer += int32(1)
            if buffer == 2:
                buffer, parity = int32(0), parity ^ int32(1)
            if unit != tile * int32(chunks):
                leave(workspace, origin + block, lane, first, other)
            else:
                helper = block + int32(1)
                while helper < blocks and first_unit(helper, blocks, units) < finish:
                    first, other = collect(workspace, origin + helper, lane, first, other)
                    helper += int32(1)
                write(base, lane, rows, int32(0), first, tile, n, scales, divisor, out, stride)
                if second:
                    write(base, lane, rows, int32(8), other, tile, n, scales, divisor, out, stride)
            unit = finish

    return drain
