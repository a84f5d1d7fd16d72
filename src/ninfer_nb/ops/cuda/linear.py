"""Linear maps on CUDA: up to 16 rows at once by the kernels that the weights' bytes bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ...cuda.kernels import gemv
from ...cuda.memory import DeviceArray
from .weights import CudaWeight

if TYPE_CHECKING:
    from . import CudaOps

FEW_ROWS = gemv.BUCKETS[-1]


def linear(ops: CudaOps, x: DeviceArray, weight: CudaWeight, out: DeviceArray) -> None:
    """out = x @ weight.T"""
    for rows in _slices(x, (weight,)):
        _few(ops, x[rows], (weight,), out[rows], "store")


def linear_add(ops: CudaOps, x: DeviceArray, weight: CudaWeight, residual: DeviceArray) -> None:
    """residual += x @ weight.T"""
    for rows in _slices(x, (weight,)):
        _few(ops, x[rows], (weight,), residual[rows], "add")


def joined(ops: CudaOps, h: DeviceArray, weights: Sequence[CudaWeight], out: DeviceArray) -> None:
    """out = h @ concat(weights).T for normalised h."""
    for rows in _slices(h, weights):
        _few(ops, h[rows], tuple(weights), out[rows], "store")


def norm_linear(
    ops: CudaOps, x: DeviceArray, gain: CudaWeight, eps: float, weights: Sequence[CudaWeight], out: DeviceArray
) -> None:
    """out = rms_norm(x) @ concat(weights).T"""
    for rows in _slices(x, weights, norm=True):
        _few(ops, x[rows], tuple(weights), out[rows], "store", gain, eps)


def norm_swiglu(
    ops: CudaOps, x: DeviceArray, gain: CudaWeight, eps: float, gate_up: CudaWeight, out: DeviceArray
) -> None:
    """out = SiLU(gate h) * up h with h = rms_norm(x)"""
    for rows in _slices(x, (gate_up,), norm=True):
        _few(ops, x[rows], (gate_up,), out[rows], "swiglu", gain, eps)


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
