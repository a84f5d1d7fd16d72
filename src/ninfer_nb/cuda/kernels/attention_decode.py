"""Attention of a few columns a row over the paged KV cache: split over keys, then a deterministic combine.

    found = plan(rows, width, q_heads, kv_heads, int8, max_visible, multiprocessors)
    launch found.spec     grid found.grid,         block found.threads   (see `split`)
    launch found.combine  grid found.combine_grid, block `attention_combine.THREADS`

with `found.scratch` float32 of scratch between them. Lengths come from device memory; the grid depends on the plan's
arguments only, so a captured launch serves every length. Up to `MAX_WIDTH` columns a row pay; the result is right for
any width.

Floors on H200 at 4.39 TB/s, one row, 27B, one layer: BF16 31 us at 32k keys and 245 us at 262k, INT8 16 and 126 us.
Query rows are packed: packed row p of a KV head is column p / group, query head p % group. 16 of them (an M tile)
share a block, so up to 16 / group columns cost one pass over the keys; more tiles read the same keys through L2.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numpy import float32, int32, int64, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels import attention_tiles as tiles
from ninfer_nb.cuda.kernels.attention_combine import PARTIAL, combine
from ninfer_nb.cuda.kernels.attention_tiles import DIM, NEGATIVE_INFINITY, ROWS, STEP, Tile
from ninfer_nb.cuda.kernels.gdn_recurrent import valid_columns
from ninfer_nb.cuda.ptx import f32, i32, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

PAGE = 64
MAX_WIDTH = 16
LOG2_E = 1.4426950408889634
BF16_ROW, BF16_QUAD = Tile(int8=False).row, Tile(int8=False).quad
ACCUMULATOR_ROW = DIM * 4 + 16  # bytes of one row when the warps' sums meet in shared memory


@dataclass(frozen=True)
class SplitShape:
    """Warps of a block and stages of a warp's ring."""

    int8: bool
    warps: int
    stages: int

    @property
    def scale_bytes(self) -> int:
        return STEP * 8 if self.int8 else 0

    @property
    def stage_bytes(self) -> int:
        return 2 * (Tile(self.int8).bytes + self.scale_bytes)

    @property
    def ring_bytes(self) -> int:
        """Of one warp; its accumulators go there at the end."""
        return max(self.stages * self.stage_bytes, ROWS * ACCUMULATOR_ROW)

    @property
    def query_bytes(self) -> int:
        return ROWS * Tile(self.int8).query_row

    @property
    def shared_bytes(self) -> int:
        barriers = 8 * self.warps * self.stages
        return self.warps * self.ring_bytes + self.query_bytes + 8 * ROWS * self.warps + barriers


SHAPES = {False: SplitShape(False, 4, 3), True: SplitShape(True, 8, 3)}


@dataclass(frozen=True)
class DecodePlan:
    """How one decode attention is launched."""

    spec: KernelSpec
    grid: tuple[int, int, int]  # splits, Hkv * chunks, B
    threads: int
    combine: KernelSpec
    combine_grid: tuple[int, int, int]  # Hq, T
    scratch: int  # float32 elements

    @property
    def splits(self) -> int:
        return self.grid[0]


def plan(
    rows: int,
    width: int,
    q_heads: int,
    kv_heads: int,
    int8: bool,
    max_visible: int,
    multiprocessors: int,
    shape: SplitShape | None = None,
) -> DecodePlan:
    """One wave of blocks, and no more than `max_visible` keys can feed. `shape` overrides the tuned one (bench)."""
    shape = shape or SHAPES[int8]
    group = q_heads // kv_heads
    chunks = -(-width * group // ROWS)
    useful = -(-max(max_visible, 1) // (STEP * shape.warps))
    splits = max(1, min(multiprocessors // (rows * kv_heads * chunks), useful))
    static = {"group": group, "kv_heads": kv_heads}
    return DecodePlan(
        KernelSpec.of(split, int8=int8, warps=shape.warps, stages=shape.stages, **static),
        (splits, kv_heads * chunks, rows),
        32 * shape.warps,
        KernelSpec.of(combine, warps=shape.warps, **static),
        (q_heads, rows * width, 1),
        splits * kv_heads * chunks * rows * PARTIAL,
    )


def split(*, group: int, kv_heads: int, int8: bool, warps: int, stages: int) -> KernelSource:
    """Unnormalised attention of 16 packed rows over every `splits`-th group of `warps` steps of 16 keys.

    Grid (splits, Hkv * chunks, B), block 32 * warps. Each warp is on its own: it fills its ring of `stages` steps by
    bulk copies, four rows each, and keeps its own softmax over 16 x 256 sums in registers; the warps meet once, at
    the end. Keys older than this round are requested before `griddepcontrol.wait`: only the kernel before this one
    (rope_append) writes the round's own.
    """
    shape = SplitShape(int8, warps, stages)
    tile = Tile(int8)
    layout = (tile.row, tile.quad)
    tile_bytes, quad, row_bytes, query_row = tile.bytes, tile.quad, tile.row, tile.query_row
    scale_bytes, stage_bytes, ring_bytes = shape.scale_bytes, shape.stage_bytes, shape.ring_bytes
    payload = 2 * (STEP * tile.row + scale_bytes)
    value_width = 8 if int8 else 16
    query_at = warps * ring_bytes
    maxima_at = query_at + shape.query_bytes
    totals_at = maxima_at + 4 * ROWS * warps
    barriers_at = totals_at + 4 * ROWS * warps

    scores_of = tiles.scores_int8() if int8 else tiles.scores_bf16()
    value = tiles.values_int8 if int8 else tiles.values_bf16
    value0, value1, value2, value3 = value(0), value(1), value(2), value(3)

    @cuda.jit(device=True, forceinline=True)
    def request(stage, barrier, page, step, head, keys, values, key_scales, value_scales, lane):
        """Bulk copies of one step into a stage, spread over the lanes."""
        slot = (int64(page) * int64(kv_heads) + int64(head)) * int64(PAGE) + int64(step % int32(4)) * int64(STEP)
        if lane == 0:
            ptx.mbarrier_arrive_expect_tx(barrier, uint32(payload))
        cuda.syncwarp()
        part = int64(lane % int32(4))
        source = slot * int64(row_bytes) + part * int64(4 * row_bytes)
        target = uint32(stage + uint32(lane % int32(4)) * uint32(quad))
        if lane < 4:
            ptx.cp_async_bulk_load(target, ptx.at(keys, source), uint32(4 * row_bytes), barrier)
        elif lane < 8:
            ptx.cp_async_bulk_load(target + uint32(tile_bytes), ptx.at(values, source), uint32(4 * row_bytes), barrier)
        if int8:
            scales = uint32(stage + uint32(2 * tile_bytes))
            if lane == 8:
                ptx.cp_async_bulk_load(scales, ptx.at(key_scales, slot * int64(8)), uint32(scale_bytes), barrier)
            elif lane == 9:
                scales += uint32(scale_bytes)
                ptx.cp_async_bulk_load(scales, ptx.at(value_scales, slot * int64(8)), uint32(scale_bytes), barrier)

    @cuda.jit(device=True, forceinline=True)
    def query_rows(q, ld, target, head, chunk, row, width, live):
        """The packed rows of this block into shared memory, zeros where there is none."""
        tid = int32(cuda.threadIdx.x)
        for piece in range(tid, ROWS * DIM // 8, 32 * warps):
            local, part = int32(piece) // int32(DIM // 8), int32(piece) % int32(DIM // 8)
            packed = chunk * int32(ROWS) + local
            column = packed // int32(group)
            a = b = c = d = uint32(0)
            if column < live:
                place = (int64(row) * int64(width) + int64(column)) * int64(ld)
                place += int64(head * int32(group) + packed % int32(group)) * int64(DIM) + int64(part) * int64(8)
                a, b, c, d = ptx.ld_global_v4_u32(ptx.at(q, place * int64(2)))
                if int8:
                    a, b, c, d = f16_pair(a), f16_pair(b), f16_pair(c), f16_pair(d)
            ptx.st_shared_v4_u32(uint32(target + local * int32(query_row) + part * int32(16)), a, b, c, d)

    @cuda.jit(device=True, forceinline=True)
    def four_scales(address, limit, first_key, lane, factor):
        """Scales [4 key + group] of this thread's four keys; zero beyond the limit, where they may be anything."""
        a = key_scale(address, tiles.key_in_step(lane, 0, 0), limit - first_key, factor)
        b = key_scale(address, tiles.key_in_step(lane, 0, 1), limit - first_key, factor)
        c = key_scale(address, tiles.key_in_step(lane, 1, 0), limit - first_key, factor)
        return a, b, c, key_scale(address, tiles.key_in_step(lane, 1, 1), limit - first_key, factor)

    def kernel(
        q,  # [T, ldq] bf16, normed and rotated
        ldq,
        keys,  # [M, Hkv, 64, 256] bf16 or i8
        values,
        key_scales,  # [M, Hkv, 64, 4] f16, or 0
        value_scales,
        table,  # [C, L] i32
        row_pages,  # L
        lanes,  # [B] i32
        valid,  # [B] i32, or 0
        cache_positions,  # [T] i32, ascending in a row
        width,
        scale,  # of the scores
        partial,  # [B, Hkv * chunks, splits, PARTIAL] f32
    ):
        shared = cuda.shared.array(0, ptx.u32)
        base = int32(ptx.smem_addr(shared))
        tid = int32(cuda.threadIdx.x)
        lane, warp = tid % int32(32), tid // int32(32)
        row = int32(cuda.blockIdx.z)
        head, chunk = int32(cuda.blockIdx.y) % int32(kv_heads), int32(cuda.blockIdx.y) // int32(kv_heads)
        live = valid_columns(valid, row, width)
        steps = int32(0)
        limit = low = int32(-1)
        if live > 0:
            at = ptx.at(cache_positions, int64(row) * int64(width) * int64(4))
            low = ptx.ld_global_s32(at)
            limit = ptx.ld_global_s32(ptx.at(at, int64(live - int32(1)) * int64(4)))
            steps = int32(limit // int32(STEP) + int32(1))
        if int32(cuda.blockIdx.x) * int32(warps) >= steps:
            return
        ring = uint32(base + warp * int32(ring_bytes))
        barriers = uint32(base + int32(barriers_at) + warp * int32(8 * stages))
        if lane == 0:
            for i in range(stages):
                ptx.mbarrier_init(barriers + uint32(8 * i), uint32(1))
            ptx.fence_mbarrier_init()
        cuda.syncwarp()
        pages = ptx.at(table, int64(ptx.ld_global_s32(ptx.at(lanes, int64(row) * int64(4)))) * int64(row_pages) * 4)
        stride = int32(cuda.gridDim.x) * int32(warps)
        first = int32(cuda.blockIdx.x) * int32(warps) + warp
        early = int32(0)
        for i in range(stages):
            step = int32(first + int32(i) * stride)
            if step < steps and (step + int32(1)) * int32(STEP) <= low:
                page = ptx.ld_global_s32(ptx.at(pages, int64(step // int32(4)) * int64(4)))
                stage, barrier = ring + uint32(i * stage_bytes), barriers + uint32(8 * i)
                request(stage, barrier, page, step, head, keys, values, key_scales, value_scales, lane)
                early = int32(i + 1)
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        for i in range(stages):
            step = int32(first + int32(i) * stride)
            if i >= early and step < steps:
                page = ptx.ld_global_s32(ptx.at(pages, int64(step // int32(4)) * int64(4)))
                stage, barrier = ring + uint32(i * stage_bytes), barriers + uint32(8 * i)
                request(stage, barrier, page, step, head, keys, values, key_scales, value_scales, lane)
        query_rows(q, ldq, base + int32(query_at), head, chunk, row, width, live)
        cuda.syncthreads()

        g, t = lane // int32(4), lane % int32(4)
        query = uint32(base + int32(query_at) + g * int32(query_row) + t * int32(32 if int8 else 16))
        low_position = position_of(cache_positions, row, width, live, chunk * int32(ROWS) + g, int32(group))
        high_position = position_of(cache_positions, row, width, live, chunk * int32(ROWS) + g + int32(8), int32(group))
        factor = scale * float32(LOG2_E)
        o0 = o1 = o2 = o3 = tiles.NOTHING
        low_max = high_max = NEGATIVE_INFINITY
        low_total = high_total = float32(0)
        index, parity = int32(0), uint32(0)
        step = first
        ahead = int32(first + int32(stages) * stride)
        page = int32(0)
        if ahead < steps:
            page = ptx.ld_global_s32(ptx.at(pages, int64(ahead // int32(4)) * int64(4)))
        while step < steps:
            stage, barrier = ring + uint32(index) * uint32(stage_bytes), barriers + uint32(index) * uint32(8)
            first_key = step * int32(STEP)
            ptx.mbarrier_wait_parity(barrier, parity)
            key = tiles.key_address(int32(stage), lane, layout)
            scales = stage + uint32(2 * tile_bytes)
            if int8:
                ks = four_scales(scales, limit, first_key, lane, factor)
                s = scores_of(query, key, *ks[0], *ks[1], *ks[2], *ks[3])
            else:
                s = tiles.scaled(scores_of(query, key), factor)
            if first_key + int32(STEP) > low:
                s = tiles.masked(s, first_key, lane, low_position, high_position)
                if not int8:
                    clear_beyond(stage + uint32(tile_bytes), limit - first_key, lane)
            low_new, high_new = tiles.maxima(s, low_max, high_max)
            if cuda.any_sync(0xFFFFFFFF, low_new > low_max or high_new > high_max):
                low_factor = ptx.ex2_approx(low_max - tiles.finite(low_new))
                high_factor = ptx.ex2_approx(high_max - tiles.finite(high_new))
                low_max, high_max = low_new, high_new
                low_total *= low_factor
                high_total *= high_factor
                o0 = tiles.scale_rows(o0, low_factor, high_factor)
                o1 = tiles.scale_rows(o1, low_factor, high_factor)
                o2 = tiles.scale_rows(o2, low_factor, high_factor)
                o3 = tiles.scale_rows(o3, low_factor, high_factor)
            p = tiles.probabilities(s, low_max, high_max)
            low_total += (p[0] + p[1]) + (p[4] + p[5])
            high_total += (p[2] + p[3]) + (p[6] + p[7])
            even = tiles.value_address(int32(stage) + int32(tile_bytes), lane, layout, 0, value_width)
            odd = tiles.value_address(int32(stage) + int32(tile_bytes), lane, layout, 1, value_width)
            if int8:
                vs = four_scales(scales + uint32(scale_bytes), limit, first_key, lane, float32(tiles.VALUE_SHIFT))
                o0 = value0(o0, *p, vs[0][0], vs[1][0], vs[2][0], vs[3][0], even, odd)
                o1 = value1(o1, *p, vs[0][1], vs[1][1], vs[2][1], vs[3][1], even, odd)
                o2 = value2(o2, *p, vs[0][2], vs[1][2], vs[2][2], vs[3][2], even, odd)
                o3 = value3(o3, *p, vs[0][3], vs[1][3], vs[2][3], vs[3][3], even, odd)
            else:
                a, b = ptx.cvt_rn_bf16x2_f32(p[0], p[1]), ptx.cvt_rn_bf16x2_f32(p[2], p[3])
                c, d = ptx.cvt_rn_bf16x2_f32(p[4], p[5]), ptx.cvt_rn_bf16x2_f32(p[6], p[7])
                o0 = value0(o0, a, b, c, d, even, odd)
                o1 = value1(o1, a, b, c, d, even, odd)
                o2 = value2(o2, a, b, c, d, even, odd)
                o3 = value3(o3, a, b, c, d, even, odd)
            cuda.syncwarp()
            if ahead < steps:
                request(stage, barrier, page, ahead, head, keys, values, key_scales, value_scales, lane)
                ahead = int32(ahead + stride)
                if ahead < steps:
                    page = ptx.ld_global_s32(ptx.at(pages, int64(ahead // int32(4)) * int64(4)))
            index += int32(1)
            if index == stages:
                index, parity = int32(0), parity ^ uint32(1)
            step = int32(step + stride)
        merge(
            (o0, o1, o2, o3), low_max, high_max, tiles.quad_sum(low_total), tiles.quad_sum(high_total), base, partial,
            min(int32(ROWS), live * int32(group) - chunk * int32(ROWS)),
        )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def merge(sums, low_max, high_max, low_total, high_total, base, partial, count):
        """The warps' sums under one maximum, added in warp order, to this block's place in `partial`."""
        tid = int32(cuda.threadIdx.x)
        lane, warp = tid % int32(32), tid // int32(32)
        g, t = lane // int32(4), lane % int32(4)
        maxima = uint32(base + int32(maxima_at))
        totals = uint32(base + int32(totals_at))
        mine = (warp * int32(ROWS) + g) * int32(4)
        if t == 0:
            ptx.st_shared_f32(maxima + uint32(mine), low_max)
            ptx.st_shared_f32(maxima + uint32(mine + int32(32)), high_max)
        cuda.syncthreads()
        low_top = high_top = NEGATIVE_INFINITY
        for i in range(warps):
            low_top = max(low_top, ptx.ld_shared_f32(maxima + uint32((i * ROWS + g) * 4)))
            high_top = max(high_top, ptx.ld_shared_f32(maxima + uint32((i * ROWS + 8 + g) * 4)))
        low_factor = ptx.ex2_approx(low_max - tiles.finite(low_top))
        high_factor = ptx.ex2_approx(high_max - tiles.finite(high_top))
        if t == 0:
            ptx.st_shared_f32(totals + uint32(mine), low_total * low_factor)
            ptx.st_shared_f32(totals + uint32(mine + int32(32)), high_total * high_factor)
        area = base + warp * int32(ring_bytes) + g * int32(ACCUMULATOR_ROW) + t * int32(64)
        store_rows(area, sums[0], low_factor, high_factor)
        store_rows(area + int32(256), sums[1], low_factor, high_factor)
        store_rows(area + int32(512), sums[2], low_factor, high_factor)
        store_rows(area + int32(768), sums[3], low_factor, high_factor)
        cuda.syncthreads()
        block = int64(cuda.blockIdx.z) * int64(cuda.gridDim.y) + int64(cuda.blockIdx.y)
        block = block * int64(cuda.gridDim.x) + int64(cuda.blockIdx.x)
        target = ptx.at(partial, block * int64(4 * PARTIAL))
        for piece in range(tid, count * int32(DIM // 4), 32 * warps):
            local, part = int32(piece) // int32(DIM // 4), int32(piece) % int32(DIM // 4)
            at = base + local * int32(ACCUMULATOR_ROW) + part * int32(16)
            a = b = c = d = float32(0)
            for i in range(warps):
                x = ptx.ld_shared_v4_f32(uint32(at + int32(i * ring_bytes)))
                a, b, c, d = a + x[0], b + x[1], c + x[2], d + x[3]
            ptx.st_global_v4_f32(ptx.at(target, int64(piece) * int64(16)), a, b, c, d)
        if tid < count:
            top, total = NEGATIVE_INFINITY, float32(0)
            for i in range(warps):
                top = max(top, ptx.ld_shared_f32(maxima + uint32((i * ROWS + tid) * 4)))
                total += ptx.ld_shared_f32(totals + uint32((i * ROWS + tid) * 4))
            target = ptx.at(target, int64(ROWS * DIM * 4))
            ptx.st_global_f32(ptx.at(target, int64(tid) * int64(4)), top)
            ptx.st_global_f32(ptx.at(target, int64(tid + int32(ROWS)) * int64(4)), total)

    arguments = (u64, i32, u64, u64, u64, u64, u64, i32, u64, u64, u64, i32, f32, u64)
    options = KernelOptions(max_threads=32 * warps, min_blocks=1, shared_bytes=shape.shared_bytes)
    return KernelSource(kernel, arguments, options)


@cuda.jit(device=True, forceinline=True)
def f16_pair(word):
    """Two bf16 values as FP16: exact for the normal range of normed queries."""
    return ptx.cvt_rn_f16x2_f32(ptx.f32_of_bf16_low(word), ptx.f32_of_bf16_high(word))


@cuda.jit(device=True, forceinline=True)
def key_scale(address, row, last, factor):
    """The four group scales of one key, times `factor`."""
    low, high = ptx.ld_shared_v2_u32(uint32(address + uint32(row * int32(8))))
    a, b = ptx.cvt_f32x2_f16x2(low)
    c, d = ptx.cvt_f32x2_f16x2(high)
    if row > last:
        a = b = c = d = float32(0)
    return a * factor, b * factor, c * factor, d * factor


@cuda.jit(device=True, forceinline=True)
def position_of(cache_positions, row, width, live, packed, group):
    """Last visible key of a packed row, -1 for a row that does not exist."""
    column = packed // group
    if column >= live:
        return int32(-1)
    return ptx.ld_global_s32(ptx.at(cache_positions, (int64(row) * int64(width) + int64(column)) * int64(4)))


@cuda.jit(device=True, forceinline=True)
def clear_beyond(tile, last, lane):
    """Zero the BF16 value rows after `last`: a zero probability times NaN is NaN."""
    for row in range(STEP):
        if row > last:
            at = uint32(tile + uint32((row // 4) * BF16_QUAD + (row % 4) * BF16_ROW) + uint32(lane) * uint32(16))
            ptx.st_shared_v4_u32(at, uint32(0), uint32(0), uint32(0), uint32(0))
    cuda.syncwarp()


@cuda.jit(device=True, forceinline=True)
def store_rows(address, o, low, high):
    """64 dims of rows g and g + 8, 16 contiguous of each in a thread."""
    a, b = uint32(address), uint32(address + int32(8 * ACCUMULATOR_ROW))
    ptx.st_shared_v4_f32(a, o[0] * low, o[4] * low, o[8] * low, o[12] * low)
    ptx.st_shared_v4_f32(a + uint32(16), o[16] * low, o[20] * low, o[24] * low, o[28] * low)
    ptx.st_shared_v4_f32(a + uint32(32), o[1] * low, o[5] * low, o[9] * low, o[13] * low)
    ptx.st_shared_v4_f32(a + uint32(48), o[17] * low, o[21] * low, o[25] * low, o[29] * low)
    ptx.st_shared_v4_f32(b, o[2] * high, o[6] * high, o[10] * high, o[14] * high)
    ptx.st_shared_v4_f32(b + uint32(16), o[18] * high, o[22] * high, o[26] * high, o[30] * high)
    ptx.st_shared_v4_f32(b + uint32(32), o[3] * high, o[7] * high, o[11] * high, o[15] * high)
    ptx.st_shared_v4_f32(b + uint32(48), o[19] * high, o[23] * high, o[27] * high, o[31] * high)
