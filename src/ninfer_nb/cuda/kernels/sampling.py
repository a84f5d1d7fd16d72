"""Argmax and the top-20 sampler over a vocabulary of logits (`model.md` 12).

Two kernels. `select` reads the logits once and keeps each block's best candidates; `draw` merges them, filters, and
draws one token a row. Floor on H200: 2*B*V bytes, 0.11 us a row at V = 248,077; the 20 selection rounds cost more.
A row with a non-finite logit gives token -1.
"""

from __future__ import annotations

import math

from numba import cuda, types
from numpy import float32, int32, int64, uint32, uint64

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.ptx import i32, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

THREADS = 256
WARPS = THREADS // 32
PER_THREAD = 8
TILE = THREADS * PER_THREAD  # logits of one block of `select`
CANDIDATES = 20
ALL_LANES = 0xFFFFFFFF
BROKEN = 0xFFFFFFFF  # key of a non-finite logit: above every finite one

u32 = types.uint32


def select_blocks(domain: int) -> int:
    return -(-domain // TILE)


def candidate_words(domain: int, rows: int) -> int:
    """u32 words of scratch between the two kernels: keys, then ids."""
    return 2 * rows * select_blocks(domain) * CANDIDATES


@cuda.jit(device=True, forceinline=True)
def key_of(value):
    """Unsigned key in the order of the floats; +0 and -0 alike, non-finite on top."""
    bits = ptx.f32_as_u32(value + float32(0))
    if (bits & uint32(0x7F800000)) == uint32(0x7F800000):
        return uint32(BROKEN)
    if bits >> uint32(31):
        return ~bits
    return bits | uint32(0x80000000)


@cuda.jit(device=True, forceinline=True)
def value_of(key):
    if key >> uint32(31):
        return ptx.u32_as_f32(key & uint32(0x7FFFFFFF))
    return ptx.u32_as_f32(~key)


@cuda.jit(device=True, forceinline=True)
def best_of_block(key, identity, keys, identities):
    """(key, id) of the largest key in the block, ties to the lowest id; `keys`, `identities` are [WARPS] shared."""
    high = ptx.redux_max_u32(key, uint32(ALL_LANES))
    low = ptx.redux_min_u32(identity if key == high else uint32(ALL_LANES), uint32(ALL_LANES))
    tid = cuda.threadIdx.x
    if tid % 32 == 0:
        keys[tid // 32] = high
        identities[tid // 32] = low
    cuda.syncthreads()
    high, low = keys[0], identities[0]
    for warp in range(1, WARPS):
        if keys[warp] > high or (keys[warp] == high and identities[warp] < low):
            high, low = keys[warp], identities[warp]
    return high, low


def select(*, domain: int, width: int = 1) -> KernelSource:
    """logits [B * width, ld] bf16 -> per row and block, up to 20 (key, id) pairs in falling order.

    Grid (select_blocks(domain), B * width, 1), block 256, 8 KB shared. Rows with temperature <= 0 need one candidate.
    With `width` > 1 logits row b * width + j is column j of a verify round: its penalties also count the drafts before
    it, ids[b * width + 1 .. b * width + j].
    """
    blocks = select_blocks(domain)

    @cuda.jit(device=True, forceinline=True)
    def drafted(ids, row, column, token):
        """How many of a column's earlier drafts are `token`."""
        seen = int32(0)
        for j in range(1, column + int32(1)):
            if ptx.ld_global_s32(ptx.at(ids, (row * int64(width) + int64(j)) * int64(4))) == token:
                seen += int32(1)
        return seen

    def kernel(
        logits,  # [B * width, ld] bf16
        ld,
        ids,  # [B * width] i32, or 0 where width is 1
        temperature,  # [B] f32
        presence,  # [B] f32
        frequency,  # [B] f32
        lanes,  # [B] i32
        counts,  # [C, domain] i32, or 0
        found,  # [B, blocks, 20] u32 keys, then as many ids
    ):
        held = cuda.shared.array(TILE, u32)
        keys = cuda.shared.array(WARPS, u32)
        identities = cuda.shared.array(WARPS, u32)
        tid, block, line = int32(cuda.threadIdx.x), int32(cuda.blockIdx.x), int64(cuda.blockIdx.y)
        row, column = line // int64(width), int32(line % int64(width))
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        greedy = ptx.ld_global_f32(ptx.at(temperature, row * int64(4))) <= float32(0)
        once = ptx.ld_global_f32(ptx.at(presence, row * int64(4)))
        each = ptx.ld_global_f32(ptx.at(frequency, row * int64(4)))
        lane = int64(ptx.ld_global_s32(ptx.at(lanes, row * int64(4))))
        penal = counts != uint64(0) and not greedy and (once != float32(0) or each != float32(0))
        key, identity = uint32(0), uint32(ALL_LANES)
        for i in range(PER_THREAD):
            token = block * int32(TILE) + int32(i * THREADS) + tid
            mine = uint32(0)
            if token < domain:
                word = ptx.ld_global_u16(ptx.at(logits, (line * int64(ld) + int64(token)) * int64(2)))
                value = ptx.f32_of_bf16_low(word)
                if penal:
                    count = ptx.ld_global_s32(ptx.at(counts, (lane * int64(domain) + int64(token)) * int64(4)))
                    if width > 1:
                        count += drafted(ids, row, column, token)
                    if count > 0:
                        value -= once
                        value -= each * float32(count)
                mine = key_of(value)
            held[i * THREADS + tid] = mine
            if mine > key:
                key, identity = mine, uint32(token)
        base = (line * int64(blocks) + int64(block)) * int64(CANDIDATES * 4)
        behind = int64(cuda.gridDim.y) * int64(blocks * CANDIDATES * 4)
        rounds = int32(1) if greedy else int32(CANDIDATES)
        for place in range(rounds):
            high, low = best_of_block(key, identity, keys, identities)
            if tid == 0:
                ptx.st_global_u32(ptx.at(found, base + int64(place * 4)), high)
                ptx.st_global_u32(ptx.at(found, behind + base + int64(place * 4)), low)
            if high != uint32(0) and low == identity:
                held[int32(low) - block * int32(TILE)] = uint32(0)
                key, identity = uint32(0), uint32(ALL_LANES)
                for i in range(PER_THREAD):
                    other = held[i * THREADS + tid]
                    if other > key:
                        key, identity = other, uint32(block * int32(TILE) + int32(i * THREADS) + tid)
            cuda.syncthreads()

    arguments = (u64, i32, u64, u64, u64, u64, u64, u64, u64)
    return KernelSource(kernel, arguments, KernelOptions(max_threads=THREADS))


@cuda.jit(device=True, forceinline=True)
def mix(x):
    """SplitMix64 finaliser with its increment."""
    x = x + uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> uint64(27))) * uint64(0x94D049BB133111EB)
    return x ^ (x >> uint64(31))


@cuda.jit(device=True, forceinline=True)
def uniform(seed, position, purpose):
    """The counter-based draw in [0, 1) of (seed, position, purpose)."""
    k = mix(seed ^ (uint64(position) * uint64(0xD1B54A32D192ED03)))
    k = mix(k ^ (uint64(purpose) << uint64(21)))
    return float32(int32(k >> uint64(40))) * float32(2.0**-24)


@cuda.jit(device=True, forceinline=True)
def support_of(weights, kept, top_k, top_p, min_p):
    """(candidates after top-k, min-p and top-p, their mass) of the first `kept` of `weights` [20], in falling order."""
    n = kept
    if 0 < top_k < n:
        n = top_k
    total = float32(0)
    for j in range(n):
        total += weights[j]
    mass, support = float32(0), int32(0)
    for j in range(n):
        if j > 0 and min_p > float32(0) and weights[j] < min_p * weights[0]:
            break
        mass += weights[j]
        support = int32(j + 1)
        if top_p < float32(1) and mass >= top_p * total:
            break
    return support, mass


@cuda.jit(device=True, forceinline=True)
def draw_index(weights, kept, top_k, top_p, min_p, u):
    """Index of the drawn candidate: the first of the support whose cumulative probability exceeds u."""
    support, mass = support_of(weights, kept, top_k, top_p, min_p)
    cumulative, chosen = float32(0), support - int32(1)
    for j in range(support):
        cumulative += weights[j] / mass
        if u < cumulative:
            chosen = int32(j)
            break
    return chosen


def merge_of(domain: int):
    """Device function merge(found, base, behind, heat, keys, identities, weights, tokens) -> (kept, first key).

    The 20 best candidates of one logits row, or the best one where heat <= 0, to `tokens` and `weights`. For a whole
    block; the arrays are shared memory.
    """
    blocks = select_blocks(domain)

    @cuda.jit(device=True, forceinline=True)
    def merge(found, base, behind, heat, keys, identities, weights, tokens):
        tid = int32(cuda.threadIdx.x)
        greedy = heat <= float32(0)
        last, last_token, first = uint32(BROKEN), uint32(0), uint32(0)
        rounds = int32(1) if greedy else int32(CANDIDATES)
        kept = int32(0)
        for place in range(rounds):
            # the best pair strictly behind the last one chosen: no candidate needs marking
            key, identity = uint32(0), uint32(ALL_LANES)
            block = tid
            while block < blocks:
                for i in range(CANDIDATES):
                    at = base + int64((block * CANDIDATES + i) * 4)
                    other = ptx.ld_global_u32(ptx.at(found, at))
                    token = ptx.ld_global_u32(ptx.at(found, behind + at))
                    fresh = place == 0 or other < last or (other == last and token > last_token)
                    if fresh and other != uint32(0):
                        if other > key or (other == key and token < identity):
                            key, identity = other, token
                        break
                    if other == uint32(0) or greedy:
                        break
                block += int32(THREADS)
            high, low = best_of_block(key, identity, keys, identities)
            if high == uint32(0):
                break
            last, last_token = high, low
            if place == 0:
                first = high
            if tid == 0:
                tokens[place] = low
                inverse = float32(1) / heat
                weights[place] = math.exp(value_of(high) * inverse - value_of(first) * inverse)
            kept += int32(1)
            cuda.syncthreads()
        cuda.syncthreads()
        return kept, first

    return merge


def draw(*, domain: int) -> KernelSource:
    """Candidates of `select` -> out [B] i32. Grid (B, 1, 1), block 256."""
    pool, merge = select_blocks(domain) * CANDIDATES, merge_of(domain)

    def kernel(
        found,  # as `select` wrote it
        temperature,  # [B] f32
        top_k,  # [B] i32
        top_p,  # [B] f32
        min_p,  # [B] f32
        presence,  # [B] f32
        frequency,  # [B] f32
        seed,  # [B] u64
        position,  # [B] i32
        purpose,
        lanes,  # [B] i32
        counts,  # [C, domain] i32, or 0
        out,  # [B] i32
    ):
        keys = cuda.shared.array(WARPS, u32)
        identities = cuda.shared.array(WARPS, u32)
        weights = cuda.shared.array(CANDIDATES, types.float32)
        tokens = cuda.shared.array(CANDIDATES, u32)
        tid, row = int32(cuda.threadIdx.x), int64(cuda.blockIdx.x)
        at4 = row * int64(4)
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        heat = ptx.ld_global_f32(ptx.at(temperature, at4))
        greedy = heat <= float32(0)
        behind = int64(cuda.gridDim.x) * int64(pool * 4)
        kept, first = merge(found, row * int64(pool * 4), behind, heat, keys, identities, weights, tokens)
        if tid == 0:
            chosen = int32(0)
            if not greedy:
                u = uniform(
                    ptx.ld_global_u64(ptx.at(seed, row * int64(8))),
                    ptx.ld_global_u32(ptx.at(position, at4)),
                    purpose,
                )
                chosen = draw_index(
                    weights,
                    kept,
                    ptx.ld_global_s32(ptx.at(top_k, at4)),
                    ptx.ld_global_f32(ptx.at(top_p, at4)),
                    ptx.ld_global_f32(ptx.at(min_p, at4)),
                    u,
                )
            token = int32(tokens[chosen])
            if first == uint32(BROKEN):
                token = int32(-1)
            ptx.st_global_s32(ptx.at(out, at4), token)
            once = ptx.ld_global_f32(ptx.at(presence, at4))
            each = ptx.ld_global_f32(ptx.at(frequency, at4))
            if counts != uint64(0) and not greedy and token >= 0 and (once != float32(0) or each != float32(0)):
                lane = int64(ptx.ld_global_s32(ptx.at(lanes, at4)))
                cell = ptx.at(counts, (lane * int64(domain) + int64(token)) * int64(4))
                ptx.st_global_s32(cell, ptx.ld_global_s32(cell) + int32(1))

    arguments = (u64, u64, u64, u64, u64, u64, u64, u64, u64, i32, u64, u64, u64)
    return KernelSource(kernel, arguments, KernelOptions(max_threads=THREADS))


def sampling_specs(domain: int) -> tuple[KernelSpec, KernelSpec]:
    return KernelSpec.of(select, domain=domain), KernelSpec.of(draw, domain=domain)
