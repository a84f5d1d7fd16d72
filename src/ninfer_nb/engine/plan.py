"""The memory plan of an engine (`runtime.md` 3 and 4): every byte but the weights', before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..artifact.geometry import Geometry
from ..errors import CapacityError
from ..model.mtp import MtpModel
from ..model.state import StateShape, allocate_state, pages_for
from ..model.text import TextModel
from ..model.weights import MtpWeights, TextWeights
from ..ops import PAGE, Ops
from ..ops.counting import CountingOps
from .capacity import HEADROOM, Capacity, resolve_capacity
from .execution import ModelProgram
from .options import EngineOptions, resolve_context

FREE_FLOOR = 256 << 20  # bytes that a started engine leaves free
GRAPH_FLOOR, GRAPH_EACH = 64 << 20, 16 << 20  # bytes allowed for CUDA graphs: at least, and for each executable


@dataclass(frozen=True)
class Resolved:
    """Token limits and pools that follow from the options and the memory."""

    max_context: int
    prefill_chunk: int
    capacity: Capacity
    shape: StateShape
    persistent_bytes: int
    workspace_bytes: int
    graph_allowance: int


def draft_pool(pages: int, lanes: int, window: int) -> int:
    """Pages of the draft layer's pool: provisional positions may run ahead of the main one (`runtime.md` 3)."""
    return pages + lanes * pages_for(window - 1) if window else 0


def graph_allowance(options: EngineOptions, device: bool) -> int:
    executables = options.max_concurrency * (2 if options.window else 1)
    return max(GRAPH_FLOOR, GRAPH_EACH * executables) if device else 0


@dataclass(frozen=True)
class Planner:
    """What is planned: a model, by the shapes of its weights, with options, on a kind of backend.

    `scratch` makes a backend that only counts: its `workspace_peak` after `rehearse` is what kernels need. `fixed`
    bytes are the backend's own.
    """

    geometry: Geometry
    weights: TextWeights
    mtp: MtpWeights | None
    options: EngineOptions
    device: bool
    scratch: Callable[[], Ops] = CountingOps
    fixed: int = 0

    @property
    def context(self) -> int:
        return resolve_context(self.geometry, self.options)

    @property
    def chunk(self) -> int:
        return min(self.options.prefill_chunk, pages_for(self.context) * PAGE)

    def shape(self, pages: int) -> StateShape:
        options = self.options
        draft = draft_pool(pages, options.max_concurrency, options.window)
        row_pages = pages_for(self.context)
        return StateShape(options.max_concurrency, pages, row_pages, options.kv_dtype, draft, options.window)

    def build(self, ops: Ops, pages: int) -> ModelProgram:
        """The program itself, on a backend that counts."""
        model = TextModel(self.geometry, self.weights, ops)
        return build_program(model, self.mtp, self.shape(pages), self.chunk, self.context)

    def persistent(self, pages: int) -> int:
        ops = CountingOps()
        self.build(ops, pages)
        return ops.persistent + self.fixed

    def workspace(self) -> dict[str, int]:
        """Scratch bytes of the largest unit of each phase."""
        found = {}
        ops = self.scratch()
        program = self.build(ops, max(pages_for(self.context), self.options.max_concurrency))
        for phase, bodies in program.phases().items():
            ops.workspace_peak = 0
            ops.rehearse(bodies)
            found[phase] = ops.workspace_peak
        return found

    def resolve(self, free: int | None, headroom: int = HEADROOM) -> Resolved:
        """Limits for `free` bytes after the weights (None: unknown). Raises CapacityError or UsageError."""
        options, context, lanes = self.options, self.context, self.options.max_concurrency
        allowance, workspace = graph_allowance(options, self.device), max(self.workspace().values())
        wanted = options.kv_capacity
        if wanted is None:  # one sequence's worth, and at least a page a lane
            wanted = context if lanes <= pages_for(context) else lanes * PAGE
        size = lambda pages: self.persistent(pages) + workspace + allowance  # noqa: E731
        found = resolve_capacity(wanted, context, lanes, size, free, headroom)
        persistent = found.bytes - workspace - allowance
        return Resolved(context, self.chunk, found, self.shape(found.pages), persistent, workspace, allowance)


def check_graph_memory(observed: int, allowance: int, free_after: int, device: str) -> str | None:
    """Whether an engine may start that used `observed` bytes for its graphs (`runtime.md` 11.1): a notice, or None.

    More than allowed is no reason to fail while `FREE_FLOOR` bytes are left: the measured figure is the change of the
    device's free memory, to which other processes contribute. Raises CapacityError below the floor.
    """
    if observed <= allowance:
        return None
    figures = f"observed {observed} bytes, allowed {allowance}, free {free_after}"
    if free_after < FREE_FLOOR:
        raise CapacityError(f"device {device}: preparing the graphs took too much memory: {figures}")
    return f"notice: device {device}: graphs took more memory than planned: {figures}"


def build_program(
    model: TextModel, mtp: MtpWeights | None, shape: StateShape, chunk: int, context: int
) -> ModelProgram:
    """State and program on the model's backend."""
    return ModelProgram(
        model,
        allocate_state(model.ops, model.geometry, shape),
        lanes=shape.lanes,
        chunk=chunk,
        max_context=context,
        mtp=MtpModel(model, mtp) if shape.window else None,
        window=shape.window,
    )
