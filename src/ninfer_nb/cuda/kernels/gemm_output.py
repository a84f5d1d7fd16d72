"""How a 64 x 256 accumulator of a warpgroup becomes rows of the result: factors, activation, residual, one rounding.

A thread holds, of row g = lane / 4 and of row g + 8 of its warp's 16, two neighbours in each eight columns. Four such
eights are turned inside the four lanes of a row, so that each lane writes 16 contiguous bytes.
"""

from __future__ import annotations

from numba import cuda
from numpy import float32, int32, int64, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.gemm_weights import row_factor_of
from ninfer_nb.cuda.ptx import f32, instruction, u64

FULL = 0xFFFFFFFF
ACCUMULATORS = 128
CONSUMERS = 256  # threads
PARTIAL_BYTES = ACCUMULATORS * CONSUMERS * 4  # of a cut tile's sums


def _partials(store: bool) -> str:
    """[i][thread][4] floats at $address: thread's own address, 16 bytes a thread."""
    address = f"${ACCUMULATORS}" if store else f"${2 * ACCUMULATORS}"
    lines = [] if store else ["{ .reg .f32 t<16>;"]
    for i in range(0, ACCUMULATORS, 16):
        for j in range(4):
            at = f"[{address}+{(i // 4 + j) * CONSUMERS * 16}]"
            names = ", ".join(f"${i + 4 * j + e}" if store else f"t{4 * j + e}" for e in range(4))
            lines.append(f"st.global.v4.f32 {at}, {{{names}}};" if store else f"ld.global.v4.f32 {{{names}}}, {at};")
        if not store:
            lines += [f"add.f32 ${i + e}, ${i + e}, t{e};" for e in range(16)]
    return "\n".join(lines) + ("" if store else "}")


add_partials = instruction(
    "gemm_add_partials", _partials(store=False), [u64], f32, ACCUMULATORS, tied=True, memory=True
)  # fmt: skip
_store_sixteen = instruction(
    "gemm_store_sixteen",
    "\n".join(
        f"st.global.v4.f32 [$0+{j * CONSUMERS * 16}], {{{', '.join(f'${1 + 4 * j + e}' for e in range(4))}}};"
        for j in range(4)
    ),
    [u64] + [f32] * 16, memory=True,
)  # fmt: skip


@cuda.jit(device=True, forceinline=True)
def store_partials(acc, address):
    """The thread's sums where `add_partials` finds them."""
    step = int64(4 * CONSUMERS * 16)
    _store_sixteen(address, *acc[0:16])
    _store_sixteen(ptx.at(address, step), *acc[16:32])
    _store_sixteen(ptx.at(address, int64(2) * step), *acc[32:48])
    _store_sixteen(ptx.at(address, int64(3) * step), *acc[48:64])
    _store_sixteen(ptx.at(address, int64(4) * step), *acc[64:80])
    _store_sixteen(ptx.at(address, int64(5) * step), *acc[80:96])
    _store_sixteen(ptx.at(address, int64(6) * step), *acc[96:112])
    _store_sixteen(ptx.at(address, int64(7) * step), *acc[112:128])


@cuda.jit(device=True, forceinline=True)
def swapped(word, mask):
    return uint32(cuda.shfl_xor_sync(FULL, int32(word), mask))


@cuda.jit(device=True, forceinline=True)
def turned(a, b, c, d, lane):
    """Words a..d of eights 0..3 in four lanes -> the four words of eight lane % 4, in column order."""
    upper, odd = (lane & int32(2)) != 0, (lane & int32(1)) != 0
    r0, r1 = swapped(a if upper else c, 2), swapped(b if upper else d, 2)
    k0, k1 = (c if upper else a), (d if upper else b)
    x0, x1 = swapped(k0 if odd else k1, 1), swapped(r0 if odd else r1, 1)
    own, far = (k1 if odd else k0), (r1 if odd else r0)
    p, q = (x0 if odd else own), (own if odd else x0)  # lanes 0 and 1 of this half
    s, t = (x1 if odd else far), (far if odd else x1)
    return (s if upper else p), (t if upper else q), (p if upper else s), (q if upper else t)


def output_of(format: str, epilogue: str):
    """Device function write(acc, lane, rows, low, n, first, scales, divisor, out, ldo).

    rows: of x; low: this thread's row g; n: stored rows; first: the tile's first column of `out`. Epilogues: "store";
    "add" (out +=); "swiglu" (columns 0..127 of the tile are gates, 128..255 their partners).
    """
    swiglu, add, uniform = epilogue == "swiglu", epilogue == "add", format != "FP8_E4M3FN_ROW_BF16S"
    factor = row_factor_of(format)

    @cuda.jit(device=True, forceinline=True)
    def pair_factors(scales, divisor, column, n, common):
        if uniform:
            return common, common
        a = factor(scales, divisor, min(column, n - int32(1)))
        return a, factor(scales, divisor, min(column + int32(1), n - int32(1)))

    @cuda.jit(device=True, forceinline=True)
    def activated(gate, up):
        return gate / (float32(1) + ptx.ex2_approx(gate * float32(-1.4426950408889634))) * up

    @cuda.jit(device=True, forceinline=True)
    def summed(low, high, old):
        return ptx.cvt_rn_bf16x2_f32(
            ptx.u32_as_f32(low) + ptx.f32_of_bf16_low(old), ptx.u32_as_f32(high) + ptx.f32_of_bf16_high(old)
        )

    @cuda.jit(device=True, forceinline=True)
    def row_stored(w, row, rows, column, columns, lane, out, ldo):
        """Eight values of four eights of one row, written as BF16."""
        place = ptx.at(out, (int64(row) * int64(ldo) + int64(column)) * int64(2))
        pair = ptx.cvt_rn_bf16x2_f32
        x = turned(pair(w[0], w[1]), pair(w[2], w[3]), pair(w[4], w[5]), pair(w[6], w[7]), lane)
        if row < rows and column < columns:
            ptx.st_global_v4_u32(place, x[0], x[1], x[2], x[3])

    @cuda.jit(device=True, forceinline=True)
    def row_added(w, row, rows, column, columns, lane, out, ldo):
        """The same onto what is there: the sum is rounded once, so the turn moves f32 bits."""
        place = ptx.at(out, (int64(row) * int64(ldo) + int64(column)) * int64(2))
        bits = ptx.f32_as_u32
        l = turned(bits(w[0]), bits(w[2]), bits(w[4]), bits(w[6]), lane)
        h = turned(bits(w[1]), bits(w[3]), bits(w[5]), bits(w[7]), lane)
        if row < rows and column < columns:
            o = ptx.ld_global_v4_u32(place)
            ptx.st_global_v4_u32(
                place, summed(l[0], h[0], o[0]), summed(l[1], h[1], o[1]),
                summed(l[2], h[2], o[2]), summed(l[3], h[3], o[3]),
            )  # fmt: skip

    row_out = row_added if add else row_stored

    @cuda.jit(device=True, forceinline=True)
    def part(c, lane, rows, low, columns, column, f, out, ldo):
        """Four eights of two rows; `f` the factors of this lane's eight columns."""
        at = column + (lane & int32(3)) * int32(8)
        row_out(
            (c[0] * f[0], c[1] * f[1], c[4] * f[2], c[5] * f[3],
             c[8] * f[4], c[9] * f[5], c[12] * f[6], c[13] * f[7]),
            low, rows, at, columns, lane, out, ldo,
        )  # fmt: skip
        row_out(
            (c[2] * f[0], c[3] * f[1], c[6] * f[2], c[7] * f[3],
             c[10] * f[4], c[11] * f[5], c[14] * f[6], c[15] * f[7]),
            low + int32(8), rows, at, columns, lane, out, ldo,
        )  # fmt: skip

    @cuda.jit(device=True, forceinline=True)
    def factors(scales, divisor, column, n, common, lane):
        """Of columns 8 i + 2 t and the next, i = 0..3."""
        at = column + (lane & int32(3)) * int32(2)
        a, b = pair_factors(scales, divisor, at, n, common), pair_factors(scales, divisor, at + int32(8), n, common)
        c = pair_factors(scales, divisor, at + int32(16), n, common)
        d = pair_factors(scales, divisor, at + int32(24), n, common)
        return a[0], a[1], b[0], b[1], c[0], c[1], d[0], d[1]

    @cuda.jit(device=True, forceinline=True)
    def gated(g, u, f, h):
        return (
            activated(g[0] * f[0], u[0] * h[0]), activated(g[1] * f[1], u[1] * h[1]),
            activated(g[2] * f[0], u[2] * h[0]), activated(g[3] * f[1], u[3] * h[1]),
            activated(g[4] * f[2], u[4] * h[2]), activated(g[5] * f[3], u[5] * h[3]),
            activated(g[6] * f[2], u[6] * h[2]), activated(g[7] * f[3], u[7] * h[3]),
            activated(g[8] * f[4], u[8] * h[4]), activated(g[9] * f[5], u[9] * h[5]),
            activated(g[10] * f[4], u[10] * h[4]), activated(g[11] * f[5], u[11] * h[5]),
            activated(g[12] * f[6], u[12] * h[6]), activated(g[13] * f[7], u[13] * h[7]),
            activated(g[14] * f[6], u[14] * h[6]), activated(g[15] * f[7], u[15] * h[7]),
        )  # fmt: skip

    ones = tuple(float32(1) for _ in range(8))

    @cuda.jit(device=True, forceinline=True)
    def plain_part(acc, i, lane, rows, low, n, first, scales, divisor, common, out, ldo):
        column = first + int32(i)
        f = factors(scales, divisor, column, n, common, lane)
        part(acc, lane, rows, low, n, column, f, out, ldo)

    @cuda.jit(device=True, forceinline=True)
    def swiglu_part(gate, up, i, lane, rows, low, n, first, scales, divisor, common, out, ldo):
        half, column = n // int32(2), first + int32(i)
        f = factors(scales, divisor, column, n, common, lane)
        h = factors(scales, divisor, half + column, n, common, lane)
        part(gated(gate, up, f, h), lane, rows, low, half, column, ones, out, ldo)

    @cuda.jit(device=True, forceinline=True)
    def write(acc, lane, rows, low, n, first, scales, divisor, out, ldo):
        common = factor(scales, divisor, int32(0)) if uniform else float32(1)
        if swiglu:
            swiglu_part(acc[0:16], acc[64:80], 0, lane, rows, low, n, first, scales, divisor, common, out, ldo)
            swiglu_part(acc[16:32], acc[80:96], 32, lane, rows, low, n, first, scales, divisor, common, out, ldo)
            swiglu_part(acc[32:48], acc[96:112], 64, lane, rows, low, n, first, scales, divisor, common, out, ldo)
            swiglu_part(acc[48:64], acc[112:128], 96, lane, rows, low, n, first, scales, divisor, common, out, ldo)
        else:
            plain_part(acc[0:16], 0, lane, rows, low, n, first, scales, divisor, common, out, ldo)
            plain_part(acc[16:32], 32, lane, rows, low, n, first, scales, divisor, common, out, ldo)
            plain_part(acc[32:48], 64, lane, rows, low, n, first, scales, divisor, common, out, ldo)
            plain_part(acc[48:64], 96, lane, rows, low, n, first, scales, divisor, common, out, ldo)
            plain_part(acc[64:80], 128, lane, rows, low, n, first, scales, divisor, common, out, ldo)
            plain_part(acc[80:96], 160, lane, rows, low, n, first, scales, divisor, common, out, ldo)
            plain_part(acc[96:112], 192, lane, rows, low, n, first, scales, divisor, common, out, ldo)
            plain_part(acc[112:128], 224, lane, rows, low, n, first, scales, divisor, common, out, ldo)

    return write
