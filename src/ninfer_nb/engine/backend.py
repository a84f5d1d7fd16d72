"""Choosing where the model runs: `auto`, `cpu` or a CUDA device index (`cli.md` 2, `--device`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..cuda.devices import list_devices, probe
from ..cuda.errors import CudaUnavailable
from ..errors import UsageError
from ..ops import Ops
from ..ops.counting import CountingOps
from ..ops.reference import ReferenceOps

# Until the CUDA backend has answered the recorded cases on a GPU, only an explicit index may select it.
UNPROVEN = "the CUDA backend is not proven yet, --device 0 selects it"


@dataclass(frozen=True)
class Backend:
    """An opened backend. `notice` is one line for the user when `auto` had to fall back."""

    ops: Ops
    device: str  # "cpu" or a device index
    notice: str | None = None
    planning: Callable[[], Ops] = CountingOps  # makes a backend that takes the same scratch, and no memory
    fixed_bytes: int = 0  # of memory that the backend takes for itself


def open_backend(device: str | int) -> Backend:
    """Raises UsageError for a device that is not here, CudaUnavailable for one that cannot be used."""
    if device == "cpu":
        return Backend(ReferenceOps(), "cpu")
    if device == "auto":
        problem = _why_no_gpu()
        found = f"no usable CUDA device ({problem})" if problem else UNPROVEN
        notice = f"notice: {found}; using the CPU reference backend"
        return Backend(ReferenceOps(), "cpu", notice)
    count = len(list_devices())
    if not 0 <= int(device) < count:
        raise UsageError(f"CUDA device {device} is not present ({count} found)")
    return _open_cuda(int(device))


def _why_no_gpu() -> str | None:
    found = probe()
    if found.problem is None and not found.devices:
        return "the driver reports no GPU"
    if found.problem is None and found.devices[0].target is None:
        try:
            found.devices[0].require_target()
        except CudaUnavailable as error:
            return str(error)
    return found.problem


def _open_cuda(index: int) -> Backend:
    from ..ops.cuda import CudaOps  # needs the cuda extra, which a CPU installation lacks
    from ..ops.cuda.planning import FIXED_BYTES, PlanningOps

    ops = CudaOps.open(index)
    info = ops.device.info
    return Backend(ops, str(index), planning=lambda: PlanningOps(info), fixed_bytes=FIXED_BYTES)


@dataclass(frozen=True)
class PlanningBackend:
    """What a plan is made for. `free_bytes` of the device as it is now, None without one."""

    name: str
    on_device: bool
    scratch: Callable[[], Ops]
    fixed_bytes: int
    free_bytes: int | None


def planning_backend(device: str | int) -> PlanningBackend:
    """For `auto` the first GPU, or an H200 where there is none; nothing is allocated. Raises as `open_backend`."""
    if device == "cpu":
        return PlanningBackend("cpu", False, CountingOps, 0, None)
    from ..ops.cuda.planning import FIXED_BYTES, H200, PlanningOps

    devices = list_devices() if device != "auto" or _why_no_gpu() is None else []
    if device == "auto" and not devices:
        return PlanningBackend("an H200 (no GPU here)", True, lambda: PlanningOps(H200), FIXED_BYTES, None)
    index = 0 if device == "auto" else int(device)
    if not 0 <= index < len(devices):
        raise UsageError(f"CUDA device {index} is not present ({len(devices)} found)")
    from ..cuda.devices import open_device

    info, free = devices[index], open_device(index).memory()[0]
    return PlanningBackend(f"{info.name} ({index})", True, lambda: PlanningOps(info), FIXED_BYTES, free)
