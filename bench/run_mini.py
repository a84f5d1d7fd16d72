"""`ninfer run mini` on the CPU backend, measured from outside: first byte of the answer, decode rate, resident memory.

python bench/run_mini.py [--repeat 5]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

COMMAND = [
    sys.executable, "-c", "from ninfer_nb.cli import main; main()",
    "run", "mini", "--device", "cpu", "--no-thinking", "--greedy", "--ignore-eos", "--max-new", "256",
    "--prompt", "What is prefill?",
]  # fmt: skip


def once() -> tuple[float, float, float]:
    """(seconds to the first byte on stdout, decoded tokens a second, peak resident MB)."""
    started = time.perf_counter()
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(1)
    first = time.perf_counter() - started
    process.stdout.read()
    report = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(report)
    rate = float(re.search(r"decode speed +([\d.]+) tok/s", report)[1])
    return first, rate, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    runs = [once() for _ in range(parser.parse_args().repeat)]
    first, rate, memory = (statistics.median(column) for column in zip(*runs, strict=True))
    print(f"first answer byte {first:.2f} s, decode {rate:.1f} tok/s, peak {memory:.0f} MB (medians of {len(runs)})")
    print(json.dumps({"first_byte_s": round(first, 3), "decode_tok_s": round(rate, 1), "peak_mb": round(memory)}))


if __name__ == "__main__":
    main()
