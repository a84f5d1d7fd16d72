"""Decay and write strength of the gated delta net, from the a and b projections (`model.md` 8.2).

    g = -exp(a_log) * softplus(a + dt_bias),  beta = sigmoid(b)

The projections are narrow (96 rows at 27B) and BF16. `controls_rows` serves decode: one block a head and token, the
RMS norm of its input folded in. `controls_tile` serves prefill on tensor cores from normalised columns. Sums stay in
float32; nothing is rounded on the way.

Floor on H200, 27B: 1 MB of weights, 0.23 us; a chunk of 1,024 tokens also reads 10.5 MB, 2.6 us.
"""

from __future__ import annotations

import math

from numba import cuda
from numpy import float32, int32, int64

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.norm import VECTOR, warp_sum
from ninfer_nb.cuda.ptx import f32, i32, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

THREADS = 128
TILE_WARPS = 8
TILE_TOKENS = 8  # the n of one mma


@cuda.jit(device=True, forceinline=True)
def decay(a, a_log, dt_bias):
    u = a + dt_bias
    softplus = max(u, float32(0)) + math.log1p(math.exp(-abs(u)))
    return -math.exp(a_log) * softplus


@cuda.jit(device=True, forceinline=True)
def strength(b):
    return float32(1) / (float32(1) + math.exp(-b))


def controls_rows(*, width: int, heads: int) -> KernelSource:
    """x [T, width] bf16 -> g, beta [T, heads] f32, the norm of x included. Grid (heads, T, 1), block 128."""
    steps = -(-width // (THREADS * VECTOR))
    warps = THREADS // 32

    def kernel(
        x,  # [T, ld] bf16
        ld,
        gain,  # [width] bf16, unit offset
        eps,
        a,  # [heads, width] bf16
        b,  # [heads, width] bf16
        a_log,  # [heads] f32
        dt_bias,  # [heads] f32
        g,
        beta,
    ):
        partial = cuda.shared.array((3, warps), f32)
        tid = int32(cuda.threadIdx.x)
        head, token = int64(cuda.blockIdx.x), int64(cuda.blockIdx.y)
        source = ptx.at(x, token * int64(ld) * int64(2))
        row_a, row_b = ptx.at(a, head * int64(width * 2)), ptx.at(b, head * int64(width * 2))
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        squares, dot_a, dot_b = float32(0), float32(0), float32(0)
        for step in range(steps):
            vector = tid + int32(step * THREADS)
            if vector < width // VECTOR:
                at = int64(vector) * int64(16)
                xs = ptx.ld_global_v4_u32(ptx.at(source, at))
                gains = ptx.ld_global_nc_v4_u32(ptx.at(gain, at))
                wa = ptx.ld_global_nc_v4_u32(ptx.at(row_a, at))
                wb = ptx.ld_global_nc_v4_u32(ptx.at(row_b, at))
                for i in range(4):
                    low, high = ptx.f32_of_bf16_low(xs[i]), ptx.f32_of_bf16_high(xs[i])
                    squares += low * low + high * high
                    low *= ptx.f32_of_bf16_low(gains[i]) + float32(1)
                    high *= ptx.f32_of_bf16_high(gains[i]) + float32(1)
                    dot_a += low * ptx.f32_of_bf16_low(wa[i]) + high * ptx.f32_of_bf16_high(wa[i])
                    dot_b += low * ptx.f32_of_bf16_low(wb[i]) + high * ptx.f32_of_bf16_high(wb[i])
        squares, dot_a, dot_b = warp_sum(squares), warp_sum(dot_a), warp_sum(dot_b)
        if tid % 32 == 0:
            partial[0, tid // 32] = squares
            partial[1, tid // 32] = dot_a
            partial[2, tid // 32] = dot_b
        cuda.syncthreads()
        if tid == 0:
            for warp in range(1, warps):
                squares += partial[0, warp]
                dot_a += partial[1, warp]
                dot_b += partial[2, warp]
            factor = ptx.rsqrt_approx(squares / float32(width) + eps)
            at = (token * int64(heads) + head) * int64(4)
            log = ptx.ld_global_nc_f32(ptx.at(a_log, head * int64(4)))
            bias = ptx.ld_global_nc_f32(ptx.at(dt_bias, head * int64(4)))
            ptx.st_global_f32(ptx.at(g, at), decay(dot_a * factor, log, bias))
            ptx.st_global_f32(ptx.at(beta, at), strength(dot_b * factor))

    arguments = (u64, i32, u64, f32, u64, u64, u64, u64, u64, u64)
    return KernelSource(kernel, arguments, KernelOptions(max_threads=THREADS))


def controls_tile(*, width: int, heads: int) -> KernelSource:
    """h [T, width] bf16, normalised -> g, beta [T, heads] f32. Grid (ceil(T / 8), ceil(heads / 16), 1), block 256.

    A block computes a and b of 16 heads for 8 tokens; its warps split the columns, so that width is a multiple of
    128, and add their sums in a fixed order. Rows beyond the last head and tokens beyond T repeat the last one.
    """
    span = width // TILE_WARPS  # columns of one warp

    def kernel(
        h,  # [T, width] bf16
        count,  # T
        a,  # [heads, width] bf16
        b,  # [heads, width] bf16
        a_log,  # [heads] f32
        dt_bias,  # [heads] f32
        g,
        beta,
    ):
        sums = cuda.shared.array((TILE_WARPS, 256), f32)
        tid = int32(cuda.threadIdx.x)
        lane, warp = tid % int32(32), tid // int32(32)
        group, pair = lane // int32(4), lane % int32(4)
        token = min(int32(cuda.blockIdx.x) * int32(TILE_TOKENS) + group, count - int32(1))
        upper = int32(cuda.blockIdx.y) * int32(16) + group
        lower = min(upper + int32(8), int32(heads - 1))
        upper = min(upper, int32(heads - 1))
        column = int64(warp) * int64(span) + int64(pair) * int64(2)
        at_h = ptx.at(h, (int64(token) * int64(width) + column) * int64(2))
        upper_at = (int64(upper) * int64(width) + column) * int64(2)
        lower_at = (int64(lower) * int64(width) + column) * int64(2)
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        acc_a = (float32(0), float32(0), float32(0), float32(0))
        acc_b = (float32(0), float32(0), float32(0), float32(0))
        for step in range(span // 16):
            near, far = int64(step * 32), int64(step * 32 + 16)
            low, high = ptx.ld_global_u32(ptx.at(at_h, near)), ptx.ld_global_u32(ptx.at(at_h, far))
            rows = fragment(a, upper_at, lower_at, near, far)
            acc_a = ptx.mma_m16n8k16_f32_bf16(acc_a, rows[0], rows[1], rows[2], rows[3], low, high)
            rows = fragment(b, upper_at, lower_at, near, far)
            acc_b = ptx.mma_m16n8k16_f32_bf16(acc_b, rows[0], rows[1], rows[2], rows[3], low, high)
        for i in range(4):
            sums[warp, lane * 4 + i] = acc_a[i]
            sums[warp, 128 + lane * 4 + i] = acc_b[i]
        cuda.syncthreads()
        total = float32(0)
        for i in range(TILE_WARPS):
            total += sums[i, tid]
        # accumulator i of lane (group, pair) is row group + 8 * (i // 2), column 2 * pair + i % 2
        source = tid % int32(128)
        i, at_lane = source % int32(4), source // int32(4)
        head = int32(cuda.blockIdx.y) * int32(16) + at_lane // int32(4) + int32(8) * (i // int32(2))
        token = int32(cuda.blockIdx.x) * int32(TILE_TOKENS) + int32(2) * (at_lane % int32(4)) + i % int32(2)
        if head < heads and token < count:
            at = (int64(token) * int64(heads) + int64(head)) * int64(4)
            if tid < 128:
                log = ptx.ld_global_nc_f32(ptx.at(a_log, int64(head) * int64(4)))
                bias = ptx.ld_global_nc_f32(ptx.at(dt_bias, int64(head) * int64(4)))
                ptx.st_global_f32(ptx.at(g, at), decay(total, log, bias))
            else:
                ptx.st_global_f32(ptx.at(beta, at), strength(total))

    return KernelSource(kernel, (u64, i32, u64, u64, u64, u64, u64, u64), KernelOptions(max_threads=32 * TILE_WARPS))


@cuda.jit(device=True, forceinline=True)
def fragment(weights, upper, lower, near, far):
    """A operand of m16n8k16: rows (upper, lower), columns near and eight further on."""
    return (
        ptx.ld_global_nc_u32(ptx.at(weights, upper + near)),
        ptx.ld_global_nc_u32(ptx.at(weights, lower + near)),
        ptx.ld_global_nc_u32(ptx.at(weights, upper + far)),
        ptx.ld_global_nc_u32(ptx.at(weights, lower + far)),
    )


def controls_rows_spec(width: int, heads: int) -> KernelSpec:
    return KernelSpec.of(controls_rows, width=width, heads=heads)


def controls_tile_spec(width: int, heads: int) -> KernelSpec:
    return KernelSpec.of(controls_tile, width=width, heads=heads)
