"""From a `.ninfer` file to a bound model and its frontend (`artifact-format.md` 1.6, `inventories.md` 5)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from ..artifact.binder import BoundArtifact, bind
from ..artifact.container import Artifact, ResourceEntry
from ..artifact.geometry import Geometry
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
    wanted = {name: bound.spec(name) for name in bound.names if name.startswith("text/") and "draft" not in name}
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
