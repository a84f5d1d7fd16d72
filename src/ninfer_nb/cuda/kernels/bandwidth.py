"""Reads a large buffer and keeps next to nothing: the read rate that every memory-bound kernel is held against."""

from __future__ import annotations

from numba import cuda
from numpy import int64, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.ptx import i64, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

THREADS = 512
LOADS = 8  # 16-byte loads in flight in a thread
BLOCK_BYTES = THREADS * LOADS * 16


def read_all() -> KernelSource:
    """XOR of `blocks` pieces of 64 KiB. Grid (any, 1, 1), block 512: a persistent walk over the pieces."""

    def kernel(source, blocks, out):
        total = uint32(0)
        piece = int64(cuda.blockIdx.x)
        while piece < blocks:
            at = ptx.at(source, piece * int64(BLOCK_BYTES) + int64(cuda.threadIdx.x) * int64(16))
            a = ptx.ld_global_nc_v4_u32(at)
            b = ptx.ld_global_nc_v4_u32(ptx.at(at, int64(1 * THREADS * 16)))
            c = ptx.ld_global_nc_v4_u32(ptx.at(at, int64(2 * THREADS * 16)))
            d = ptx.ld_global_nc_v4_u32(ptx.at(at, int64(3 * THREADS * 16)))
            e = ptx.ld_global_nc_v4_u32(ptx.at(at, int64(4 * THREADS * 16)))
            f = ptx.ld_global_nc_v4_u32(ptx.at(at, int64(5 * THREADS * 16)))
            g = ptx.ld_global_nc_v4_u32(ptx.at(at, int64(6 * THREADS * 16)))
            h = ptx.ld_global_nc_v4_u32(ptx.at(at, int64(7 * THREADS * 16)))
            for i in range(4):
                total ^= a[i] ^ b[i] ^ c[i] ^ d[i] ^ e[i] ^ f[i] ^ g[i] ^ h[i]
            piece += int64(cuda.gridDim.x)
        if total == uint32(0xDEADBEEF):  # practically never, but the loads must be kept
            ptx.st_global_u32(out, total)

    return KernelSource(kernel, (u64, i64, u64), KernelOptions(max_threads=THREADS))


def read_spec() -> KernelSpec:
    return KernelSpec.of(read_all)
