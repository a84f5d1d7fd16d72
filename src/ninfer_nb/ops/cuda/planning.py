"""The CUDA backend without a GPU: it goes through every launch and takes scratch, and touches no device.

The scratch of a kernel depends on the architecture and its multiprocessors, so a plan is made for one `DeviceInfo`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace

import numpy as np

from ...cuda.devices import DeviceInfo
from ...cuda.memory import Arena, DeviceArray
from .. import Progress
from . import REHEARSAL_BYTES, TABLE_BYTES, CudaOps
from .memory import BLOCK_BYTES

FIXED_BYTES = 2 * BLOCK_BYTES + TABLE_BYTES  # tables, products' workspaces, and the ends of memory blocks

H200 = DeviceInfo(
    index=0, name="NVIDIA H200", capability=(9, 0), total_bytes=150_754_820_096, multiprocessors=132,
    l2_bytes=50 << 20, shared_bytes=227 << 10, registers=65536, clock_khz=1_980_000, memory_clock_khz=3_201_000,
    pci_bus="",
)  # fmt: skip


class PlanningFrame:
    """A frame by its shapes."""

    def __init__(self, fields: Mapping[str, tuple[tuple[int, ...], str]]):
        self.host = self.device = {name: DeviceArray.at(0, shape, dtype) for name, (shape, dtype) in fields.items()}

    def upload(self) -> None:
        pass

    def download(self) -> None:
        pass


class PlanningOps(CudaOps):
    """A `CudaOps` that always rehearses."""

    def __init__(self, info: DeviceInfo):  # the parent's constructor opens a device
        self.device = SimpleNamespace(info=info)
        self.multiprocessors = info.multiprocessors
        self._scratch = Arena("plan", 0, REHEARSAL_BYTES)
        self._rehearsed = {}

    @property
    def workspace_peak(self) -> int:
        return self._scratch.high_water

    @workspace_peak.setter
    def workspace_peak(self, _: int) -> None:
        self._scratch = Arena("plan", 0, REHEARSAL_BYTES)

    def rehearse(self, bodies: Iterable[Callable[[], None]], progress: Progress | None = None) -> None:
        for body in bodies:
            body()

    def empty(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        return DeviceArray.at(0, tuple(shape), dtype)

    def constant(self, key: object, make: Callable[[], np.ndarray], dtype: str) -> DeviceArray:
        return DeviceArray.at(0, (1,), dtype)

    def frame(self, fields: Mapping[str, tuple[tuple[int, ...], str]]) -> PlanningFrame:
        return PlanningFrame(fields)
