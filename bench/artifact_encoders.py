"""Quantising encoders on one core, in MB of BF16 source a second.

python bench/artifact_encoders.py
"""

from __future__ import annotations

import json
import os
import statistics
import time

import numpy as np

from ninfer_nb.artifact.encoders import encode_fp8_rows, encode_grouped
from ninfer_nb.artifact.encoders_nvfp4 import encode_nvfp4
from ninfer_nb.artifact.words import f32_to_bf16

GROUPED = ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S")


def main() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    x = f32_to_bf16(np.random.default_rng(0).standard_normal((2048, 5120)).astype(np.float32) * np.float32(0.02))
    encoders = {format: (lambda x, format=format: encode_grouped(x, format)) for format in GROUPED}
    encoders |= {"FP8_E4M3FN_ROW_BF16S": encode_fp8_rows, "NVFP4": encode_nvfp4}
    rates = {}
    for name, encode in encoders.items():
        encode(x[:128])
        times = []
        for _ in range(5):
            started = time.perf_counter()
            encode(x)
            times.append(time.perf_counter() - started)
        rates[name] = round(x.nbytes / statistics.median(times) / 1e6)
        print(f"{name:<24}{rates[name]:>6} MB/s")
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
