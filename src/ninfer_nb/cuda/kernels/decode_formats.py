"""Stored codes to 16-bit matrix operands, in registers: one decoder per format, shared by the matrix kernels.

Integer codes become float16 `base + code` by placing their bits in the mantissa of a constant, so that a decoded weight
is off by `bias`, which the caller takes off the sum (`artifact-format.md` 4.2, 4.3, 4.5). Knows nothing of layouts.

Decoders take eight bytes of codes as two words and return words of two values. "Interleaved" ones return the pairs
(0,4) (1,5) (2,6) (3,7) of each eight neighbours, because that is how shifted nibbles fall into halves; the others keep
the order. All are exact.
"""

from __future__ import annotations

from numba import cuda

from ninfer_nb.cuda.ptx import instruction, u32

# float16 1024 + 16 u: the nibble u lands in mantissa bits 4 to 7, so 16 (64 + u); bits 8 and 9 take the high plane.
# Shifting left may run on the multiply pipe, so there is one right shift per word.
_NIBBLES = """{{ .reg .b32 a, b, c;
shl.b32 a, $4, 4; shr.u32 b, $4, 8; shl.b32 c, b, 4;
lop3.b32 $0, a, 0x00F000F0, {magic}, 0x6A; lop3.b32 $1, $4, 0x00F000F0, {magic}, 0x6A;
lop3.b32 $2, c, 0x00F000F0, {magic}, 0x6A; lop3.b32 $3, b, 0x00F000F0, {magic}, 0x6A; }}"""

_signed_nibbles = instruction("signed_nibbles", _NIBBLES.format(magic="0x64806480"), [u32], u32, 4)
_low_nibbles_q5 = instruction("low_nibbles_q5", _NIBBLES.format(magic="0x65006500"), [u32], u32, 4)
_low_nibbles_q6 = instruction("low_nibbles_q6", _NIBBLES.format(magic="0x66006600"), [u32], u32, 4)

# eight high bits h (one a weight): bit i to mantissa bit 8 of pair i mod 4, the upper four into the upper half
_add_bits = instruction(
    "add_high_bits",
    """{ .reg .b32 a, b, c, d;
mul.lo.u32 a, $8, 0x00100100; mul.lo.u32 b, $8, 0x00080080;
mul.lo.u32 c, $8, 0x00040040; mul.lo.u32 d, $8, 0x00020020;
lop3.b32 $0, a, 0x01000100, $4, 0x6A; lop3.b32 $1, b, 0x01000100, $5, 0x6A;
lop3.b32 $2, c, 0x01000100, $6, 0x6A; lop3.b32 $3, d, 0x01000100, $7, 0x6A; }""",
    [u32, u32, u32, u32, u32], u32, 4,
)  # fmt: skip

# sixteen high bits (two a weight), spread as bytes 00 B1 00 B0
_ADD_CRUMBS = """{{ .reg .b32 y, a, b, c, d;
prmt.b32 y, $8, 0, {selector};
shl.b32 a, y, 8; shl.b32 b, y, 6; shl.b32 c, y, 4; shl.b32 d, y, 2;
lop3.b32 $0, a, 0x03000300, $4, 0x6A; lop3.b32 $1, b, 0x03000300, $5, 0x6A;
lop3.b32 $2, c, 0x03000300, $6, 0x6A; lop3.b32 $3, d, 0x03000300, $7, 0x6A; }}"""
_add_crumbs = [
    instruction(f"add_high_crumbs_{i}", _ADD_CRUMBS.format(selector=s), [u32] * 5, u32, 4)
    for i, s in enumerate(("0x4140", "0x4342"))
]
_add_crumbs_low, _add_crumbs_high = _add_crumbs

# e2m1 sits at the float16 exponent's end: value * 2^-14. Odd nibbles first become bytes, then halves.
_fp4 = instruction(
    "fp4_halves",
    """{ .reg .b32 t, s, u, a, b, l;
shr.u32 t, $4, 3; and.b32 s, $4, 0x80808080; lop3.b32 u, t, 0x0E0E0E0E, s, 0xEA;
shl.b32 a, $4, 4; shl.b32 b, $4, 1; and.b32 s, a, 0x80808080; lop3.b32 l, b, 0x0E0E0E0E, s, 0xEA;
prmt.b32 $0, l, 0, 0x2404; prmt.b32 $1, u, 0, 0x2404; and.b32 $2, l, 0xFF00FF00; and.b32 $3, u, 0xFF00FF00; }""",
    [u32], u32, 4,
)  # fmt: skip

# 1024 + (byte xor 0x80)
_bytes = instruction(
    "signed_bytes",
    """{ .reg .b32 v; xor.b32 v, $2, 0x80808080;
prmt.b32 $0, v, 0x64646464, 0x4140; prmt.b32 $1, v, 0x64646464, 0x4342; }""",
    [u32], u32, 2,
)  # fmt: skip
_e4m3 = instruction(
    "e4m3_halves",
    "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.rn.f16x2.e4m3x2 $0, l; cvt.rn.f16x2.e4m3x2 $1, h; }",
    [u32], u32, 2,
)  # fmt: skip

# an e4m3 block scale as both halves of a word: bits to the float16 exponent (2^-8), then times 2^15
fp4_scale = instruction(
    "fp4_scale",
    "{ .reg .b32 a, c; mul.lo.u32 a, $1, 0x00800080; mov.b32 c, 0x78007800; mul.rn.f16x2 $0, a, c; }",
    [u32], u32,
)  # fmt: skip
FP4_SCALED = 2.0**-7  # decoded and scaled NVFP4 weights are this times their value (2^-14 * 2^-8 * 2^15)


@cuda.jit(device=True, forceinline=True)
def decode_q4(low, up, high):
    """16 codes -> 16 (72 + q), interleaved. `high` is unused."""
    a, b = _signed_nibbles(low), _signed_nibbles(up)
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


@cuda.jit(device=True, forceinline=True)
def decode_q5(low, up, high):
    """16 codes and their 16 high bits -> 16 (80 + q), interleaved."""
    a, b = _low_nibbles_q5(low), _low_nibbles_q5(up)
    a = _add_bits(a[0], a[1], a[2], a[3], high & 0xFF)
    b = _add_bits(b[0], b[1], b[2], b[3], (high >> 8) & 0xFF)
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


@cuda.jit(device=True, forceinline=True)
def decode_q6(low, up, high):
    """16 codes and their 32 high bits -> 16 (96 + q), interleaved."""
    a, b = _low_nibbles_q6(low), _low_nibbles_q6(up)
    a = _add_crumbs_low(a[0], a[1], a[2], a[3], high)
    b = _add_crumbs_high(b[0], b[1], b[2], b[3], high)
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


@cuda.jit(device=True, forceinline=True)
def decode_w8(low, up, high):
    """8 codes -> 1152 + q, in order."""
    a, b = _bytes(low), _bytes(up)
    return a[0], a[1], b[0], b[1]


@cuda.jit(device=True, forceinline=True)
def decode_fp8(low, up, high):
    """8 codes -> their values, in order."""
    a, b = _e4m3(low), _e4m3(up)
    return a[0], a[1], b[0], b[1]


@cuda.jit(device=True, forceinline=True)
def decode_fp4(low, up):
    """16 codes -> value * 2^-14, interleaved."""
    a, b = _fp4(low), _fp4(up)
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


DECODERS = {
    "Q4G64_F16S": decode_q4,
    "Q5G64_F16S": decode_q5,
    "Q6G64_F16S": decode_q6,
    "W8G32_F16S": decode_w8,
    "FP8_E4M3FN_ROW_BF16S": decode_fp8,
    "NVFP4": decode_fp4,
}
BIAS = {"Q4G64_F16S": 1152.0, "Q5G64_F16S": 1280.0, "Q6G64_F16S": 1536.0, "W8G32_F16S": 1152.0}  # of a decoded weight
UNIT = {"Q4G64_F16S": 16.0, "Q5G64_F16S": 16.0, "Q6G64_F16S": 16.0, "W8G32_F16S": 1.0}  # decoded = bias + unit * code
