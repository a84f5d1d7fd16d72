"""KernelSpec -> LTO-IR -> cubin for a named architecture, without a GPU.

numba-cuda emits LTO-IR through libNVVM; nvJitLink optimises and assembles it as a whole program. Given PTX, nvJitLink
would assemble it as one unit of many, where ptxas may not give registers from warp to warp (setmaxnreg), serialises
wgmma, and spills more. Knows nothing of caching, loading or launching.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

from ninfer_nb.cuda.errors import KernelError, missing_extra
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

# target name -> what numba-cuda's compiler calls it; the "a" targets have wgmma, TMA and block-scaled MMA
ARCHITECTURES = {"sm_90a": (9, 0, "a"), "sm_120a": (12, 0, "a")}

# Numba type name -> `struct` code of a kernel argument
_ARGUMENT_CODES = {
    "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "uint32": "I", "int32": "i",
    "uint64": "Q", "int64": "q", "float32": "f", "float64": "d",
}  # fmt: skip


@dataclass(frozen=True)
class Resources:
    """What ptxas reports for one kernel, per thread unless said otherwise."""

    registers: int
    stack_bytes: int
    spill_bytes: int  # stores and loads together
    shared_bytes: int  # static, per block
    warnings: tuple[str, ...] = ()  # ptxas performance warnings such as C7508, C7515


@dataclass(frozen=True)
class Binary:
    """An assembled kernel: everything a launch needs, so that a cache hit runs no compiler."""

    entry: str
    arch: str
    arguments: str  # one `struct` code per argument
    options: KernelOptions
    resources: Resources
    cubin: bytes


def compile_spec(spec: KernelSpec, arch: str) -> Binary:
    """Builds, compiles and assembles; KernelError names the kernel and the reason."""
    source = spec.build()
    code = compile_ltoir(spec, source, arch)
    try:
        cubin, log = link(code, source.options, arch)
    except KernelError as error:
        raise KernelError(f"kernel {spec} does not assemble for {arch}: {error}") from error
    entry = re.search(r"Compiling entry function '(\w+)'", log)[1]
    return Binary(entry, arch, argument_codes(spec, source.signature), source.options, parse_log(log), cubin)


def compile_ltoir(spec: KernelSpec, source: KernelSource, arch: str) -> bytes:
    """The kernel and all it calls, for the linker's optimiser. KernelError when Numba refuses it."""
    try:
        from numba import cuda, types
        from numba.cuda.core.errors import NumbaError
    except ImportError as error:
        raise missing_extra(error) from error
    if arch not in ARCHITECTURES:
        raise KernelError(f"architecture {arch!r} is unknown; expected one of {', '.join(ARCHITECTURES)}")
    options = source.options
    try:
        with _target_without_device(ARCHITECTURES[arch]):
            code, returned = cuda.compile(
                source.function,
                source.signature,
                device=False,
                abi="numba",
                cc=ARCHITECTURES[arch],
                fastmath=options.fastmath,
                lineinfo=options.lineinfo,
                launch_bounds=(options.max_threads, options.min_blocks) if options.min_blocks else options.max_threads,
                output="ltoir",
            )
    except NumbaError as error:
        raise KernelError(f"kernel {spec} does not compile for {arch}:\n{error}") from error
    if returned != types.void:
        raise KernelError(f"kernel {spec} returns {returned}; a kernel returns nothing")
    return code


@contextmanager
def _target_without_device(capability: tuple[int, int, str]) -> Iterator[None]:
    """Device functions (`@cuda.jit(device=True)`) ask the current device for its capability even when `cc` is given,
    which fails without a GPU and creates a context in every compiling process with one. Answer for it."""
    from numba.cuda import dispatcher

    original = dispatcher.get_current_device
    dispatcher.get_current_device = lambda: SimpleNamespace(compute_capability=capability[:2])
    try:
        yield
    finally:
        dispatcher.get_current_device = original


def argument_codes(spec: KernelSpec, signature: tuple) -> str:
    """One `struct` code per argument; a pointer (`types.CPointer`) is an address."""
    codes = ["Q" if str(t).endswith("*") else _ARGUMENT_CODES.get(str(t)) for t in signature]
    if None in codes:
        index = codes.index(None)
        raise KernelError(
            f"kernel {spec}: argument {index} has type {signature[index]}; expected a number or types.CPointer"
        )
    return "".join(codes)


def link(code: bytes, options: KernelOptions, arch: str) -> tuple[bytes, str]:
    """(cubin, ptxas log) of LTO-IR through nvJitLink; KernelError holds the linker's own message."""
    try:
        from cuda.bindings import nvjitlink
    except ImportError as error:
        raise missing_extra(error) from error
    flags = [f"-arch={arch}", "-lto", "-verbose", "-Xptxas=-v"]
    if options.fastmath:
        flags += ["-ftz=true", "-prec-div=false", "-prec-sqrt=false", "-fma=true"]
    if options.lineinfo:
        flags.append("-lineinfo")
    try:
        handle = nvjitlink.create(len(flags), flags)
    except RuntimeError as error:
        raise KernelError(f"nvJitLink is not usable: {error}") from error
    try:
        nvjitlink.add_data(handle, nvjitlink.InputType.LTOIR, code, len(code), "kernel")
        nvjitlink.complete(handle)
        cubin = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, cubin)
        log = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, log)
    except nvjitlink.nvJitLinkError as error:
        message = bytearray(nvjitlink.get_error_log_size(handle))
        nvjitlink.get_error_log(handle, message)
        raise KernelError(message.rstrip(b"\0").decode().strip() or str(error)) from error
    finally:
        nvjitlink.destroy(handle)
    return bytes(cubin), log.rstrip(b"\0").decode()


def parse_log(log: str) -> Resources:
    """The figures of `ptxas -v` for a single entry."""

    def figure(pattern: str) -> int:
        return sum(int(n) for n in re.findall(pattern, log))

    notable = [line.strip() for line in log.splitlines() if re.search(r"\(C7\d\d\d\)|warning", line)]
    return Resources(
        registers=figure(r"Used (\d+) registers"),
        stack_bytes=figure(r"(\d+) bytes stack frame"),
        spill_bytes=figure(r"(\d+) bytes spill (?:stores|loads)"),
        shared_bytes=figure(r"Used \d+ registers.*?(\d+) bytes smem"),
        warnings=tuple(dict.fromkeys(notable)),
    )
