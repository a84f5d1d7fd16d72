"""Gated delta net on CUDA: recurrent kernels for a few columns a row, chunked ones for a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...cuda.kernels import gdn_controls, gdn_recurrent
from ...cuda.memory import DeviceArray
from .. import Columns, GdnLayer, GdnRecord
from . import linear, rows
from .weights import CudaWeight

if TYPE_CHECKING:
    from . import CudaOps


def project(
    ops: CudaOps,
    x: DeviceArray,
    gain: CudaWeight,
    eps: float,
    projections: Sequence[CudaWeight],
    controls: Sequence[CudaWeight],
    a_log: CudaWeight,
    dt_bias: CudaWeight,
    joint: DeviceArray,
    g: DeviceArray,
    beta: DeviceArray,
) -> None:
    """See `Ops.gdn_project`. A few rows fold the norm into each kernel; a prompt is normalised once."""
    count, width = x.shape
    heads = g.shape[1]
    a, b = _control_rows(controls, heads, width)
    if count <= linear.FEW_ROWS:
        linear.norm_linear(ops, x, gain, eps, projections, joint)
        ops.launch(
            gdn_controls.controls_rows_spec(width, heads), (heads, count, 1), gdn_controls.THREADS,
            x.ptr, x.row_stride, gain.codes, eps, a, b, a_log.codes, dt_bias.codes, g.ptr, beta.ptr,
        )  # fmt: skip
        return
    with ops.scope():
        h = ops.take((count, width), "bf16")
        rows.rms_norm(ops, x, gain, h, eps)
        linear.joined(ops, h, projections, joint)
        grid = (-(-count // gdn_controls.TILE_TOKENS), -(-heads // 16), 1)
        ops.launch(
            gdn_controls.controls_tile_spec(width, heads), grid, 32 * gdn_controls.TILE_WARPS,
            h.ptr, count, a, b, a_log.codes, dt_bias.codes, g.ptr, beta.ptr,
        )  # fmt: skip


def _control_rows(controls: Sequence[CudaWeight], heads: int, width: int) -> tuple[int, int]:
    """Addresses of the a rows and the b rows: two matrices, or one with the b rows below."""
    if len(controls) == 2:
        return controls[0].codes, controls[1].codes
    return controls[0].codes, controls[0].codes + heads * width * 2


def mix(
    ops: CudaOps,
    joint: DeviceArray,
    taps: CudaWeight,
    g: DeviceArray,
    beta: DeviceArray,
    gain: CudaWeight,
    eps: float,
    layer: GdnLayer,
    columns: Columns,
    out: DeviceArray,
    convolved: DeviceArray | None = None,
) -> None:
    """See `Ops.gdn_mix`."""
    store = convolved is None
    channels, dim = taps.shape[1], gdn_recurrent.DIM
    value_heads = g.shape[1]
    key_heads = (channels // dim - value_heads) // 2
    valid = columns.valid.ptr if columns.valid is not None else 0
    z = joint[:, channels:]
    with ops.scope():
        mixed = ops.take((columns.count, channels), "bf16") if convolved is None else convolved
        ops.launch(
            gdn_recurrent.convolve_spec(channels, store_history=store),
            (-(-channels // (2 * gdn_recurrent.CONV_THREADS)), columns.rows, 1), gdn_recurrent.CONV_THREADS,
            joint.ptr, joint.row_stride, taps.codes, layer.history.ptr, columns.lanes.ptr, valid, columns.width,
            mixed.ptr,
        )  # fmt: skip
        ops.launch(
            gdn_recurrent.delta_spec(key_heads, value_heads, store_state=store), (value_heads, columns.rows, 1),
            gdn_recurrent.DELTA_THREADS,
            mixed.ptr, g.ptr, beta.ptr, layer.state.ptr, columns.lanes.ptr, valid, columns.width,
            z.ptr, z.row_stride, gain.codes, eps, out.ptr,
        )  # fmt: skip


def fold(ops: CudaOps, record: GdnRecord, layer: GdnLayer, columns: Columns) -> None:
    """See `Ops.gdn_fold`: the kernels of `mix` again, writing only state."""
    channels, dim = record.convolved.shape[1], gdn_recurrent.DIM
    value_heads = record.g.shape[1]
    key_heads = (channels // dim - value_heads) // 2
    ops.launch(
        gdn_recurrent.convolve_spec(channels, emit=False),
        (-(-channels // (2 * gdn_recurrent.CONV_THREADS)), columns.rows, 1), gdn_recurrent.CONV_THREADS,
        record.joint.ptr, record.joint.row_stride, 0, layer.history.ptr, columns.lanes.ptr, columns.valid.ptr,
        columns.width, 0,
    )  # fmt: skip
    ops.launch(
        gdn_recurrent.delta_spec(key_heads, value_heads, emit=False), (value_heads, columns.rows, 1),
        gdn_recurrent.DELTA_THREADS,
        record.convolved.ptr, record.g.ptr, record.beta.ptr, layer.state.ptr, columns.lanes.ptr, columns.valid.ptr,
        columns.width, 0, 0, 0, 0.0, 0,
    )  # fmt: skip
