"""The arithmetic of one attention step on mma.sync: 16 query rows against 16 keys of one KV head, D = 256.

Shared by decode and by the portable prefill; knows nothing of pages, lengths or grids. Each step is a few blocks of
inline PTX, written by the functions here.

Shared-memory layout of 16 K or V rows (`Tile`): four rows, then 32 bytes of padding, so that bulk copies of four rows
fill it and 16-byte reads are free of bank conflicts without ldmatrix. The order of keys inside a step is free, so
column c of score tile j is row `4 ((c / 2 + 2 (c % 2)) % 4) + 2 j + c % 2`: the thread that holds a score also reads
that key's values. The order of dims inside a product is free too: a thread reads 16 contiguous bytes of a row.

INT8: codes become exact FP16 numbers; a key's scale is applied to the score of its 64 dims, a value's to the
probability (in FP16, times 2^7, so that small scales stay normal).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from numba import cuda
from numpy import float32, int32, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.ptx import f32, instruction, u32

DIM = 256
STEP = 16  # keys of one step
ROWS = 16  # query rows of one step
BLOCKS = 4  # a row's dims in blocks of 64, one 32-register accumulator each
VALUE_SHIFT = 128.0
NEGATIVE_INFINITY = float32(-float("inf"))


@dataclass(frozen=True)
class Tile:
    """Bytes of a 16-row tile in shared memory."""

    int8: bool

    @property
    def row(self) -> int:
        return DIM if self.int8 else 2 * DIM

    @property
    def quad(self) -> int:
        return 4 * self.row + 32

    @property
    def bytes(self) -> int:
        return 4 * self.quad

    @property
    def query_row(self) -> int:
        """Bytes between query rows, padded so that two rows' reads use different banks."""
        return 2 * DIM + (16 if self.int8 else 64)


def _mma(kind: str, d: list[str], a: list[str], b: list[str]) -> str:
    """d += a b."""
    names = [", ".join(part) for part in (d, a, b, d)]
    return f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 " + ", ".join(f"{{{n}}}" for n in names) + ";"


def _load4(target: str, address: str, offset: int) -> str:
    return f"ld.shared.v4.b32 {{{target}0, {target}1, {target}2, {target}3}}, [{address}+{offset}];"


@cache
def scores_bf16():
    """s = scores_bf16(q, k): scores of two key tiles, s[4 j + e], from the thread's query and key addresses."""
    tile = Tile(int8=False)
    s = [f"${i}" for i in range(8)]
    even = [f"e{i}" for i in range(8)]
    lines = ["{ .reg .b32 a<4>, c<4>, k<4>, l<4>; .reg .f32 e<8>;"]
    lines += [f"mov.f32 {r}, 0f00000000;" for r in s + even]
    for b in range(8):
        lines += [_load4("a", "$8", 64 * b), _load4("c", "$8", 8 * tile.query_row + 64 * b)]
        lines += [_load4("k", "$9", 64 * b), _load4("l", "$9", 2 * tile.row + 64 * b)]
        for half, into in ((0, s), (2, even)):
            query = [f"a{half}", f"c{half}", f"a{half + 1}", f"c{half + 1}"]
            lines.append(_mma("bf16", into[:4], query, [f"k{half}", f"k{half + 1}"]))
            lines.append(_mma("bf16", into[4:], query, [f"l{half}", f"l{half + 1}"]))
    lines += [f"add.f32 {r}, {r}, {t};" for r, t in zip(s, even, strict=True)] + ["}"]
    return instruction("attention_scores_bf16", "\n".join(lines), [u32, u32], f32, 8, memory=True)


def _f16_of_codes(low: str, high: str, bytes_: str) -> list[str]:
    """Four biased codes (u8 = code + 128) as FP16: (0, 1) in `low`, (2, 3) in `high`."""
    return [
        f"prmt.b32 {low}, {bytes_}, magic, 0x4140;", f"prmt.b32 {high}, {bytes_}, magic, 0x4342;",
        f"sub.f16x2 {low}, {low}, bias;", f"sub.f16x2 {high}, {high}, bias;",
    ]  # fmt: skip


_CONSTANTS = "mov.b32 magic, 0x64646464; mov.b32 bias, 0x64806480;"


@cache
def scores_int8():
    """s = scores_int8(q, k, *scales): scales[4 key + group] f32 of keys (tile 0 even, odd, tile 1 even, odd)."""
    tile = Tile(int8=True)
    s = [f"${i}" for i in range(8)]
    part = [f"e{i}" for i in range(8)]
    lines = ["{ .reg .b32 a<4>, c<4>, k<4>, l<4>, x<2>, y<2>, magic, bias; .reg .f32 e<8>;", _CONSTANTS]
    lines += [f"mov.f32 {r}, 0f00000000;" for r in s]
    for group in range(4):
        lines += [f"mov.f32 {r}, 0f00000000;" for r in part]
        lines += [_load4("k", "$9", 64 * group), _load4("l", "$9", 2 * tile.row + 64 * group)]
        for half in range(2):
            at = 128 * group + 16 * half
            lines += [_load4("a", "$8", at), _load4("c", "$8", 8 * tile.query_row + at)]
            for i in range(2):
                word = 2 * half + i
                query = [f"a{2 * i}", f"c{2 * i}", f"a{2 * i + 1}", f"c{2 * i + 1}"]
                for codes, fragment, into in (("k", "x", part[:4]), ("l", "y", part[4:])):
                    lines.append(f"xor.b32 {codes}{word}, {codes}{word}, 0x80808080;")
                    lines += _f16_of_codes(f"{fragment}0", f"{fragment}1", f"{codes}{word}")
                    lines.append(_mma("f16", into, query, [f"{fragment}0", f"{fragment}1"]))
        for i in range(8):
            scale = 10 + 4 * (2 * (i // 4) + i % 2) + group
            lines.append(f"fma.rn.f32 {s[i]}, {part[i]}, ${scale}, {s[i]};")
    inputs = [u32, u32] + [f32] * 16
    return instruction("attention_scores_int8", "\n".join([*lines, "}"]), inputs, f32, 8, memory=True)


@cache
def values_bf16(block: int):
    """o = values_bf16(b)(o, p0, p1, p2, p3, even, odd): 64 dims of the value product, o a tuple of 32."""
    tile = Tile(int8=False)
    even, odd = "$68", "$69"
    lines = ["{ .reg .b32 v<4>, w<4>, x<4>, y<4>, l, h;"]
    for j, (first, second) in enumerate((("v", "w"), ("x", "y"))):
        at = 2 * tile.row * j + 128 * block
        lines += [_load4(first, even, at), _load4(second, odd, at)]
    for i in range(8):
        select = "0x7632" if i % 2 else "0x5410"
        lines.append(f"prmt.b32 l, v{i // 2}, w{i // 2}, {select};")
        lines.append(f"prmt.b32 h, x{i // 2}, y{i // 2}, {select};")
        lines.append(_mma("bf16", [f"${4 * i + e}" for e in range(4)], ["$64", "$65", "$66", "$67"], ["l", "h"]))
    lines.append("}")
    return instruction(f"attention_values_bf16_{block}", "\n".join(lines), [u32] * 6, f32, 32, tied=True, memory=True)


@cache
def values_int8(block: int):
    """o = values_int8(b)(o, *p, *scales, even, odd): p 8 probabilities f32 as scores, scales of the four keys."""
    tile = Tile(int8=True)
    p, scale = [f"${64 + i}" for i in range(8)], [f"${72 + i}" for i in range(4)]
    even, odd = "$76", "$77"
    lines = ["{ .reg .b32 v<2>, w<2>, x<2>, y<2>, p<4>, l<4>, h<4>, s, magic, bias; .reg .f32 f, g;", _CONSTANTS]
    for j in range(2):
        for half in range(2):
            low, high = p[4 * j + 2 * half], p[4 * j + 2 * half + 1]
            lines.append(f"mul.f32 f, {low}, {scale[2 * j]}; mul.f32 g, {high}, {scale[2 * j + 1]};")
            lines.append(f"cvt.rn.f16x2.f32 p{2 * j + half}, g, f;")
    for j, (first, second) in enumerate((("v", "w"), ("x", "y"))):
        for target, address in ((first, even), (second, odd)):
            at = 2 * tile.row * j + 64 * block
            lines.append(f"ld.shared.v2.b32 {{{target}0, {target}1}}, [{address}+{at}];")
            lines += [f"xor.b32 {target}{word}, {target}{word}, 0x80808080;" for word in range(2)]
    for word in range(2):
        for pair, (first, second) in (("l", ("v", "w")), ("h", ("x", "y"))):
            for half, select in enumerate(("0x5140", "0x7362")):
                lines.append(f"prmt.b32 s, {first}{word}, {second}{word}, {select};")
                lines += _f16_of_codes(f"{pair}{2 * half}", f"{pair}{2 * half + 1}", "s")
        for i in range(4):
            d = [f"${16 * word + 4 * i + e}" for e in range(4)]
            lines.append(_mma("f16", d, ["p0", "p1", "p2", "p3"], [f"l{i}", f"h{i}"]))
    lines.append("}")
    inputs = [f32] * 12 + [u32] * 2
    return instruction(f"attention_values_int8_{block}", "\n".join(lines), inputs, f32, 32, tied=True, memory=True)


def _scale_text() -> str:
    return "\n".join(f"mul.f32 ${i}, ${i}, ${64 + i // 2 % 2};" for i in range(32))


scale_rows = instruction("attention_scale_rows", _scale_text(), [f32, f32], f32, 32, tied=True)
"""o = scale_rows(o, low, high): 64 dims of the accumulator, rows g by `low` and rows g + 8 by `high`."""

NOTHING = tuple(float32(0) for _ in range(32))


@cuda.jit(device=True, forceinline=True)
def quad_max(x):
    x = max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, 1))
    return max(x, cuda.shfl_xor_sync(0xFFFFFFFF, x, 2))


@cuda.jit(device=True, forceinline=True)
def quad_sum(x):
    x += cuda.shfl_xor_sync(0xFFFFFFFF, x, 1)
    return x + cuda.shfl_xor_sync(0xFFFFFFFF, x, 2)


@cuda.jit(device=True, forceinline=True)
def key_in_step(lane, tile, odd):
    """Row inside the step of the key whose scores this thread holds, `tile` and `odd` 0 or 1."""
    return int32(4) * ((lane % int32(4) + int32(2 * odd)) % int32(4)) + int32(2 * tile + odd)


@cuda.jit(device=True, forceinline=True)
def visible(score, key, position):
    return score if key <= position else NEGATIVE_INFINITY


@cuda.jit(device=True, forceinline=True)
def masked(s, first_key, lane, low, high):
    """Scores with the keys beyond the positions of rows g (`low`) and g + 8 (`high`) at minus infinity."""
    a, b = first_key + key_in_step(lane, 0, 0), first_key + key_in_step(lane, 0, 1)
    c, d = first_key + key_in_step(lane, 1, 0), first_key + key_in_step(lane, 1, 1)
    return (
        visible(s[0], a, low), visible(s[1], b, low), visible(s[2], a, high), visible(s[3], b, high),
        visible(s[4], c, low), visible(s[5], d, low), visible(s[6], c, high), visible(s[7], d, high),
    )  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def finite(x):
    """Zero for minus infinity: what may be subtracted from a row that has seen no key."""
    return float32(0) if x == NEGATIVE_INFINITY else x


@cuda.jit(device=True, forceinline=True)
def scaled(s, factor):
    return (
        s[0] * factor, s[1] * factor, s[2] * factor, s[3] * factor,
        s[4] * factor, s[5] * factor, s[6] * factor, s[7] * factor,
    )  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def maxima(s, low, high):
    """Row maxima after the step, in every thread of a row."""
    low = max(low, quad_max(max(max(s[0], s[1]), max(s[4], s[5]))))
    return low, max(high, quad_max(max(max(s[2], s[3]), max(s[6], s[7]))))


@cuda.jit(device=True, forceinline=True)
def probabilities(s, low, high):
    """2^(s - maximum) of the eight scores."""
    low, high = finite(low), finite(high)
    return (
        ptx.ex2_approx(s[0] - low), ptx.ex2_approx(s[1] - low), ptx.ex2_approx(s[2] - high),
        ptx.ex2_approx(s[3] - high), ptx.ex2_approx(s[4] - low), ptx.ex2_approx(s[5] - low),
        ptx.ex2_approx(s[6] - high), ptx.ex2_approx(s[7] - high),
    )  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def key_address(base, lane, tile):
    """Shared address of this thread's first 16 bytes of a key: column g of tile 0."""
    column = lane // int32(4)
    odd = column % int32(2)
    quad = (column // int32(2) + int32(2) * odd) % int32(4)
    return uint32(base + quad * int32(tile[1]) + odd * int32(tile[0]) + (lane % int32(4)) * int32(16))


@cuda.jit(device=True, forceinline=True)
def value_address(base, lane, tile, odd, width):
    """Shared address of this thread's first dims of the even or odd key of tile 0; `width` bytes for each g."""
    quad = (lane % int32(4) + int32(2 * odd)) % int32(4)
    return uint32(base + quad * int32(tile[1]) + int32(odd) * int32(tile[0]) + (lane // int32(4)) * int32(width))
