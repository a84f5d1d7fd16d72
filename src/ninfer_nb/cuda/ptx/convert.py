"""Conversions between float32 and the short formats (PTX ISA 9.7.9.22, cvt), one value or packed.

Packed forms take and return (low, high): the first argument lands in the low bits, unlike the instruction's operand
order. All round to nearest even; FP8 and FP4 saturate. e2m1 instructions exist on sm_120a only, the rest on both.
"""

from __future__ import annotations

from ninfer_nb.cuda.ptx.factory import f32, i32, instruction, u16, u32

# bfloat16: widening is a move, so it costs no conversion
f32_of_bf16 = instruction("f32_of_bf16", "{ .reg .b16 z; mov.b16 z, 0; mov.b32 $0, {z, $1}; }", [u16], f32)
f32_of_bf16_low = instruction("f32_of_bf16_low", "shl.b32 $0, $1, 16;", [u32], f32, doc="low half of a bf16x2")
f32_of_bf16_high = instruction("f32_of_bf16_high", "and.b32 $0, $1, 0xFFFF0000;", [u32], f32, doc="high half")
cvt_rn_bf16_f32 = instruction("cvt_rn_bf16_f32", "cvt.rn.bf16.f32 $0, $1;", [f32], u16)
cvt_rn_bf16x2_f32 = instruction("cvt_rn_bf16x2_f32", "cvt.rn.bf16x2.f32 $0, $2, $1;", [f32, f32], u32)
round_bf16 = instruction(
    "round_bf16",
    "{ .reg .b16 h, z; mov.b16 z, 0; cvt.rn.bf16.f32 h, $1; mov.b32 $0, {z, h}; }",
    [f32], f32, doc="float32 rounded to a bfloat16 value: a public BF16 boundary inside a kernel",
)  # fmt: skip

# float16
cvt_f32_f16 = instruction("cvt_f32_f16", "cvt.f32.f16 $0, $1;", [u16], f32)
cvt_rn_f16_f32 = instruction("cvt_rn_f16_f32", "cvt.rn.f16.f32 $0, $1;", [f32], u16)
cvt_rn_f16x2_f32 = instruction("cvt_rn_f16x2_f32", "cvt.rn.f16x2.f32 $0, $2, $1;", [f32, f32], u32)
cvt_f32x2_f16x2 = instruction(
    "cvt_f32x2_f16x2", "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }", [u32], f32, 2
)

# FP8 e4m3
cvt_rn_satfinite_e4m3x2_f32 = instruction(
    "cvt_rn_satfinite_e4m3x2_f32", "cvt.rn.satfinite.e4m3x2.f32 $0, $2, $1;", [f32, f32], u16
)
cvt_rn_satfinite_e4m3x4_f32 = instruction(
    "cvt_rn_satfinite_e4m3x4_f32",
    "{ .reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, $2, $1; cvt.rn.satfinite.e4m3x2.f32 h, $4, $3; "
    "mov.b32 $0, {l, h}; }",
    [f32, f32, f32, f32], u32,
)  # fmt: skip
cvt_rn_f16x2_e4m3x2 = instruction("cvt_rn_f16x2_e4m3x2", "cvt.rn.f16x2.e4m3x2 $0, $1;", [u16], u32)
cvt_rn_f16x4_e4m3x4 = instruction(
    "cvt_rn_f16x4_e4m3x4",
    "{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.rn.f16x2.e4m3x2 $0, l; cvt.rn.f16x2.e4m3x2 $1, h; }",
    [u32], u32, 2,
)  # fmt: skip
cvt_f32x2_e4m3x2 = instruction(
    "cvt_f32x2_e4m3x2",
    "{ .reg .b32 t; .reg .b16 l, h; cvt.rn.f16x2.e4m3x2 t, $2; mov.b32 {l, h}, t; "
    "cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
    [u16], f32, 2,
)  # fmt: skip

# FP4 e2m1 (sm_120a): a byte holds (low nibble, high nibble)
cvt_rn_satfinite_e2m1x2_f32 = instruction(
    "cvt_rn_satfinite_e2m1x2_f32",
    "{ .reg .b8 t; cvt.rn.satfinite.e2m1x2.f32 t, $2, $1; cvt.u32.u8 $0, t; }",
    [f32, f32], u32,
)  # fmt: skip
cvt_rn_satfinite_e2m1x8_f32 = instruction(
    "cvt_rn_satfinite_e2m1x8_f32",
    "{ .reg .b8 a, b, c, d; cvt.rn.satfinite.e2m1x2.f32 a, $2, $1; cvt.rn.satfinite.e2m1x2.f32 b, $4, $3; "
    "cvt.rn.satfinite.e2m1x2.f32 c, $6, $5; cvt.rn.satfinite.e2m1x2.f32 d, $8, $7; mov.b32 $0, {a, b, c, d}; }",
    [f32] * 8, u32,
)  # fmt: skip
cvt_rn_f16x8_e2m1x8 = instruction(
    "cvt_rn_f16x8_e2m1x8",
    "{ .reg .b8 a, b, c, d; mov.b32 {a, b, c, d}, $4; cvt.rn.f16x2.e2m1x2 $0, a; cvt.rn.f16x2.e2m1x2 $1, b; "
    "cvt.rn.f16x2.e2m1x2 $2, c; cvt.rn.f16x2.e2m1x2 $3, d; }",
    [u32], u32, 4,
)  # fmt: skip

# integers
cvt_rni_s32_f32 = instruction("cvt_rni_s32_f32", "cvt.rni.s32.f32 $0, $1;", [f32], i32)
cvt_rn_f32_s32 = instruction("cvt_rn_f32_s32", "cvt.rn.f32.s32 $0, $1;", [i32], f32)
cvt_pack_sat_s8_s32 = instruction(  # cvt.pack (9.7.9.23) packs (first, second) into the low half above nothing
    "cvt_pack_sat_s8_s32",
    "{ .reg .b32 t; cvt.pack.sat.s8.s32.b32 t, $4, $3, 0; cvt.pack.sat.s8.s32.b32 $0, $2, $1, t; }",
    [i32, i32, i32, i32], u32, doc="four s32 saturated to s8, the first in the lowest byte",
)  # fmt: skip
