"""A memory plan in numbers, for `ninfer plan` and the start-up table (`cli.md` 14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ..artifact.binder import bind
from ..artifact.container import Artifact
from ..artifact.directory import Identity
from ..artifact.geometry import GEOMETRIES, Geometry
from ..artifact.inventory import TensorSpec, inventory
from ..artifact.layouts import encoded_bytes
from ..errors import CapacityError, UsageError
from ..model.weights import bind_mtp, bind_text
from ..ops.counting import CountingOps
from .loading import Parts
from .options import MAX_LANES, EngineOptions
from .plan import Planner, Resolved, graph_allowance


@dataclass(frozen=True)
class ShapeOnly:
    """Stands for a weight whose payload is not read."""

    format: str
    shape: tuple[int, ...]
    codes: int = 0
    high: int = 0
    scales: int = 0
    divisor: int = 0


@dataclass(frozen=True)
class PlanReport:
    """Bytes by part. `free` is what the device has before anything is loaded, None when not known."""

    identity: str
    weights: dict[str, int]
    state: dict[str, int]
    workspace: dict[str, int]
    graph_allowance: int
    token_bytes: int  # of the KV pools, a token
    resolved: Resolved
    free: int | None
    largest_context: int | None
    largest_concurrency: int | None

    @property
    def weight_bytes(self) -> int:
        return sum(self.weights.values())

    @property
    def total(self) -> int:
        return self.weight_bytes + self.resolved.capacity.bytes


def specs_of(artifact: Path | None, synthetic: Identity | None) -> tuple[Identity, dict[str, TensorSpec]]:
    """Identity and stored tensors, from a file's directory or from the registry; no payload is read."""
    if artifact is not None:
        bound = bind(Artifact.open(artifact))
        try:
            return bound.identity, {name: bound.spec(name) for name in bound.names}
        finally:
            bound.artifact.close()
    return synthetic, {spec.name: spec for spec in inventory(synthetic) if isinstance(spec, TensorSpec)}


def make_plan(
    identity: Identity,
    specs: dict[str, TensorSpec],
    options: EngineOptions,
    *,
    device: bool,
    scratch: Callable[[], object],
    fixed: int,
    free: int | None,
) -> PlanReport:
    """Raises UsageError for options that do not work, CapacityError when the plan does not fit into `free`."""
    planner, weights = _planner(identity, specs, options, device, scratch, fixed)
    weight_bytes = sum(weights.values())
    if free is not None and weight_bytes > free:
        raise CapacityError(f"the weights of {weight_bytes} bytes exceed the {free} bytes free")
    left = None if free is None else free - weight_bytes
    resolved = planner.resolve(left)
    state = _state_parts(planner, resolved)
    return PlanReport(
        str(identity),
        weights,
        state,
        planner.workspace(),
        graph_allowance(options, device),
        _token_bytes(planner),
        resolved,
        free,
        None if left is None else _largest_context(planner, left),
        None if left is None else _largest_concurrency(planner, left),
    )


def _planner(
    identity: Identity,
    specs: dict[str, TensorSpec],
    options: EngineOptions,
    device: bool,
    scratch: Callable[[], object],
    fixed: int,
) -> tuple[Planner, dict[str, int]]:
    geometry: Geometry = GEOMETRIES[identity.model_id]
    if not geometry.intermediate:
        raise UsageError(f"{identity.model_id} cannot be run yet: mixture-of-experts layers are missing")
    parts = Parts(mtp=options.window > 0, draft_head=options.lm_head_draft)
    weights: dict[str, int] = {}
    for name, spec in specs.items():
        if parts.serves(name):
            group = "draft head" if "draft_head" in name else name.partition("/")[0]
            weights[group] = weights.get(group, 0) + encoded_bytes(spec.format, spec.shape)

    def get(name: str) -> ShapeOnly:
        return ShapeOnly(specs[name].format, specs[name].shape)

    text = bind_text(geometry, specs, get)
    mtp = bind_mtp(specs, get, draft_head=parts.draft_head) if parts.mtp else None
    return Planner(geometry, text, mtp, options, device, scratch, fixed), weights


def _state_parts(planner: Planner, resolved: Resolved) -> dict[str, int]:
    """Persistent bytes by part, all of them."""
    ops = CountingOps()
    program = planner.build(ops, resolved.capacity.pages)
    state = program.state
    draft = 0 if state.draft is None else replace(state, kv=()).kv_bytes
    parts = {
        "KV pool, main": state.kv_bytes - draft,
        "KV pool, draft": draft,
        "GDN state": state.slot_bytes,
        "records": sum(b.nbytes for r in state.records for b in (r.joint, r.convolved, r.g, r.beta)),
        "logits": program.logits.nbytes,
        "backend": planner.fixed,
    }
    parts["other"] = ops.persistent + planner.fixed - sum(parts.values())
    return {name: size for name, size in parts.items() if size}


def _token_bytes(planner: Planner) -> int:
    low = max(planner.shape(1).row_pages, planner.options.max_concurrency)
    sizes = [planner.build(CountingOps(), pages).state.kv_bytes for pages in (low, low + 1)]
    return (sizes[1] - sizes[0]) // 64


def _fits(planner: Planner, free: int) -> bool:
    try:
        planner.resolve(free)
    except (CapacityError, UsageError):
        return False
    return True


def _largest_context(planner: Planner, free: int) -> int | None:
    """The largest `max_context` that fits with the other options unchanged (an explicit pool grows with it)."""
    low, high = 0, planner.geometry.native_context // 64
    while low < high:
        middle = (low + high + 1) // 2
        options = replace(planner.options, max_context=middle * 64, kv_capacity=_capacity(planner.options))
        low, high = (middle, high) if _fits(replace(planner, options=options), free) else (low, middle - 1)
    return low * 64 or None


def _largest_concurrency(planner: Planner, free: int) -> int | None:
    for lanes in range(MAX_LANES, 0, -1):
        options = replace(planner.options, max_concurrency=lanes, kv_capacity=_capacity(planner.options))
        if _fits(replace(planner, options=options), free):
            return lanes
    return None


def _capacity(options: EngineOptions) -> str | None:
    return "auto" if options.kv_capacity == "auto" else None
