"""Assembles a kernel for an architecture without a GPU and checks what ptxas says of it."""

from __future__ import annotations

from ninfer_nb.cuda.compiler import Binary, compile_spec
from ninfer_nb.cuda.spec import KernelSpec


def assemble(spec: KernelSpec, arch: str, *, allow: str | None = None) -> Binary:
    """The assembled kernel. AssertionError when it spills, uses a stack, or ptxas warns (setmaxnreg ignored, wgmma
    serialised), unless `allow` gives the reason why that is accepted."""
    binary = compile_spec(spec, arch)
    found = binary.resources
    if allow is None:
        assert found.spill_bytes == 0, f"{spec} for {arch} spills {found.spill_bytes} bytes: {found}"
        assert found.stack_bytes == 0, f"{spec} for {arch} uses a stack of {found.stack_bytes} bytes: {found}"
        assert not found.warnings, f"{spec} for {arch}: {found.warnings}"
    threads = binary.options.max_threads
    assert found.registers * threads <= 65536, f"{spec} for {arch}: {found.registers} registers x {threads} threads"
    return binary
