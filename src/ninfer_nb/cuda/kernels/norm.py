"""RMS norm with unit offset, one block a row.

Floor on H200: 4*T*H bytes; at one row it is the launch itself (10 KB at H = 5120).
"""

from __future__ import annotations

from numba import cuda
from numpy import float32, int32, int64

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.ptx import f32, i32, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

WARP = 32
VECTOR = 8  # bf16 values in one 16-byte access


@cuda.jit(device=True, forceinline=True)
def warp_sum(value):
    for shift in (16, 8, 4, 2, 1):
        value += cuda.shfl_xor_sync(0xFFFFFFFF, value, shift)
    return value


@cuda.jit(device=True, forceinline=True)
def square_sum(words):
    """Sum of the squares of eight bf16 values."""
    total = float32(0)
    for i in range(4):
        low, high = ptx.f32_of_bf16_low(words[i]), ptx.f32_of_bf16_high(words[i])
        total += low * low + high * high
    return total


@cuda.jit(device=True, forceinline=True)
def scaled(word, gain, factor):
    """Two bf16 values of `word`, times factor and (1 + gain)."""
    low = ptx.f32_of_bf16_low(word) * factor * (ptx.f32_of_bf16_low(gain) + float32(1))
    high = ptx.f32_of_bf16_high(word) * factor * (ptx.f32_of_bf16_high(gain) + float32(1))
    return ptx.cvt_rn_bf16x2_f32(low, high)


def norm_threads(width: int) -> int:
    """Threads of a block: one 16-byte vector each while that fits."""
    return min(1024, -(-width // (VECTOR * WARP)) * WARP)


def rms_norm(*, width: int) -> KernelSource:
    """x [T, width] bf16 (row stride ld) -> out (row stride ldo) = x * (1 + gain) / sqrt(mean(x^2) + eps).

    Grid (T, 1, 1), block `norm_threads(width)`. `width` is a multiple of 8. A row is read twice, the second time
    from L1.
    """
    threads = norm_threads(width)
    vectors = width // VECTOR
    steps = -(-vectors // threads)
    warps = threads // WARP

    def kernel(
        x,  # [T, width] bf16
        ld,  # elements between rows of x
        gain,  # [width] bf16
        eps,
        out,  # [T, width] bf16
        ldo,  # elements between rows of out
    ):
        partial = cuda.shared.array(WARP, f32)
        tid = int32(cuda.threadIdx.x)
        row = int64(cuda.blockIdx.x)
        source = ptx.at(x, row * int64(ld) * int64(2))
        target = ptx.at(out, row * int64(ldo) * int64(2))
        ptx.griddepcontrol_wait()
        total = float32(0)
        for step in range(steps):
            vector = tid + int32(step * threads)
            if vector < vectors:
                total += square_sum(ptx.ld_global_v4_u32(ptx.at(source, int64(vector) * int64(16))))
        total = warp_sum(total)
        if tid % WARP == 0:
            partial[tid // WARP] = total
        cuda.syncthreads()
        total = float32(0)
        for i in range(warps):
            total += partial[i]
        factor = ptx.rsqrt_approx(total / float32(width) + eps)
        ptx.griddepcontrol_launch_dependents()
        for step in range(steps):
            vector = tid + int32(step * threads)
            if vector < vectors:
                at = int64(vector) * int64(16)
                words = ptx.ld_global_v4_u32(ptx.at(source, at))
                gains = ptx.ld_global_nc_v4_u32(ptx.at(gain, at))
                ptx.st_global_v4_u32(
                    ptx.at(target, at),
                    scaled(words[0], gains[0], factor),
                    scaled(words[1], gains[1], factor),
                    scaled(words[2], gains[2], factor),
                    scaled(words[3], gains[3], factor),
                )

    return KernelSource(kernel, (u64, i32, u64, f32, u64, i32), KernelOptions(max_threads=threads))


def norm_spec(width: int) -> KernelSpec:
    return KernelSpec.of(rms_norm, width=width)
