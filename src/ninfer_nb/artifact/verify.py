"""Checks of a whole artifact: structure and inventory without reading the payload, and its digest (`cli.md` 10)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import ArtifactError
from .binder import check_identity, check_inventory
from .container import read_directory
from .digest import digests
from .directory import Directory, Identity, ResourceEntry, TensorEntry, encode_json, encode_prefix
from .inventory import inventory
from .registry import Published, known
from .writer import plan

Progress = Callable[[int, int], None]  # bytes done, in all

RELABELLED = Identity("qwen3.8-27b", "nvfp4-split")


@dataclass(frozen=True)
class Verified:
    """A file that passed; `sha256` is None when it was not asked for."""

    path: Path
    directory: Directory
    published: Published | None
    sha256: str | None

    def summary(self) -> dict[str, object]:
        """Members of the JSON output, sorted by name."""
        objects = self.directory.objects
        return {
            "file_bytes": self.directory.file_bytes,
            "model_id": self.directory.identity.model_id,
            "objects": len(objects),
            "path": str(self.path),
            "payload_bytes": self.directory.payload_bytes,
            "published_file": self.published.file if self.published else None,
            "resources": sum(isinstance(entry, ResourceEntry) for entry in objects),
            "sha256": self.sha256,
            "tensors": sum(isinstance(entry, TensorEntry) for entry in objects),
            "weights_id": self.directory.identity.weights_id,
        }


def verify(path: Path, *, digest: bool = False, progress: Progress | None = None) -> Verified:
    """Structure, identity, exact inventory and size, and with `digest` the SHA-256 of the published file.

    Raises ArtifactError naming the first thing that differs.
    """
    directory = read_directory(path)
    check_identity(directory.identity)
    check_structure(directory)
    row = known(directory.identity)
    if row is not None and row.bytes != directory.file_bytes:
        raise ArtifactError(f"artifact has {directory.file_bytes} bytes; the published {row.file} has {row.bytes}")
    sha256 = None
    if digest:
        if row is None:
            raise ArtifactError(f"no published digest is known for {directory.identity}")
        sha256 = _check_digest(path, directory, row, progress)
    return Verified(path, directory, row, sha256)


def check_structure(directory: Directory) -> None:
    """The directory is exactly what planning the identity's inventory gives (`artifact-format.md` 7, 1 to 6)."""
    specs = inventory(directory.identity)
    try:
        check_inventory(directory.objects, specs)
    except ArtifactError as error:
        raise ArtifactError(f"{error}{_hint(directory)}") from None
    lengths = {entry.name: entry.bytes for entry in directory.objects if isinstance(entry, ResourceEntry)}
    planned = plan(directory.identity, specs, lengths)
    for position, (found, expected) in enumerate(zip(directory.objects, planned.objects, strict=True)):
        if found.name != expected.name:
            raise ArtifactError(f"object {position} is {found.name}; expected {expected.name}")
        if found.offset != expected.offset:
            raise ArtifactError(f"object {found.name} starts at {found.offset}; expected {expected.offset}")
    end = directory.payload_offset + directory.objects[-1].offset + directory.objects[-1].bytes
    if end != directory.file_bytes:
        raise ArtifactError(f"artifact has {directory.file_bytes - end} bytes behind its last object")


def _hint(directory: Directory) -> str:
    """What to do about a split-storage file as it was published."""
    if directory.identity != replace(RELABELLED, weights_id="nvfp4"):
        return ""
    try:
        check_inventory(directory.objects, inventory(RELABELLED))
    except ArtifactError:
        return ""
    return "; its objects are those of nvfp4-split: run ninfer artifact relabel FILE --weights-id nvfp4-split"


def _check_digest(path: Path, directory: Directory, row: Published, progress: Progress | None) -> str:
    """The file's digest, which must be the published one.

    A relabelled file differs from the published one in its metadata, so it is also hashed as it was before.
    """
    with open(path, "rb") as file:
        heads = [file.read(directory.payload_offset)]
    if directory.identity == RELABELLED:
        text = encode_json(replace(RELABELLED, weights_id="nvfp4"), directory.objects)
        heads.append((encode_prefix(len(text)) + text).ljust(directory.payload_offset, b"\0"))
    found = digests(path, [hashlib.sha256(head) for head in heads], directory.payload_offset, progress)
    if row.sha256 not in found:
        raise ArtifactError(f"artifact SHA-256 is {found[0]}; the published {row.file} has {row.sha256}")
    return found[0]
