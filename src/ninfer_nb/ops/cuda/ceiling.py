"""The read rate of this GPU, measured: the ceiling that benchmarks compare with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...cuda.graphs import capture
from ...cuda.kernels.bandwidth import BLOCK_BYTES, THREADS, read_spec
from ...cuda.memory import Arena
from ...cuda.stream import Event

if TYPE_CHECKING:
    from . import CudaOps

BUFFER_BYTES = 2 << 30  # far beyond any L2
PASSES = 4
REPEATS = 7


def read_ceiling(ops: CudaOps) -> float:
    """Bytes per second of the best of a few grids, the median of repeats of each."""
    arena = Arena.allocate("read ceiling", BUFFER_BYTES + 256)
    try:
        kernel = ops.kernels.get(read_spec())
        return max(_rate(ops, kernel, arena.base, blocks) for blocks in (2, 3, 4))
    finally:
        ops.stream.synchronize()
        arena.close()


def _rate(ops: CudaOps, kernel, base: int, blocks_per_multiprocessor: int) -> float:
    grid = (ops.multiprocessors * blocks_per_multiprocessor, 1, 1)
    with capture(ops.stream) as graph:
        for _ in range(PASSES):
            kernel.launch(grid, (THREADS, 1, 1), ops.stream, base, BUFFER_BYTES // BLOCK_BYTES, base + BUFFER_BYTES)
    replay, begin, end = graph.instantiate(), Event(timing=True), Event(timing=True)
    times = []
    for _ in range(REPEATS):
        ops.stream.record(begin)
        replay.replay(ops.stream)
        ops.stream.record(end)
        end.synchronize()
        times.append(begin.elapsed_ms(end))
    return PASSES * BUFFER_BYTES / (sorted(times)[REPEATS // 2] * 1e-3)
