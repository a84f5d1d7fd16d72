"""Many-row linear kernels against cuBLAS in the same run (issue: BF16 0.92 of cuBLAS, quantised 0.80).

python bench/gpu/gemm.py [--out DIRECTORY] [--formats NVFP4,...] [--rows 1024,...]      needs torch
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from linear import FORMATS, SHAPES, prepare
from timing import machine, save, seconds

from ninfer_nb.artifact.inventory import TensorSpec
from ninfer_nb.ops.cuda import CudaOps


def ours(ops: CudaOps, format: str, shape: tuple[int, int], rows: int) -> float:
    """Seconds of one product, in a chain over two sets of operands."""
    weights = [ops.synthetic(TensorSpec("w", shape, format), 1, i) for i in range(2)]
    with ops.scope():
        x, out = ops.take((rows, shape[1]), "bf16"), ops.take((rows, shape[0]), "bf16")
        ops.write(x, np.random.default_rng(0).standard_normal((rows, shape[1])).astype(np.float32))
        taken = seconds(ops, [lambda w=w: ops.linear(x, w, out) for w in weights], rounds=10)
    ops.weights.close()
    return taken


def torch_seconds(body, repeats: int = 7, rounds: int = 20) -> float:
    """Median seconds of a torch call in a CUDA graph of `rounds`."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            body()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(rounds):
                body()
        taken = []
        for _ in range(repeats):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            taken.append(begin.elapsed_time(end) * 1e-3 / rounds)
    return float(np.median(taken))


def cublas(shape: tuple[int, int], rows: int) -> dict[str, float]:
    """Seconds of torch's BF16 product and of its row-scaled FP8 product."""
    x = torch.randn(rows, shape[1], device="cuda", dtype=torch.bfloat16)
    w = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    out = torch.empty(rows, shape[0], device="cuda", dtype=torch.bfloat16)
    found = {"bf16": torch_seconds(lambda: torch.matmul(x, w.t(), out=out))}
    x8, w8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn)
    sx, sw = torch.ones(rows, 1, device="cuda"), torch.ones(1, shape[0], device="cuda")
    found["fp8"] = torch_seconds(lambda: torch._scaled_mm(x8, w8.t(), sx, sw, out_dtype=torch.bfloat16))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--shapes", default="gate_up,down")
    parser.add_argument("--rows", default="1024")
    options = parser.parse_args()
    formats, rows = options.formats.split(","), [int(n) for n in options.rows.split(",")]
    shapes = {name: SHAPES[name] for name in options.shapes.split(",")}
    ops, found = CudaOps.open(0), []
    prepare(ops, formats, shapes, rows)
    for name, shape in shapes.items():
        for count in rows:
            peer = cublas(shape, count)
            flop = 2 * count * shape[0] * shape[1]
            line = "  ".join(f"{k} {v * 1e6:7.1f} us {flop / v / 1e12:5.0f} TFLOP/s" for k, v in peer.items())
            print(f"cuBLAS {name:9}{count:6} rows  {line}", flush=True)
            found.append({"shape": shape, "rows": count, "cublas_us": {k: v * 1e6 for k, v in peer.items()}})
            for format in formats:
                taken = ours(ops, format, shape, count)
                share = peer["bf16"] / taken
                print(f"  {format:22}{taken * 1e6:8.1f} us {flop / taken / 1e12:5.0f} TFLOP/s  {share:.3f}", flush=True)
                found.append({"format": format, "shape": shape, "rows": count, "us": taken * 1e6, "of_cublas": share})
    save(options.out, "gemm", {**machine(ops), "results": found})


if __name__ == "__main__":
    main()
