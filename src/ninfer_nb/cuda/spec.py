"""What a kernel is before it is compiled: a factory, its static parameters, and what the factory returns.

Knows nothing of compilers or devices, so that kernel modules and the cache can share it at no cost.

A kernel module has factories, plain functions of static parameters:

    def rms_norm(*, width: int, unit_offset: bool) -> KernelSource:
        def kernel(x, w, out, rows): ...
        return KernelSource(kernel, (u64, u64, u64, i32), KernelOptions(max_threads=256))

and `KernelSpec.of(rms_norm, width=5120, unit_offset=True)` names one specialisation, in this and in other processes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ninfer_nb.cuda.errors import KernelError

Static = int | float | str | bool | tuple | None


@dataclass(frozen=True)
class KernelOptions:
    """How a kernel is compiled and launched."""

    max_threads: int  # threads a block at most; launches use this many or fewer
    min_blocks: int = 0  # blocks a multiprocessor at least (0: not asked for); caps the registers
    shared_bytes: int = 0  # dynamic shared memory of every launch
    fastmath: bool = False  # flush subnormals, approximate division and square root, fuse multiply-add
    lineinfo: bool = False


@dataclass(frozen=True)
class KernelSource:
    """What a factory returns: the Python function, its argument types (Numba types) and the options."""

    function: Callable
    signature: tuple
    options: KernelOptions


@dataclass(frozen=True)
class KernelSpec:
    """One specialisation: `module:factory` and its static parameters, sorted by name."""

    factory: str
    static: tuple[tuple[str, Static], ...] = ()

    @classmethod
    def of(cls, factory: Callable[..., KernelSource], **static: Static) -> KernelSpec:
        return cls(f"{factory.__module__}:{factory.__qualname__}", tuple(sorted(static.items())))

    @property
    def module(self) -> str:
        return self.factory.partition(":")[0]

    @property
    def name(self) -> str:
        return self.factory.partition(":")[2]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{k}={v}' for k, v in self.static)})"

    def build(self) -> KernelSource:
        """Imports the module and calls the factory."""
        factory: Any = getattr(importlib.import_module(self.module), self.name, None)
        if factory is None:
            raise KernelError(f"kernel {self}: module {self.module} has no factory {self.name!r}")
        return factory(**dict(self.static))
