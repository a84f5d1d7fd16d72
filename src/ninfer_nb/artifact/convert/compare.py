"""An artifact against a conversion of its sources, byte for byte (`artifact-format.md` 7).

Stricter than probing rows: every object is made again. Published draft heads came from a ranking that is not public, so
without a ranking their ids are taken from the artifact, and only the rows that they name are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...errors import ArtifactError
from ..binder import bind
from ..container import Artifact
from ..geometry import Geometry
from .conversion import Conversion, Request, encodings
from .sources import DRAFT_IDS

Progress = Callable[[int, int], None]  # bytes done, in all

_BLOCK_BYTES = 4 << 20


def compare(
    path: Path, request: Request, progress: Progress | None = None, *, geometry: Geometry | None = None
) -> dict[str, object]:
    """Raises ArtifactError naming the first byte that differs; returns what was compared and how it was made."""
    with Artifact.open(path) as artifact:
        if artifact.identity != request.identity:
            raise ArtifactError(f"artifact is {artifact.identity}; the sources are for {request.identity}")
        bound = bind(artifact, geometry)
        draft_ids = None if request.ranking else bound.payload(DRAFT_IDS).view("<i4").copy()
        found = artifact.directory
    with Conversion(request, draft_ids, geometry=geometry) as conversion, open(path, "rb") as file:
        if found.objects != conversion.directory.objects:
            raise ArtifactError("artifact directory differs from that of a conversion of these sources")
        total, done = sum(entry.bytes for entry in found.objects), 0
        for entry, (name, payload) in zip(found.objects, conversion.payloads(), strict=True):
            file.seek(found.payload_offset + entry.offset)
            _compare_object(file, name, memoryview(payload))
            done += entry.bytes
            if progress:
                progress(done, total)
    return {
        "compared_bytes": total,
        "compared_objects": len(found.objects),
        "draft_ids": "ranking" if request.ranking else "artifact",
        "formats": dict(sorted(Counter(route.spec.format for route in conversion.routes).items())),
        "made_by": encodings(conversion.routes),
    }


def _compare_object(file: BinaryIO, name: str, expected: memoryview) -> None:
    for start in range(0, len(expected), _BLOCK_BYTES):
        wanted = np.frombuffer(expected[start : start + _BLOCK_BYTES], np.uint8)
        found = np.frombuffer(file.read(len(wanted)), np.uint8)
        differs = found != wanted
        if differs.any():
            at = int(np.argmax(differs))
            raise ArtifactError(
                f"object {name} differs from the conversion of its sources at byte {start + at}: "
                f"{found[at]:#04x}, expected {wanted[at]:#04x}"
            )
