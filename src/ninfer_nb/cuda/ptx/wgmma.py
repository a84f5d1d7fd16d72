"""Warpgroup matrix multiply (PTX ISA 9.7.15), sm_90a only.

A whole stage is ONE asm block: fence, the k steps, commit, wait. Accumulators that cross asm blocks while a group is
in flight make ptxas serialise the instructions (C7515). For two products in flight, compose `steps()` of both in a
block of your own and give it to `instruction`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ninfer_nb.cuda.ptx.factory import f32, i32, instruction, ir, operands, plain, u32, u64


@dataclass(frozen=True)
class Operands:
    """What one wgmma multiplies: PTX type names, k per instruction, whether operands may be transposed."""

    types: str
    k: int
    transposable: bool
    integer: bool = False


BF16 = Operands("f32.bf16.bf16", 16, True)
F16 = Operands("f32.f16.f16", 16, True)
E4M3 = Operands("f32.e4m3.e4m3", 32, False)
S8 = Operands("s32.s8.s8", 32, False, integer=True)
U8S8 = Operands("s32.u8.s8", 32, False, integer=True)

FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"

wgmma_fence = instruction("wgmma_fence", FENCE, memory=True)
wgmma_commit_group = instruction("wgmma_commit_group", COMMIT, memory=True)


def wait(pending: int) -> str:
    return f"wgmma.wait_group.sync.aligned {pending};"


@cache
def wgmma_wait_group(pending: int):
    return instruction(f"wgmma_wait_group_{pending}", wait(pending), memory=True)


def steps(
    kind: Operands, n: int, count: int, accumulators: str, a: str | list[str], b: str, *,
    scale_d: str = "1", a_step: int = 2, b_step: int = 2, trans_a: int = 0, trans_b: int = 0,
) -> str:  # fmt: skip
    """`count` m64 x n wgmma of one stage, as text.

    a: a .u64 register with a descriptor, or one register list per step. b: a descriptor's register.
    Descriptor registers are advanced in place by `a_step` and `b_step`, in units of 16 bytes: 2 along a
    128-byte-swizzled K-major row. scale_d: "1", or a predicate that is false for D = A B in the first step.
    """
    lines = []
    for i in range(count):
        a_operand = a if isinstance(a, str) else a[i]
        scales = "" if kind.integer else ", 1, 1"
        if kind.transposable:
            scales += f", {trans_b}" if isinstance(a, list) else f", {trans_a}, {trans_b}"
        scale = scale_d if i == 0 else "1"
        lines.append(
            f"wgmma.mma_async.sync.aligned.m64n{n}k{kind.k}.{kind.types} "
            f"{accumulators}, {a_operand}, {b}, {scale}{scales};"
        )
        if i + 1 < count:
            lines.append(f"add.u64 {a}, {a}, {a_step};" if isinstance(a, str) else "")
            lines.append(f"add.u64 {b}, {b}, {b_step};")
    return "\n".join(line for line in lines if line)


@cache
def wgmma_stage(
    kind: Operands, n: int, k: int, *, a_registers: bool = False, pending: int | None = 0, zero_first: bool = False,
    a_step: int = 2, b_step: int = 2, trans_a: int = 0, trans_b: int = 0,
):  # fmt: skip
    """One stage of k elements as one asm block: D[64, n] += A[64, k] B[k, n].

    Call: `d = stage(d, desc_a, desc_b)`, d a tuple of n / 2 accumulators; with `a_registers` (the RS form)
    `stage(d, *a, desc_b)`, four u32 per k step; with `zero_first` one more u32, 0 for D = A B.
    pending: groups left in flight after the block; None leaves out the wait.
    """
    count, size = k // kind.k, n // 2
    first = 2 * size
    registers = 4 * count if a_registers else 1
    a = [operands(first + 4 * i, 4) for i in range(count)] if a_registers else "da"
    lines = ["{ .reg .u64 da, db; .reg .pred p;"]
    lines += [] if a_registers else [f"mov.u64 da, ${first};"]
    lines += [f"mov.u64 db, ${first + registers};"]
    lines += [f"setp.ne.u32 p, ${first + registers + 1}, 0;"] if zero_first else []
    text = steps(
        kind, n, count, operands(0, size), a, "db",
        scale_d="p" if zero_first else "1", a_step=a_step, b_step=b_step, trans_a=trans_a, trans_b=trans_b,
    )  # fmt: skip
    lines += [FENCE, text, COMMIT] + ([] if pending is None else [wait(pending)]) + ["}"]
    inputs = ([u32] * registers if a_registers else [u64]) + [u64] + [u32] * zero_first
    name = f"wgmma_m64n{n}k{k}_{kind.types.replace('.', '_')}{'_rs' * a_registers}"
    output = i32 if kind.integer else f32
    return instruction(name, "\n".join(lines), inputs, output, size, tied=True, memory=True)


def descriptor_high(*, stride_bytes: int = 1024, leading_bytes: int = 16, swizzle: int = 128) -> int:
    """The constant bits of a shared-memory matrix descriptor (9.7.15.5.1.2.2), for `descriptor`.

    stride_bytes: between groups of 8 rows (K-major) or of 8 k (MN-major). leading_bytes: between swizzle atoms along a
    row; ignored for a swizzled K-major operand whose stage is one atom wide.
    """
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle]
    return (leading_bytes >> 4) << 16 | (stride_bytes >> 4) << 32 | mode << 62


def _descriptor(builder, address, high):
    low = builder.lshr(builder.and_(address, ir.Constant(address.type, 0x3FFFF)), ir.Constant(address.type, 4))
    return builder.or_(builder.zext(low, ir.IntType(64)), high)


descriptor = plain("descriptor", [u32, u64], u64, _descriptor)
