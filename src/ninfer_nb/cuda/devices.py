"""Which GPUs there are, what they can do, and one opened for use.

Everything is asked for lazily: without the `cuda` extra, a driver or a GPU, `probe()` says what is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ninfer_nb.cuda.errors import CudaUnavailable, check, driver

MINIMUM_DRIVER = (13, 0)  # CUDA version that the driver must support: driver branch 580
TARGETS = {(9, 0): "sm_90a", (12, 0): "sm_120a"}  # compute capability -> compilation target


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU as the driver describes it; sizes in bytes."""

    index: int
    name: str
    capability: tuple[int, int]
    total_bytes: int
    multiprocessors: int
    l2_bytes: int
    shared_bytes: int  # shared memory that one block can opt in to
    registers: int  # per multiprocessor
    clock_khz: int
    memory_clock_khz: int
    pci_bus: str

    @property
    def target(self) -> str | None:
        """The compilation target, or None when there are no kernels for this GPU."""
        return TARGETS.get(self.capability)

    def require_target(self) -> str:
        if self.target is None:
            known = ", ".join(f"{major}.{minor} ({t})" for (major, minor), t in TARGETS.items())
            major, minor = self.capability
            raise CudaUnavailable(
                f"GPU {self.index} ({self.name}) has compute capability {major}.{minor}; kernels exist for {known}"
            )
        return self.target


@dataclass(frozen=True)
class Probe:
    """What a look at the machine found; `problem` is None when at least one supported GPU can be used."""

    driver_version: tuple[int, int] | None
    devices: tuple[DeviceInfo, ...]
    problem: str | None


def probe() -> Probe:
    """Never raises for a missing GPU, driver or package: it reports them."""
    version, devices = None, ()
    try:
        version = driver_version()
        devices = list_devices()
        require_driver(version)
        if devices and not any(d.target for d in devices):
            devices[0].require_target()
    except CudaUnavailable as error:
        return Probe(version, tuple(devices), str(error))
    return Probe(version, devices, None)


def driver_version() -> tuple[int, int]:
    """The CUDA version that the driver supports, such as (13, 0)."""
    number = check(driver().cuDriverGetVersion())
    return number // 1000, number % 1000 // 10


def require_driver(version: tuple[int, int]) -> None:
    if version < MINIMUM_DRIVER:
        raise CudaUnavailable(
            f"the NVIDIA driver supports CUDA {version[0]}.{version[1]}; "
            f"CUDA {MINIMUM_DRIVER[0]}.{MINIMUM_DRIVER[1]} (driver 580) or newer is needed"
        )


def list_devices() -> tuple[DeviceInfo, ...]:
    return tuple(_describe(i) for i in range(check(driver().cuDeviceGetCount())))


def _describe(index: int) -> DeviceInfo:
    api = driver()
    handle = check(api.cuDeviceGet(index))
    kinds = api.CUdevice_attribute

    def attribute(name: str) -> int:
        return check(api.cuDeviceGetAttribute(kinds[f"CU_DEVICE_ATTRIBUTE_{name}"], handle))

    return DeviceInfo(
        index=index,
        name=check(api.cuDeviceGetName(128, handle)).split(b"\0")[0].decode(),
        capability=(attribute("COMPUTE_CAPABILITY_MAJOR"), attribute("COMPUTE_CAPABILITY_MINOR")),
        total_bytes=check(api.cuDeviceTotalMem(handle)),
        multiprocessors=attribute("MULTIPROCESSOR_COUNT"),
        l2_bytes=attribute("L2_CACHE_SIZE"),
        shared_bytes=attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        registers=attribute("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        clock_khz=attribute("CLOCK_RATE"),
        memory_clock_khz=attribute("MEMORY_CLOCK_RATE"),
        pci_bus=check(api.cuDeviceGetPCIBusId(32, handle)).split(b"\0")[0].decode(),
    )


class Device:
    """One GPU with its primary context, current on the thread that opened it."""

    def __init__(self, info: DeviceInfo):
        require_driver(driver_version())
        self.info = info
        self.arch = info.require_target()
        self.handle = check(driver().cuDeviceGet(info.index))
        self._context = check(driver().cuDevicePrimaryCtxRetain(self.handle))
        self.make_current()

    def make_current(self) -> None:
        """Binds the context to the calling thread; once per thread."""
        check(driver().cuCtxSetCurrent(self._context))

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device now."""
        return check(driver().cuMemGetInfo())

    def synchronize(self) -> None:
        check(driver().cuCtxSynchronize())


@cache
def open_device(index: int = 0) -> Device:
    """The device of this index (as CUDA_VISIBLE_DEVICES orders them), opened once a process."""
    devices = list_devices()
    if not 0 <= index < len(devices):
        raise CudaUnavailable(f"GPU {index} does not exist; this machine has {len(devices)}")
    return Device(devices[index])
