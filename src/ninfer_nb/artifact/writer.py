"""Planning a `.ninfer` file and writing it in one pass, object by object (`artifact-format.md` 1.5).

Knows nothing of where payloads come from, and holds no more of them than the buffer it was handed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np

from ..errors import ArtifactError
from .directory import (
    Directory,
    Entry,
    Identity,
    ResourceEntry,
    TensorEntry,
    encode_json,
    encode_prefix,
    nonempty_string,
    payload_offset_for,
)
from .formats import LAYOUT_OF, RAW_BYTES
from .layouts import RESOURCE_ALIGNMENT, TENSOR_ALIGNMENT, align_up, encoded_bytes

Buffer = bytes | bytearray | memoryview | np.ndarray


class Spec(Protocol):
    """What is planned of one object: a tensor also has `shape` and `format`, a resource has a name only."""

    @property
    def name(self) -> str: ...


def plan(identity: Identity, specs: Sequence[Spec], resource_bytes: Mapping[str, int] | None = None) -> Directory:
    """Lay out an ordered inventory without gaps beyond alignment; `resource_bytes` gives each resource's length."""
    if not specs:
        raise ArtifactError("artifact inventory must not be empty")
    nonempty_string(identity.model_id, "model_id")
    nonempty_string(identity.weights_id, "weights_id")
    lengths = resource_bytes or {}
    entries: list[Entry] = []
    names: set[str] = set()
    cursor = 0
    for spec in specs:
        entry = _plan_entry(spec, cursor, lengths)
        if entry.name in names:
            raise ArtifactError(f"duplicate object name: {entry.name}")
        names.add(entry.name)
        entries.append(entry)
        cursor = entry.offset + entry.bytes
    json_bytes = len(encode_json(identity, entries))
    payload_offset = payload_offset_for(json_bytes)
    return Directory(identity, tuple(entries), json_bytes, payload_offset, payload_offset + cursor)


def _plan_entry(spec: Spec, cursor: int, resource_bytes: Mapping[str, int]) -> Entry:
    if hasattr(spec, "format"):
        name = nonempty_string(spec.name, "tensor name")
        size = encoded_bytes(spec.format, spec.shape)
        offset = align_up(cursor, TENSOR_ALIGNMENT)
        return TensorEntry(name, tuple(spec.shape), spec.format, LAYOUT_OF[spec.format], offset, size)
    name = nonempty_string(spec.name, "resource name")
    if resource_bytes.get(name, 0) <= 0:
        raise ArtifactError(f"resource bytes must be positive: {name}")
    return ResourceEntry(name, RAW_BYTES, align_up(cursor, RESOURCE_ALIGNMENT), resource_bytes[name])


class ArtifactWriter:
    """Writes a planned file front to back. As a context manager it finishes the file on a clean exit.

    After an exception the file is closed as it is and left on disk; writing again overwrites it.
    """

    def __init__(self, path: str | os.PathLike[str], directory: Directory):
        self.directory = directory
        self._next = 0
        self._file = open(path, "wb")  # noqa: SIM115 - closed by finish or close
        text = encode_json(directory.identity, directory.objects)
        self._file.write(encode_prefix(len(text)) + text)
        self._fill_to(directory.payload_offset)

    def write(self, name: str, payload: Buffer | Iterable[Buffer]) -> None:
        """Append the next planned payload, given whole or in pieces; its length must be the planned one."""
        if self._next == len(self.directory.objects):
            raise ArtifactError("artifact already has every planned payload")
        entry = self.directory.objects[self._next]
        if name != entry.name:
            raise ArtifactError(f"expected payload {entry.name}, got {name}")
        self._fill_to(self.directory.payload_offset + entry.offset)
        written = 0
        for piece in [payload] if isinstance(payload, Buffer) else payload:
            data = _as_bytes(piece)
            written += len(data)
            if written > entry.bytes:
                raise ArtifactError(f"payload {name} exceeds its planned byte length")
            self._file.write(data)
        if written != entry.bytes:
            raise ArtifactError(f"payload {name} has {written} bytes; expected {entry.bytes}")
        self._next += 1

    def finish(self) -> None:
        """Check that nothing is missing and close the file."""
        if self._next < len(self.directory.objects):
            raise ArtifactError(f"artifact is missing payload {self.directory.objects[self._next].name}")
        self._file.truncate(self.directory.file_bytes)
        self.close()

    def close(self) -> None:
        """Close the file, finished or not."""
        self._file.close()

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            self.close()

    def _fill_to(self, position: int) -> None:
        self._file.write(bytes(position - self._file.tell()))


def _as_bytes(piece: Buffer) -> memoryview:
    if isinstance(piece, np.ndarray):
        piece = np.ascontiguousarray(piece).reshape(-1).view(np.uint8)
    return memoryview(piece).cast("B")
