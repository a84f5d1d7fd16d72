"""Few-row linear kernels against the measured read ceiling (issue: 0.88 at 1 row, 0.85 at 4, 0.80 at 8).

python bench/gpu/linear.py [--out DIRECTORY] [--formats NVFP4,...] [--rows 1,4,8]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from timing import machine, save, seconds

from ninfer_nb.artifact.inventory import TensorSpec
from ninfer_nb.ops.cuda import CudaOps
from ninfer_nb.ops.cuda.ceiling import read_ceiling

FORMATS = ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S", "NVFP4", "FP8_E4M3FN_ROW_BF16S", "BF16")
SHAPES = {"gate_up": (34816, 5120), "down": (5120, 17408), "qkv": (16384, 5120), "head": (248320, 5120)}
COLD_BYTES = 400 << 20


def measure(ops: CudaOps, format: str, shape: tuple[int, int], rows: int) -> tuple[float, int]:
    """Median seconds of one product, and the bytes it must read."""
    first = ops.synthetic(TensorSpec("w", shape, format), 1, 0)
    more = range(1, COLD_BYTES // first.nbytes)
    copies = [first] + [ops.synthetic(TensorSpec("w", shape, format), 1, i) for i in more]
    with ops.scope():
        x, out = ops.take((rows, shape[1]), "bf16"), ops.take((rows, shape[0]), "bf16")
        ops.write(x, np.random.default_rng(0).standard_normal((rows, shape[1])).astype(np.float32))
        bodies = [lambda w=w: ops.linear(x, w, out) for w in copies]
        taken = seconds(ops, bodies, rounds=max(1, 8 // len(bodies)))
    ops.weights.close()
    return taken, first.nbytes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rows", default="1,4,8")
    options = parser.parse_args()
    ops = CudaOps.open(0)
    ceiling = read_ceiling(ops)
    print(f"read ceiling {ceiling / 1e12:.3f} TB/s")
    formats, rows = options.formats.split(","), [int(n) for n in options.rows.split(",")]
    shapes = {name: SHAPES[name] for name in options.shapes.split(",")}
    prepare(ops, formats, shapes, rows)
    found = []
    for format in formats:
        for name, shape in shapes.items():
            line = []
            for count in rows:
                taken, nbytes = measure(ops, format, shape, count)
                share = nbytes / taken / ceiling
                found.append({"format": format, "shape": shape, "rows": count, "us": taken * 1e6, "of_ceiling": share})
                line.append(f"{count}r {taken * 1e6:7.1f} us {share:.3f}")
            print(f"{format:22}{name:9}" + "   ".join(line), flush=True)
    save(options.out, "linear", {**machine(ops), "read_ceiling": ceiling, "results": found})


def prepare(ops: CudaOps, formats: list[str], shapes: dict[str, tuple[int, int]], rows: list[int]) -> None:
    """Compile everything at once, in parallel, and make the scratch large enough."""
    from ninfer_nb.ops.cuda.weights import CudaWeight

    def body() -> None:
        with ops.scope():
            for shape in shapes.values():
                x, out = ops.take((max(rows), shape[1]), "bf16"), ops.take((max(rows), shape[0]), "bf16")
                for format in formats:
                    for count in rows:
                        ops.linear(x[:count], CudaWeight(format, shape, 0), out[:count])

    ops.rehearse([body])


if __name__ == "__main__":
    main()
