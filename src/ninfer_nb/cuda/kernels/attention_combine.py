"""The second half of split-key attention: one result from every block's, gated and rounded once (`model.md` 6)."""

from __future__ import annotations

from numba import cuda
from numpy import float32, int32, int64, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels import attention_tiles as tiles
from ninfer_nb.cuda.kernels.attention_tiles import DIM, NEGATIVE_INFINITY, ROWS, STEP
from ninfer_nb.cuda.kernels.gdn_recurrent import sigmoid, valid_columns
from ninfer_nb.cuda.ptx import f32, i32, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource

THREADS = 256
PARTIAL = ROWS * (DIM + 2)  # float32 of one block's result: [16][256] sums, [16] maxima, [16] denominators


def combine(*, group: int, kv_heads: int, warps: int) -> KernelSource:
    """out = sum of the splits' results / their denominators * sigmoid(gate), rounded once.

    Grid (Hq, T, 1), block 256: four teams of 64 threads take every fourth split, a thread four dims.
    """
    teams = THREADS // 64

    def kernel(
        partial,  # [B, Hkv * chunks, splits, PARTIAL] f32
        splits,
        valid,  # [B] i32, or 0
        cache_positions,  # [T] i32
        width,
        int8_shift,  # factor of the sums: 1, or 2^-7
        gate,  # [T, ldg] bf16
        ldg,
        out,  # [T, ldo] bf16
        ldo,
    ):
        meeting = cuda.shared.array((teams, 64, 5), f32)
        tid = int32(cuda.threadIdx.x)
        team, part = tid // int32(64), tid % int32(64)
        head, column = int32(cuda.blockIdx.x), int32(cuda.blockIdx.y)
        row = column // width
        packed = (column - row * width) * int32(group) + head % int32(group)
        chunk, local = packed // int32(ROWS), packed % int32(ROWS)
        chunks = (width * int32(group) + int32(ROWS - 1)) // int32(ROWS)
        block = (int64(row) * int64(kv_heads) * int64(chunks)) + int64(chunk * int32(kv_heads) + head // int32(group))
        live = valid_columns(valid, row, width)
        used = int32(0)
        if column - row * width < live:
            last = ptx.ld_global_s32(ptx.at(cache_positions, (int64(row) * int64(width) + int64(live - 1)) * int64(4)))
            used = min(int32(splits), int32(last // int32(STEP * warps) + int32(1)))
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        place = int64(column) * int64(ldg) + int64(head) * int64(DIM) + int64(part) * int64(4)
        gates = ptx.ld_global_v2_u32(ptx.at(gate, place * int64(2)))
        source = ptx.at(partial, block * int64(splits) * int64(4 * PARTIAL))
        top, total = NEGATIVE_INFINITY, float32(0)
        a = b = c = d = float32(0)
        for i in range(team, used, teams):
            one = ptx.at(source, int64(i) * int64(4 * PARTIAL))
            peak = ptx.ld_global_f32(ptx.at(one, int64(ROWS * DIM + local) * int64(4)))
            weight = ptx.ld_global_f32(ptx.at(one, int64(ROWS * (DIM + 1) + local) * int64(4)))
            x = ptx.ld_global_v4_f32(ptx.at(one, (int64(local) * int64(DIM) + int64(part) * int64(4)) * int64(4)))
            new = max(top, peak)
            old, fresh = ptx.ex2_approx(top - tiles.finite(new)), ptx.ex2_approx(peak - tiles.finite(new))
            total = total * old + weight * fresh
            a, b, c, d = a * old + x[0] * fresh, b * old + x[1] * fresh, c * old + x[2] * fresh, d * old + x[3] * fresh
            top = new
        if team > 0:
            meeting[team, part, 0], meeting[team, part, 1], meeting[team, part, 2] = a, b, c
            meeting[team, part, 3] = d
            if part == 0:
                meeting[0, team, 0], meeting[0, team, 1] = top, total
        cuda.syncthreads()
        if team > 0:
            return
        for i in range(1, teams):
            peak, weight = meeting[0, i, 0], meeting[0, i, 1]
            new = max(top, peak)
            old, fresh = ptx.ex2_approx(top - tiles.finite(new)), ptx.ex2_approx(peak - tiles.finite(new))
            total = total * old + weight * fresh
            a, b = a * old + meeting[i, part, 0] * fresh, b * old + meeting[i, part, 1] * fresh
            c, d = c * old + meeting[i, part, 2] * fresh, d * old + meeting[i, part, 3] * fresh
            top = new
        norm = float32(0)
        if used > 0:
            norm = int8_shift / total
        low = ptx.cvt_rn_bf16x2_f32(
            a * norm * sigmoid(ptx.f32_of_bf16_low(gates[0])), b * norm * sigmoid(ptx.f32_of_bf16_high(gates[0]))
        )
        high = ptx.cvt_rn_bf16x2_f32(
            c * norm * sigmoid(ptx.f32_of_bf16_low(gates[1])), d * norm * sigmoid(ptx.f32_of_bf16_high(gates[1]))
        )
        if used == 0:
            low = high = uint32(0)
        place = int64(column) * int64(ldo) + int64(head) * int64(DIM) + int64(part) * int64(4)
        ptx.st_global_v2_u32(ptx.at(out, place * int64(2)), low, high)

    arguments = (u64, i32, u64, u64, i32, f32, u64, i32, u64, i32)
    return KernelSource(kernel, arguments, KernelOptions(max_threads=THREADS))
