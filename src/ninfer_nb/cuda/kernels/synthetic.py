"""Fills device memory with made-up words that depend on their place only (`cli.md` 12, `--synthetic`).

The same bytes as `artifact.synthetic` makes on the host. Floor: the bytes written, at the card's write rate.
"""

from __future__ import annotations

from numba import cuda
from numpy import int64, uint32, uint64

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.sampling import mix
from ninfer_nb.cuda.ptx import i32, i64, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

THREADS = 256
WORDS = 4  # 8-byte words of one thread

BITS, INT8, E4M3, NOISE, HALF, WORD, COUNT = range(7)


def fill_words(*, kind: int) -> KernelSource:
    """Bytes [begin, begin + length) of `rows` rows `stride` bytes apart, relative to `base` (a multiple of 8).

    Grid (ceil(words / 1024), rows, 1), block 256; a thread fills four words, 256 apart.
    """

    @cuda.jit(device=True, forceinline=True)
    def byte_without(word, illegal, mask, flip):
        """Where a byte equals `illegal` under `mask`, flip some of its bits."""
        for i in range(8):
            byte = (word >> uint64(8 * i)) & uint64(0xFF)
            if (byte & uint64(mask)) == uint64(illegal):
                word ^= uint64(flip) << uint64(8 * i)
        return word

    @cuda.jit(device=True, forceinline=True)
    def shaped(word, index, parameter):
        if kind == INT8:
            return byte_without(word, 0x80, 0xFF, 0xFF)
        if kind == E4M3:
            return byte_without(word, 0x7F, 0x7F, 0x01)
        if kind == NOISE:
            return (word & uint64(0x807F807F807F807F)) | (uint64(parameter << 7) * uint64(0x0001000100010001))
        if kind == HALF:
            return uint64(uint32(parameter)) * uint64(0x0001000100010001)
        if kind == WORD:
            return uint64(uint32(parameter)) * uint64(0x0000000100000001)
        if kind == COUNT:
            return uint64(uint32(index * int64(2))) | (uint64(uint32(index * int64(2) + int64(1))) << uint64(32))
        return word

    def kernel(
        base,  # payload address
        start,  # hash of word 0
        begin,  # first byte
        length,  # bytes of a row
        stride,  # bytes between rows
        parameter,
    ):
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        low = begin + int64(cuda.blockIdx.y) * stride
        high = low + length
        for i in range(WORDS):
            step = (int64(cuda.blockIdx.x) * int64(WORDS) + int64(i)) * int64(THREADS) + int64(cuda.threadIdx.x)
            index = low // int64(8) + step
            at = index * int64(8)
            if at < high:
                word = shaped(mix(start + uint64(index)), index, parameter)
                if at >= low and at + int64(8) <= high:
                    ptx.st_global_u64(ptx.at(base, at), word)
                else:
                    for j in range(8):
                        if low <= at + int64(j) < high:
                            ptx.st_global_u8(ptx.at(base, at + int64(j)), uint32(word >> uint64(8 * j)) & uint32(0xFF))

    return KernelSource(kernel, (u64, u64, i64, i64, i64, i32), KernelOptions(max_threads=THREADS))


def fill_spec(kind: int) -> KernelSpec:
    return KernelSpec.of(fill_words, kind=kind)


def fill_grid(length: int, rows: int) -> tuple[int, int, int]:
    words = length // 8 + 2
    return -(-words // (THREADS * WORDS)), rows, 1
