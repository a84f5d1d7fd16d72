"""Kernels on a device: loaded from the cache or compiled, and launched with raw arguments.

`KernelLibrary` owns the loaded kernels of one device; `Kernel.launch` is the hot path. Knows nothing of what the
kernels do. The launch goes straight to cuLaunchKernelEx: arguments are packed into one buffer that the kernel keeps,
and the launch configuration is an object that is reused. Only one thread launches, the one that owns the GPU.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from ninfer_nb.cuda.cache import CubinCache
from ninfer_nb.cuda.compiler import Binary, compile_spec
from ninfer_nb.cuda.devices import Device
from ninfer_nb.cuda.errors import CudaError, KernelError, check, describe, driver
from ninfer_nb.cuda.spec import KernelSpec
from ninfer_nb.cuda.stream import Stream

Progress = Callable[[int, int, str], None]  # kernels ready, kernels in all, the latest one's name
Dim3 = tuple[int, int, int]

_SLOT = 8  # bytes of the argument buffer per argument


class Kernel:
    """One loaded kernel."""

    def __init__(self, spec: KernelSpec, binary: Binary):
        api = driver()
        self.spec, self.binary = spec, binary
        self._module = check(api.cuModuleLoadData(binary.cubin))
        self.function = check(api.cuModuleGetFunction(self._module, binary.entry.encode()))
        check(api.cuFuncLoad(self.function))  # lazy loading would otherwise load it inside a graph capture
        attributes = api.CUfunction_attribute
        if binary.options.shared_bytes:
            kind = attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (status,) = api.cuFuncSetAttribute(self.function, kind, binary.options.shared_bytes)
            if status:
                wanted = binary.options.shared_bytes
                raise KernelError(f"kernel {spec} needs {wanted:,} bytes of shared memory: {describe(status)}")
        self._launch = api.cuLaunchKernelEx
        self._pack = struct.Struct("<" + "".join(f"{c}{_SLOT - struct.calcsize(c)}x" for c in binary.arguments))
        self._buffer = ctypes.create_string_buffer(max(self._pack.size, _SLOT))
        base, count = ctypes.addressof(self._buffer), len(binary.arguments)
        self._addresses = (ctypes.c_void_p * max(count, 1))(*(base + _SLOT * i for i in range(count)))
        self._parameters = ctypes.addressof(self._addresses)
        self._configs: dict[tuple[bool, Dim3 | None], Any] = {}

    def launch(
        self, grid: Dim3, block: Dim3, stream: Stream, *arguments: int | float,
        pdl: bool = False, cluster: Dim3 | None = None,
    ) -> None:  # fmt: skip
        """Queues the kernel. `arguments`: addresses and numbers, in the order of the kernel's signature.

        pdl: may start while the kernel before it in the stream still runs (programmatic dependent launch), so the
        kernel must call `ptx.griddepcontrol_wait` before it touches what that one writes.
        """
        try:
            self._pack.pack_into(self._buffer, 0, *arguments)
        except struct.error as error:
            raise CudaError(f"kernel {self.spec}: arguments do not fit {self.binary.arguments!r}: {error}") from error
        config = self._configs.get((pdl, cluster)) or self._configure(pdl, cluster)
        config.gridDimX, config.gridDimY, config.gridDimZ = grid
        config.blockDimX, config.blockDimY, config.blockDimZ = block
        config.hStream = stream.handle
        (status,) = self._launch(config, self.function, self._parameters, 0)
        if status:
            raise CudaError(f"launch of {self.spec} with grid {grid}, block {block}: {describe(status)}")

    def _configure(self, pdl: bool, cluster: Dim3 | None) -> Any:
        api = driver()
        attributes = []
        if pdl:
            attribute = api.CUlaunchAttribute()
            attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            attributes.append(attribute)
        if cluster:
            attribute = api.CUlaunchAttribute()
            attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            dim = attribute.value.clusterDim
            dim.x, dim.y, dim.z = cluster
            attributes.append(attribute)
        config = api.CUlaunchConfig()
        config.sharedMemBytes = self.binary.options.shared_bytes
        config.attrs = attributes
        config.numAttrs = len(attributes)
        self._configs[pdl, cluster] = config
        return config

    def attribute(self, name: str) -> int:
        """A CU_FUNC_ATTRIBUTE_<name> of the loaded function, such as NUM_REGS or LOCAL_SIZE_BYTES."""
        api = driver()
        return check(api.cuFuncGetAttribute(api.CUfunction_attribute[f"CU_FUNC_ATTRIBUTE_{name}"], self.function))

    def blocks_per_multiprocessor(self, threads: int) -> int:
        """Blocks of this size that are resident together on one multiprocessor."""
        shared = self.binary.options.shared_bytes
        return check(driver().cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, threads, shared))


@dataclass(frozen=True)
class WarmUp:
    """What `KernelLibrary.warm_up` did."""

    compiled: int
    cached: int


class KernelLibrary:
    """The kernels of one device: from memory, from disk, or compiled."""

    def __init__(self, device: Device, cache: CubinCache | None = None):
        self.device = device
        self.cache = cache or CubinCache()
        self.frozen = False  # when set, a kernel that is not loaded is an error: no compiler runs inside a round
        self._loaded: dict[KernelSpec, Kernel] = {}

    def get(self, spec: KernelSpec) -> Kernel:
        """The loaded kernel; KernelError when the library is frozen and it is not among those warmed up."""
        kernel = self._loaded.get(spec)
        if kernel is None:
            if self.frozen:
                raise KernelError(f"kernel {spec} was not loaded before the kernel set was frozen")
            arch = self.device.arch
            kernel = self._load(spec, self.cache.load(spec, arch) or compile_and_store(spec, arch, self.cache))
        return kernel

    def _load(self, spec: KernelSpec, binary: Binary) -> Kernel:
        kernel = self._loaded[spec] = Kernel(spec, binary)
        return kernel

    def warm_up(
        self, specs: Iterable[KernelSpec], progress: Progress | None = None, workers: int | None = None
    ) -> WarmUp:
        """Loads every kernel, compiling what the disk does not have in `workers` processes (default: the cores)."""
        arch = self.device.arch
        wanted = [s for s in dict.fromkeys(specs) if s not in self._loaded]
        missing, ready = [], 0

        def report(spec: KernelSpec) -> None:
            nonlocal ready
            ready += 1
            if progress:
                progress(ready, len(wanted), str(spec))

        for spec in wanted:
            binary = self.cache.load(spec, arch)
            if binary is None:
                missing.append(spec)
            else:
                self._load(spec, binary)
                report(spec)
        for spec, binary in compile_many(missing, arch, self.cache, workers):
            self._load(spec, binary)
            report(spec)
        return WarmUp(compiled=len(missing), cached=len(wanted) - len(missing))


def compile_and_store(spec: KernelSpec, arch: str, cache: CubinCache) -> Binary:
    binary = compile_spec(spec, arch)
    cache.store(spec, arch, binary)
    return binary


def compile_many(
    specs: list[KernelSpec], arch: str, cache: CubinCache, workers: int | None = None
) -> Iterable[tuple[KernelSpec, Binary]]:
    """Compiles and stores, yielding each as it is ready. A few kernels are compiled here, many in a process pool."""
    workers = min(workers or os.cpu_count() or 1, len(specs) // 4)  # a worker's start costs about four kernels
    if workers < 2:
        yield from ((spec, compile_and_store(spec, arch, cache)) for spec in specs)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(compile_and_store, spec, arch, cache): spec for spec in specs}
        for future in as_completed(futures):
            yield futures[future], future.result()
