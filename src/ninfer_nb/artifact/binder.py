"""Checks an open artifact against the registered inventory of its identity.

The inventory is closed both ways: nothing may be missing and nothing may be left over, whatever the caller means to
load (`inventories.md` 6.1, `artifact-format.md` 1.6). Knows nothing of devices or models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ArtifactError
from .container import Artifact, ResourceEntry, TensorEntry
from .directory import Entry, Identity
from .formats import LAYOUT_OF, NVFP4, RAW_BYTES
from .geometry import GEOMETRIES, Geometry
from .inventory import PROFILES, ObjectSpec, TensorSpec, divisor_of, inventory
from .layouts import BlockScaleGeometry

DRAFT_IDS = "text/draft_head_token_ids"


class BoundArtifact:
    """An artifact that holds exactly what its identity promises."""

    def __init__(self, artifact: Artifact, geometry: Geometry, specs: tuple[ObjectSpec, ...]):
        self.artifact = artifact
        self.geometry = geometry
        self._specs = {spec.name: spec for spec in specs if isinstance(spec, TensorSpec)}

    @property
    def identity(self) -> Identity:
        return self.artifact.identity

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors in inventory order."""
        return tuple(self._specs)

    def spec(self, name: str) -> TensorSpec:
        """Shape and format of a tensor."""
        return self._specs[name]

    def payload(self, name: str) -> np.ndarray:
        """A tensor's bytes, read-only uint8, a view of the file."""
        return self.artifact.payload(name)

    def resource(self, name: str) -> bytes:
        """A resource's bytes."""
        return self.artifact.resource(name)


def bind(artifact: Artifact, geometry: Geometry | None = None) -> BoundArtifact:
    """Check identity, inventory, and the few values that loading depends on; `geometry` replaces the registered one.

    Reads no payload but divisors and draft-head ids. Raises ArtifactError naming the first object that differs.
    """
    identity = artifact.identity
    check_identity(identity)
    geometry = geometry or GEOMETRIES[identity.model_id]
    specs = inventory(identity, geometry)
    check_inventory(artifact.objects, specs)
    bound = BoundArtifact(artifact, geometry, specs)
    check_values(bound)
    return bound


def check_identity(identity: Identity) -> None:
    """Raises ArtifactError unless the pair is registered."""
    if identity in PROFILES:
        return
    known = [str(other) for other in PROFILES if other.model_id == identity.model_id]
    hint = f"registered for this model: {', '.join(known)}" if known else "no such model is registered"
    raise ArtifactError(f"artifact identity '{identity}' is not supported: {hint}")


def check_inventory(objects: Sequence[Entry], specs: Sequence[ObjectSpec]) -> None:
    """Every expected object is there as expected, and no other."""
    entries = {entry.name: entry for entry in objects}
    for spec in specs:
        entry = entries.pop(spec.name, None)
        if entry is None:
            raise ArtifactError(f"required artifact object is missing: {spec.name}")
        if isinstance(spec, TensorSpec):
            _check_tensor(entry, spec)
        elif not isinstance(entry, ResourceEntry):
            raise ArtifactError(f"required resource is a tensor: {spec.name}")
        elif entry.encoding != RAW_BYTES:
            raise ArtifactError(f"resource encoding does not match target contract: {spec.name}")
    for name in entries:
        raise ArtifactError(f"artifact object was not consumed by the selected target: {name}")


def _check_tensor(entry: Entry, spec: TensorSpec) -> None:
    if not isinstance(entry, TensorEntry):
        raise ArtifactError(f"required tensor is a resource: {spec.name}")
    found, wanted = (entry.format, entry.layout, entry.shape), (spec.format, LAYOUT_OF[spec.format], spec.shape)
    if found != wanted:
        raise ArtifactError(
            f"tensor descriptor does not match target contract: {spec.name} "
            f"(found {_describe(*found)}, required {_describe(*wanted)})"
        )


def _describe(format: str, layout: str, shape: tuple[int, ...]) -> str:
    return f"{format} {layout} {list(shape)}"


def check_values(bound: BoundArtifact) -> None:
    """Draft-head ids are distinct ids of the token domain; every NVFP4 divisor is finite and positive."""
    ids = bound.payload(DRAFT_IDS).view("<i4")
    if ids.size and not 0 <= ids.min() <= ids.max() < bound.geometry.token_domain:
        raise ArtifactError(f"{DRAFT_IDS}: ids must be in 0..{bound.geometry.token_domain - 1}")
    if np.unique(ids).size != ids.size:
        raise ArtifactError(f"{DRAFT_IDS}: ids must be distinct")
    for name in bound.names:
        spec = bound.spec(name)
        if spec.format == NVFP4:
            _check_divisor(name, BlockScaleGeometry.of(spec.shape).divisor(bound.payload(name))[0])
            divisor = divisor_of(name)
            _check_divisor(divisor, bound.payload(divisor).view("<f4")[0])


def _check_divisor(name: str, value: np.float32) -> None:
    if not (np.isfinite(value) and value > 0):
        raise ArtifactError(f"{name}: divisor must be finite and positive")
