"""Times launches on a GPU: a graph of many, replayed, with CUDA events; medians."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from ninfer_nb.cuda.graphs import capture
from ninfer_nb.cuda.stream import Event
from ninfer_nb.ops.cuda import CudaOps

Body = Callable[[], None]


def seconds(ops: CudaOps, bodies: Sequence[Body], *, repeats: int = 15, rounds: int = 1) -> float:
    """Median seconds of one body. `bodies` run in turn, `rounds` times, in one graph: give each its own data, more
    than the L2 holds in all, and the caches stay cold."""
    for body in bodies:
        body()  # whatever is made on first use
    with capture(ops.stream) as graph:
        for _ in range(rounds):
            for body in bodies:
                body()
    executable, begin, end = graph.instantiate(), Event(timing=True), Event(timing=True)
    graph.close()
    taken = []
    for repeat in range(-2, repeats):
        ops.stream.record(begin)
        executable.replay(ops.stream)
        ops.stream.record(end)
        end.synchronize()
        if repeat >= 0:
            taken.append(begin.elapsed_ms(end) * 1e-3 / (rounds * len(bodies)))
    executable.close()
    return statistics.median(taken)


def machine(ops: CudaOps) -> dict[str, object]:
    """What a result file says of where it was measured."""
    query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem,power.limit", "--format=csv,noheader"]
    found = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return {"gpu": ops.device.info.name, "nvidia-smi": found, "python": platform.python_version()}


def save(directory: Path | None, name: str, result: dict[str, object]) -> None:
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
