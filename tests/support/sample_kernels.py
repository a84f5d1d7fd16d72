"""Small kernel factories for the tests of compiling, caching and launching."""

from numba import cuda, types

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.spec import KernelOptions, KernelSource

f32p = types.CPointer(types.float32)


def saxpy(*, unroll: int = 1) -> KernelSource:
    """y += a x, `unroll` elements a thread. Grid: ceil(n / (256 unroll)) blocks of 256."""

    def kernel(x, y, a, n):
        start = cuda.grid(1) * unroll
        for i in range(start, min(start + unroll, n)):
            y[i] += a * x[i]

    return KernelSource(kernel, (f32p, f32p, types.float32, types.int32), KernelOptions(max_threads=256))


def chained_add() -> KernelSource:
    """y += 1 after the grids before; signals its dependants first, for programmatic dependent launch."""

    def kernel(y, n):
        ptx.griddepcontrol_launch_dependents()
        i = cuda.grid(1)
        ptx.griddepcontrol_wait()
        if i < n:
            address = ptx.at(y, i * 4)
            ptx.st_global_f32(address, ptx.ld_global_f32(address) + types.float32(1))

    return KernelSource(kernel, (types.uint64, types.int32), KernelOptions(max_threads=256))


def mistyped() -> KernelSource:
    def kernel(y):
        y[0] = "text"

    return KernelSource(kernel, (f32p,), KernelOptions(max_threads=32))


def array_argument() -> KernelSource:
    def kernel(y):
        y[0] = 1

    return KernelSource(kernel, (types.float32[::1],), KernelOptions(max_threads=32))


def spilling() -> KernelSource:
    """More live values than the 32 registers that two blocks of 1024 threads leave."""
    zeros = (types.float32(0),) * 64

    def kernel(x, y, n):
        acc = zeros
        for i in range(n):
            address = ptx.at(x, i * 16)
            for _ in range(2):
                acc = spread(acc, ptx.ld_global_f32(address))
        for j in range(64):
            y[j] = acc[j]

    return KernelSource(kernel, (types.uint64, f32p, types.int32), KernelOptions(max_threads=1024, min_blocks=2))


spread = ptx.instruction(
    "spread",
    "\n".join(f"fma.rn.f32 ${i}, ${(i + 1) % 64}, $128, ${i};" for i in range(64)),
    [ptx.f32],
    ptx.f32,
    64,
    tied=True,
)
