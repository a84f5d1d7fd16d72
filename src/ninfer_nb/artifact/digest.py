"""SHA-256 of large files, reading ahead of the hash in a second thread."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BLOCK_BYTES = 4 << 20

Progress = Callable[[int, int], None]  # bytes done, in all


def file_sha256(path: Path, progress: Progress | None = None) -> str:
    """Hexadecimal digest of the whole file."""
    return digests(path, [hashlib.sha256()], 0, progress)[0]


def digests(path: Path, hashes: list, start: int = 0, progress: Progress | None = None) -> list[str]:
    """Feed the bytes from `start` on to every hash and return their hexadecimal digests."""
    total, done = path.stat().st_size, start
    for block in _blocks(path, start):
        for hash in hashes:
            hash.update(block)
        done += len(block)
        if progress:
            progress(done, total)
    return [hash.hexdigest() for hash in hashes]


def _blocks(path: Path, start: int) -> Iterator[memoryview]:
    """The file in blocks; the next one is read while the last one is used (both release the interpreter lock)."""
    buffers = [bytearray(BLOCK_BYTES), bytearray(BLOCK_BYTES)]
    with open(path, "rb", buffering=0) as file, ThreadPoolExecutor(1) as reader:
        file.seek(start)
        pending = reader.submit(file.readinto, buffers[0])
        while size := pending.result():
            pending = reader.submit(file.readinto, buffers[1])
            yield memoryview(buffers[0])[:size]
            buffers.reverse()
