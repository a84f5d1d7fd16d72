"""The JSON directory of a `.ninfer` file: its entries, its closed schema, its ranges (`artifact-format.md` 1, 2.1).

Works on bytes already in memory and on numbers; opening files is `container.py`. Knows nothing of what a model needs.
Checks run in the order of section 1.3 and stop at the first violation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ArtifactError
from .formats import RAW_BYTES, check_layout
from .layouts import RESOURCE_ALIGNMENT, TENSOR_ALIGNMENT, align_up, encoded_bytes

MAGIC_V1 = b"NINFER\x00\x01"
MAGIC_V2 = b"NINFER\x00\x02"
PREFIX_BYTES = 16
PAYLOAD_ALIGNMENT = 4096
# Room for about 100,000 objects (the largest registered file has 1,307): a bound on what a hostile file can cost.
MAX_JSON_BYTES = 16 << 20
MAX_INTEGER_DIGITS = 40  # u64 needs 20

_TENSOR_MEMBERS = {"name", "kind", "shape", "format", "layout", "offset", "bytes"}
_RESOURCE_MEMBERS = {"name", "kind", "encoding", "offset", "bytes"}
_U64_END = 1 << 64


@dataclass(frozen=True)
class Identity:
    """Which model the weights are of, and how they are stored. Opaque exact strings (1.4)."""

    model_id: str
    weights_id: str

    def __str__(self) -> str:
        return f"{self.model_id}/{self.weights_id}"


@dataclass(frozen=True)
class TensorEntry:
    """One stored tensor; `offset` is relative to the payload start, `shape` is logical, never padded."""

    name: str
    shape: tuple[int, ...]
    format: str
    layout: str
    offset: int
    bytes: int

    kind = "tensor"
    alignment = TENSOR_ALIGNMENT

    def to_json(self) -> dict[str, object]:
        """Members in the canonical order of 1.5."""
        return {
            "name": self.name,
            "kind": self.kind,
            "shape": list(self.shape),
            "format": self.format,
            "layout": self.layout,
            "offset": self.offset,
            "bytes": self.bytes,
        }


@dataclass(frozen=True)
class ResourceEntry:
    """One stored file, byte for byte."""

    name: str
    encoding: str
    offset: int
    bytes: int

    kind = "resource"
    alignment = RESOURCE_ALIGNMENT

    def to_json(self) -> dict[str, object]:
        """Members in the canonical order of 1.5."""
        return {
            "name": self.name,
            "kind": self.kind,
            "encoding": self.encoding,
            "offset": self.offset,
            "bytes": self.bytes,
        }


Entry = TensorEntry | ResourceEntry


@dataclass(frozen=True)
class Directory:
    """A validated (or planned) directory: identity, objects in file order, and the three sizes that frame them."""

    identity: Identity
    objects: tuple[Entry, ...]
    json_bytes: int
    payload_offset: int
    file_bytes: int

    @property
    def payload_bytes(self) -> int:
        return self.file_bytes - self.payload_offset

    @property
    def padding_room(self) -> int:
        """Bytes between the JSON text and the payload: how much the text can grow in place."""
        return self.payload_offset - PREFIX_BYTES - self.json_bytes


def payload_offset_for(json_bytes: int) -> int:
    """Where the payload starts behind a directory text of this length (1.1)."""
    return align_up(PREFIX_BYTES + json_bytes, PAYLOAD_ALIGNMENT)


def encode_prefix(json_bytes: int) -> bytes:
    """The 16 bytes before a version 2 directory text."""
    return MAGIC_V2 + json_bytes.to_bytes(8, "little")


def encode_json(identity: Identity, objects: Sequence[Entry]) -> bytes:
    """The canonical compact directory text (1.5): equal directories give equal bytes."""
    root = {
        "identity": {"model_id": identity.model_id, "weights_id": identity.weights_id},
        "objects": [entry.to_json() for entry in objects],
    }
    return json.dumps(root, ensure_ascii=False, separators=(",", ":")).encode()


def parse_prefix(prefix: bytes, file_bytes: int) -> int:
    """`json_bytes` of a version 2 file, after checking that text and payload start lie within the file."""
    if len(prefix) < PREFIX_BYTES:
        raise ArtifactError("artifact is shorter than the v2 prefix")
    if prefix[:8] == MAGIC_V1:
        raise ArtifactError(
            "NInfer artifact v1 is no longer supported; migrate it with: ninfer artifact migrate <artifact>"
        )
    if prefix[:8] != MAGIC_V2:
        raise ArtifactError("artifact magic is not NInfer v2")
    return check_json_bytes(int.from_bytes(prefix[8:16], "little"), file_bytes)


def check_json_bytes(json_bytes: int, file_bytes: int) -> int:
    """`json_bytes`, after the checks that both versions share."""
    if json_bytes == 0:
        raise ArtifactError("json_bytes must be positive")
    if payload_offset_for(json_bytes) > file_bytes:
        raise ArtifactError("declared JSON or payload start extends beyond the file")
    if json_bytes > MAX_JSON_BYTES:
        raise ArtifactError(f"JSON directory of {json_bytes} bytes is longer than the limit of {MAX_JSON_BYTES}")
    return json_bytes


def parse_directory(text: bytes, file_bytes: int) -> Directory:
    """The directory whose JSON text is `text` in a file of `file_bytes`, completely validated (1.3, steps 6 to 12)."""
    identity, objects = parse_root(load_json(text))
    payload_offset = payload_offset_for(len(text))
    check_names_and_ranges(objects, file_bytes - payload_offset)
    return Directory(identity, objects, len(text), payload_offset, file_bytes)


def load_json(text: bytes) -> object:
    """Parse a directory text in bounded time.

    No number but an integer is legal anywhere in the schema, so the others are not converted: they become NaN, which
    every field check refuses. So does `-0`, as in the stricter reader.
    """
    try:
        return json.loads(
            text.decode(), parse_int=_parse_integer, parse_float=lambda _: math.nan, parse_constant=lambda _: math.nan
        )
    except RecursionError:
        raise ArtifactError("invalid JSON directory: nested too deeply") from None
    except ValueError as error:  # malformed text, bytes that are not UTF-8, an overlong integer
        raise ArtifactError(f"invalid JSON directory: {error}") from None


def _parse_integer(digits: str) -> int | float:
    if len(digits) > MAX_INTEGER_DIGITS:
        raise ValueError(f"integer of {len(digits)} digits")
    return math.nan if digits == "-0" else int(digits)


def parse_root(root: object) -> tuple[Identity, tuple[Entry, ...]]:
    """Identity and entries of a version 2 root, each entry valid by itself."""
    if not isinstance(root, dict) or root.keys() != {"identity", "objects"}:
        raise ArtifactError("directory root must contain exactly identity and objects")
    identity = root["identity"]
    if not isinstance(identity, dict) or identity.keys() != {"model_id", "weights_id"}:
        raise ArtifactError("artifact identity must contain exactly model_id and weights_id")
    model_id = nonempty_string(identity["model_id"], "model_id")
    weights_id = nonempty_string(identity["weights_id"], "weights_id")
    return Identity(model_id, weights_id), parse_objects(root["objects"])


def parse_objects(objects: object) -> tuple[Entry, ...]:
    """The entries of an `objects` array."""
    if not isinstance(objects, list) or not objects:
        raise ArtifactError("objects must be a nonempty array")
    return tuple(_parse_entry(entry) for entry in objects)


def _parse_entry(entry: object) -> Entry:
    if not isinstance(entry, dict):
        raise ArtifactError("each object entry must be a JSON object")
    kind = entry.get("kind")
    if kind == "tensor":
        return _parse_tensor(entry)
    if kind == "resource":
        return _parse_resource(entry)
    raise ArtifactError("object kind must be 'tensor' or 'resource'")


def _parse_tensor(entry: dict[str, object]) -> TensorEntry:
    if entry.keys() != _TENSOR_MEMBERS:
        raise ArtifactError("tensor entry has missing or extra members")
    name = nonempty_string(entry["name"], "tensor name")
    if not isinstance(entry["shape"], list):
        raise ArtifactError("tensor shape must be an array")
    shape = tuple(_dimension(size) for size in entry["shape"])
    format = nonempty_string(entry["format"], "tensor format")
    layout = nonempty_string(entry["layout"], "tensor layout")
    offset = _integer(entry["offset"], "tensor offset", minimum=0)
    size = _integer(entry["bytes"], "tensor bytes", minimum=1)
    check_layout(layout, format)
    required = encoded_bytes(format, shape)
    if size != required:
        raise ArtifactError(f"tensor {name} stores {size} bytes; layout requires {required}")
    return TensorEntry(name, shape, format, layout, offset, size)


def _parse_resource(entry: dict[str, object]) -> ResourceEntry:
    if entry.keys() != _RESOURCE_MEMBERS:
        raise ArtifactError("resource entry has missing or extra members")
    name = nonempty_string(entry["name"], "resource name")
    encoding = nonempty_string(entry["encoding"], "resource encoding")
    offset = _integer(entry["offset"], "resource offset", minimum=0)
    size = _integer(entry["bytes"], "resource bytes", minimum=1)
    if encoding != RAW_BYTES:
        raise ArtifactError(f"unknown resource encoding: {encoding}")
    return ResourceEntry(name, encoding, offset, size)


def nonempty_string(value: object, field: str) -> str:
    """`value`, which must be a string that is not empty and can be written back as UTF-8."""
    if not isinstance(value, str) or not value:
        raise ArtifactError(f"{field} must be a nonempty string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ArtifactError(f"{field} contains an unpaired surrogate") from None
    return value


def _integer(value: object, field: str, minimum: int) -> int:
    if type(value) is not int:
        raise ArtifactError(f"{field} must be an integer")
    if value < minimum:
        raise ArtifactError(f"{field} must be {'positive' if minimum else 'nonnegative'}")
    return value


def _dimension(value: object) -> int:
    """A positive u64. An offset or length past u64 needs no rule of its own: it lies beyond the end of any file."""
    size = _integer(value, "shape dimension", minimum=1)
    if size >= _U64_END:
        raise ArtifactError("shape dimension overflows u64")
    return size


def check_names_and_ranges(objects: Sequence[Entry], payload_bytes: int) -> None:
    """Names unique; spans aligned, ascending, disjoint and inside the payload region (1.3, steps 11 and 12)."""
    seen = set()
    for entry in objects:
        if entry.name in seen:
            raise ArtifactError(f"duplicate object name: {entry.name}")
        seen.add(entry.name)
    cursor = 0
    for entry in objects:
        if entry.offset < cursor:
            raise ArtifactError(f"object {entry.name} overlaps or is out of order")
        if entry.offset % entry.alignment:
            raise ArtifactError(f"object {entry.name} is not {entry.alignment}-byte aligned")
        cursor = entry.offset + entry.bytes
        if cursor > payload_bytes:
            raise ArtifactError(f"object {entry.name} extends beyond the file")
