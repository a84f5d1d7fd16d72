"""Source checkpoints to a complete `.ninfer` file, and the report of how it was made (`inventories.md` 7).

Everything about the sources is checked before the first byte is written. The file grows under a temporary name beside
its final one and is renamed when it is complete and on disk. Payloads are made a bounded number of bytes ahead.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import ArtifactError
from ..binder import check_identity
from ..directory import Directory, Identity, ResourceEntry, TensorEntry
from ..geometry import GEOMETRIES, Geometry
from ..inventory import inventory
from ..layouts import encoded_bytes
from ..metadata import sync_directory
from ..writer import ArtifactWriter, plan
from . import config
from .checkpoint import Checkpoint
from .checks import check_tensors
from .draft import draft_token_ids, read_counts, special_ids
from .resources import read_resources
from .routes import Route
from .sources import Companion, Sources, companion_kind, joins, routes

Progress = Callable[[int, int], None]  # bytes done, in all

PARTIAL = ".partial"
REPORT = ".conversion.json"
AHEAD_BYTES = 512 << 20  # payloads made and not yet used; a larger one is made alone
MAX_WORKERS = 8

# Build-time names of the recipes whose outputs were published (`inventories.md`); they are stored in no file.
_RECIPES = {
    Identity("qwen3.6-27b", "groupwise-int"): "qwen3_6_27b-v2",
    Identity("qwen3.6-27b", "nvfp4"): "qwen3_6_27b_nvfp4-v1",
    Identity("qwen3.8-27b", "groupwise-int"): "qwen3_8_27b-v1",
    Identity("qwen3.8-27b", "nvfp4"): "qwen3_8_27b_nvfp4-v1",
    Identity("qwen3.6-35b-a3b", "groupwise-int"): "qwen3_6_35b_a3b-v2",
}


@dataclass(frozen=True)
class Request:
    """What to convert from where. `quantized` is the companion that the identity's kind asks for."""

    identity: Identity
    base: Path
    quantized: Path | None = None
    dflash: Path | None = None
    ranking: Path | None = None

    def members(self) -> dict[str, str | None]:
        """The arguments, for reports."""
        given = {"model": self.base, "quantized": self.quantized, "dflash": self.dflash, "ranking": self.ranking}
        return {name: None if path is None else str(path) for name, path in given.items()}


class Conversion:
    """Sources that were checked and found complete: the plan of the file and its payloads.

    `draft_ids` int32 [D] replaces the ids that the ranking would give, `geometry` the registered one (benchmarks). A
    context manager that closes the sources. Raises ArtifactError naming the member, file or tensor that is wrong.
    """

    def __init__(self, request: Request, draft_ids: np.ndarray | None = None, *, geometry: Geometry | None = None):
        self.request = request
        check_identity(request.identity)
        self.geometry: Geometry = geometry or GEOMETRIES[request.identity.model_id]
        self.kind = _checked_kind(request, self.geometry)
        with ExitStack() as stack:
            self.sources = Sources(*(_opened(stack, p) for p in (request.base, request.quantized, request.dflash)))
            self._check_configs()
            self.resources = read_resources(self.sources.base, request.identity.model_id)
            ids = self._draft_ids() if draft_ids is None else draft_ids
            self.routes: tuple[Route, ...] = routes(request.identity, self.geometry, self.sources, ids)
            check_tensors(self.sources, self.kind, joins(request.identity, self.geometry, ids), self.routes)
            lengths = {name: len(content) for name, content in self.resources.items()}
            self.directory: Directory = plan(request.identity, inventory(request.identity, self.geometry), lengths)
            self._stack = stack.pop_all()

    def __enter__(self) -> Conversion:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def payloads(self) -> Iterator[tuple[str, bytes | np.ndarray]]:
        """Name and payload of every object, in file order."""
        yield from self.resources.items()
        for route, payload in _made_ahead(self.routes):
            yield route.spec.name, payload

    def _check_configs(self) -> None:
        config.check_base(self.sources.base, self.geometry)
        if self.sources.quantized is not None:
            config.check_companion(self.sources.quantized, self.geometry, self.kind is Companion.MIXED)
        if self.sources.dflash is not None:
            config.check_dflash(self.sources.dflash, self.geometry)

    def _draft_ids(self) -> np.ndarray:
        g = self.geometry
        forced = special_ids(self.resources["frontend/tokenizer_config.json"], g.token_domain)
        return draft_token_ids(read_counts(self.request.ranking, g), forced, g.draft_rows)


def convert(
    request: Request, out: Path, progress: Progress | None = None, *, geometry: Geometry | None = None
) -> dict[str, object]:
    """Write `out` and its report `<out>.conversion.json`; returns the report. An existing file is never replaced."""
    started = time.monotonic()
    for path in (out, report_path(out)):
        if path.exists():
            raise ArtifactError(f"output exists already: {path}")
    if not out.parent.is_dir():
        raise ArtifactError(f"output folder does not exist: {out.parent}")
    with Conversion(request, geometry=geometry) as conversion:
        _write(conversion, out, progress)
        report = _report(conversion, out, time.monotonic() - started)
    report_path(out).write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


def report_path(out: Path) -> Path:
    """Where the report of a conversion to `out` goes."""
    return out.with_name(out.name + REPORT)


def _write(conversion: Conversion, out: Path, progress: Progress | None) -> None:
    partial = out.with_name(out.name + PARTIAL)
    directory, done = conversion.directory, 0
    total = sum(entry.bytes for entry in directory.objects)
    try:
        with ArtifactWriter(partial, directory) as writer:
            for name, payload in conversion.payloads():
                writer.write(name, payload)
                done += len(payload)
                if progress:
                    progress(done, total)
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.rename(partial, out)
        sync_directory(out.parent)
    except OSError as error:
        raise ArtifactError(f"{out}: {error.strerror}") from error
    finally:
        partial.unlink(missing_ok=True)


def _checked_kind(request: Request, g: Geometry) -> Companion | None:
    kind = companion_kind(request.identity)
    if request.quantized is not None and kind is None:
        raise ArtifactError(f"{request.identity} has no quantized linears: a second checkpoint is not used")
    if g.dflash is not None and request.dflash is None:
        raise ArtifactError(f"{request.identity} needs the DFlash checkpoint")
    if g.dflash is None and request.dflash is not None:
        raise ArtifactError(f"{request.identity} has no DFlash companion")
    return kind


def _opened(stack: ExitStack, folder: Path | None) -> Checkpoint | None:
    return None if folder is None else stack.enter_context(Checkpoint(folder))


def _made_ahead(routes: Iterable[Route]) -> Iterator[tuple[Route, np.ndarray]]:
    """Payloads in order, made by several threads, at most `AHEAD_BYTES` (or one payload) ahead of the caller."""
    pending: deque[tuple[Route, int, Future]] = deque()
    held = 0
    with ThreadPoolExecutor(min(MAX_WORKERS, os.cpu_count() or 1)) as pool:
        try:
            for route in routes:
                size = encoded_bytes(route.spec.format, route.spec.shape)
                while pending and held + size > AHEAD_BYTES:
                    first, bytes_held, future = pending.popleft()
                    yield first, future.result()
                    held -= bytes_held
                pending.append((route, size, pool.submit(route.payload)))
                held += size
            while pending:
                first, _, future = pending.popleft()
                yield first, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _report(conversion: Conversion, out: Path, seconds: float) -> dict[str, object]:
    identity, directory = conversion.request.identity, conversion.directory
    return {
        "model_id": identity.model_id,
        "weights_id": identity.weights_id,
        "target_key": conversion.geometry.target_key,
        "recipe_id": _RECIPES.get(identity),
        "arguments": {**conversion.request.members(), "out": str(out)},
        "sources": {
            role: {"folder": str(each.folder), "files": len(each.files), "tensors": len(each.tensors)}
            for role, each in conversion.sources.each()
        },
        "made_by": encodings(conversion.routes),
        "objects": object_statistics(directory),
        "elapsed_seconds": round(seconds, 3),
        "file_bytes": directory.file_bytes,
    }


def encodings(routes: Iterable[Route]) -> dict[str, int]:
    """How many tensors of each format came from where: source words kept, or which encoder."""
    return dict(sorted(Counter(f"{route.spec.format}: {route.encoding}" for route in routes).items()))


def object_statistics(directory: Directory) -> dict[str, object]:
    """Counts and byte totals of a planned file."""
    tensors = [entry for entry in directory.objects if isinstance(entry, TensorEntry)]
    resources = [entry for entry in directory.objects if isinstance(entry, ResourceEntry)]
    tensor_bytes, resource_bytes = (sum(entry.bytes for entry in kind) for kind in (tensors, resources))
    return {
        "count": len(directory.objects),
        "tensors": len(tensors),
        "resources": len(resources),
        "formats": dict(sorted(Counter(entry.format for entry in tensors).items())),
        "layouts": dict(sorted(Counter(entry.layout for entry in tensors).items())),
        "encodings": dict(sorted(Counter(entry.encoding for entry in resources).items())),
        "tensor_bytes": tensor_bytes,
        "resource_bytes": resource_bytes,
        "object_bytes": tensor_bytes + resource_bytes,
        "payload_span_bytes": directory.payload_bytes,
        "alignment_bytes": directory.payload_bytes - tensor_bytes - resource_bytes,
    }
