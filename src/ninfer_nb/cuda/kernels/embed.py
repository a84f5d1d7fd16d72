"""Row gathers: token embeddings in every stored format, and plain BF16 rows.

Floor on H200: the bytes of T packed rows plus 2*T*H written; a few microseconds even for a prefill chunk.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numpy import float32, int32, int64, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.ptx import i32, i64, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

THREADS = 256
VECTOR = 8  # elements of one thread


@dataclass(frozen=True)
class Packing:
    """How eight neighbouring elements of a stored row are found (`artifact-format.md` 5.2 and 5.4)."""

    group: int  # elements per scale; 0: one scale a row
    code_bits: int  # bits per element in the code plane
    high_bits: int  # bits per element in the second plane


PACKINGS = {
    "BF16": Packing(0, 16, 0),
    "Q4G64_F16S": Packing(64, 4, 0),
    "Q5G64_F16S": Packing(64, 4, 1),
    "Q6G64_F16S": Packing(64, 4, 2),
    "W8G32_F16S": Packing(32, 8, 0),
    "FP8_E4M3FN_ROW_BF16S": Packing(0, 8, 0),
}


@cuda.jit(device=True, forceinline=True)
def signed(code, bits):
    """Two's complement of the low `bits` bits as float."""
    shift = int32(32 - bits)
    return float32(int32(code << uint32(shift)) >> shift)


@cuda.jit(device=True, forceinline=True)
def store8(address, values, scale):
    ptx.st_global_v4_u32(
        address,
        ptx.cvt_rn_bf16x2_f32(values[0] * scale, values[1] * scale),
        ptx.cvt_rn_bf16x2_f32(values[2] * scale, values[3] * scale),
        ptx.cvt_rn_bf16x2_f32(values[4] * scale, values[5] * scale),
        ptx.cvt_rn_bf16x2_f32(values[6] * scale, values[7] * scale),
    )


def _grouped_decoder(bits: int, high_bits: int):
    """Device function: eight codes and their high bits -> eight float32."""
    width = bits + high_bits
    mask = (1 << high_bits) - 1

    if bits == 8:

        @cuda.jit(device=True, forceinline=True)
        def decode(codes, high):
            low, up = codes[0], codes[1]
            return (
                signed(low, 8), signed(low >> uint32(8), 8), signed(low >> uint32(16), 8), signed(low >> uint32(24), 8),
                signed(up, 8), signed(up >> uint32(8), 8), signed(up >> uint32(16), 8), signed(up >> uint32(24), 8),
            )  # fmt: skip

        return decode

    @cuda.jit(device=True, forceinline=True)
    def lane(codes, high, i):
        code = (codes[0] >> uint32(4 * i)) & uint32(15)
        if high_bits:
            code |= ((high >> uint32(high_bits * i)) & uint32(mask)) << uint32(4)
        return signed(code, width)

    @cuda.jit(device=True, forceinline=True)
    def decode(codes, high):
        return (
            lane(codes, high, 0), lane(codes, high, 1), lane(codes, high, 2), lane(codes, high, 3),
            lane(codes, high, 4), lane(codes, high, 5), lane(codes, high, 6), lane(codes, high, 7),
        )  # fmt: skip

    return decode


@cuda.jit(device=True, forceinline=True)
def decode_e4m3(codes, high):
    a, b = ptx.cvt_f32x2_f16x2(ptx.cvt_rn_f16x4_e4m3x4(codes[0])[0])
    c, d = ptx.cvt_f32x2_f16x2(ptx.cvt_rn_f16x4_e4m3x4(codes[0])[1])
    e, f = ptx.cvt_f32x2_f16x2(ptx.cvt_rn_f16x4_e4m3x4(codes[1])[0])
    g, h = ptx.cvt_f32x2_f16x2(ptx.cvt_rn_f16x4_e4m3x4(codes[1])[1])
    return a, b, c, d, e, f, g, h


def embed_rows(*, format: str, width: int) -> KernelSource:
    """ids [T] i32 -> out [T, width] bf16: stored row times its scales, rounded once.

    Grid (T, ceil(width / 2048), 1), block 256; a thread decodes eight neighbours. `width` is a multiple of 8.
    Addresses of planes that the format lacks are ignored.
    """
    packing = PACKINGS[format]
    padded = -(-width // 128) * 128 if packing.group else width
    groups = padded // packing.group if packing.group else 1
    code_bytes, high_bytes = padded * packing.code_bits // 8, padded * packing.high_bits // 8
    direct, fp8 = format == "BF16", format.startswith("FP8")
    code_bits, high_bits = packing.code_bits, packing.high_bits
    group = packing.group or width
    decode = decode_e4m3 if fp8 else _grouped_decoder(code_bits, high_bits)

    def kernel(
        ids,  # [T] i32
        codes,  # code plane
        high,  # second plane of Q5 and Q6
        scales,  # f16 [rows, groups], or bf16 [rows]
        out,  # [T, width] bf16
    ):
        column = (int32(cuda.blockIdx.y) * int32(THREADS) + int32(cuda.threadIdx.x)) * int32(VECTOR)
        if column >= width:
            return
        token = int64(cuda.blockIdx.x)
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        row = int64(max(ptx.ld_global_s32(ptx.at(ids, token * int64(4))), int32(0)))
        target = ptx.at(out, (token * int64(width) + int64(column)) * int64(2))
        source = ptx.at(codes, row * int64(code_bytes) + int64(column * code_bits // 8))
        if direct:
            words = ptx.ld_global_nc_v4_u32(source)
            ptx.st_global_v4_u32(target, words[0], words[1], words[2], words[3])
            return
        packed = (ptx.ld_global_nc_u32(source), uint32(0))
        if code_bits == 8:
            packed = ptx.ld_global_nc_v2_u32(source)
        bits = uint32(0)
        if high_bits == 1:
            bits = ptx.ld_global_nc_u8(ptx.at(high, row * int64(high_bytes) + int64(column // 8)))
        elif high_bits == 2:
            bits = ptx.ld_global_nc_u16(ptx.at(high, row * int64(high_bytes) + int64(column // 4)))
        word = ptx.ld_global_nc_u16(ptx.at(scales, (row * int64(groups) + int64(column // group)) * int64(2)))
        if fp8:
            scale = ptx.f32_of_bf16_low(word)
        else:
            scale = ptx.cvt_f32x2_f16x2(word)[0]
        store8(target, decode(packed, bits), scale)

    return KernelSource(kernel, (u64, u64, u64, u64, u64), KernelOptions(max_threads=THREADS))


def embed_spec(format: str, width: int) -> KernelSpec:
    return KernelSpec.of(embed_rows, format=format, width=width)


def copy_rows(*, gather: bool) -> KernelSource:
    """out[i] = x[index[i]] (gather) or out[index[i]] = x[i], rows of 16-byte vectors.

    Grid (rows, 1, 1), block 256. Row strides in bytes.
    """

    def kernel(
        x,
        x_stride,
        index,  # [rows] i32
        out,
        out_stride,
        vectors,  # 16-byte vectors in a row
    ):
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        here = int64(cuda.blockIdx.x)
        there = int64(ptx.ld_global_s32(ptx.at(index, here * int64(4))))
        if gather:
            source, target = ptx.at(x, there * x_stride), ptx.at(out, here * out_stride)
        else:
            source, target = ptx.at(x, here * x_stride), ptx.at(out, there * out_stride)
        vector = int32(cuda.threadIdx.x)
        while vector < vectors:
            words = ptx.ld_global_v4_u32(ptx.at(source, int64(vector) * int64(16)))
            ptx.st_global_v4_u32(ptx.at(target, int64(vector) * int64(16)), words[0], words[1], words[2], words[3])
            vector += int32(THREADS)

    return KernelSource(kernel, (u64, i64, u64, u64, i64, i32), KernelOptions(max_threads=THREADS))


def lookup_rows() -> KernelSource:
    """index [n] i32 becomes table [index]; negative entries stay. Grid (ceil(n / 256), 1, 1), block 256."""

    def kernel(table, index, count):
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        i = int32(cuda.blockIdx.x) * int32(THREADS) + int32(cuda.threadIdx.x)
        if i < count:
            cell = ptx.at(index, int64(i) * int64(4))
            at = ptx.ld_global_s32(cell)
            if at >= 0:
                ptx.st_global_s32(cell, ptx.ld_global_s32(ptx.at(table, int64(at) * int64(4))))

    return KernelSource(kernel, (u64, u64, i32), KernelOptions(max_threads=THREADS))
