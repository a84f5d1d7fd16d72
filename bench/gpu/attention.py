"""Decode attention over a long paged cache against the measured read ceiling (issue: 0.80).

python bench/gpu/attention.py [--out DIRECTORY]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from timing import machine, save, seconds

from ninfer_nb.ops import Columns, KvLayer
from ninfer_nb.ops.cuda import CudaOps
from ninfer_nb.ops.cuda.ceiling import read_ceiling

Q_HEADS, KV_HEADS, DIM, PAGE = 24, 4, 256, 64
COLD_BYTES = 200 << 20


class Case:
    """`rows` sequences of `keys` tokens, `width` columns each, in enough layers to keep the L2 cold."""

    def __init__(self, ops: CudaOps, keys: int, rows: int, width: int, codec: str):
        self.ops, pages = ops, rows * keys // PAGE
        rng = np.random.default_rng(0)
        item = "i8" if codec == "int8" else "bf16"
        self.nbytes = (
            2 * pages * KV_HEADS * PAGE * (DIM * (1 if codec == "int8" else 2) + (8 if codec == "int8" else 0))
        )
        table = self.filled(rng.permutation(pages).reshape(rows, -1), "i32")
        layers = max(1, -(-COLD_BYTES // self.nbytes))
        plane, scales = (pages, KV_HEADS, PAGE, DIM), (pages, KV_HEADS, PAGE, 4)
        block = rng.standard_normal((min(pages, 64), *plane[1:])).astype(np.float32)
        if codec == "int8":
            block = np.clip(block * 40, -127, 127).astype(np.int8)
        self.layers = []
        for _ in range(layers):
            planes = [self.repeated(plane, item, block) for _ in range(2)]
            if codec == "int8":
                planes += [self.filled(np.full(scales, 0.02, np.float16), "f16") for _ in range(2)]
            self.layers.append(KvLayer(*planes, *([None, None] if codec != "int8" else []), table))
        at = np.concatenate([np.arange(keys - width, keys)] * rows)
        self.columns = Columns(
            rows, width, self.filled(at, "i32"), None, self.filled(np.arange(rows), "i32"), None, keys
        )
        self.q, self.gate, self.out = (ops.empty((rows * width, Q_HEADS * DIM), "bf16") for _ in range(3))
        ops.write(self.q, rng.standard_normal(self.q.shape).astype(np.float32))

    def filled(self, values: np.ndarray, dtype: str):
        array = self.ops.empty(values.shape, dtype)
        self.ops.write(array, values)
        return array

    def repeated(self, shape: tuple[int, ...], dtype: str, block: np.ndarray):
        array = self.ops.empty(shape, dtype)
        for start in range(0, shape[0], len(block)):
            part = array.reshape(shape[0], -1)[start : min(start + len(block), shape[0])]
            self.ops.write(part, block[: part.shape[0]].reshape(part.shape))
        return array

    def bodies(self):
        return [
            lambda layer=layer: self.ops.attention(self.q, self.gate, layer, self.columns, DIM**-0.5, self.out)
            for layer in self.layers
        ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ops = CudaOps.open(0)
    ceiling = read_ceiling(ops)
    found = []
    for keys, rows, width in ((2048, 1, 1), (32768, 1, 1), (262144, 1, 1), (32768, 1, 4), (2048, 8, 1), (32768, 8, 1)):
        for codec in ("bf16", "int8"):
            case = Case(ops, keys, rows, width, codec)
            ops.rehearse(case.bodies())
            taken = seconds(ops, case.bodies())
            share = case.nbytes / taken / ceiling
            found.append(
                {"keys": keys, "rows": rows, "width": width, "codec": codec, "us": taken * 1e6, "of_ceiling": share}
            )
            print(f"{codec} {rows} x {keys:6} keys, width {width}: {taken * 1e6:8.1f} us  {share:.3f}", flush=True)
            ops.state.close()
    save(options.out, "attention_decode", {**machine(ops), "read_ceiling": ceiling, "results": found})


if __name__ == "__main__":
    main()
