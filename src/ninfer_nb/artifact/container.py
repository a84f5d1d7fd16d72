"""Opening a `.ninfer` file: the directory in one small read, payloads as views of a read-only map.

Knows nothing of models: which objects a file must hold is the binder's business (`artifact-format.md` 1.3, 1.6, 2.1).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..errors import ArtifactError
from .directory import (
    MAGIC_V1,
    PREFIX_BYTES,
    Directory,
    Entry,
    Identity,
    ResourceEntry,
    TensorEntry,
    check_json_bytes,
    check_names_and_ranges,
    load_json,
    nonempty_string,
    parse_directory,
    parse_objects,
    parse_prefix,
    payload_offset_for,
)

__all__ = [
    "Artifact",
    "Directory",
    "Entry",
    "Identity",
    "ResourceEntry",
    "TensorEntry",
    "V1Directory",
    "parse_v1_directory",
    "read_directory",
]


def read_directory(path: str | os.PathLike[str]) -> Directory:
    """Validate a version 2 file without reading its payload; ArtifactError with the messages of 1.3."""
    with _open(path) as file:
        return _read_directory(file)


class Artifact:
    """A validated `.ninfer` file, mapped read-only.

    `payload` gives views, so the map lives until the last of them is gone, also after `close`.
    """

    def __init__(self, path: Path, directory: Directory, mapped: np.ndarray):
        self.path = path
        self.directory = directory
        self._bytes: np.ndarray | None = mapped
        self._entries = {entry.name: entry for entry in directory.objects}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Artifact:
        """Validate and map a version 2 file. No payload byte is read."""
        with _open(path) as file:
            directory = _read_directory(file)
            mapped = np.frombuffer(mmap.mmap(file.fileno(), directory.file_bytes, access=mmap.ACCESS_READ), np.uint8)
        return cls(Path(path), directory, mapped)

    @property
    def identity(self) -> Identity:
        return self.directory.identity

    @property
    def objects(self) -> tuple[Entry, ...]:
        return self.directory.objects

    def entry(self, name: str) -> Entry:
        """The directory entry of an object."""
        entry = self._entries.get(name)
        if entry is None:
            raise ArtifactError(f"unknown artifact object: {name}")
        return entry

    def payload(self, name: str) -> np.ndarray:
        """The object's bytes, read-only uint8, a view of the file."""
        entry = self.entry(name)
        if self._bytes is None:
            raise ArtifactError(f"artifact is closed: {self.path}")
        start = self.directory.payload_offset + entry.offset
        return self._bytes[start : start + entry.bytes]

    def resource(self, name: str) -> bytes:
        """A copy of a resource's bytes."""
        if not isinstance(self.entry(name), ResourceEntry):
            raise ArtifactError(f"required resource is a tensor: {name}")
        return self.payload(name).tobytes()

    def close(self) -> None:
        """Drop the map; views already handed out stay valid."""
        self._bytes = None

    def __enter__(self) -> Artifact:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class V1Directory:
    """The directory of a version 1 file, which has no weights identity. `text` is its JSON as stored."""

    model_id: str
    objects: tuple[Entry, ...]
    text: bytes
    payload_offset: int
    file_bytes: int


def parse_v1_directory(path: str | os.PathLike[str]) -> V1Directory:
    """Validate a version 1 file, for migration only: every other reader refuses it (2.1, 2.3 step 4)."""
    with _open(path) as file:
        file_bytes = os.fstat(file.fileno()).st_size
        prefix = file.read(PREFIX_BYTES)
        if len(prefix) < PREFIX_BYTES:
            raise ArtifactError("artifact is shorter than the v1 prefix")
        if prefix[:8] != MAGIC_V1:
            raise ArtifactError("artifact magic is not NInfer v1")
        text = file.read(check_json_bytes(int.from_bytes(prefix[8:], "little"), file_bytes))
    root = load_json(text)
    if not isinstance(root, dict) or root.keys() != {"model_id", "objects"}:
        raise ArtifactError("v1 directory root must contain exactly model_id and objects")
    model_id = nonempty_string(root["model_id"], "model_id")
    objects = parse_objects(root["objects"])
    payload_offset = payload_offset_for(len(text))
    check_names_and_ranges(objects, file_bytes - payload_offset)
    return V1Directory(model_id, objects, text, payload_offset, file_bytes)


def _read_directory(file: BinaryIO) -> Directory:
    file_bytes = os.fstat(file.fileno()).st_size
    json_bytes = parse_prefix(file.read(PREFIX_BYTES), file_bytes)
    text = file.read(json_bytes)
    if len(text) != json_bytes:
        raise ArtifactError("artifact became shorter while its directory was read")
    return parse_directory(text, file_bytes)


@contextmanager
def _open(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    try:
        file = open(path, "rb")  # noqa: SIM115 - closed by the with statement below
    except FileNotFoundError:
        raise ArtifactError(f"artifact does not exist: {path}") from None
    except OSError as error:
        raise ArtifactError(f"cannot read artifact {path}: {error.strerror}") from None
    with file:
        yield file
