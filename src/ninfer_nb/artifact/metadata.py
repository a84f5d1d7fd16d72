"""Replacing the metadata of an artifact in place, so that a kill at any moment leaves the old file or the new one.

The metadata region `[0, payload_offset)` is saved beside the file first. Then the new directory text is written behind
the prefix, and the prefix last: until it is there, the file does not parse as what it is to become, and the saved
region brings the old one back (`artifact-format.md` 2.3 steps 10 to 12, 3.4).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..errors import ArtifactError
from .directory import MAGIC_V1, MAGIC_V2, PREFIX_BYTES, encode_prefix, payload_offset_for


def replace(path: Path, backup: Path, text: bytes, payload_offset: int, check: Callable[[], None]) -> None:
    """Give the file the version 2 directory `text`, which must leave `payload_offset` where it is.

    `check` reopens the file and raises if it is not as planned; then, as after any other failure, the old metadata
    comes back. On success the backup is gone.
    """
    assert payload_offset_for(len(text)) == payload_offset
    save(path, backup, payload_offset)
    try:
        with open(path, "r+b") as file:
            file.seek(PREFIX_BYTES)
            file.write(text + bytes(payload_offset - PREFIX_BYTES - len(text)))
            _flush(file)
            file.seek(0)
            file.write(encode_prefix(len(text)))
            _flush(file)
        check()
    except BaseException:
        restore(path, backup)
        raise
    discard(backup)


def save(path: Path, backup: Path, payload_offset: int) -> None:
    """Copy `[0, payload_offset)` to `backup`, which appears under its name only when it is complete."""
    if backup.exists():
        raise ArtifactError(f"recovery file already exists: {backup}")
    partial = backup.with_name(backup.name + ".partial")
    with open(path, "rb") as file:
        region = file.read(payload_offset)
    with open(partial, "wb") as file:
        file.write(region)
        _flush(file)
    os.rename(partial, backup)
    sync_directory(backup.parent)


def restore(path: Path, backup: Path) -> None:
    """Write the saved region back. ArtifactError if the backup is not a metadata region."""
    region = backup.read_bytes()
    size = int.from_bytes(region[8:PREFIX_BYTES], "little")
    if region[:8] not in (MAGIC_V1, MAGIC_V2) or payload_offset_for(size) != len(region):
        raise ArtifactError(f"invalid migration recovery file: {backup}")
    with open(path, "r+b") as file:
        file.write(region)
        _flush(file)
    discard(backup)


def discard(backup: Path) -> None:
    """Remove a backup that is no longer needed; a missing one is fine."""
    backup.unlink(missing_ok=True)
    sync_directory(backup.parent)


def sync_directory(folder: Path) -> None:
    """Make renames and removals in `folder` durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _flush(file) -> None:
    file.flush()
    os.fsync(file.fileno())
