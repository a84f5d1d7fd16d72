"""Middle part of the few-row product: the multiplying warps take items off the ring.

Weights are the 16-row operand, so eight rows of x cost what one costs. A lane (g, t) holds 8 bytes of row g and 8 of
row g + 8; which columns those are is the same for x, whose operands were laid out to match, so no code is ever moved
between lanes. Group scales multiply the group's sum; block scales the weights themselves, exactly.
"""

from __future__ import annotations

from numba import cuda
from numpy import float32, int32, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.decode_formats import DECODERS, fp4_scale
from ninfer_nb.cuda.kernels.gemv_layout import Layout


def _multiply(products: int, half: bool):
    """Device function: c += a x for one step; a, b: decoded words of rows g and g + 8, `at`: the lane's x operands."""
    mma = ptx.mma_m16n8k16_f32_f16 if half else ptx.mma_m16n8k16_f32_bf16
    if products == 4:

        @cuda.jit(device=True, forceinline=True)
        def multiply(c, a, b, at):
            x = ptx.ld_shared_v4_u32(at)
            y = ptx.ld_shared_v4_u32(at + int32(16))
            c = mma(c, a[0], b[0], a[1], b[1], x[0], x[1])
            c = mma(c, a[2], b[2], a[3], b[3], x[2], x[3])
            c = mma(c, a[4], b[4], a[5], b[5], y[0], y[1])
            return mma(c, a[6], b[6], a[7], b[7], y[2], y[3])
    elif products == 2:

        @cuda.jit(device=True, forceinline=True)
        def multiply(c, a, b, at):
            x = ptx.ld_shared_v4_u32(at)
            c = mma(c, a[0], b[0], a[1], b[1], x[0], x[1])
            return mma(c, a[2], b[2], a[3], b[3], x[2], x[3])
    else:

        @cuda.jit(device=True, forceinline=True)
        def multiply(c, a, b, at):
            x = ptx.ld_shared_v2_u32(at)
            return mma(c, a[0], b[0], a[1], b[1], x[0], x[1])

    return multiply


def _load_high(high: int):
    if high == 8:
        return ptx.ld_shared_u16
    return ptx.ld_shared_u32


def _grouped_item(layout: Layout, format: str):
    """Device function for formats with a float16 scale a group, where a group is a step."""
    decode, packing = DECODERS[format], layout.packing
    multiply, load_high, high = _multiply(packing.products, True), _load_high(packing.high), packing.high
    far, far_high, far_scale = 8 * layout.code_pitch, 8 * layout.high_pitch, 8 * layout.scale_pitch
    step_bytes, row = 2 * packing.step, 4 * layout.corrections
    single, second = layout.rows == 1, layout.rows > 8
    high_offset, scale_offset = layout.high_offset, layout.scale_offset

    @cuda.jit(device=True, forceinline=True)
    def scaled(acc, c, upper, lower):
        if single:
            return ptx.fma_rn(upper, c[0], acc[0]), acc[1], ptx.fma_rn(lower, c[2], acc[2]), acc[3]
        return (
            ptx.fma_rn(upper, c[0], acc[0]), ptx.fma_rn(upper, c[1], acc[1]),
            ptx.fma_rn(lower, c[2], acc[2]), ptx.fma_rn(lower, c[3], acc[3]),
        )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def item(first, other, stage, i, lane_codes, lane_high, lane_scale, x, x_other, correction):
        codes = stage + lane_codes + i * int32(64)
        w = ptx.ld_shared_v2_u32(codes)
        v = ptx.ld_shared_v2_u32(codes + int32(far))
        w2 = ptx.ld_shared_v2_u32(codes + int32(32))
        v2 = ptx.ld_shared_v2_u32(codes + int32(far + 32))
        scales = stage + int32(scale_offset) + lane_scale + i * int32(4)
        upper = ptx.cvt_f32x2_f16x2(ptx.ld_shared_u32(scales))
        lower = ptx.cvt_f32x2_f16x2(ptx.ld_shared_u32(scales + int32(far_scale)))
        hw, hv, hw2, hv2 = uint32(0), uint32(0), uint32(0), uint32(0)
        if high:
            bits = stage + int32(high_offset) + lane_high + i * int32(2 * high)
            hw, hv = load_high(bits), load_high(bits + int32(far_high))
            hw2, hv2 = load_high(bits + int32(high)), load_high(bits + int32(far_high + high))
        a, b = decode(w[0], w[1], hw), decode(v[0], v[1], hv)
        k = ptx.ld_shared_v2_f32(correction)
        first = scaled(first, multiply((k[0], k[1], k[0], k[1]), a, b, x), upper[0], lower[0])
        if second:
            k = ptx.ld_shared_v2_f32(correction + int32(32))
            other = scaled(other, multiply((k[0], k[1], k[0], k[1]), a, b, x_other), upper[0], lower[0])
        a, b = decode(w2[0], w2[1], hw2), decode(v2[0], v2[1], hv2)
        k = ptx.ld_shared_v2_f32(correction + int32(row))
        first = scaled(first, multiply((k[0], k[1], k[0], k[1]), a, b, x + int32(step_bytes)), upper[1], lower[1])
        if second:
            k = ptx.ld_shared_v2_f32(correction + int32(row + 32))
            c = multiply((k[0], k[1], k[0], k[1]), a, b, x_other + int32(step_bytes))
            other = scaled(other, c, upper[1], lower[1])
        return first, other

    return item


@cuda.jit(device=True, forceinline=True)
def times(a, s):
    return (
        ptx.mul_rn_f16x2(a[0], s), ptx.mul_rn_f16x2(a[1], s), ptx.mul_rn_f16x2(a[2], s), ptx.mul_rn_f16x2(a[3], s),
        ptx.mul_rn_f16x2(a[4], s), ptx.mul_rn_f16x2(a[5], s), ptx.mul_rn_f16x2(a[6], s), ptx.mul_rn_f16x2(a[7], s),
    )  # fmt: skip


def _block_item(layout: Layout, format: str, swiglu: bool):
    """Device function for NVFP4: a lane's 8 bytes are one block of 16, whose scale it multiplies in, exactly."""
    decode, multiply = DECODERS[format], _multiply(4, True)
    far, scale_offset, second = 8 * layout.code_pitch, layout.scale_offset, layout.rows > 8
    far_scale = 32 if swiglu else 8

    @cuda.jit(device=True, forceinline=True)
    def item(first, other, stage, i, lane_codes, lane_high, lane_scale, x, x_other, correction):
        codes = stage + lane_codes + i * int32(64)
        scales = stage + int32(scale_offset) + lane_scale + i * int32(128)
        w = ptx.ld_shared_v2_u32(codes)
        v = ptx.ld_shared_v2_u32(codes + int32(far))
        w2 = ptx.ld_shared_v2_u32(codes + int32(32))
        v2 = ptx.ld_shared_v2_u32(codes + int32(far + 32))
        upper, lower = ptx.ld_shared_u8(scales), ptx.ld_shared_u8(scales + int32(far_scale))
        upper2, lower2 = ptx.ld_shared_u8(scales + int32(64)), ptx.ld_shared_u8(scales + int32(64 + far_scale))
        a, b = times(decode(w[0], w[1]), fp4_scale(upper)), times(decode(v[0], v[1]), fp4_scale(lower))
        first = multiply(first, a, b, x)
        if second:
            other = multiply(other, a, b, x_other)
        a, b = times(decode(w2[0], w2[1]), fp4_scale(upper2)), times(decode(v2[0], v2[1]), fp4_scale(lower2))
        first = multiply(first, a, b, x + int32(128))
        if second:
            other = multiply(other, a, b, x_other + int32(128))
        return first, other

    return item


def _plain_item(layout: Layout, format: str):
    """Device function for formats without scales inside a row: FP8 and BF16."""
    packing = layout.packing
    multiply, second = _multiply(packing.products, packing.half), layout.rows > 8
    far, step_bytes = 8 * layout.code_pitch, 2 * packing.step
    if format == "BF16":

        @cuda.jit(device=True, forceinline=True)
        def decode(low, up, high):
            return low, up
    else:
        decode = DECODERS[format]

    @cuda.jit(device=True, forceinline=True)
    def item(first, other, stage, i, lane_codes, lane_high, lane_scale, x, x_other, correction):
        codes = stage + lane_codes + i * int32(64)
        w = ptx.ld_shared_v2_u32(codes)
        v = ptx.ld_shared_v2_u32(codes + int32(far))
        w2 = ptx.ld_shared_v2_u32(codes + int32(32))
        v2 = ptx.ld_shared_v2_u32(codes + int32(far + 32))
        a, b = decode(w[0], w[1], uint32(0)), decode(v[0], v[1], uint32(0))
        c, d = decode(w2[0], w2[1], uint32(0)), decode(v2[0], v2[1], uint32(0))
        first = multiply(first, a, b, x)
        first = multiply(first, c, d, x + int32(step_bytes))
        if second:
            other = multiply(other, a, b, x_other)
            other = multiply(other, c, d, x_other + int32(step_bytes))
        return first, other

    return item


def items_of(layout: Layout, format: str, swiglu: bool):
    """Device function for the multiplying warps: `consume(base, tid, rows, begin, end)`, units [begin, end)."""
    packing, warps = layout.packing, layout.warps
    block = packing.scales == "block"
    if block:
        item = _block_item(layout, format, swiglu)
    elif packing.scales == "group":
        item = _grouped_item(layout, format)
    else:
        item = _plain_item(layout, format)
    full_at, empty_at, red_full, red_empty = layout.full, layout.empty, layout.red_full, layout.red_empty
    stages, stage_bytes, ring, per_chunk = layout.stages, layout.stage_bytes, layout.ring_offset, layout.items
    chunks, row_items, red_offset, red_bytes = layout.chunks, layout.row_items, layout.red_offset, layout.red_bytes
    pitch, x_offset = layout.x_pitch, layout.x_offset
    lane_bytes, item_bytes, second = packing.step // 2, 2 * packing.item, layout.rows > 8
    code_pitch, high_pitch, scale_pitch, high = layout.code_pitch, layout.high_pitch, layout.scale_pitch, packing.high
    lines = 2 if swiglu else 4  # NVFP4 lines whose scales are neighbours
    corrections, red_lane = layout.corrections, 16 * layout.blocks_of_columns
    correction_offset, exact = layout.correction_offset, layout.row_items % layout.items == 0 and warps == layout.items

    @cuda.jit(device=True)
    def consume(base, tid, rows, begin, end):
        lane, warp = tid % int32(32), tid // int32(32)
        g, t = lane // int32(4), lane % int32(4)
        lane_codes = g * int32(code_pitch) + t * int32(8)
        lane_high = g * int32(high_pitch) + t * int32(high // 4)
        lane_scale = g * int32(scale_pitch)
        if block:
            lane_scale = (g % int32(lines)) * int32(16) + (g // int32(lines)) * int32(4) + t
        x_lane = base + int32(x_offset) + min(g, rows - int32(1)) * int32(pitch) + t * int32(lane_bytes)
        x_second = x_lane
        if second:
            last = min(g + int32(8), rows - int32(1))
            x_second = base + int32(x_offset) + last * int32(pitch) + t * int32(lane_bytes)
        correction_lane = base + int32(correction_offset) + min(int32(2) * t, int32(corrections - 2)) * int32(4)
        zero = (float32(0), float32(0), float32(0), float32(0))
        first, other = zero, zero
        stage, parity, buffer, red_parity = int32(0), int32(0), int32(0), int32(1)
        chunk = begin % int32(chunks)
        for unit in range(begin, end):
            at = base + int32(ring) + stage * int32(stage_bytes)
            ptx.mbarrier_wait_parity(base + int32(full_at) + stage * int32(8), parity)
            if exact:
                k = chunk * int32(per_chunk) + warp
                first, other = item(
                    first, other, at, warp, lane_codes, lane_high, lane_scale, x_lane + k * int32(item_bytes),
                    x_second + k * int32(item_bytes), correction_lane + k * int32(8 * corrections),
                )  # fmt: skip
            else:
                here = min(int32(per_chunk), int32(row_items) - chunk * int32(per_chunk))
                for i in range(warp, here, int32(warps)):
                    k = chunk * int32(per_chunk) + int32(i)
                    first, other = item(
                        first, other, at, int32(i), lane_codes, lane_high, lane_scale, x_lane + k * int32(item_bytes),
                        x_second + k * int32(item_bytes), correction_lane + k * int32(8 * corrections),
                    )  # fmt: skip
            cuda.syncwarp()
            if lane == 0:
                ptx.mbarrier_arrive(base + int32(empty_at) + stage * int32(8))
            stage += int32(1)
            if stage == stages:
                stage, parity = int32(0), parity ^ int32(1)
            chunk += int32(1)
            if chunk == chunks or unit + 1 == end:
                chunk = int32(0) if chunk == chunks else chunk
                ptx.mbarrier_wait_parity(base + int32(red_empty) + buffer * int32(8), red_parity)
                slot = base + int32(red_offset) + buffer * int32(red_bytes)
                slot += (warp * int32(32) + lane) * int32(red_lane)
                ptx.st_shared_v4_f32(slot, first[0], first[1], first[2], first[3])
                if second:
                    ptx.st_shared_v4_f32(slot + int32(16), other[0], other[1], other[2], other[3])
                first, other = zero, zero
                cuda.syncwarp()
                if lane == 0:
                    ptx.mbarrier_arrive(base + int32(red_full) + buffer * int32(8))
                buffer += int32(1)
                if buffer == 2:
                    buffer, red_parity = int32(0), red_parity ^ int32(1)

    return consume
