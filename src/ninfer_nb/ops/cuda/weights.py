"""Weight handles of the CUDA backend: one stored payload on the device, its planes by address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...artifact.formats import FormatClass, numeric_format
from ...artifact.layouts import BlockScaleGeometry, RowScaleGeometry, RowSplitGeometry


@dataclass(frozen=True)
class CudaWeight:
    """The payload's bytes as they are in the file (`artifact-format.md` 5); absent planes have address 0."""

    format: str
    shape: tuple[int, ...]
    codes: int  # code plane, or the values of a direct format
    high: int = 0  # high bits of Q5 and Q6
    scales: int = 0
    divisor: int = 0  # NVFP4's d_w, f32
    nbytes: int = 0


def place(address: int, format: str, shape: Sequence[int], nbytes: int) -> CudaWeight:
    """Handle of a payload that lies at `address`."""
    row, shape = numeric_format(format), tuple(shape)
    if row.is_grouped:
        planes = RowSplitGeometry.of(row, shape)
        high = address + planes.high_offset if planes.high_bytes else 0
        return CudaWeight(
            format, shape, address + planes.base_offset, high, address + planes.scale_offset, nbytes=nbytes
        )
    if row.kind is FormatClass.BLOCK_FLOAT:
        tiles = BlockScaleGeometry.of(shape)
        scales, divisor = address + tiles.scale_plane_offset, address + tiles.weight_divisor_offset
        return CudaWeight(format, shape, address, 0, scales, divisor, nbytes)
    if row.kind is FormatClass.ROW_FLOAT:
        return CudaWeight(format, shape, address, 0, address + RowScaleGeometry.of(shape).scale_plane_offset, 0, nbytes)
    return CudaWeight(format, shape, address, nbytes=nbytes)
