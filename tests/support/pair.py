"""The same buffers, weights and calls on the CUDA backend and on the reference backend."""

from __future__ import annotations

import numpy as np

from ninfer_nb.artifact.encoders import encode_fp8_rows, encode_grouped
from ninfer_nb.artifact.encoders_nvfp4 import encode_nvfp4
from ninfer_nb.artifact.formats import numeric_format
from ninfer_nb.artifact.words import f32_to_bf16
from ninfer_nb.ops.reference import ReferenceOps

KINDS = {"bf16": np.float32, "f32": np.float32, "f16": np.float16, "i32": np.int32, "i8": np.int8, "u64": np.uint64}


class Pair:
    """The same buffers and weights on both backends."""

    def __init__(self, ops):
        self.cuda, self.reference = ops, ReferenceOps()

    def buffer(self, values, dtype):
        """A buffer with `values` on each side, rounded alike."""
        values = np.asarray(values, KINDS[dtype])
        ours, theirs = self.cuda.empty(values.shape, dtype), self.reference.empty(values.shape, dtype)
        self.cuda.write(ours, values)
        theirs[...] = self.cuda.read(ours)
        return ours, theirs

    def poisoned(self, shape, dtype="bf16"):
        return self.buffer(np.full(shape, np.nan if dtype in ("bf16", "f32") else -7), dtype)

    def weight(self, values, format):
        values = np.asarray(values, np.float32)
        if format == "BF16":
            payload = f32_to_bf16(values).view(np.uint8).ravel()
        elif format == "FP32":
            payload = values.view(np.uint8).ravel()
        elif numeric_format(format).is_grouped:
            payload = encode_grouped(values, format)
        elif format == "NVFP4":
            payload = encode_nvfp4(f32_to_bf16(values))
        else:
            payload = encode_fp8_rows(f32_to_bf16(values))
        with self.cuda.loading():
            ours = self.cuda.weight(payload, format, values.shape)
        return ours, self.reference.weight(payload, format, values.shape)

    def run(self, call):
        """`call(ops, side)` on both; side 0 picks the CUDA half of a pair."""
        self.cuda.rehearse([lambda: call(self.cuda, 0)])
        call(self.cuda, 0)
        call(self.reference, 1)
        self.cuda.synchronize()
