"""From a `.ninfer` file to a bound model and its frontend (`artifact-format.md` 1.6, `inventories.md` 5)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ..artifact.binder import BoundArtifact, bind
from ..artifact.container import Artifact, ResourceEntry
from ..artifact.directory import Identity
from ..artifact.geometry import GEOMETRIES, Geometry
from ..artifact.inventory import TensorSpec, inventory
from ..artifact.layouts import encoded_bytes
from ..frontend.frontend import Frontend
from ..model.text import TextModel
from ..model.weights import bind_text
from ..ops import Ops, Progress, Weight


@dataclass(frozen=True)
class Loaded:
    """A model ready to run. `resident_bytes` are the payload bytes of the tensors that it holds."""

    bound: BoundArtifact
    frontend: Frontend
    model: TextModel
    tensors: int
    resources: int
    resident_bytes: int
    seconds: float

    @property
    def geometry(self) -> Geometry:
        return self.bound.geometry


def load(path: Path, ops: Ops, progress: Progress | None = None) -> Loaded:
    """Open, check and place what text generation needs; vision, MTP and draft-head weights stay in the file."""
    start = time.perf_counter()
    bound = bind(Artifact.open(path))
    frontend = Frontend.from_resources(
        bound.resource, token_domain=bound.geometry.token_domain, model_id=bound.identity.model_id
    )
    wanted = {name: bound.spec(name) for name in bound.names if _serves_text(name)}
    total = sum(bound.payload(name).nbytes for name in wanted)
    done = 0

    def place(name: str) -> Weight:
        nonlocal done
        spec, payload = wanted[name], bound.payload(name)
        weight = ops.weight(payload, spec.format, spec.shape)
        done += payload.nbytes
        if progress:
            progress("weights", done, total)
        return weight

    with ops.loading():
        weights = bind_text(bound.geometry, bound.names, place)
    resources = sum(isinstance(entry, ResourceEntry) for entry in bound.artifact.objects)
    seconds = time.perf_counter() - start
    model = TextModel(bound.geometry, weights, ops)
    return Loaded(bound, frontend, model, len(wanted), resources, total, seconds)


def _serves_text(name: str) -> bool:
    return name.startswith("text/") and "draft" not in name and not name.endswith("input_scale_divisor")


def synthesise(identity: Identity, ops: Ops, seed: int, progress: Progress | None = None) -> tuple[TextModel, int]:
    """A text model of a registered identity with made-up weights, and their payload bytes. Raises ArtifactError."""
    geometry = GEOMETRIES[identity.model_id]
    specs = inventory(identity)
    index = {spec.name: i for i, spec in enumerate(specs) if isinstance(spec, TensorSpec) and _serves_text(spec.name)}
    size = {name: encoded_bytes(specs[i].format, specs[i].shape) for name, i in index.items()}
    total, done = sum(size.values()), 0

    def place(name: str) -> Weight:
        nonlocal done
        weight = ops.synthetic(specs[index[name]], seed, index[name])
        done += size[name]
        if progress:
            progress("weights", done, total)
        return weight

    with ops.loading():
        weights = bind_text(geometry, index.keys(), place)
    return TextModel(geometry, weights, ops), total
