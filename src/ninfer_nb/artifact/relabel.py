"""Changing the weights identity of an artifact without touching its payload (`artifact-format.md` 3)."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import ArtifactError
from . import metadata
from .binder import check_inventory
from .container import read_directory
from .directory import (
    PREFIX_BYTES,
    Directory,
    Identity,
    encode_json,
    encode_prefix,
    parse_directory,
    payload_offset_for,
)
from .inventory import inventory

BACKUP_SUFFIX = ".identity-backup"
ALLOWED = {Identity("qwen3.8-27b", "nvfp4"): "nvfp4-split"}
COPY_BYTES = 8 << 20

Progress = Callable[[int, int], None]  # bytes done, in all


@dataclass(frozen=True)
class Relabelled:
    """`changed` is False for a file that had the identity already."""

    path: Path
    identity: Identity
    changed: bool


def relabel(path: Path, weights_id: str, out: Path | None = None, progress: Progress | None = None) -> Relabelled:
    """Give a split-storage Qwen3.8 file its own weights_id, in place or into a new file.

    Raises ArtifactError for any other file or change, before a byte is written. A run that was killed is undone first.
    """
    recover(path, weights_id)
    directory = read_directory(path)
    if ALLOWED.get(Identity(directory.identity.model_id, "nvfp4")) != weights_id:
        raise ArtifactError(
            f"identity {directory.identity} cannot be relabelled to {weights_id}; "
            "the only change is qwen3.8-27b/nvfp4 to nvfp4-split"
        )
    if directory.identity.weights_id not in ("nvfp4", weights_id):
        raise ArtifactError(f"weights_id is {directory.identity.weights_id}; only nvfp4 can become {weights_id}")
    target = replace(directory.identity, weights_id=weights_id)
    try:
        check_inventory(directory.objects, inventory(target))
    except ArtifactError as error:
        raise ArtifactError(f"the objects of this file are not those of {target}: {error}") from None
    return change_identity(path, target, out, progress)


def recover(path: Path, weights_id: str) -> None:
    """Finish or undo an edit in place that was killed: its backup is still there."""
    backup = _backup(path)
    if not backup.exists() or not path.exists():
        return
    try:
        done = read_directory(path).identity.weights_id == weights_id
    except ArtifactError:
        done = False
    if done:  # the prefix is written last, so the rest is there
        metadata.discard(backup)
    else:
        metadata.restore(path, backup)


def change_identity(
    path: Path, target: Identity, out: Path | None = None, progress: Progress | None = None
) -> Relabelled:
    """Set the identity of any valid file; `relabel` decides which changes are allowed."""
    directory = read_directory(path)
    if directory.identity == target and out is None:
        return Relabelled(path, target, changed=False)
    with open(path, "rb") as file:
        text = file.read(PREFIX_BYTES + directory.json_bytes)[PREFIX_BYTES:]
    room = directory.payload_offset - PREFIX_BYTES
    edited = _edited(text, directory, target)
    if payload_offset_for(len(edited)) != directory.payload_offset:
        edited = encode_json(target, directory.objects)
    if out is not None:
        _rewrite(path, out, directory, edited, progress)
        return Relabelled(out, target, changed=True)
    if len(edited) > room:
        raise ArtifactError(
            f"new directory needs {len(edited)} bytes but only {room} bytes are available before the payload at "
            f"{directory.payload_offset}; rerun with an output path to rewrite the file"
        )
    edited = edited.ljust(directory.payload_offset - 4096 - PREFIX_BYTES + 1)  # JSON may end in white space
    wanted = parse_directory(edited, directory.file_bytes)

    def check() -> None:
        if read_directory(path) != wanted:
            raise ArtifactError("the edited file does not read back as planned")

    metadata.replace(path, _backup(path), edited, directory.payload_offset, check)
    return Relabelled(path, target, changed=True)


def _backup(path: Path) -> Path:
    return path.with_name(path.name + BACKUP_SUFFIX)


def _edited(text: bytes, directory: Directory, target: Identity) -> bytes:
    """The text with only the value of identity.weights_id changed, or the canonical text where that is not possible.

    The value may occur elsewhere, so each place is tried and the result parsed again.
    """
    root = json.loads(text)
    root["identity"]["weights_id"] = target.weights_id
    new = json.dumps(target.weights_id, ensure_ascii=False).encode()
    for ascii_only in (False, True):
        old = json.dumps(directory.identity.weights_id, ensure_ascii=ascii_only).encode()
        at = text.find(old)
        while at >= 0:
            candidate = text[:at] + new + text[at + len(old) :]
            if json.loads(candidate) == root:
                return candidate
            at = text.find(old, at + 1)
    return encode_json(target, directory.objects)


def _rewrite(path: Path, out: Path, directory: Directory, text: bytes, progress: Progress | None) -> None:
    """A new file with the text and the payload moved as a block; it appears under its name when it is complete."""
    if out.exists():
        raise ArtifactError(f"output already exists: {out}")
    partial = out.with_name(out.name + ".partial")
    offset = payload_offset_for(len(text))
    try:
        with open(path, "rb") as source, open(partial, "wb") as file:
            file.write((encode_prefix(len(text)) + text).ljust(offset, b"\0"))
            source.seek(directory.payload_offset)
            done = 0
            while block := source.read(COPY_BYTES):
                file.write(block)
                done += len(block)
                if progress:
                    progress(done, directory.payload_bytes)
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, out)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    metadata.sync_directory(out.parent)
