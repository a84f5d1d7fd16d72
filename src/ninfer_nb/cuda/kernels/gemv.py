"""Linear maps of 1 to 16 rows: out [T, N] = x [T, K] @ W [N, K].T for every stored format, bound by W's bytes.

    spec = gemv.spec(("Q4G64_F16S",), rows=1, width=5120, epilogue="store", norm=False)   # -> KernelSpec
    launch = gemv.plan(spec, (34816,), multiprocessors)                                  # -> grid, threads, split
    kernel.launch(launch.grid, (launch.threads, 1, 1), stream,
                  x.ptr, x.row_stride, T, gain or 0, eps,
                  codes, high, scales, divisor, N, out.ptr,    # first matrix; absent planes 0
                  codes, high, scales, divisor, N, out.ptr,    # second matrix, zeros when there is one
                  out.row_stride, launch.split, workspace, pdl=True)

* epilogue: "store"; "add" (out += , one rounding); "swiglu" (W [2I, K], gate rows first; out [T, I]).
* norm: x is the raw residual; rows are multiplied by (1 + gain) / sqrt(mean(x^2) + eps) first, nothing rounded to BF16.
* Two matrices share x and out's row stride; `out` is each one's first column. Their formats have one operand order.
* workspace: `workspace_bytes(rows)` bytes, zero at the start, left zeroed where it must be; one per stream.
* K: a multiple of 8 (grouped formats), 32 (BF16), 64 (FP8), 128 (NVFP4). Rows of x are 16-byte aligned.

One block a multiprocessor walks an equal share of all chunks (16 rows x 8 items; `gemv_layout`), for any N: one warp
fills a ring of stages, `warps` multiply, one writes results. Blocks need all be resident, so the grid never exceeds the
multiprocessors; `resident` = 2 leaves room for the next kernel, whose ring fills while this one ends.

Floor on H200: bytes of W / 4.39 TB/s; 34816 x 5120 Q4: 94.7 MB, 21.6 us. That is 34 four-bit weights a clock and
multiprocessor, or 3.7 issue slots a weight. Counted, for 64 weights of a lane (an item, two rows x two steps): Q4 92
(56 decode, 8 mma, 28 loads and scales) = 1.5 a weight, Q5/Q6 2.4 (of 4.6 and 5.5), NVFP4 2.3 (of 4.0), W8 1.7 (of 7.5).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from numba import cuda
from numpy import int32, uint32

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.errors import KernelError
from ninfer_nb.cuda.kernels.gemv_input import input_rows
from ninfer_nb.cuda.kernels.gemv_layout import AUXILIARY_WARPS, FLAG_BYTES, PACKINGS, RED_BUFFERS, TILE, Layout
from ninfer_nb.cuda.kernels.gemv_output import first_unit, output_of
from ninfer_nb.cuda.kernels.gemv_products import items_of
from ninfer_nb.cuda.kernels.gemv_ring import ring_of
from ninfer_nb.cuda.ptx import f32, i32, u64
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

WARPS, ITEMS, RESIDENT = 8, 8, 2  # what `spec` uses unless told otherwise
BUCKETS = (1, 2, 4, 8, 16)  # rows that kernels are made for
MAX_BLOCKS = FLAG_BYTES // 4
SHARED_BYTES = 228 * 1024  # of a multiprocessor (sm_90)


@dataclass(frozen=True)
class Launch:
    """How a specialisation is launched for given matrices."""

    grid: tuple[int, int, int]
    threads: int
    split: int  # blocks of the first matrix


def _fitting(
    format: str, rows: int, width: int, norm: bool, warps: int, items: int, resident: int, shared: int
) -> Layout | None:
    """With as deep a ring as `resident` blocks on one multiprocessor leave room for; None when no ring fits."""
    bare = Layout(PACKINGS[format], rows, width, norm, warps, items)
    for blocks in range(resident, 0, -1):
        layout = bare.with_stages(min(shared // blocks, shared - 1024))
        if layout:
            return layout
    return None


@cache
def most_rows(formats: tuple[str, ...], width: int, norm: bool = False, shared: int = SHARED_BYTES) -> int:
    """The most rows of x that one launch takes. KernelError when not even one fits."""
    for rows in reversed(BUCKETS):
        if all(_fitting(format, rows, width, norm, WARPS, ITEMS, RESIDENT, shared) for format in formats):
            return rows
    raise KernelError(f"a row of {width} columns does not fit into {shared} bytes of shared memory")


def _block_program(format: str, layout: Layout, epilogue: str):
    """Device function: what a block does with its share of one matrix."""
    swiglu, warps, chunks = epilogue == "swiglu", layout.warps, layout.chunks
    prepare, consume = input_rows(layout, format), items_of(layout, format, swiglu)
    fill, drain = ring_of(layout, swiglu), output_of(layout, format, epilogue)
    lines = 8 if swiglu else TILE
    small = layout.packing.scales in ("group", "block")
    stages, full, empty = layout.stages, layout.full, layout.empty
    red_full, red_empty, x_full = layout.red_full, layout.red_empty, layout.x_full

    @cuda.jit(device=True)
    def initialise(base):
        for i in range(stages):
            ptx.mbarrier_init(base + int32(full + 8 * i), uint32(33 if small else 1))
            ptx.mbarrier_init(base + int32(empty + 8 * i), uint32(warps))
        for i in range(RED_BUFFERS):
            ptx.mbarrier_init(base + int32(red_full + 8 * i), uint32(warps))
            ptx.mbarrier_init(base + int32(red_empty + 8 * i), uint32(1))
        ptx.mbarrier_init(base + int32(x_full), uint32(1))
        ptx.fence_mbarrier_init()

    @cuda.jit(device=True)
    def program(
        base, x, stride, rows, gain, eps, codes, high, scales, divisor, n, out, out_stride, workspace,
        block, blocks, origin,
    ):  # fmt: skip
        tid = int32(cuda.threadIdx.x)
        lane, warp = tid % int32(32), tid // int32(32)
        count = n // int32(2) if swiglu else n
        units = (count + int32(lines - 1)) // int32(lines) * int32(chunks)
        begin, end = first_unit(block, blocks, units), first_unit(block + int32(1), blocks, units)
        if tid == 0:
            initialise(base)
        cuda.syncthreads()
        if warp < warps:
            prepare(base, tid, x, stride, rows, gain, eps)
            consume(base, tid, rows, begin, end)
        elif warp == warps:
            fill(base, lane, codes, high, scales, n, begin, end)
        else:
            drain(base, lane, rows, n, scales, divisor, out, out_stride, workspace, block, blocks, origin, units)

    return program


def linear_rows(
    *, formats: tuple[str, ...], rows: int, width: int, epilogue: str, norm: bool, warps: int, items: int,
    resident: int, shared: int,
) -> KernelSource:  # fmt: skip
    """See the module. Block 32 * (warps + 2), grid as `plan` says."""
    layouts = [_fitting(f, rows, width, norm, warps, items, resident, shared) for f in formats]
    if None in layouts:
        raise KernelError(f"{rows} rows of {width} columns do not fit into {shared} bytes of shared memory")
    programs = [_block_program(f, layout, epilogue) for f, layout in zip(formats, layouts, strict=True)]
    first, second, two = programs[0], programs[-1], len(formats) == 2

    def kernel(
        x,  # [T, K] bf16
        stride,  # elements between rows of x
        count,  # T
        gain,  # [K] bf16, or 0
        eps,
        codes, high, scales, divisor, n, out,  # planes of [n, K], [T, n] bf16
        codes_2, high_2, scales_2, divisor_2, n_2, out_2,
        out_stride,
        split,  # blocks of the first matrix
        workspace,
    ):  # fmt: skip
        base = int32(ptx.smem_addr(cuda.shared.array(0, f32)))
        block, blocks = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        ptx.griddepcontrol_launch_dependents()
        if not two:
            first(
                base, x, stride, count, gain, eps, codes, high, scales, divisor, n, out, out_stride, workspace,
                block, blocks, int32(0),
            )  # fmt: skip
        elif block < split:
            first(
                base, x, stride, count, gain, eps, codes, high, scales, divisor, n, out, out_stride, workspace,
                block, split, int32(0),
            )  # fmt: skip
        else:
            second(
                base, x, stride, count, gain, eps, codes_2, high_2, scales_2, divisor_2, n_2, out_2, out_stride,
                workspace, block - split, blocks - split, split,
            )  # fmt: skip

    matrix = (u64, u64, u64, u64, i32, u64)
    arguments = (u64, i32, i32, u64, f32, *matrix, *matrix, i32, i32, u64)
    blocks = max(1, min((shared // (layout.shared_bytes + 1024)) for layout in layouts))
    options = KernelOptions(
        max_threads=32 * (warps + AUXILIARY_WARPS),
        min_blocks=min(blocks, resident),
        shared_bytes=max(layout.shared_bytes for layout in layouts),
    )
    return KernelSource(kernel, arguments, options)


def bucket(rows: int) -> int:
    """The smallest kernel size for `rows` rows of x."""
    return next(size for size in BUCKETS if size >= rows)


def spec(
    formats: tuple[str, ...], rows: int, width: int, epilogue: str = "store", norm: bool = False, *,
    warps: int = WARPS, items: int = ITEMS, resident: int | None = None, shared: int = SHARED_BYTES,
) -> KernelSpec:  # fmt: skip
    """The kernel for `rows` rows (1 to 16) and one or two matrices of `width` columns."""
    if resident is None:  # sixteen rows need the registers of a whole multiprocessor
        resident = RESIDENT if rows <= 8 else 1
    return KernelSpec.of(
        linear_rows, formats=tuple(formats), rows=bucket(rows), width=width, epilogue=epilogue, norm=norm,
        warps=warps, items=items, resident=resident, shared=shared,
    )  # fmt: skip


def plan(kernel: KernelSpec, heights: tuple[int, ...], multiprocessors: int) -> Launch:
    """Grid for matrices of `heights` stored rows; two matrices share the blocks by their bytes."""
    static = dict(kernel.static)
    units, weights = [], []
    lines = 8 if static["epilogue"] == "swiglu" else TILE
    for format, height in zip(static["formats"], heights, strict=True):
        sizes = (static[name] for name in ("rows", "width", "norm", "warps", "items"))
        layout = Layout(PACKINGS[format], *sizes)
        height = height // 2 if lines == 8 else height
        units.append(-(-height // lines) * layout.chunks)
        weights.append(units[-1] * (32 + layout.packing.high))
    blocks = min(multiprocessors, sum(units), MAX_BLOCKS)
    split = blocks
    if len(units) == 2:
        split = min(max(1, round(blocks * weights[0] / sum(weights))), blocks - 1, units[0])
        blocks = split + min(blocks - split, units[1])
    return Launch((blocks, 1, 1), 32 * (static["warps"] + AUXILIARY_WARPS), split)


def workspace_bytes(rows: int) -> int:
    """Zeroed bytes that launches of up to `rows` rows on one stream share."""
    return FLAG_BYTES + MAX_BLOCKS * 512 * (2 if rows > 8 else 1)
