"""Whole decode steps and prefill of made-up weights in real geometry (issue: 0.80 of resident bytes / read ceiling).

python bench/gpu/decode.py [--out DIRECTORY] [--identity MODEL/WEIGHTS ...] [--prompt 2048] [--generate 64]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from timing import machine, save

from ninfer_nb.artifact.directory import Identity
from ninfer_nb.engine.benchmark import Case, Workbench
from ninfer_nb.engine.loading import synthesise
from ninfer_nb.engine.options import EngineOptions
from ninfer_nb.ops.cuda import CudaOps
from ninfer_nb.ops.cuda.ceiling import read_ceiling

IDENTITIES = ("qwen3.8-27b/nvfp4", "qwen3.6-27b/nvfp4", "qwen3.6-27b/groupwise-int")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--identity", nargs="*", default=list(IDENTITIES))
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--kv-dtype", default="bf16")
    options = parser.parse_args()
    cases = [Case(options.prompt, options.generate, int(rows)) for rows in options.rows.split(",")]
    found = []
    ops = CudaOps.open(0)
    ceiling = read_ceiling(ops)
    for name in options.identity:
        start = time.perf_counter()
        model, _, weight_bytes = synthesise(Identity(*name.split("/")), ops, 1)
        ops.synchronize()
        bench = Workbench(model, weight_bytes, cases, EngineOptions(kv_dtype=options.kv_dtype))
        print(f"{name}: ready in {time.perf_counter() - start:.1f} s, {weight_bytes / 1e9:.2f} GB", flush=True)
        for case in cases:
            result = bench.run(case, 2, 1)
            share = result.read_rate / ceiling
            line = {
                "identity": name, "case": case.name, "prefill_tok_s": result.prefill_rate,
                "decode_tok_s": result.decode_rate, "of_ceiling": share, "host_us": 1e6 * sorted(result.host)[0],
                "bytes_per_round": result.bytes_per_round,
            }  # fmt: skip
            found.append(line)
            print(
                f"  {case.name}: prefill {result.prefill_rate:.0f} tok/s, decode {result.decode_rate:.1f} tok/s, "
                f"{share:.3f} of the ceiling, host {line['host_us']:.0f} us a round", flush=True,
            )  # fmt: skip
        del bench, model
        ops.weights.close()
        ops.state.close()
        ops.constants.clear()
    save(options.out, "decode", {**machine(ops), "read_ceiling": ceiling, "results": found})


if __name__ == "__main__":
    main()
