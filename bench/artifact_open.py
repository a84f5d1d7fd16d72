"""Opening, checking and hashing a file of real size: 1,307 objects, 18 GB of holes.

python bench/artifact_open.py [--folder DIR] [--digest-mb 2048]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from ninfer_nb.artifact.container import Artifact
from ninfer_nb.artifact.digest import file_sha256
from ninfer_nb.artifact.directory import Identity, encode_json, encode_prefix
from ninfer_nb.artifact.inventory import ResourceSpec, inventory
from ninfer_nb.artifact.verify import check_structure
from ninfer_nb.artifact.writer import plan

IDENTITY = Identity("qwen3.8-27b", "nvfp4-split")


def sparse_file(path: Path) -> None:
    specs = inventory(IDENTITY)
    names = [spec.name for spec in specs if isinstance(spec, ResourceSpec)]
    directory = plan(IDENTITY, specs, dict.fromkeys(names, 2_139_529))
    text = encode_json(IDENTITY, directory.objects)
    with open(path, "wb") as file:
        file.write(encode_prefix(len(text)) + text)
        file.truncate(directory.file_bytes)


def median(call: Callable[[], object], repeat: int = 7) -> float:
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def digest_rates(path: Path) -> tuple[float, float]:
    """GB/s of our digest and of `sha256sum` on the same cached file, in turns."""
    size, ours, theirs = path.stat().st_size, [], []
    for _ in range(3):
        ours.append(median(lambda: file_sha256(path), 1))
        theirs.append(median(lambda: subprocess.run(["sha256sum", str(path)], check=True, capture_output=True), 1))
    return size / min(ours) / 1e9, size / min(theirs) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--digest-mb", type=int, default=1024)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path, data = Path(folder) / "x.ninfer", Path(folder) / "data"
        sparse_file(path)
        opened = median(lambda: Artifact.open(path).close())
        verified = median(lambda: check_structure(Artifact.open(path).directory))
        data.write_bytes(bytes(range(256)) * (arguments.digest_mb << 12))
        ours, theirs = digest_rates(data)
    print(f"open {opened * 1e3:.0f} ms, open and verify {verified * 1e3:.0f} ms")
    print(f"digest {ours:.2f} GB/s, sha256sum {theirs:.2f} GB/s, ratio {ours / theirs:.2f}")
    print(json.dumps({"open_s": opened, "verify_s": verified, "digest_gb_s": ours, "sha256sum_gb_s": theirs}))


if __name__ == "__main__":
    main()
