"""Stored weights to BF16 matrix operands in shared memory, 64 columns of a row at a time, for the many-row products.

A stage of a weight tile is rows of 128 bytes under the 128-byte swizzle: 16-byte part c of row r is at c xor (r mod 8),
as the copy engine lays it, so that wgmma and ldmatrix read it without conflicts.

Integer codes become exact BF16 integers (their bits in the mantissa of 128, the bias taken off), times their scale with
one rounding: q * low(s) + q * high(s), the two BF16 parts of a float16 scale. NVFP4 and FP8 values are exact: 4-bit
values times e4m3 scales have six significant bits. What is constant for a row (`row_factor`) is left to the output.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numpy import float32, int32, int64, uint16, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.ptx import instruction, u32

STAGE_COLUMNS = 64
ROW_BYTES = 2 * STAGE_COLUMNS


@dataclass(frozen=True)
class Stored:
    """Bytes of 64 columns of a row in each plane."""

    codes: int
    high: int = 0
    scales: str = "none"  # "group": f16 each 64; "pair": f16 each 32; "block": e4m3 each 16; "row": bf16 a row


STORED = {
    "Q4G64_F16S": Stored(32, 0, "group"),
    "Q5G64_F16S": Stored(32, 8, "group"),
    "Q6G64_F16S": Stored(32, 16, "group"),
    "W8G32_F16S": Stored(64, 0, "pair"),
    "NVFP4": Stored(32, 0, "block"),
    "FP8_E4M3FN_ROW_BF16S": Stored(64, 0, "row"),
}

# 8 pairs in the order (0,4) (1,5) (2,6) (3,7) to the order of columns
_IN_ORDER = (
    "prmt.b32 $0, p0, p1, 0x5410; prmt.b32 $1, p2, p3, 0x5410; prmt.b32 $2, p0, p1, 0x7632; "
    "prmt.b32 $3, p2, p3, 0x7632;"
)


def _scaled_integers(code: str, scale: str) -> str:
    """p0..p3 hold 128 + bias + q; to q * s with one rounding (of the small part's product another, far below)."""
    lines = []
    for i in range(4):
        lines.append(f"fma.rn.bf16x2 p{i}, p{i}, one, {code};")
        lines.append(f"mul.rn.bf16x2 t, p{i}, {scale}l; fma.rn.bf16x2 p{i}, p{i}, {scale}h, t;")
    return "\n".join(lines)


def _nibbles(magic: str) -> str:
    lines = ["shr.u32 a, $4, 4; shr.u32 b, $4, 8; shr.u32 c, $4, 12;"]
    lines += [f"lop3.b32 p{i}, {x}, 0x000F000F, {magic}, 0x6A;" for i, x in enumerate(("$4", "a", "b", "c"))]
    return "\n".join(lines)


def _integers(name: str, magic: str, bias: str, high: str = "", inputs: int = 3):
    """8 codes of a word -> 4 words of values. Inputs: word, scale high part, scale low part (both twice), high bits."""
    text = (
        "{ .reg .b32 a, b, c, t, p<4>, one, sh, sl; mov.b32 one, 0x3F803F80; mov.b32 sh, $5; mov.b32 sl, $6;\n"
        + _nibbles(magic) + high + f"mov.b32 a, {bias};\n" + _scaled_integers("a", "s") + _IN_ORDER + "}"
    )  # fmt: skip
    return instruction(name, text, [u32] * inputs, u32, 4)


def _one_high_bit() -> str:
    """Bit i of $7 belongs to code i: to bit 4 of its half."""
    lines = []
    for i in range(4):
        lines.append(f"mul.lo.u32 t, $7, {1 << (4 - i) | 1 << (16 - i)}; lop3.b32 p{i}, t, 0x00100010, p{i}, 0x6A;")
    return "\n".join(lines)


def _two_high_bits() -> str:
    """Bits 2 i of $7 (16 bits) belong to code i: to bits 4 and 5 of its half."""
    lines = ["prmt.b32 a, $7, 0, 0x4140;"]
    for i, shift in enumerate(("shl.b32 t, a, 4;", "shl.b32 t, a, 2;", "mov.b32 t, a;", "shr.u32 t, a, 2;")):
        lines.append(f"{shift} lop3.b32 p{i}, t, 0x00300030, p{i}, 0x6A;")
    return "\n".join(lines)


_q4 = _integers("bf16_of_q4", "0x43084308", "0xC308C308")
_q5 = _integers("bf16_of_q5", "0x43104310", "0xC310C310", _one_high_bit(), 4)
_q6 = _integers("bf16_of_q6", "0x43204320", "0xC320C320", _two_high_bits(), 4)

# e2m1 in bfloat16's last exponents is value * 2^-126; the factor holds 2^119 times the block's scale
_fp4 = instruction(
    "bf16_of_fp4",
    """{ .reg .b32 s, t, p<4>;
shl.b32 s, $4, 12; shl.b32 t, $4, 6; and.b32 s, s, 0x80008000; lop3.b32 p0, t, 0x01C001C0, s, 0xEA;
shl.b32 s, $4, 8; shl.b32 t, $4, 2; and.b32 s, s, 0x80008000; lop3.b32 p1, t, 0x01C001C0, s, 0xEA;
shl.b32 s, $4, 4; shr.u32 t, $4, 2; and.b32 s, s, 0x80008000; lop3.b32 p2, t, 0x01C001C0, s, 0xEA;
and.b32 s, $4, 0x80008000; shr.u32 t, $4, 6; lop3.b32 p3, t, 0x01C001C0, s, 0xEA;
mul.rn.bf16x2 p0, p0, $5; mul.rn.bf16x2 p1, p1, $5; mul.rn.bf16x2 p2, p2, $5; mul.rn.bf16x2 p3, p3, $5;
"""
    + _IN_ORDER + "}",
    [u32, u32], u32, 4,
)  # fmt: skip
FP4_UNIT = 2.0**7  # a stored value's weight over its operand

# e4m3 in bfloat16's last exponents is value * 2^-120
_E4M3 = """prmt.b32 t, ${word}, 0, {selector}; shr.u32 s, t, 4; and.b32 t, t, 0x80008000;
lop3.b32 t, s, 0x07F007F0, t, 0xEA; mul.rn.bf16x2 ${out}, t, k;"""
_fp8 = instruction(
    "bf16_of_fp8",
    "{ .reg .b32 s, t, k; mov.b32 k, 0x7B807B80;\n"
    + "\n".join(_E4M3.format(word=2, out=i, selector=s) for i, s in enumerate(("0x1404", "0x3424")))
    + "}",
    [u32], u32, 2,
)  # fmt: skip

_W8 = """{ .reg .b32 v, t; .reg .f32 f<4>, k; mov.f32 k, 0fCB000080; xor.b32 v, $2, 0x80808080;
prmt.b32 t, v, 0x4B000000, 0x7440; mov.b32 f0, t; prmt.b32 t, v, 0x4B000000, 0x7441; mov.b32 f1, t;
prmt.b32 t, v, 0x4B000000, 0x7442; mov.b32 f2, t; prmt.b32 t, v, 0x4B000000, 0x7443; mov.b32 f3, t;
add.f32 f0, f0, k; add.f32 f1, f1, k; add.f32 f2, f2, k; add.f32 f3, f3, k;
mul.f32 f0, f0, $3; mul.f32 f1, f1, $3; mul.f32 f2, f2, $3; mul.f32 f3, f3, $3;
cvt.rn.bf16x2.f32 $0, f1, f0; cvt.rn.bf16x2.f32 $1, f3, f2; }"""
_w8 = instruction("bf16_of_w8", _W8, [u32, ptx.f32], u32, 2)

_doubled = instruction("doubled_halves", "prmt.b32 $0, $1, 0, 0x1010;", [u32], u32)
_e4m3_to_f32 = instruction(
    "f32_of_e4m3",
    "{ .reg .b16 h, z; .reg .b32 t; cvt.u16.u32 h, $1; cvt.rn.f16x2.e4m3x2 t, h; "
    "mov.b32 {h, z}, t; cvt.f32.f16 $0, h; }",
    [u32], ptx.f32,
)  # fmt: skip
_half = instruction("f32_of_half_word", "{ .reg .b16 h; cvt.u16.u32 h, $1; cvt.f32.f16 $0, h; }", [u32], ptx.f32)
_u16 = instruction("ld_global_u16_word", "{ .reg .u16 t; ld.global.u16 t, [$1]; cvt.u32.u16 $0, t; }", [ptx.u64], u32)


@cuda.jit(device=True, forceinline=True)
def _scale_parts(scale):
    """float16 bits -> (high, low) BF16 parts, each in both halves."""
    s = _half(scale)
    high = uint32(ptx.cvt_rn_bf16_f32(s))
    rest = s - ptx.u32_as_f32(high << uint32(16))
    return _doubled(high), _doubled(uint32(ptx.cvt_rn_bf16_f32(rest)))


@cuda.jit(device=True, forceinline=True)
def _put(row_address, swizzle, part, words):
    """16 bytes to part `part` of a row."""
    place = row_address + ((int32(part) ^ swizzle) << int32(4))
    ptx.st_shared_v4_u32(uint32(place), words[0], words[1], words[2], words[3])


def fetch_of(format: str):
    """Device function fetch(codes, high, scales, row, step, steps) -> the words of 64 columns of a row.

    step: column / 64; steps: stored columns / 64. The words: codes, high bits, then one with the scales.
    """
    kind = STORED[format]
    code_bytes, high_bytes, scales_kind = kind.codes, kind.high, kind.scales

    @cuda.jit(device=True, forceinline=True)
    def scale_word(scales, row, step, steps):
        if scales_kind == "group":
            return _u16(ptx.at(scales, (row * steps + step) * int64(2)))
        if scales_kind == "pair":
            return ptx.ld_global_u32(ptx.at(scales, (row * steps + step) * int64(4)))
        if scales_kind == "block":
            tile = (row // int64(128)) * steps + step
            inside = (row % int64(32)) * int64(16) + (row // int64(32) % int64(4)) * int64(4)
            return ptx.ld_global_u32(ptx.at(scales, tile * int64(512) + inside))
        return uint32(0)

    @cuda.jit(device=True, forceinline=True)
    def four_bit(codes, high, scales, row, step, steps):
        at = row * steps + step
        source = ptx.at(codes, at * int64(code_bytes))
        a, b = ptx.ld_global_nc_v4_u32(source), ptx.ld_global_nc_v4_u32(ptx.at(source, int64(16)))
        s = scale_word(scales, row, step, steps)
        if high_bytes == 8:
            h = ptx.ld_global_nc_v2_u32(ptx.at(high, at * int64(8)))
            return (*a, *b, h[0], h[1], uint32(0), uint32(0), s)
        if high_bytes == 16:
            h = ptx.ld_global_nc_v4_u32(ptx.at(high, at * int64(16)))
            return (*a, *b, *h, s)
        return (*a, *b, uint32(0), uint32(0), uint32(0), uint32(0), s)

    @cuda.jit(device=True, forceinline=True)
    def eight_bit(codes, high, scales, row, step, steps):
        source = ptx.at(codes, (row * steps + step) * int64(code_bytes))
        a, b = ptx.ld_global_nc_v4_u32(source), ptx.ld_global_nc_v4_u32(ptx.at(source, int64(16)))
        c, d = ptx.ld_global_nc_v4_u32(ptx.at(source, int64(32))), ptx.ld_global_nc_v4_u32(ptx.at(source, int64(48)))
        return (*a, *b, *c, *d, scale_word(scales, row, step, steps))

    return four_bit if code_bytes == 32 else eight_bit


def put_of(format: str):
    """Device function put(row_address, swizzle, words): the fetched words as 64 BF16 values of a row."""

    @cuda.jit(device=True, forceinline=True)
    def q4(at, swizzle, w):
        h, l = _scale_parts(w[12])
        _put(at, swizzle, 0, _q4(w[0], h, l))
        _put(at, swizzle, 1, _q4(w[1], h, l))
        _put(at, swizzle, 2, _q4(w[2], h, l))
        _put(at, swizzle, 3, _q4(w[3], h, l))
        _put(at, swizzle, 4, _q4(w[4], h, l))
        _put(at, swizzle, 5, _q4(w[5], h, l))
        _put(at, swizzle, 6, _q4(w[6], h, l))
        _put(at, swizzle, 7, _q4(w[7], h, l))

    @cuda.jit(device=True, forceinline=True)
    def q5(at, swizzle, w):
        h, l = _scale_parts(w[12])
        byte = uint32(0xFF)
        _put(at, swizzle, 0, _q5(w[0], h, l, w[8] & byte))
        _put(at, swizzle, 1, _q5(w[1], h, l, (w[8] >> uint32(8)) & byte))
        _put(at, swizzle, 2, _q5(w[2], h, l, (w[8] >> uint32(16)) & byte))
        _put(at, swizzle, 3, _q5(w[3], h, l, w[8] >> uint32(24)))
        _put(at, swizzle, 4, _q5(w[4], h, l, w[9] & byte))
        _put(at, swizzle, 5, _q5(w[5], h, l, (w[9] >> uint32(8)) & byte))
        _put(at, swizzle, 6, _q5(w[6], h, l, (w[9] >> uint32(16)) & byte))
        _put(at, swizzle, 7, _q5(w[7], h, l, w[9] >> uint32(24)))

    @cuda.jit(device=True, forceinline=True)
    def q6(at, swizzle, w):
        h, l = _scale_parts(w[12])
        _put(at, swizzle, 0, _q6(w[0], h, l, w[8]))
        _put(at, swizzle, 1, _q6(w[1], h, l, w[8] >> uint32(16)))
        _put(at, swizzle, 2, _q6(w[2], h, l, w[9]))
        _put(at, swizzle, 3, _q6(w[3], h, l, w[9] >> uint32(16)))
        _put(at, swizzle, 4, _q6(w[4], h, l, w[10]))
        _put(at, swizzle, 5, _q6(w[5], h, l, w[10] >> uint32(16)))
        _put(at, swizzle, 6, _q6(w[6], h, l, w[11]))
        _put(at, swizzle, 7, _q6(w[7], h, l, w[11] >> uint32(16)))

    @cuda.jit(device=True, forceinline=True)
    def fp4_factor(scales, block):
        s = _e4m3_to_f32((scales >> uint32(8 * block)) & uint32(0xFF))
        return _doubled(uint32(ptx.cvt_rn_bf16_f32(s * float32(2.0**119))))

    @cuda.jit(device=True, forceinline=True)
    def fp4(at, swizzle, w):
        a, b, c, d = fp4_factor(w[12], 0), fp4_factor(w[12], 1), fp4_factor(w[12], 2), fp4_factor(w[12], 3)
        _put(at, swizzle, 0, _fp4(w[0], a))
        _put(at, swizzle, 1, _fp4(w[1], a))
        _put(at, swizzle, 2, _fp4(w[2], b))
        _put(at, swizzle, 3, _fp4(w[3], b))
        _put(at, swizzle, 4, _fp4(w[4], c))
        _put(at, swizzle, 5, _fp4(w[5], c))
        _put(at, swizzle, 6, _fp4(w[6], d))
        _put(at, swizzle, 7, _fp4(w[7], d))

    @cuda.jit(device=True, forceinline=True)
    def w8(at, swizzle, w):
        s, t = _half(w[16] & uint32(0xFFFF)), _half(w[16] >> uint32(16))
        _put(at, swizzle, 0, (*_w8(w[0], s), *_w8(w[1], s)))
        _put(at, swizzle, 1, (*_w8(w[2], s), *_w8(w[3], s)))
        _put(at, swizzle, 2, (*_w8(w[4], s), *_w8(w[5], s)))
        _put(at, swizzle, 3, (*_w8(w[6], s), *_w8(w[7], s)))
        _put(at, swizzle, 4, (*_w8(w[8], t), *_w8(w[9], t)))
        _put(at, swizzle, 5, (*_w8(w[10], t), *_w8(w[11], t)))
        _put(at, swizzle, 6, (*_w8(w[12], t), *_w8(w[13], t)))
        _put(at, swizzle, 7, (*_w8(w[14], t), *_w8(w[15], t)))

    @cuda.jit(device=True, forceinline=True)
    def fp8(at, swizzle, w):
        _put(at, swizzle, 0, (*_fp8(w[0]), *_fp8(w[1])))
        _put(at, swizzle, 1, (*_fp8(w[2]), *_fp8(w[3])))
        _put(at, swizzle, 2, (*_fp8(w[4]), *_fp8(w[5])))
        _put(at, swizzle, 3, (*_fp8(w[6]), *_fp8(w[7])))
        _put(at, swizzle, 4, (*_fp8(w[8]), *_fp8(w[9])))
        _put(at, swizzle, 5, (*_fp8(w[10]), *_fp8(w[11])))
        _put(at, swizzle, 6, (*_fp8(w[12]), *_fp8(w[13])))
        _put(at, swizzle, 7, (*_fp8(w[14]), *_fp8(w[15])))

    by_format = {"Q4G64_F16S": q4, "Q5G64_F16S": q5, "Q6G64_F16S": q6, "W8G32_F16S": w8, "NVFP4": fp4}
    return by_format.get(format, fp8)


def row_factor_of(format: str):
    """Device function factor(scales, divisor, row): what a row's products are still to be multiplied by."""

    @cuda.jit(device=True, forceinline=True)
    def one(scales, divisor, row):
        return float32(1)

    @cuda.jit(device=True, forceinline=True)
    def divided(scales, divisor, row):
        return float32(FP4_UNIT) / ptx.ld_global_nc_f32(divisor)

    @cuda.jit(device=True, forceinline=True)
    def scaled(scales, divisor, row):
        return ptx.f32_of_bf16(uint16(ptx.ld_global_nc_u16(ptx.at(scales, int64(row) * int64(2)))))

    return {"NVFP4": divided, "FP8_E4M3FN_ROW_BF16S": scaled}.get(format, one)
