"""Head norm, partial rotary embedding and the append to the paged KV cache, one warp a head (`model.md` 5 and 6).

Launch `rope_append_spec(...)` with grid `rope_append_grid(...)` and block `THREADS`. q and k are overwritten in place
with their normed and rotated BF16 values; k and v go to the pages through the codec (`runtime.md` 6). Columns beyond
`valid` are left alone.

Floor on H200, 27B: 32 KB read and written a token, 8 ns; at one token it is the launch itself.
"""

from __future__ import annotations

from numba import cuda
from numpy import float32, int32, int64, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.gdn_recurrent import valid_columns
from ninfer_nb.cuda.kernels.norm import square_sum, warp_sum
from ninfer_nb.cuda.ptx import f32, i32, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

DIM = 256
ROTARY = 64
PAGE = 64
WARPS = 8
THREADS = 32 * WARPS
FULL = 0xFFFFFFFF

# pi / 2 in three float32 parts: with fma the reduction is exact enough for any angle below 2^24
HALF_PI = (1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15)


@cuda.jit(device=True, forceinline=True)
def sine_cosine(angle):
    """sin and cos of a float32 angle, 0 <= angle < 2^24, each within 2 units of the last place of 1."""
    turns = ptx.cvt_rni_s32_f32(angle * float32(0.6366197723675814))
    k = ptx.cvt_rn_f32_s32(turns)
    r = ptx.fma_rn(-k, float32(HALF_PI[0]), angle)
    r = ptx.fma_rn(-k, float32(HALF_PI[1]), r)
    r = ptx.fma_rn(-k, float32(HALF_PI[2]), r)
    z = r * r
    s = ptx.fma_rn(z, float32(-1.9515295891e-4), float32(8.3321608736e-3))
    s = ptx.fma_rn(ptx.fma_rn(z, s, float32(-1.6666654611e-1)) * z, r, r)
    c = ptx.fma_rn(z, float32(2.443315711809948e-5), float32(-1.388731625493765e-3))
    c = ptx.fma_rn(z, c, float32(4.166664568298827e-2)) * z
    c = ptx.fma_rn(z, c - float32(0.5), float32(1))
    odd = (turns & int32(1)) != 0
    sine, cosine = (c if odd else s), (s if odd else c)
    if (turns & int32(2)) != 0:
        sine = -sine
    if ((turns + int32(1)) & int32(2)) != 0:
        cosine = -cosine
    return sine, cosine


@cuda.jit(device=True, forceinline=True)
def position_of(positions, axis, count, column):
    return ptx.cvt_rn_f32_s32(ptx.ld_global_s32(ptx.at(positions, (int64(axis) * int64(count) + column) * int64(4))))


@cuda.jit(device=True, forceinline=True)
def largest(a, b):
    return max(abs(a), abs(b))


@cuda.jit(device=True, forceinline=True)
def coded(word, inverse):
    """Two bf16 values as INT8 codes (low, high)."""
    low = ptx.cvt_rni_s32_f32(ptx.f32_of_bf16_low(word) * inverse)
    high = ptx.cvt_rni_s32_f32(ptx.f32_of_bf16_high(word) * inverse)
    return max(min(low, int32(127)), int32(-127)), max(min(high, int32(127)), int32(-127))


@cuda.jit(device=True, forceinline=True)
def bf16_max(word):
    return largest(ptx.f32_of_bf16_low(word), ptx.f32_of_bf16_high(word))


@cuda.jit(device=True, forceinline=True)
def store_coded(words, codes, scales, lane):
    """One head of one token: eight values a lane, a scale for each eight lanes."""
    top = max(max(bf16_max(words[0]), bf16_max(words[1])), max(bf16_max(words[2]), bf16_max(words[3])))
    for shift in (4, 2, 1):
        top = max(top, cuda.shfl_xor_sync(FULL, top, shift))
    half = ptx.cvt_rn_f16_f32(top / float32(127))
    scale = ptx.cvt_f32_f16(half)
    inverse = float32(0)
    if scale > float32(0):
        inverse = float32(1) / scale
    a, b = coded(words[0], inverse), coded(words[1], inverse)
    c, d = coded(words[2], inverse), coded(words[3], inverse)
    first = ptx.cvt_pack_sat_s8_s32(a[0], a[1], b[0], b[1])
    ptx.st_global_v2_u32(ptx.at(codes, int64(lane) * int64(8)), first, ptx.cvt_pack_sat_s8_s32(c[0], c[1], d[0], d[1]))
    if lane % 8 == 0:
        ptx.st_global_u16(ptx.at(scales, int64(lane // 8) * int64(2)), uint32(half))


def rope_append(*, q_heads: int, kv_heads: int, int8: bool, axes: int) -> KernelSource:
    """Grid (ceil((Hq + 2 Hkv) / 8), T, 1), block 256: a warp takes one head of one column, a lane eight dims.

    Lanes 0..3 hold the low halves of the rotary pairs, lanes 4..7 the high ones. axes: 1, or 3 for [3, T] positions.
    """
    pair_lanes = ROTARY // 16

    def kernel(
        q,  # [T, ld] bf16, q_heads * 256 used
        k,  # [T, ld] bf16
        v,  # [T, ld] bf16
        ld,  # elements between columns, of all three
        q_gain,  # [256] bf16
        k_gain,  # [256] bf16
        eps,
        inv_freq,  # [32] f32
        mscale,
        rope_positions,  # [axes, T] i32
        cache_positions,  # [T] i32
        lanes,  # [B] i32
        valid,  # [B] i32, or 0
        width,
        keys,  # [M, Hkv, 64, 256] bf16 or i8
        values,
        key_scales,  # [M, Hkv, 64, 4] f16, or 0
        value_scales,
        table,  # [C, L] i32
        row_pages,  # L
    ):
        tid = int32(cuda.threadIdx.x)
        lane = tid % int32(32)
        head = int32(cuda.blockIdx.x) * int32(WARPS) + tid // int32(32)
        column = int64(cuda.blockIdx.y)
        if head >= int32(q_heads + 2 * kv_heads):
            return
        row = int32(column) // width
        kind = int32(0)  # 0 query, 1 key, 2 value
        local, source, gain = head, q, q_gain
        if head >= int32(q_heads + kv_heads):
            kind, local, source = int32(2), head - int32(q_heads + kv_heads), v
        elif head >= int32(q_heads):
            kind, local, source, gain = int32(1), head - int32(q_heads), k, k_gain
        gains = ptx.ld_global_nc_v4_u32(ptx.at(gain, int64(lane) * int64(16)))
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        if int32(column) - row * width >= valid_columns(valid, row, width):
            return
        place = ptx.at(source, (column * int64(ld) + int64(local) * int64(DIM) + int64(lane) * int64(8)) * int64(2))
        words = ptx.ld_global_v4_u32(place)
        if kind < 2:
            factor = ptx.rsqrt_approx(warp_sum(square_sum(words)) / float32(DIM) + eps)
            words = (
                turned(words[0], gains[0], factor, lane, 0, inv_freq, mscale, rope_positions, column),
                turned(words[1], gains[1], factor, lane, 1, inv_freq, mscale, rope_positions, column),
                turned(words[2], gains[2], factor, lane, 2, inv_freq, mscale, rope_positions, column),
                turned(words[3], gains[3], factor, lane, 3, inv_freq, mscale, rope_positions, column),
            )
            ptx.st_global_v4_u32(place, words[0], words[1], words[2], words[3])
        if kind > 0:
            position = ptx.ld_global_s32(ptx.at(cache_positions, column * int64(4)))
            line = int64(ptx.ld_global_s32(ptx.at(lanes, int64(row) * int64(4)))) * int64(row_pages)
            page = ptx.ld_global_s32(ptx.at(table, (line + int64(position // int32(PAGE))) * int64(4)))
            slot = (int64(page) * int64(kv_heads) + int64(local)) * int64(PAGE) + int64(position % int32(PAGE))
            plane, scales = (keys if kind == 1 else values), (key_scales if kind == 1 else value_scales)
            if int8:
                store_coded(words, ptx.at(plane, slot * int64(DIM)), ptx.at(scales, slot * int64(8)), lane)
            else:
                target = ptx.at(plane, slot * int64(DIM * 2) + int64(lane) * int64(16))
                ptx.st_global_v4_u32(target, words[0], words[1], words[2], words[3])

    @cuda.jit(device=True, forceinline=True)
    def rotated(value, other, lane, pair, inv_freq, mscale, positions, column):
        """One dim: `other` is its partner's value."""
        if lane >= int32(2 * pair_lanes):
            return value
        axis = int32(0) if axes == 1 else pair % int32(3)
        position = position_of(positions, axis, cuda.gridDim.y, column)
        angle = position * ptx.ld_global_nc_f32(ptx.at(inv_freq, int64(pair) * int64(4)))
        sine, cosine = sine_cosine(angle)
        sine, cosine = sine * mscale, cosine * mscale
        if lane < int32(pair_lanes):
            return value * cosine - other * sine
        return value * cosine + other * sine

    @cuda.jit(device=True, forceinline=True)
    def turned(word, gain, factor, lane, i, inv_freq, mscale, positions, column):
        """Dims 2 i and 2 i + 1 of a lane: norm, then rotation."""
        low = ptx.f32_of_bf16_low(word) * factor * (ptx.f32_of_bf16_low(gain) + float32(1))
        high = ptx.f32_of_bf16_high(word) * factor * (ptx.f32_of_bf16_high(gain) + float32(1))
        other_low = cuda.shfl_xor_sync(FULL, low, pair_lanes)
        other_high = cuda.shfl_xor_sync(FULL, high, pair_lanes)
        pair = (lane % int32(pair_lanes)) * int32(8) + int32(2 * i)
        low = rotated(low, other_low, lane, pair, inv_freq, mscale, positions, column)
        high = rotated(high, other_high, lane, pair + int32(1), inv_freq, mscale, positions, column)
        return ptx.cvt_rn_bf16x2_f32(low, high)

    arguments = (u64, u64, u64, i32, u64, u64, f32, u64, f32, u64, u64, u64, u64, i32, u64, u64, u64, u64, u64, i32)
    return KernelSource(kernel, arguments, KernelOptions(max_threads=THREADS))


def rope_append_spec(q_heads: int, kv_heads: int, *, int8: bool, axes: int) -> KernelSpec:
    return KernelSpec.of(rope_append, q_heads=q_heads, kv_heads=kv_heads, int8=int8, axes=axes)


def rope_append_grid(q_heads: int, kv_heads: int, columns: int) -> tuple[int, int, int]:
    return -(-(q_heads + 2 * kv_heads) // WARPS), columns, 1
