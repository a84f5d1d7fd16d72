"""Which block works on which part of a many-row product, so that every multiprocessor ends at the same time.

Tiles are numbered with the token tiles innermost: blocks that run together share weights. The last one to two waves are
split by k instead of by tile ("stream-K", Osama et al. 2023): block b takes the k steps [b U / G, (b + 1) U / G) of
those tiles in turn, first of all, and the rest in whole tiles. A tile that is cut is finished by the block with its
first step, which adds the others' sums in order, so results do not depend on timing. Plain arithmetic and its device
twin; knows nothing of operands.
"""

from __future__ import annotations

from dataclasses import dataclass

from numba import cuda
from numpy import int32


@dataclass(frozen=True)
class Schedule:
    """Of one launch: `shared` tiles are cut, the other `tiles - shared` are taken whole."""

    blocks: int  # G
    tiles: int
    shared: int

    @classmethod
    def of(cls, tiles: int, multiprocessors: int) -> Schedule:
        whole, rest = divmod(tiles, multiprocessors)
        if rest == 0:
            return cls(min(tiles, multiprocessors), tiles, 0)
        return cls(multiprocessors, tiles, tiles - max(whole - 1, 0) * multiprocessors)


@cuda.jit(device=True, forceinline=True)
def share_begin(block, blocks, units):
    """First k step of a block among the shared tiles' (below 2^31: at most 2 G tiles of some hundred steps)."""
    return int32(block * units // blocks)


@cuda.jit(device=True, forceinline=True)
def next_segment(at, share_end, whole, blocks, tiles, steps):
    """(tile, first step, end step, at, whole) of a block's next segment; tile is -1 when there is none.

    at: next of the block's shared steps; whole: its next whole tile.
    """
    if at < share_end:
        tile = at // steps
        first = at - tile * steps
        end = min(steps, first + share_end - at)
        return tile, first, end, int32(at + end - first), whole
    if whole < tiles:
        return whole, int32(0), steps, at, int32(whole + blocks)
    return int32(-1), int32(0), int32(0), at, whole
