"""Version 1 files to version 2 in place, for the files that were published (`artifact-format.md` 2.3).

Only the metadata in front of the payload changes. A version 1 file does not say which weights it has, so it is
recognised by the digest of its directory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ArtifactError
from . import metadata
from .container import V1Directory, parse_v1_directory, read_directory
from .digest import file_sha256
from .directory import MAGIC_V2, Directory, Entry, Identity, ResourceEntry, encode_json, payload_offset_for
from .inventory import ResourceSpec, TensorSpec, inventory
from .writer import plan

BACKUP_SUFFIX = ".v1-metadata-backup"

Progress = Callable[[int, int], None]  # bytes done, in all


@dataclass(frozen=True)
class Pin:
    """A published version 1 file. Digests are hexadecimal SHA-256; None where the file was never seen.

    Without a directory digest the inventory decides.
    """

    identity: Identity
    sha256: str | None
    directory_sha256: str | None


PINS = (
    Pin(
        Identity("qwen3.6-27b", "groupwise-int"),
        "74fac75f3a6b7ab7b52e08c36969c7a33a8ba23465910eccd72d195adb497127",
        "df352a3e3b8555f15fd00d143be213b9e5ff6fb910a1c2390f0785f9a1e2d386",
    ),
    Pin(
        Identity("qwen3.6-35b-a3b", "groupwise-int"),
        "5194407dd6d3092b8c2f81ce41e014b50ca0d6f1ba4e5d8c1492b8652bfa267f",
        "0155278f7e050a4a5c39a697557ea9e2532d44dfc054fd41b496f8b37966732e",
    ),
    Pin(Identity("qwen3.6-27b", "nvfp4"), None, None),
)

Specs = Callable[[Identity], Iterable[TensorSpec | ResourceSpec]]


@dataclass(frozen=True)
class Migrated:
    """`changed` is False for a file that was version 2 already."""

    identity: Identity
    changed: bool


def migrate(
    path: Path, pins: tuple[Pin, ...] = PINS, specs: Specs = inventory, progress: Progress | None = None
) -> Migrated:
    """Migrate `path`; the file is unchanged after any ArtifactError. A run that was killed is undone first."""
    if not path.exists():
        raise ArtifactError(f"artifact does not exist: {path}")
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    if _magic(path) == MAGIC_V2:
        found = _already_done(path, backup, pins)
        if found is not None:
            return found
    if backup.exists():
        metadata.restore(path, backup)
    old = parse_v1_directory(path)
    pin = _select(old, pins, specs)
    _check_objects(old, pin, specs)
    if pin.sha256 is not None and (digest := file_sha256(path, progress)) != pin.sha256:
        raise ArtifactError(f"v1 artifact SHA-256 is {digest}; expected {pin.sha256}")
    text = encode_json(pin.identity, old.objects)
    if payload_offset_for(len(text)) != old.payload_offset:
        raise ArtifactError("v2 directory does not preserve the existing payload offset")
    wanted = Directory(pin.identity, old.objects, len(text), old.payload_offset, old.file_bytes)

    def check() -> None:
        if read_directory(path) != wanted:
            raise ArtifactError("the migrated file does not read back as planned")

    metadata.replace(path, backup, text, old.payload_offset, check)
    return Migrated(pin.identity, changed=True)


def _magic(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(8)


def _already_done(path: Path, backup: Path, pins: tuple[Pin, ...]) -> Migrated | None:
    """The result for a valid version 2 file; None when a killed run left it invalid and a backup can undo that."""
    try:
        identity = read_directory(path).identity
    except ArtifactError as error:
        if backup.exists():
            return None
        raise ArtifactError(f"invalid v2 artifact: {error}") from None
    if all(pin.identity != identity for pin in pins):
        raise ArtifactError(f"v2 artifact identity is not migratable: {identity}")
    if backup.exists():
        metadata.discard(backup)
    return Migrated(identity, changed=False)


def _select(old: V1Directory, pins: tuple[Pin, ...], specs: Specs) -> Pin:
    """The pin of this model whose directory digest, or failing that whose inventory, is that of the file."""
    candidates = [pin for pin in pins if pin.identity.model_id == old.model_id]
    if not candidates:
        raise ArtifactError(f"v1 model_id '{old.model_id}' is not one of the published artifacts")
    digest = hashlib.sha256(old.text).hexdigest()
    for pin in candidates:
        if pin.directory_sha256 == digest:
            return pin
    undigested = [pin for pin in candidates if pin.directory_sha256 is None and _fits(old, pin, specs)]
    if len(undigested) == 1:
        return undigested[0]
    expected = " or ".join(pin.directory_sha256 for pin in candidates if pin.directory_sha256)
    raise ArtifactError(f"v1 directory SHA-256 is {digest}; expected {expected}")


def _fits(old: V1Directory, pin: Pin, specs: Specs) -> bool:
    try:
        _check_objects(old, pin, specs)
    except ArtifactError:
        return False
    return True


def _check_objects(old: V1Directory, pin: Pin, specs: Specs) -> None:
    """Every entry is the one that planning the published inventory gives, and the last ends at the end of the file."""
    lengths = {entry.name: entry.bytes for entry in old.objects if isinstance(entry, ResourceEntry)}
    planned: tuple[Entry, ...] = plan(pin.identity, list(specs(pin.identity)), lengths).objects
    for found, expected in zip(old.objects, planned, strict=False):
        if found != expected:
            raise ArtifactError(f"v1 object {found.name} is not the published {expected.name}")
    last = old.objects[-1]
    if len(old.objects) != len(planned) or old.payload_offset + last.offset + last.bytes != old.file_bytes:
        raise ArtifactError("v1 payload length does not match the complete published inventory")
