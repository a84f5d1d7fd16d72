"""Hugging Face checkpoints on disk: the tensors of one `model.safetensors` or of an indexed set of shards.

Knows names, dtypes, shapes and bytes, and nothing of any model. Rows are read with `pread` into fresh buffers: a memory
map would count every page that was ever touched as the process's memory.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from ...errors import ArtifactError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format itself

ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


@dataclass(frozen=True)
class SourceTensor:
    """One tensor of a checkpoint: where its bytes `[offset, offset + bytes)` lie in which file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    bytes: int


class Checkpoint:
    """An open checkpoint folder; a context manager that closes its files.

    Raises ArtifactError for files that are missing, left over, cut off, or not safetensors.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ArtifactError(f"checkpoint folder does not exist: {self.folder}")
        self._handles: dict[Path, int] = {}
        placed = self._index()
        self.files = (self.folder / SINGLE,)
        if placed is not None:
            self.files = tuple(self.folder / name for name in sorted(set(placed.values())))
        self.tensors: dict[str, SourceTensor] = {}
        for file in self.files:
            self._add(file)
        if placed is not None:
            self._check_index(placed)

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files; reading opens them again."""
        while self._handles:
            os.close(self._handles.popitem()[1])

    def json(self, name: str) -> dict:
        """A JSON file of the folder, which must hold an object."""
        try:
            value = json.loads(self.bytes(name))
        except (ValueError, RecursionError) as error:
            raise _unless_ours(error, f"{self.folder / name}: invalid JSON: {error}") from None
        if not isinstance(value, dict):
            raise ArtifactError(f"{self.folder / name}: must hold a JSON object")
        return value

    def bytes(self, name: str) -> bytes:
        """A whole file of the folder."""
        try:
            return (self.folder / name).read_bytes()
        except OSError as error:
            raise ArtifactError(f"{self.folder / name}: {error.strerror}") from None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Bytes `[start, stop)` of a tensor, fresh uint8; safe from several threads."""
        tensor = self.tensors[name]
        out = np.empty((tensor.bytes if stop is None else stop) - start, np.uint8)
        handle, done, view = self._handle(tensor.file), 0, memoryview(out)
        while done < out.size:
            count = os.preadv(handle, [view[done:]], tensor.offset + start + done)
            if count == 0:
                raise ArtifactError(f"{tensor.file}: ended inside tensor {name}")
            done += count
        return out

    def _handle(self, file: Path) -> int:
        if file not in self._handles:
            opened = os.open(file, os.O_RDONLY)
            if self._handles.setdefault(file, opened) != opened:  # another thread was first
                os.close(opened)
        return self._handles[file]

    def _index(self) -> dict[str, str] | None:
        """Tensor name to file name; None for a checkpoint of one file without an index."""
        if not (self.folder / INDEX).exists():
            if not (self.folder / SINGLE).exists():
                raise ArtifactError(f"{self.folder}: holds neither {SINGLE} nor {INDEX}")
            return None
        placed = self.json(INDEX).get("weight_map")
        if not isinstance(placed, dict) or not placed or not all(isinstance(v, str) for v in placed.values()):
            raise ArtifactError(f"{self.folder / INDEX}: weight_map must map tensor names to file names")
        present = {path.name for path in self.folder.glob("*.safetensors")}
        for name in sorted(set(placed.values()) - present):
            raise ArtifactError(f"{self.folder}: shard {name} of the index is missing")
        for name in sorted(present - set(placed.values())):
            raise ArtifactError(f"{self.folder}: shard {name} is not in the index")
        return placed

    def _add(self, file: Path) -> None:
        for tensor in read_header(file):
            if tensor.name in self.tensors:
                raise ArtifactError(f"{file}: tensor {tensor.name} is also in another shard")
            self.tensors[tensor.name] = tensor

    def _check_index(self, placed: dict[str, str]) -> None:
        for name in placed:
            if name not in self.tensors:
                raise ArtifactError(f"{self.folder / placed[name]}: tensor {name} of the index is missing")
        for name, tensor in self.tensors.items():
            if placed.get(name) != tensor.file.name:
                raise ArtifactError(f"{tensor.file}: tensor {name} is not placed here by the index")


def read_header(file: Path) -> list[SourceTensor]:
    """The tensors of one safetensors file, checked to tile its data region without gaps."""
    try:
        size = file.stat().st_size
        with open(file, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 0 < length <= min(MAX_HEADER_BYTES, size - 8):
                raise ArtifactError(f"{file}: not a safetensors file: header of {length} bytes in a file of {size}")
            header = json.loads(stream.read(length))
    except OSError as error:
        raise ArtifactError(f"{file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise _unless_ours(error, f"{file}: invalid safetensors header: {error}") from None
    if not isinstance(header, dict):
        raise ArtifactError(f"{file}: safetensors header must be a JSON object")
    header.pop("__metadata__", None)
    cursor = 8 + length
    tensors = [_tensor(file, name, entry, cursor) for name, entry in header.items()]
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.bytes)):
        if tensor.offset != cursor:
            raise ArtifactError(f"{file}: tensor {tensor.name} starts at byte {tensor.offset}; expected {cursor}")
        cursor += tensor.bytes
    if cursor != size:
        raise ArtifactError(f"{file}: has {size} bytes; its header describes {cursor}")
    return tensors


def _unless_ours(error: Exception, message: str) -> ArtifactError:
    """ArtifactError is a ValueError too: one of our own passes unchanged."""
    return error if isinstance(error, ArtifactError) else ArtifactError(message)


def _tensor(file: Path, name: str, entry: object, data: int) -> SourceTensor:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        integers = all(type(value) is int and value >= 0 for value in (*shape, start, stop))
    except (TypeError, KeyError, ValueError):
        integers = False
    if not integers:
        raise ArtifactError(f"{file}: tensor {name} needs dtype, shape and data_offsets")
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise ArtifactError(f"{file}: tensor {name} has unknown dtype {dtype}")
    needed = prod(shape) * ITEM_BYTES[dtype]
    if stop - start != needed:
        raise ArtifactError(f"{file}: tensor {name} stores {stop - start} bytes; {dtype} {list(shape)} needs {needed}")
    return SourceTensor(name, dtype, shape, file, data + start, stop - start)
