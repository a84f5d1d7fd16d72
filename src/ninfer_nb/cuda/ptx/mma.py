"""Warp-level matrix instructions: mma.sync, ldmatrix, stmatrix, movmatrix (PTX ISA 9.7.14).

`d = mma_m16n8k16_f32_bf16(d, a0, a1, a2, a3, b0, b1)` with `d` a tuple of four float32. Fragments, lane = 4 g + t:
A registers hold rows (g, g+8, g, g+8) and k blocks (low, low, high, high); B registers column g, k blocks (low, high);
D holds (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1).
"""

from __future__ import annotations

from functools import cache

from ninfer_nb.cuda.ptx.factory import f32, i32, instruction, operands, u32


@cache
def mma(shape: str, types_: str, a_registers: int = 4, b_registers: int = 2):
    """mma.sync.aligned.<shape>.row.col.<d.a.b.c types> (9.7.14.5)."""
    accumulator = i32 if types_.startswith("s32") else f32
    a, b = operands(8, a_registers), operands(8 + a_registers, b_registers)
    text = f"mma.sync.aligned.{shape}.row.col.{types_} {operands(0, 4)}, {a}, {b}, {operands(0, 4)};"
    name = f"mma_{shape}_{types_}".replace(".", "_")
    return instruction(name, text, [u32] * (a_registers + b_registers), accumulator, 4, tied=True, volatile=True)


mma_m16n8k8_f32_bf16 = mma("m16n8k8", "f32.bf16.bf16.f32", 2, 1)
mma_m16n8k16_f32_bf16 = mma("m16n8k16", "f32.bf16.bf16.f32")
mma_m16n8k16_f32_f16 = mma("m16n8k16", "f32.f16.f16.f32")
mma_m16n8k8_f32_tf32 = mma("m16n8k8", "f32.tf32.tf32.f32")
mma_m16n8k32_s32_s8_s8 = mma("m16n8k32", "s32.s8.s8.s32")
mma_m16n8k32_s32_u8_s8 = mma("m16n8k32", "s32.u8.s8.s32")
mma_m16n8k32_f32_e4m3 = mma("m16n8k32", "f32.e4m3.e4m3.f32")  # native on sm_120, emulated with f16 on sm_90

# 9.7.14.5.14 with block scaling, sm_120a: A, B are e2m1 with one ue4m3 scale per 16 of k. The scale operands hold the
# four scales of one row (A) or column (B) of this k64 block; byte and thread selectors are 0, so lanes t = 0, 1 supply
# A's rows g, g+8 and lane t = 0 supplies B's column g.
mma_m16n8k64_f32_e2m1_ue4m3 = instruction(
    "mma_m16n8k64_f32_e2m1_ue4m3",
    "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3 "
    "{$0,$1,$2,$3}, {$8,$9,$10,$11}, {$12,$13}, {$0,$1,$2,$3}, {$14}, {0, 0}, {$15}, {0, 0};",
    [u32] * 8, f32, 4, tied=True, volatile=True,
)  # fmt: skip

# ldmatrix (9.7.14.5.15): lane l gives the address of row l % 8 of matrix l / 8 (16 bytes, in shared memory)
ldmatrix_x1 = instruction(
    "ldmatrix_x1", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {$0}, [$1];", [u32], u32, memory=True
)
ldmatrix_x2 = instruction(
    "ldmatrix_x2", "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {$0,$1}, [$2];", [u32], u32, 2, memory=True
)
ldmatrix_x4 = instruction(
    "ldmatrix_x4", "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0,$1,$2,$3}, [$4];", [u32], u32, 4, memory=True
)
ldmatrix_x2_trans = instruction(
    "ldmatrix_x2_trans", "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {$0,$1}, [$2];", [u32], u32, 2, memory=True
)
ldmatrix_x4_trans = instruction(
    "ldmatrix_x4_trans", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {$0,$1,$2,$3}, [$4];",
    [u32], u32, 4, memory=True,
)  # fmt: skip
# stmatrix (9.7.14.5.16), movmatrix (9.7.14.5.17)
stmatrix_x2 = instruction(
    "stmatrix_x2", "stmatrix.sync.aligned.m8n8.x2.shared.b16 [$0], {$1,$2};", [u32] * 3, memory=True
)
stmatrix_x4 = instruction(
    "stmatrix_x4", "stmatrix.sync.aligned.m8n8.x4.shared.b16 [$0], {$1,$2,$3,$4};", [u32] * 5, memory=True
)
stmatrix_x4_trans = instruction(
    "stmatrix_x4_trans", "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [$0], {$1,$2,$3,$4};", [u32] * 5, memory=True
)
movmatrix_trans = instruction(
    "movmatrix_trans", "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", [u32], u32, volatile=True
)
