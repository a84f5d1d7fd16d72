"""What `ninfer artifact inspect` prints, in the exact form of `artifact-format.md` 6. Reads the directory only."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator

from .container import read_directory
from .directory import Directory, Entry, ResourceEntry, TensorEntry


def summary(path: str | os.PathLike[str]) -> dict[str, object]:
    """Identity, sizes and counts of a version 2 file, registered or not, in the order of the JSON output."""
    return _summary(os.fspath(path), read_directory(path))


def _summary(path: str, directory: Directory) -> dict[str, object]:
    return {
        "path": path,
        "model_id": directory.identity.model_id,
        "weights_id": directory.identity.weights_id,
        "file_bytes": directory.file_bytes,
        "payload_offset": directory.payload_offset,
        **counts_of(directory),
    }


def counts_of(directory: Directory) -> dict[str, object]:
    """Objects by kind, format, layout and encoding."""
    tensors = [entry for entry in directory.objects if isinstance(entry, TensorEntry)]
    resources = [entry for entry in directory.objects if isinstance(entry, ResourceEntry)]
    return {
        "objects": len(directory.objects),
        "tensors": len(tensors),
        "resources": len(resources),
        "formats": _counts(entry.format for entry in tensors),
        "layouts": _counts(entry.layout for entry in tensors),
        "encodings": _counts(entry.encoding for entry in resources),
    }


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def lines(path: str | os.PathLike[str], *, objects: bool = False, as_json: bool = False) -> Iterator[str]:
    """The output of `inspect`, line by line."""
    directory = read_directory(path)
    found = _summary(os.fspath(path), directory)
    if as_json:
        yield json.dumps(found, indent=2, ensure_ascii=False)
    else:
        yield f"model_id: {found['model_id']}"
        yield f"weights_id: {found['weights_id']}"
        yield f"objects: {found['objects']} ({found['tensors']} tensors, {found['resources']} resources)"
        for member in ("file_bytes", "payload_offset", "formats", "layouts", "encodings"):
            yield f"{member}: {found[member]}"
    if objects:
        yield from map(object_line, directory.objects)


def object_line(entry: Entry) -> str:
    if isinstance(entry, TensorEntry):
        storage = f"{entry.format}/{entry.layout} [{','.join(map(str, entry.shape))}]"
    else:
        storage = entry.encoding
    return f"{entry.offset:>14} {entry.bytes:>14} {entry.kind:<8} {storage:<42} {entry.name}"
