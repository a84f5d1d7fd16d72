"""Values to payloads: the two specified encoder profiles, bit for bit (`artifact-format.md` 4.6 and 4.7).

`MAXABS_F16_RECIP_RNE_V1` makes the grouped integer formats, `MAXABS_BF16S_RECIP_E4M3FN_RNE_V1` row-scaled FP8.
Everything is binary32 arithmetic: NumPy's float32 division and multiplication round once, to nearest even, which is
what the profiles ask for. Matrices are read in blocks of rows, so memory stays flat. NVFP4 is in `encoders_nvfp4.py`.
"""

from __future__ import annotations

import numpy as np

from ..errors import ArtifactError
from .codec import row_blocks
from .formats import NumericFormat, numeric_format
from .layouts import RowScaleGeometry, RowSplitGeometry
from .packing import store_grouped_rows
from .words import E4M3FN_MAX, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_e4m3fn, f32_to_f16

_F16_SMALLEST = np.uint16(1)  # 2**-24, the scale of a group too small for any other
_BF16_SMALLEST = np.uint16(1)
_ROUNDING = np.float32(1.5 * 2**23)  # adding it leaves the nearest integer, ties to even, in the low bits of the sum


def as_float32(block: np.ndarray) -> np.ndarray:
    """A block of float values, or of BF16 words (uint16 or bfloat16), as float32; wider floats round once."""
    if block.dtype.name == "bfloat16":
        block = block.view(np.uint16)
    if block.dtype == np.uint16:
        return bf16_to_f32(block)
    with np.errstate(over="ignore"):  # an overflow to infinity is refused with every other infinity
        return block.astype(np.float32)


def check_float_matrix(x: np.ndarray, what: str) -> None:
    """`x` must be rank 2 and of a float dtype, where uint16 stands for BF16 words."""
    if x.dtype.kind != "f" and x.dtype.name not in ("uint16", "bfloat16"):
        raise ArtifactError(f"weight must be floating point, got {x.dtype.name}")
    if x.ndim != 2:
        raise ArtifactError(f"{what} requires rank 2, got {x.ndim}")


def largest_magnitudes(values: np.ndarray) -> np.ndarray:
    """max |x| over the last axis; NaN and infinity come through, a zero is positive."""
    return np.maximum(np.abs(values.max(axis=-1)), np.abs(values.min(axis=-1)))


def encode_grouped(x: np.ndarray, format: str) -> np.ndarray:
    """Quantise a matrix [N, K] to a grouped integer format; returns the payload, uint8.

    `x` is float16, float32 or float64, or BF16 words as uint16 (or a bfloat16 array). NaN, infinity, or a scale that
    binary16 cannot hold raise ArtifactError.
    """
    row = numeric_format(format)
    if not row.is_grouped:
        raise ArtifactError("grouped quantization requires a quantized numeric format")
    check_float_matrix(x, "grouped quantization")
    geometry = RowSplitGeometry.of(row, x.shape)
    payload = np.zeros(geometry.payload_bytes, np.uint8)
    for rows in row_blocks(*x.shape):
        codes, scales = _quantise_groups(_grouped_block(x[rows], row), row)
        store_grouped_rows(payload, geometry, row, rows, codes, scales)
    return payload


def _grouped_block(block: np.ndarray, format: NumericFormat) -> np.ndarray:
    """A block of rows as float32 [rows, logical groups, G], the last group filled with zeros."""
    values = as_float32(block)
    spare = -values.shape[1] % format.group
    if spare:
        values = np.pad(values, ((0, 0), (0, spare)))
    return values.reshape(len(values), -1, format.group)


def _quantise_groups(groups: np.ndarray, format: NumericFormat) -> tuple[np.ndarray, np.ndarray]:
    """float32 [rows, groups, G] (overwritten) to codes uint8, same shape, and scale words uint16 [rows, groups]."""
    maxima = largest_magnitudes(groups)
    if not np.isfinite(maxima).all():
        raise ArtifactError("grouped quantization source contains NaN or infinity")
    scales = f32_to_f16(maxima / np.float32(format.qmax))
    scales[(scales == 0) & (maxima > 0)] = _F16_SMALLEST
    if scales.max() >= 0x7C00:
        raise ArtifactError("grouped quantization scale is not finite and positive")
    wide = f16_to_f32(scales)
    reciprocals = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
    groups *= reciprocals[..., None]
    np.clip(groups, format.qmin, format.qmax, out=groups)  # integer bounds: the same before rounding as after it
    groups += _ROUNDING
    codes = groups.view(np.uint8)[..., ::4]  # low byte: the integer in two's complement
    return np.ascontiguousarray(codes), scales


def encode_fp8_rows(x: np.ndarray) -> np.ndarray:
    """Quantise a BF16 matrix [N, K], words as uint16 (or a bfloat16 array), to `FP8_E4M3FN_ROW_BF16S`; the payload.

    ArtifactError for non-finite sources and for rows so small that the reciprocal of their scale overflows (4.7).
    """
    if x.dtype.name not in ("uint16", "bfloat16") or x.ndim != 2:
        raise ArtifactError("embedding source must be a rank-two BF16 tensor")
    geometry = RowScaleGeometry.of(x.shape)
    payload = np.zeros(geometry.payload_bytes, np.uint8)
    codes, scales = geometry.code_plane(payload), geometry.scale_plane(payload)
    for rows in row_blocks(*x.shape):
        codes[rows], scales[rows] = _quantise_rows(as_float32(x[rows]))
    return payload


def _quantise_rows(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """float32 [rows, K] (overwritten) to E4M3FN codes uint8 [rows, K] and BF16 scale words uint16 [rows]."""
    maxima = largest_magnitudes(values)
    if not np.isfinite(maxima).all():
        raise ArtifactError("embedding source contains NaN or infinity")
    scales = f32_to_bf16(maxima / np.float32(E4M3FN_MAX))
    scales[(scales == 0) & (maxima > 0)] = _BF16_SMALLEST
    wide = bf16_to_f32(scales)
    with np.errstate(over="ignore"):
        reciprocals = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
    if not np.isfinite(reciprocals).all():
        raise ArtifactError("embedding normalization produced a non-finite value")
    values *= reciprocals[:, None]
    codes = f32_to_e4m3fn(values)
    codes[maxima == 0] = 0  # a row of zeros keeps no signs
    return codes, scales
