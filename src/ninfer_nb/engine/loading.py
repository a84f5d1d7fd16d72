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
from ..model.weights import MtpWeights, bind_mtp, bind_text
from ..ops import Ops, Progress, Weight


@dataclass(frozen=True)
class Loaded:
    """A model ready to run. `resident_bytes` are the payload bytes of the tensors that it holds."""

    bound: BoundArtifact
    frontend: Frontend
    model: TextModel
    mtp: MtpWeights | None
    tensors: int
    resources: int
    resident_bytes: int
    seconds: float

    @property
    def geometry(self) -> Geometry:
        return self.bound.geometry


@dataclass(frozen=True)
class Parts:
    """What of a model is wanted beside its text decoder; everything else stays in the file."""

    mtp: bool = False
    draft_head: bool = False

    def serves(self, name: str) -> bool:
        """Whether the object `name` is to be resident."""
        if name.endswith("input_scale_divisor"):
            return False
        if name in ("text/draft_head", "text/draft_head_token_ids"):
            return self.draft_head
        return name.startswith("text/") or (self.mtp and name.startswith("mtp/"))


TEXT = Parts()


def load(path: Path, ops: Ops, parts: Parts = TEXT, progress: Progress | None = None) -> Loaded:
    """Open, check and place what `parts` asks for."""
    start = time.perf_counter()
    bound = bind(Artifact.open(path))
    frontend = Frontend.from_resources(
        bound.resource, token_domain=bound.geometry.token_domain, model_id=bound.identity.model_id
    )
    wanted = {name: bound.spec(name) for name in bound.names if parts.serves(name)}
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
        mtp = bind_mtp(bound.names, place, draft_head=parts.draft_head) if parts.mtp else None
    resources = sum(isinstance(entry, ResourceEntry) for entry in bound.artifact.objects)
    seconds = time.perf_counter() - start
    model = TextModel(bound.geometry, weights, ops)
    return Loaded(bound, frontend, model, mtp, len(wanted), resources, total, seconds)


def synthesise(
    identity: Identity, ops: Ops, seed: int, parts: Parts = TEXT, progress: Progress | None = None
) -> tuple[TextModel, MtpWeights | None, int]:
    """A model of a registered identity with made-up weights, and their payload bytes. Raises ArtifactError."""
    geometry = GEOMETRIES[identity.model_id]
    specs = inventory(identity)
    index = {spec.name: i for i, spec in enumerate(specs) if isinstance(spec, TensorSpec) and parts.serves(spec.name)}
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
        mtp = bind_mtp(index.keys(), place, draft_head=parts.draft_head) if parts.mtp else None
    return TextModel(geometry, weights, ops), mtp, total
