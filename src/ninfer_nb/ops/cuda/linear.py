"""Linear maps on CUDA: up to 16 rows by kernels that the weights' bytes bound, more by tiles of matrix instructions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...cuda.kernels import gemm_wgmma as gemm
from ...cuda.kernels import gemv
from ...cuda.memory import DeviceArray
from .rows import rms_norm
from .weights import CudaWeight

if TYPE_CHECKING:
    from . import CudaOps

FEW_ROWS = gemv.BUCKETS[-1]


def linear(ops: CudaOps, x: DeviceArray, weight: CudaWeight, out: DeviceArray) -> None:
    """out = x @ weight.T"""
    _product(ops, x, (weight,), out, "store")


def linear_add(ops: CudaOps, x: DeviceArray, weight: CudaWeight, residual: DeviceArray) -> None:
    """residual += x @ weight.T"""
    _product(ops, x, (weight,), residual, "add")


def joined(ops: CudaOps, h: DeviceArray, weights: Sequence[CudaWeight], out: DeviceArray) -> None:
    """out = h @ concat(weights).T for normalised h."""
    _product(ops, h, tuple(weights), out, "store")


def norm_linear(
    ops: CudaOps, x: DeviceArray, gain: CudaWeight, eps: float, weights: Sequence[CudaWeight], out: DeviceArray
) -> None:
    """out = rms_norm(x) @ concat(weights).T"""
    _normed_product(ops, x, gain, eps, tuple(weights), out, "store")


def norm_swiglu(
    ops: CudaOps, x: DeviceArray, gain: CudaWeight, eps: float, gate_up: CudaWeight, out: DeviceArray
) -> None:
    """out = SiLU(gate h) * up h with h = rms_norm(x)"""
    _normed_product(ops, x, gain, eps, (gate_up,), out, "swiglu")


def _product(ops: CudaOps, x: DeviceArray, weights: tuple[CudaWeight, ...], out: DeviceArray, epilogue: str) -> None:
    if _is_tiled(ops, x, weights):
        _many(ops, x, weights, out, epilogue)
    else:
        for rows in _slices(x, weights):
            _few(ops, x[rows], weights, out[rows], epilogue)


def _normed_product(
    ops: CudaOps,
    x: DeviceArray,
    gain: CudaWeight,
    eps: float,
    weights: tuple[CudaWeight, ...],
    out: DeviceArray,
    epilogue: str,
) -> None:
    """Few rows are normalised inside the product, many by a kernel of their own."""
    if _is_tiled(ops, x, weights):
        with ops.scope():
            h = ops.take(x.shape, "bf16")
            rms_norm(ops, x, gain, h, eps)
            _many(ops, h, weights, out, epilogue)
    else:
        for rows in _slices(x, weights, norm=True):
            _few(ops, x[rows], weights, out[rows], epilogue, gain, eps)


def _is_tiled(ops: CudaOps, x: DeviceArray, weights: Sequence[CudaWeight]) -> bool:
    """Whether the product is one for matrix tiles: many rows, on an architecture that has the kernel."""
    rows, width = x.shape
    aligned = width % 128 == 0 and all(weight.shape[0] % 16 == 0 for weight in weights)
    return rows > FEW_ROWS and aligned and ops.device.info.target == "sm_90a"


def _many(ops: CudaOps, x: DeviceArray, weights: tuple[CudaWeight, ...], out: DeviceArray, epilogue: str) -> None:
    """One launch a matrix, each with its own columns of `out`."""
    rows, width = x.shape
    box = (gemm.TILE_ROWS, gemm.STAGE_COLUMNS)
    size = gemm.workspace_bytes(ops.multiprocessors)
    workspace = ops.constant("gemm workspace", lambda: np.zeros(size, np.uint8), "u8")
    column = 0
    for weight in weights:
        height = weight.shape[0]
        codes = weight.codes
        if weight.format == "BF16":
            codes = ops.tensor_map(DeviceArray.at(weight.codes, weight.shape, "bf16"), box)
        schedule = gemm.schedule(epilogue, rows, height, ops.multiprocessors)
        ops.launch(
            gemm.spec(weight.format, epilogue), (schedule.blocks, 1, 1), gemm.THREADS,
            ops.tensor_map(x, box), rows, width, codes, weight.high, weight.scales, weight.divisor, height,
            out.ptr + column * out.itemsize, out.row_stride, schedule.tiles, schedule.shared, workspace.ptr,
        )  # fmt: skip
        column += height


def _slices(x: DeviceArray, weights: Sequence[CudaWeight], norm: bool = False) -> Iterator[slice]:
    """Rows of `x` that one launch takes: as many as its shared memory holds beside the ring."""
    rows, width = x.shape
    most = gemv.most_rows(tuple(weight.format for weight in weights), width, norm)
    return (slice(start, min(start + most, rows)) for start in range(0, rows, most))


def _few(
    ops: CudaOps,
    x: DeviceArray,
    weights: tuple[CudaWeight, ...],
    out: DeviceArray,
    epilogue: str,
    gain: CudaWeight | None = None,
    eps: float = 0.0,
) -> None:
    """One launch for one or two matrices and at most 16 rows."""
    count, width = x.shape
    formats = tuple(weight.format for weight in weights)
    spec = gemv.spec(formats, count, width, epilogue, gain is not None)
    launch = gemv.plan(spec, tuple(weight.shape[0] for weight in weights), ops.multiprocessors)
    size = gemv.workspace_bytes(FEW_ROWS)
    workspace = ops.constant("gemv workspace", lambda: np.zeros(size, np.uint8), "u8")
    planes, column = [], 0
    for weight in weights:
        target = out.ptr + column * out.itemsize
        planes += [weight.codes, weight.high, weight.scales, weight.divisor, weight.shape[0], target]
        column += weight.shape[0]
    planes += [0] * (12 - len(planes))
    ops.launch(
        spec, launch.grid, launch.threads,
        x.ptr, x.row_stride, count, gain.codes if gain else 0, eps, *planes,
        out.row_stride, launch.split, workspace.ptr,
    )  # fmt: skip
