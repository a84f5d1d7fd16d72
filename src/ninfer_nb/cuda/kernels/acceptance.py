"""Acceptance of drafts on the device (`model.md` 13), and where the next drafts are made (11.3).

`sampling.select` with a width leaves each column's candidates; `judge` walks the columns of a row until one is refused.
Its results decide ids and positions of the kernels that follow in the same graph, so nothing waits for the host.
"""

from __future__ import annotations

from numba import cuda, types
from numpy import float32, int32, int64, uint32, uint64

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels.sampling import (
    BROKEN,
    CANDIDATES,
    THREADS,
    WARPS,
    merge_of,
    select,
    select_blocks,
    support_of,
    uniform,
)
from ninfer_nb.cuda.ptx import i32, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

u32 = types.uint32
CHOICE, STOP = 0, 1  # cells of the verdict in shared memory


@cuda.jit(device=True, forceinline=True)
def word(base, index):
    """i32 [index] of an array."""
    return ptx.ld_global_s32(ptx.at(base, int64(index) * int64(4)))


@cuda.jit(device=True, forceinline=True)
def put(base, index, value):
    ptx.st_global_s32(ptx.at(base, int64(index) * int64(4)), int32(value))


@cuda.jit(device=True, forceinline=True)
def place_of(tokens, support, token):
    """Index of `token` among the first `support` candidates, or -1."""
    found = int32(-1)
    for j in range(support):
        if int32(tokens[j]) == token:
            found = int32(j)
    return found


@cuda.jit(device=True, forceinline=True)
def draw_without(weights, support, mass, excluded, u):
    """Index drawn from the support without candidate `excluded` (-1: none): first cumulative mass above u * mass."""
    allowed, last = float32(0), int32(-1)
    for j in range(support):
        if j != excluded:
            allowed += weights[j] / mass
            last = int32(j)
    if allowed == float32(0):
        return int32(0)
    goal, cumulative, chosen = u * allowed, float32(0), last
    for j in range(support):
        if j != excluded:
            cumulative += weights[j] / mass
            if goal < cumulative:
                chosen = int32(j)
                break
    return chosen


def judge(*, domain: int, width: int, purposes: tuple[int, int, int]) -> KernelSource:
    """Fills an `ops.Verdict`. Grid (B, 1, 1), block 256; the drafting arrays are [width - 2, stride].

    `purposes` of the random draws: accept, correction, bonus.
    """
    accept, correction, bonus = purposes
    pool, merge, window = select_blocks(domain) * CANDIDATES, merge_of(domain), width - 1

    @cuda.jit(device=True, forceinline=True)
    def sampled(weights, tokens, kept, guess, top_k, top_p, min_p, seed, position):
        """(token, whether it ends the row) of one column; guess -1 where there is no draft."""
        support, mass = support_of(weights, kept, top_k, top_p, min_p)
        if guess < 0:
            u = uniform(seed, position, int32(bonus))
            return int32(tokens[draw_without(weights, support, mass, int32(-1), u)]), True
        place = place_of(tokens, support, guess)
        if place >= 0 and uniform(seed, position, int32(accept)) < weights[place] / mass:
            return guess, False
        u = uniform(seed, position, int32(correction))
        return int32(tokens[draw_without(weights, support, mass, place, u)]), True

    @cuda.jit(device=True, forceinline=True)
    def plan(row, count, position, remaining, delta, capacity, stride, draft_positions, draft_rope, draft_live):
        frontier = position + max(count, int32(1))
        extent = min(int32(window), remaining - max(count, int32(1)) - int32(1), capacity - frontier - int32(1))
        for step in range(window - 1):
            at = int64(step) * int64(stride) + row
            where = min(frontier + int32(step), capacity - int32(1))
            put(draft_positions, at, where)
            put(draft_rope, at, where + delta)
            put(draft_live, at, int32(1) if step + 1 < extent else int32(0))

    def kernel(
        found,  # as `select` wrote it
        ids,  # [B * width] i32
        extents, remaining, delta,  # [B] i32
        capacity,
        temperature, top_k, top_p, min_p, presence, frequency, seed, position, lanes,  # [B]
        tally,  # [C, domain] i32, or 0
        tokens_out,  # [B * width] i32
        counts_out,  # [B] i32
        aligned,  # [B * width] i32
        picks,  # [B] i32
        draft_positions, draft_rope, draft_live,
        stride,
    ):  # fmt: skip
        keys, identities = cuda.shared.array(WARPS, u32), cuda.shared.array(WARPS, u32)
        weights, tokens = cuda.shared.array(CANDIDATES, types.float32), cuda.shared.array(CANDIDATES, u32)
        verdict = cuda.shared.array(2, types.int32)
        tid, row = int32(cuda.threadIdx.x), int64(cuda.blockIdx.x)
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        at4 = row * int64(4)
        heat = ptx.ld_global_f32(ptx.at(temperature, at4))
        extent, start = word(extents, row), word(position, row)
        behind = int64(cuda.gridDim.x) * int64(width) * int64(pool * 4)
        first_line = row * int64(width)
        count, finite, column = int32(0), True, int32(0)
        while column <= extent:
            base = (first_line + int64(column)) * int64(pool * 4)
            kept, first = merge(found, base, behind, heat, keys, identities, weights, tokens)
            if first == uint32(BROKEN):
                finite = False
                break
            if tid == 0:
                guess = word(ids, first_line + int64(column + int32(1))) if column < extent else int32(-1)
                choice, stops = int32(tokens[0]), True
                if heat > float32(0):
                    choice, stops = sampled(
                        weights, tokens, kept, guess, word(top_k, row), ptx.ld_global_f32(ptx.at(top_p, at4)),
                        ptx.ld_global_f32(ptx.at(min_p, at4)), ptx.ld_global_u64(ptx.at(seed, row * int64(8))),
                        uint32(start + column + int32(1)),
                    )  # fmt: skip
                elif choice == guess:
                    stops = False
                verdict[CHOICE], verdict[STOP] = choice, int32(1) if stops else int32(0)
                put(tokens_out, first_line + int64(column), choice)
            cuda.syncthreads()
            stopped = verdict[STOP] != int32(0)
            count += int32(1)
            column += int32(1)
            cuda.syncthreads()
            if stopped:
                break
        if tid == 0:
            if not finite:
                count = int32(0)
            accepted = max(count - int32(1), int32(0))
            anchor = verdict[CHOICE] if count > 0 else int32(0)
            once = ptx.ld_global_f32(ptx.at(presence, at4))
            each = ptx.ld_global_f32(ptx.at(frequency, at4))
            penal = tally != uint64(0) and heat > float32(0) and (once != float32(0) or each != float32(0))
            lane = int64(word(lanes, row)) * int64(domain)
            for j in range(width):
                at = first_line + int64(j)
                token = word(tokens_out, at) if j < count else int32(0)
                put(tokens_out, at, token)
                put(aligned, at, token if j < accepted else anchor)
                if penal and j < count:
                    put(tally, lane + int64(token), word(tally, lane + int64(token)) + int32(1))
            put(counts_out, row, count)
            put(picks, row, int32(first_line) + accepted)
            plan(
                row, count, start, word(remaining, row), word(delta, row), capacity, stride, draft_positions,
                draft_rope, draft_live,
            )  # fmt: skip

    arguments = (u64, u64, u64, u64, u64, i32, *[u64] * 9, u64, *[u64] * 4, *[u64] * 3, i32)
    return KernelSource(kernel, arguments, KernelOptions(max_threads=THREADS))


def acceptance_specs(domain: int, width: int, purposes: tuple[int, int, int]) -> tuple[KernelSpec, KernelSpec]:
    """The two kernels of a verify round of `width` columns."""
    return (
        KernelSpec.of(select, domain=domain, width=width),
        KernelSpec.of(judge, domain=domain, width=width, purposes=purposes),
    )
