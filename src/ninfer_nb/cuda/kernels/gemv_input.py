"""First part of the few-row product: rows of x become matrix operands in shared memory.

Raw rows arrive by bulk copy. For float16 operands each row is multiplied by the power of two that brings its largest
magnitude to [2^14, 2^15): bfloat16 has 8 significant bits and float16 holds them down to 2^-32 of the row's largest, so
nothing that matters is lost. The factor comes off the sums. Knows nothing of weights but their operands' order and
their offset, whose product with the sum of x over a group is prepared here ("correction").
"""

from __future__ import annotations

from numba import cuda
from numpy import float32, int32, int64, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.decode_formats import BIAS
from ninfer_nb.cuda.kernels.gemv_layout import BARRIERS, FACTORS, PARTIALS, SQUARES, Layout
from ninfer_nb.cuda.kernels.norm import square_sum, warp_sum
from ninfer_nb.cuda.ptx import instruction, u32

CONSUMERS = 1  # id of the barrier of the multiplying warps

max_u16x2 = instruction("max_u16x2", "max.u16x2 $0, $1, $2;", [u32, u32], u32)


@cuda.jit(device=True, forceinline=True)
def magnitude(words):
    """Largest |x| of eight bf16 as bits, in both halves."""
    a = max_u16x2(words[0] & uint32(0x7FFF7FFF), words[1] & uint32(0x7FFF7FFF))
    b = max_u16x2(words[2] & uint32(0x7FFF7FFF), words[3] & uint32(0x7FFF7FFF))
    return max_u16x2(a, b)


@cuda.jit(device=True, forceinline=True)
def unpack(words):
    """Eight bf16 as float32."""
    return (
        ptx.f32_of_bf16_low(words[0]), ptx.f32_of_bf16_high(words[0]),
        ptx.f32_of_bf16_low(words[1]), ptx.f32_of_bf16_high(words[1]),
        ptx.f32_of_bf16_low(words[2]), ptx.f32_of_bf16_high(words[2]),
        ptx.f32_of_bf16_low(words[3]), ptx.f32_of_bf16_high(words[3]),
    )  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def with_gain(x, gains):
    """Eight values times (1 + gain)."""
    g, one = unpack(gains), float32(1)
    return (
        x[0] * (g[0] + one), x[1] * (g[1] + one), x[2] * (g[2] + one), x[3] * (g[3] + one),
        x[4] * (g[4] + one), x[5] * (g[5] + one), x[6] * (g[6] + one), x[7] * (g[7] + one),
    )  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def largest(x):
    a = max(max(abs(x[0]), abs(x[1])), max(abs(x[2]), abs(x[3])))
    return max(a, max(max(abs(x[4]), abs(x[5])), max(abs(x[6]), abs(x[7]))))


@cuda.jit(device=True, forceinline=True)
def total(x):
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]))


@cuda.jit(device=True, forceinline=True)
def power_to_unit(bits):
    """Biased exponent of the power of two that brings the float32 with these bits to [2^14, 2^15)."""
    return min(int32(268) - int32(bits >> uint32(23)), int32(253))


def _pack(packing):
    """Device function: eight float32 -> four operand words in the order of the weights' pairs."""
    if packing.interleaved:

        @cuda.jit(device=True, forceinline=True)
        def pack(x):
            return (
                ptx.cvt_rn_f16x2_f32(x[0], x[4]), ptx.cvt_rn_f16x2_f32(x[1], x[5]),
                ptx.cvt_rn_f16x2_f32(x[2], x[6]), ptx.cvt_rn_f16x2_f32(x[3], x[7]),
            )  # fmt: skip
    elif packing.half:

        @cuda.jit(device=True, forceinline=True)
        def pack(x):
            return (
                ptx.cvt_rn_f16x2_f32(x[0], x[1]), ptx.cvt_rn_f16x2_f32(x[2], x[3]),
                ptx.cvt_rn_f16x2_f32(x[4], x[5]), ptx.cvt_rn_f16x2_f32(x[6], x[7]),
            )  # fmt: skip
    else:

        @cuda.jit(device=True, forceinline=True)
        def pack(x):
            return (
                ptx.cvt_rn_bf16x2_f32(x[0], x[1]), ptx.cvt_rn_bf16x2_f32(x[2], x[3]),
                ptx.cvt_rn_bf16x2_f32(x[4], x[5]), ptx.cvt_rn_bf16x2_f32(x[6], x[7]),
            )  # fmt: skip

    return pack


def _survey(layout: Layout):
    """Device function: each warp's largest magnitude and sum of squares of every row, into scratch."""
    width, norm, warps, pitch = layout.width, layout.norm, layout.warps, layout.x_pitch
    vectors, threads = width // 8, 32 * warps

    @cuda.jit(device=True)
    def survey(base, tid, rows):
        warp = tid // int32(32)
        for n in range(rows):
            source = base + int32(layout_x) + int32(n * pitch)
            bits, squares, peak = uint32(0), float32(0), float32(0)
            for v in range(tid, vectors, threads):
                words = ptx.ld_shared_v4_u32(source + int32(v * 16))
                if norm:
                    squares += square_sum(words)
                    gains = ptx.ld_shared_v4_u32(base + int32(layout_gain) + int32(v * 16))
                    peak = max(peak, largest(with_gain(unpack(words), gains)))
                else:
                    bits = max_u16x2(bits, magnitude(words))
            if norm:
                squares = warp_sum(squares)
                bits = ptx.f32_as_u32(peak)
            else:
                bits = max(bits & uint32(0xFFFF), bits >> uint32(16)) << uint32(16)
            bits = ptx.redux_max_u32(bits, uint32(0xFFFFFFFF))
            if tid % 32 == 0:
                slot = base + int32(BARRIERS) + int32(n * 64) + warp * int32(4)
                ptx.st_shared_u32(slot + int32(PARTIALS), bits)
                if norm:
                    ptx.st_shared_f32(slot + int32(SQUARES), squares)

    layout_x, layout_gain = layout.x_offset, layout.gain_offset
    return survey


def _convert(layout: Layout, format: str):
    """Device function: raw rows -> operands in place, row factors and corrections."""
    packing, width, norm, warps, pitch = layout.packing, layout.width, layout.norm, layout.warps, layout.x_pitch
    vectors, padded, threads = width // 8, layout.padded // 8, 32 * warps
    rounds = -(-padded // threads)
    pack, half, corrections = _pack(packing), packing.half, layout.corrections
    grouped, bias, per_step = packing.scales == "group", float(BIAS.get(format, 0.0)), packing.step // 8
    x_offset, gain_offset, correction_offset = layout.x_offset, layout.gain_offset, layout.correction_offset

    @cuda.jit(device=True, forceinline=True)
    def factor_of(base, n, eps):
        """(factor of a row of x, factor of its sums)."""
        bits, squares = uint32(0), float32(0)
        slot = base + int32(BARRIERS) + int32(n * 64)
        for warp in range(warps):
            bits = max(bits, ptx.ld_shared_u32(slot + int32(PARTIALS + warp * 4)))
            if norm:
                squares += ptx.ld_shared_f32(slot + int32(SQUARES + warp * 4))
        inverse = float32(1)
        if norm:
            inverse = ptx.rsqrt_approx(squares / float32(width) + eps)
            bits = ptx.f32_as_u32(ptx.u32_as_f32(bits) * inverse)
        if half:
            power = power_to_unit(bits)
            factor = ptx.u32_as_f32(uint32(power << int32(23)))
            return inverse * factor, ptx.u32_as_f32(uint32((int32(254) - power) << int32(23)))
        return inverse, float32(1)

    @cuda.jit(device=True)
    def convert(base, tid, rows, eps):
        for n in range(rows):
            target = base + int32(x_offset) + int32(n * pitch)
            factor, back = factor_of(base, n, eps)
            if tid == 0:
                ptx.st_shared_f32(base + int32(BARRIERS + FACTORS) + int32(n * 4), back)
            for i in range(rounds):
                v = tid + int32(i * threads)
                at = target + int32(v * 16)
                words = (uint32(0), uint32(0), uint32(0), uint32(0))
                if v < vectors:
                    words = ptx.ld_shared_v4_u32(at)
                x = unpack(words)
                if norm and v < vectors:
                    x = with_gain(x, ptx.ld_shared_v4_u32(base + int32(gain_offset) + int32(v * 16)))
                x = (
                    x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor,
                    x[4] * factor, x[5] * factor, x[6] * factor, x[7] * factor,
                )  # fmt: skip
                if v < padded:
                    out = pack(x)
                    ptx.st_shared_v4_u32(at, out[0], out[1], out[2], out[3])
                if grouped:
                    part = total(x)
                    part += cuda.shfl_xor_sync(0xFFFFFFFF, part, 1)
                    part += cuda.shfl_xor_sync(0xFFFFFFFF, part, 2)
                    if per_step == 8:
                        part += cuda.shfl_xor_sync(0xFFFFFFFF, part, 4)
                    if v < padded and v % per_step == 0:
                        where = (v // per_step * corrections + n) * 4
                        ptx.st_shared_f32(base + int32(correction_offset) + int32(where), part * float32(-bias))

    return convert


def input_rows(layout: Layout, format: str):
    """Device function for the multiplying warps: `prepare(base, tid, x, stride, rows, gain, eps)`."""
    width, norm, warps, pitch = layout.width, layout.norm, layout.warps, layout.x_pitch
    x_offset, gain_offset, barrier = layout.x_offset, layout.gain_offset, layout.x_full
    raw = not norm and not layout.packing.half
    survey, convert = _survey(layout), _convert(layout, format)
    threads = 32 * warps

    @cuda.jit(device=True)
    def prepare(base, tid, x, stride, rows, gain, eps):
        full = base + int32(barrier)
        if tid == 0:
            ptx.mbarrier_arrive_expect_tx(full, rows * int32(2 * width) + int32(2 * width * norm))
            if norm:
                ptx.cp_async_bulk_load(base + int32(gain_offset), gain, int32(2 * width), full)
        ptx.griddepcontrol_wait()
        if tid == 0:
            for n in range(rows):
                source = ptx.at(x, int64(n) * int64(stride) * int64(2))
                ptx.cp_async_bulk_load(base + int32(x_offset) + int32(n * pitch), source, int32(2 * width), full)
        ptx.mbarrier_wait_parity(full, uint32(0))
        if raw:
            if tid < 16:
                ptx.st_shared_f32(base + int32(BARRIERS + FACTORS) + tid * int32(4), float32(1))
        else:
            survey(base, tid, rows)
            ptx.bar_sync(uint32(CONSUMERS), uint32(threads))
            convert(base, tid, rows, eps)
        ptx.bar_sync(uint32(CONSUMERS), uint32(threads))

    return prepare
