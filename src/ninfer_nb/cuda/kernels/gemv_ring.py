"""The few-row product's ring of stages: one warp brings chunks of weights from device memory.

Codes come row by row through the bulk copy engine, scales by small asynchronous copies; both report to the stage's
barrier. The first stages are asked for before the previous kernel has finished: weights do not depend on it.
"""

from __future__ import annotations

from numba import cuda
from numpy import int32, int64

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.gemv_layout import TILE, Layout


def row_map(layout: Layout, swiglu: bool, *, clamp: bool = True):
    """Device function `row_of(tile, m, n)`: stored row of line m (0..15) of a tile; n: stored rows. `clamp`: lines
    beyond the matrix repeat its last row.

    SwiGLU tiles hold eight gate lines and, below them, their up lines. NVFP4 lines are chosen so that their scales are
    neighbours in the swizzled plane (`artifact-format.md` 5.3): line 4 j + r is row 32 j + r of a block of 128.
    """
    if layout.packing.scales == "block":
        if swiglu:

            @cuda.jit(device=True, forceinline=True)
            def row_of(tile, m, n):
                m, half = m % int32(8), m // int32(8)
                within = (tile % int32(16)) * int32(2) + (m // int32(2)) * int32(32) + m % int32(2)
                return (tile // int32(16)) * int32(128) + within + half * (n // int32(2))
        else:

            @cuda.jit(device=True, forceinline=True)
            def row_of(tile, m, n):
                within = (tile % int32(8)) * int32(4) + (m // int32(4)) * int32(32) + m % int32(4)
                return (tile // int32(8)) * int32(128) + within
    elif swiglu:

        @cuda.jit(device=True, forceinline=True)
        def row_of(tile, m, n):
            row = tile * int32(8) + m % int32(8)
            if clamp:
                row = min(row, n // int32(2) - int32(1))
            return row + (m // int32(8)) * (n // int32(2))
    else:

        @cuda.jit(device=True, forceinline=True)
        def row_of(tile, m, n):
            row = tile * int32(TILE) + m
            if clamp:
                row = min(row, n - int32(1))
            return row

    return row_of


def _group_scales(layout: Layout):
    """Device function: float16 scales of 16 rows and `here` items, one word an item and row."""
    row_bytes, pitch, offset, per_chunk = 4 * layout.row_items, layout.scale_pitch, layout.scale_offset, layout.items
    columns = min(8, 1 << (per_chunk.bit_length() - 1))  # items that neighbouring lanes take
    lines = 32 // columns
    passes = TILE // lines

    @cuda.jit(device=True, forceinline=True)
    def scales_of(at, scales, tile, first_item, here, lane, row_of, n):
        for part in range(passes):
            m = lane // int32(columns) + int32(part * lines)
            source = ptx.at(scales, int64(row_of(tile, m, n)) * int64(row_bytes) + int64(first_item) * int64(4))
            target = at + int32(offset) + m * int32(pitch)
            for i in range(lane % int32(columns), here, columns):
                ptx.cp_async_4(target + int32(i * 4), ptx.at(source, int64(i) * int64(4)))

    return scales_of


def _block_scales(layout: Layout, swiglu: bool):
    """Device function: NVFP4 scales of 16 lines, 64 bytes a step in the order that `row_map` gives the lines."""
    tiles, offset, bands = layout.row_items * 2, layout.scale_offset, 16 if swiglu else 8

    @cuda.jit(device=True, forceinline=True)
    def scales_of(at, scales, tile, first_item, here, lane, row_of, n):
        part = lane % int32(4)
        block, band = tile // int32(bands), tile % int32(bands)
        if swiglu:
            block += (part // int32(2)) * (n // int32(256))
            within = band * int32(32) + (part % int32(2)) * int32(16)
        else:
            within = band * int32(64) + part * int32(16)
        source = ptx.at(scales, (int64(block) * int64(tiles) + int64(first_item * 2)) * int64(512) + int64(within))
        for step in range(lane // int32(4), here * int32(2), 8):
            target = at + int32(offset) + int32(step * 64) + part * int32(16)
            ptx.cp_async_16(target, ptx.at(source, int64(step) * int64(512)))

    return scales_of


def ring_of(layout: Layout, swiglu: bool):
    """Device function for the filling warp: `fill(base, lane, codes, high, scales, n, begin, end)`."""
    packing, high = layout.packing, layout.packing.high
    row_of = row_map(layout, swiglu)
    kind = packing.scales
    scales_of = _block_scales(layout, swiglu) if kind == "block" else _group_scales(layout)
    small = kind in ("block", "group")
    full_at, empty_at = layout.full, layout.empty
    stages, stage_bytes, ring, per_chunk = layout.stages, layout.stage_bytes, layout.ring_offset, layout.items
    chunks, row_items = layout.chunks, layout.row_items
    code_pitch, high_pitch, high_offset = layout.code_pitch, layout.high_pitch, layout.high_offset

    @cuda.jit(device=True)
    def fill(base, lane, codes, high_bits, scales, n, begin, end):
        stage, parity = int32(0), int32(1)
        tile = begin // int32(chunks)
        chunk = begin - tile * int32(chunks)
        m = lane % int32(TILE)
        row = int64(row_of(tile, m, n))
        for _ in range(begin, end):
            at = base + int32(ring) + stage * int32(stage_bytes)
            barrier = base + int32(full_at) + stage * int32(8)
            item = chunk * int32(per_chunk)
            here = min(int32(per_chunk), int32(row_items) - item)
            ptx.mbarrier_wait_parity(base + int32(empty_at) + stage * int32(8), parity)
            if lane == 0:
                ptx.mbarrier_arrive_expect_tx(barrier, here * int32(TILE * (64 + 2 * high)))
            cuda.syncwarp()
            if lane < TILE:
                source = ptx.at(codes, (row * int64(row_items) + int64(item)) * int64(64))
                ptx.cp_async_bulk_load(at + m * int32(code_pitch), source, here * int32(64), barrier)
                if high:
                    source = ptx.at(high_bits, (row * int64(row_items) + int64(item)) * int64(2 * high))
                    target = at + int32(high_offset) + m * int32(high_pitch)
                    ptx.cp_async_bulk_load(target, source, here * int32(2 * high), barrier)
            if small:
                scales_of(at, scales, tile, item, here, lane, row_of, n)
                ptx.cp_async_mbarrier_arrive_noinc(barrier)
            stage += int32(1)
            if stage == stages:
                stage, parity = int32(0), parity ^ int32(1)
            chunk += int32(1)
            if chunk == chunks:
                chunk = int32(0)
                tile += int32(1)
                row = int64(row_of(tile, m, n))

    return fill
