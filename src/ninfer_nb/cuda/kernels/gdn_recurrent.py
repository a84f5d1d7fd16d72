"""Gated delta net, token by token: causal convolution, delta rule with gated norm, and the fold of a verified round.

Used for decode rows, verify rounds (1 to 16 columns) and the tail of a prefill chunk (`model.md` 8.3 to 8.8).

A verify round must leave the state alone until the host has decided how many columns count. Its records are the
buffers of the round itself: `convolve` writes the convolved columns, `delta_rule` runs with `store_state=False`, and
the fold runs the same program again over the first `valid` columns. Multiply-adds of the state are written out as
fma, so that no specialisation contracts them differently and the folded state is bit-identical to step-by-step
execution.

Floor on H200, 27B, one row: 2 * 48 * 64 KB of state = 6.3 MB, 1.4 us a layer.
"""

from __future__ import annotations

import math

from numba import cuda
from numpy import float32, int32, int64, uint32, uint64

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.norm import warp_sum
from ninfer_nb.cuda.ptx import f32, i32, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

CONV_THREADS = 128
TAPS = 4
DIM = 128  # head width of keys and values
WARPS = 16
ROWS = DIM // WARPS  # state rows of one warp
DELTA_THREADS = 32 * WARPS


@cuda.jit(device=True, forceinline=True)
def sigmoid(x):
    return float32(1) / (float32(1) + math.exp(-x))


@cuda.jit(device=True, forceinline=True)
def valid_columns(valid, row, width):
    """Live columns of a batch row; `valid` is 0 or [B] i32."""
    if valid == uint64(0):
        return width
    return ptx.ld_global_s32(ptx.at(valid, int64(row) * int64(4)))


def convolve(*, channels: int, store_history: bool, emit: bool) -> KernelSource:
    """out [T, channels] bf16 = SiLU(sum_j taps[j] * u[t-3+j]) per row, continuing each lane's history.

    Grid (channels / 256, B, 1), block 128: a thread owns two channels and walks the columns of one row. With
    `store_history` the last three of old history and live columns replace the history [slots, 3, channels];
    without `emit` nothing else happens (the fold).
    """

    def kernel(
        u,  # [T, ld] bf16
        ld,
        taps,  # [4, channels] bf16, oldest first
        history,  # [slots, 3, channels] bf16
        lanes,  # [B] i32
        valid,  # [B] i32, or 0
        width,
        out,  # [T, channels] bf16
    ):
        pair = int64(cuda.blockIdx.x) * int64(CONV_THREADS) + int64(cuda.threadIdx.x)
        if pair >= channels // 2:
            return
        row = int32(cuda.blockIdx.y)
        slot = int64(ptx.ld_global_s32(ptx.at(lanes, int64(row) * int64(4))))
        past = ptx.at(history, (slot * int64(3 * channels) + pair * int64(2)) * int64(2))
        w0 = ptx.ld_global_nc_u32(ptx.at(taps, pair * int64(4)))
        w1 = ptx.ld_global_nc_u32(ptx.at(taps, pair * int64(4) + int64(2 * channels)))
        w2 = ptx.ld_global_nc_u32(ptx.at(taps, pair * int64(4) + int64(4 * channels)))
        w3 = ptx.ld_global_nc_u32(ptx.at(taps, pair * int64(4) + int64(6 * channels)))
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        live = valid_columns(valid, row, width)
        a = ptx.ld_global_u32(past)
        b = ptx.ld_global_u32(ptx.at(past, int64(2 * channels)))
        c = ptx.ld_global_u32(ptx.at(past, int64(4 * channels)))
        first = int64(row) * int64(width)
        for j in range(live):
            column = first + int64(j)
            d = ptx.ld_global_u32(ptx.at(u, (column * int64(ld) + pair * int64(2)) * int64(2)))
            if emit:
                low = ptx.f32_of_bf16_low(w0) * ptx.f32_of_bf16_low(a)
                low += ptx.f32_of_bf16_low(w1) * ptx.f32_of_bf16_low(b)
                low += ptx.f32_of_bf16_low(w2) * ptx.f32_of_bf16_low(c)
                low += ptx.f32_of_bf16_low(w3) * ptx.f32_of_bf16_low(d)
                high = ptx.f32_of_bf16_high(w0) * ptx.f32_of_bf16_high(a)
                high += ptx.f32_of_bf16_high(w1) * ptx.f32_of_bf16_high(b)
                high += ptx.f32_of_bf16_high(w2) * ptx.f32_of_bf16_high(c)
                high += ptx.f32_of_bf16_high(w3) * ptx.f32_of_bf16_high(d)
                word = ptx.cvt_rn_bf16x2_f32(low * sigmoid(low), high * sigmoid(high))
                ptx.st_global_u32(ptx.at(out, (column * int64(channels) + pair * int64(2)) * int64(2)), word)
            a, b, c = b, c, d
        if emit:
            for j in range(live, width):
                column = first + int64(j)
                ptx.st_global_u32(ptx.at(out, (column * int64(channels) + pair * int64(2)) * int64(2)), uint32(0))
        if store_history and live > 0:
            ptx.st_global_u32(past, a)
            ptx.st_global_u32(ptx.at(past, int64(2 * channels)), b)
            ptx.st_global_u32(ptx.at(past, int64(4 * channels)), c)

    return KernelSource(kernel, (u64, i32, u64, u64, u64, u64, i32, u64), KernelOptions(max_threads=CONV_THREADS))


@cuda.jit(device=True, forceinline=True)
def four_bf16(address):
    """Four neighbouring bf16 values as float32."""
    low, high = ptx.ld_global_v2_u32(address)
    return (
        ptx.f32_of_bf16_low(low), ptx.f32_of_bf16_high(low), ptx.f32_of_bf16_low(high), ptx.f32_of_bf16_high(high)
    )  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def dot4(a, b):
    return ptx.fma_rn(a[3], b[3], ptx.fma_rn(a[2], b[2], ptx.fma_rn(a[1], b[1], a[0] * b[0])))


@cuda.jit(device=True, forceinline=True)
def times(a, factor):
    return a[0] * factor, a[1] * factor, a[2] * factor, a[3] * factor


@cuda.jit(device=True, forceinline=True)
def bf16_of(words, i):
    """Value i of eight bf16 in four words, i a constant."""
    word = words[i // 2]
    return ptx.f32_of_bf16_high(word) if i % 2 else ptx.f32_of_bf16_low(word)


def delta_rule(*, key_heads: int, value_heads: int, store_state: bool, emit: bool) -> KernelSource:
    """Delta rule and gated norm of every head and row, all columns in order (`model.md` 8.4 and 8.6).

    Grid (value_heads, B, 1), block 512. The 128x128 state of one head stays in registers: a warp holds eight rows, a
    lane four neighbouring columns. Per column two warp reductions of eight values and one block barrier.
    `emit=False` is the fold: state only.
    """
    group = value_heads // key_heads
    key_width = key_heads * DIM
    channels = 2 * key_width + value_heads * DIM
    out_width = value_heads * DIM
    read_out = DIM**-0.5

    def kernel(
        qkv,  # [T, channels] bf16, convolved
        g,  # [T, value_heads] f32
        beta,  # [T, value_heads] f32
        state,  # [slots, value_heads, 128, 128] f32, key axis contiguous
        lanes,  # [B] i32
        valid,  # [B] i32, or 0
        width,
        z,  # [T, ldz] bf16
        ldz,
        gain,  # [128] bf16
        eps,
        out,  # [T, value_heads * 128] bf16
    ):
        squares = cuda.shared.array((2, WARPS), f32)
        tid = int32(cuda.threadIdx.x)
        lane, warp = tid % int32(32), tid // int32(32)
        head, row = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y)
        slot = int64(ptx.ld_global_s32(ptx.at(lanes, int64(row) * int64(4))))
        place = (slot * int64(value_heads) + int64(head)) * int64(DIM * DIM)
        place += int64(warp) * int64(ROWS * DIM) + int64(lane) * int64(4)
        held = ptx.at(state, place * int64(4))
        s0 = ptx.ld_global_v4_f32(held)
        s1 = ptx.ld_global_v4_f32(ptx.at(held, int64(DIM * 4)))
        s2 = ptx.ld_global_v4_f32(ptx.at(held, int64(DIM * 8)))
        s3 = ptx.ld_global_v4_f32(ptx.at(held, int64(DIM * 12)))
        s4 = ptx.ld_global_v4_f32(ptx.at(held, int64(DIM * 16)))
        s5 = ptx.ld_global_v4_f32(ptx.at(held, int64(DIM * 20)))
        s6 = ptx.ld_global_v4_f32(ptx.at(held, int64(DIM * 24)))
        s7 = ptx.ld_global_v4_f32(ptx.at(held, int64(DIM * 28)))
        gains = ptx.ld_global_nc_v4_u32(ptx.at(gain, int64(warp) * int64(ROWS * 2)))
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        live = valid_columns(valid, row, width)
        first = int64(row) * int64(width)
        for j in range(live):
            column = first + int64(j)
            base = ptx.at(qkv, column * int64(channels * 2))
            within = int64(head // group) * int64(DIM) + int64(lane) * int64(4)
            k = four_bf16(ptx.at(base, (int64(key_width) + within) * int64(2)))
            v = ptx.ld_global_v4_u32(ptx.at(base, int64(4 * key_width) + int64(head * DIM + warp * ROWS) * int64(2)))
            scalar = (column * int64(value_heads) + int64(head)) * int64(4)
            alpha = math.exp(ptx.ld_global_f32(ptx.at(g, scalar)))
            strength = ptx.ld_global_f32(ptx.at(beta, scalar))
            k = times(k, ptx.rsqrt_approx(warp_sum(dot4(k, k)) + float32(1e-6)))
            s0 = advance(s0, k, alpha, strength, bf16_of(v, 0))
            s1 = advance(s1, k, alpha, strength, bf16_of(v, 1))
            s2 = advance(s2, k, alpha, strength, bf16_of(v, 2))
            s3 = advance(s3, k, alpha, strength, bf16_of(v, 3))
            s4 = advance(s4, k, alpha, strength, bf16_of(v, 4))
            s5 = advance(s5, k, alpha, strength, bf16_of(v, 5))
            s6 = advance(s6, k, alpha, strength, bf16_of(v, 6))
            s7 = advance(s7, k, alpha, strength, bf16_of(v, 7))
            if emit:
                q = four_bf16(ptx.at(base, within * int64(2)))
                q = times(q, float32(read_out) * ptx.rsqrt_approx(warp_sum(dot4(q, q)) + float32(1e-6)))
                o0, o1 = warp_sum(dot4(s0, q)), warp_sum(dot4(s1, q))
                o2, o3 = warp_sum(dot4(s2, q)), warp_sum(dot4(s3, q))
                o4, o5 = warp_sum(dot4(s4, q)), warp_sum(dot4(s5, q))
                o6, o7 = warp_sum(dot4(s6, q)), warp_sum(dot4(s7, q))
                if lane == 0:
                    squares[j % 2, warp] = o0 * o0 + o1 * o1 + o2 * o2 + o3 * o3 + o4 * o4 + o5 * o5 + o6 * o6 + o7 * o7
                cuda.syncthreads()
                total = float32(0)
                for i in range(WARPS):
                    total += squares[j % 2, i]
                factor = ptx.rsqrt_approx(total / float32(DIM) + eps)
                if lane == 0:
                    at = int64(head * DIM + warp * ROWS) * int64(2)
                    zs = ptx.ld_global_v4_u32(ptx.at(z, column * int64(ldz) * int64(2) + at))
                    ptx.st_global_v4_u32(
                        ptx.at(out, column * int64(out_width * 2) + at),
                        gated(o0, o1, factor, gains[0], zs[0]),
                        gated(o2, o3, factor, gains[1], zs[1]),
                        gated(o4, o5, factor, gains[2], zs[2]),
                        gated(o6, o7, factor, gains[3], zs[3]),
                    )
        if emit and lane == 0:
            for j in range(live, width):
                at = (first + int64(j)) * int64(out_width * 2) + int64(head * DIM + warp * ROWS) * int64(2)
                ptx.st_global_v4_u32(ptx.at(out, at), uint32(0), uint32(0), uint32(0), uint32(0))
        if store_state and live > 0:
            store_row(held, 0, s0)
            store_row(held, 1, s1)
            store_row(held, 2, s2)
            store_row(held, 3, s3)
            store_row(held, 4, s4)
            store_row(held, 5, s5)
            store_row(held, 6, s6)
            store_row(held, 7, s7)

    arguments = (u64, u64, u64, u64, u64, u64, i32, u64, i32, u64, f32, u64)
    return KernelSource(kernel, arguments, KernelOptions(max_threads=DELTA_THREADS))


@cuda.jit(device=True, forceinline=True)
def advance(s, k, alpha, strength, v):
    """One row's step: S = alpha S + beta (v - alpha S.k) k, over four columns of a lane."""
    delta = strength * ptx.fma_rn(-alpha, warp_sum(dot4(s, k)), v)
    return (
        ptx.fma_rn(delta, k[0], alpha * s[0]),
        ptx.fma_rn(delta, k[1], alpha * s[1]),
        ptx.fma_rn(delta, k[2], alpha * s[2]),
        ptx.fma_rn(delta, k[3], alpha * s[3]),
    )


@cuda.jit(device=True, forceinline=True)
def gated(low, high, factor, gain, z):
    """Two outputs: value / rms * gain * SiLU(z)."""
    zl, zh = ptx.f32_of_bf16_low(z), ptx.f32_of_bf16_high(z)
    return ptx.cvt_rn_bf16x2_f32(
        low * factor * ptx.f32_of_bf16_low(gain) * zl * sigmoid(zl),
        high * factor * ptx.f32_of_bf16_high(gain) * zh * sigmoid(zh),
    )


@cuda.jit(device=True, forceinline=True)
def store_row(held, row, s):
    ptx.st_global_v4_f32(ptx.at(held, int64(row * DIM * 4)), s[0], s[1], s[2], s[3])


def convolve_spec(channels: int, *, store_history: bool = True, emit: bool = True) -> KernelSpec:
    return KernelSpec.of(convolve, channels=channels, store_history=store_history, emit=emit)


def delta_spec(key_heads: int, value_heads: int, *, store_state: bool = True, emit: bool = True) -> KernelSpec:
    return KernelSpec.of(delta_rule, key_heads=key_heads, value_heads=value_heads, store_state=store_state, emit=emit)
