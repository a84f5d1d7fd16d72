"""Explicit words (codes, scales, divisors) to payload bytes and back; nothing here rounds (`artifact-format.md` 4, 5).

Knows which words are legal, but not how to choose them for given values: that is `encoders.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ArtifactError
from .formats import BF16, FP8_E4M3FN_ROW_BF16S, FP32, I32, NVFP4, FormatClass, NumericFormat, numeric_format
from .layouts import (
    BlockScaleGeometry,
    RowScaleGeometry,
    RowSplitGeometry,
    encoded_bytes,
    pack_high_bits,
    pack_nibbles,
    swizzle_scales,
    unpack_high_bits,
    unpack_nibbles,
    unswizzle_scales,
)

DIRECT_DTYPE = {BF16: np.dtype("<u2"), FP32: np.dtype("<f4"), I32: np.dtype("<i4")}
_DIRECT_SOURCES = {BF16: {"uint16", "bfloat16"}, FP32: {"float32", "uint32"}, I32: {"int32", "uint32"}}


def check_payload_bytes(payload: np.ndarray, format: str, shape: Sequence[int]) -> np.ndarray:
    """`payload` as flat uint8, after checking that its length is the encoded size of (format, shape)."""
    expected = encoded_bytes(format, shape)
    if payload.dtype != np.uint8 or payload.ndim != 1 or payload.size != expected:
        raise ArtifactError(f"{format} payload has {payload.nbytes} bytes, expected {expected}")
    return payload


def encode_direct(words: np.ndarray, format: str) -> np.ndarray:
    """Payload of a direct tensor, every word kept bit for bit.

    BF16 takes uint16 words (or a bfloat16 array), FP32 float32 or uint32 words, I32 int32 or uint32 words;
    any other dtype is an error, never a conversion (4.1).
    """
    row = numeric_format(format)
    if row.kind is not FormatClass.DIRECT:
        raise ArtifactError(f"{format} is not a direct numeric format")
    if words.dtype.name not in _DIRECT_SOURCES[format]:
        raise ArtifactError(f"{format} takes {' or '.join(sorted(_DIRECT_SOURCES[format]))}, got {words.dtype.name}")
    encoded_bytes(format, words.shape)
    return np.ascontiguousarray(words).reshape(-1).view(np.uint8)


def encode_grouped_words(codes: np.ndarray, scales: np.ndarray, format: str, shape: Sequence[int]) -> np.ndarray:
    """Payload from explicit codes int8 [N, Gr, G] and binary16 scale words uint16 [N, Gr], physical groups (5.2)."""
    row = _grouped(format)
    geometry = RowSplitGeometry.of(row, shape)
    physical = (geometry.n, geometry.groups_per_row)
    if codes.shape != (*physical, row.group) or scales.shape != physical:
        raise ArtifactError(f"{format} codes and scales must have shapes {(*physical, row.group)} and {physical}")
    payload = np.zeros(geometry.payload_bytes, np.uint8)
    store_grouped_rows(payload, geometry, row, slice(None), codes.view(np.uint8), scales)
    return payload


def store_grouped_rows(
    payload: np.ndarray,
    geometry: RowSplitGeometry,
    format: NumericFormat,
    rows: slice,
    codes: np.ndarray,
    scales: np.ndarray,
) -> None:
    """Pack codes, two's complement uint8 [rows, groups, G], and scale words [rows, groups] into a payload.

    Fewer groups than the physical ones leave the padding groups as they are (zero in a new payload).
    """
    groups = codes.shape[1]
    base = codes if format.code_bits == 8 else pack_nibbles(codes)
    geometry.base_plane(payload)[rows, :groups] = base
    if format.high_group_bytes:
        geometry.high_plane(payload)[rows, :groups] = pack_high_bits(codes, format.code_bits)
    geometry.scale_plane(payload)[rows, :groups] = scales


def check_grouped_words(codes: np.ndarray, scales: np.ndarray, format: NumericFormat) -> None:
    """Legality of grouped words (4.2): codes int8 [..., groups, G], binary16 scale words uint16 [..., groups]."""
    if format.code_bits == 8 and codes.min() == -128:
        raise ArtifactError(f"{format.name} codes must be in [{format.qmin}, {format.qmax}]")
    if scales.max() >= 0x7C00:
        raise ArtifactError(f"{format.name} scales must be nonnegative finite binary16 words")
    if codes[scales == 0].any():
        raise ArtifactError(f"a zero {format.name} group scale requires zero codes")


def grouped_words(payload: np.ndarray, format: str, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Explicit words of a grouped tensor: codes int8 [N, Gr, G] and scale words uint16 [N, Gr], physical groups."""
    check_payload_bytes(payload, format, shape)
    row = _grouped(format)
    geometry = RowSplitGeometry.of(row, shape)
    return grouped_row_words(payload, geometry, row, slice(None)), geometry.scale_plane(payload)


def grouped_row_words(
    payload: np.ndarray, geometry: RowSplitGeometry, format: NumericFormat, rows: np.ndarray | slice
) -> np.ndarray:
    """Codes int8 [rows, Gr, G] of some rows of a grouped tensor."""
    base = geometry.base_plane(payload)[rows]
    if format.code_bits == 8:
        return base.view(np.int8)
    codes = unpack_nibbles(base)
    if format.high_group_bytes:
        codes |= unpack_high_bits(geometry.high_plane(payload)[rows], format.code_bits)
    spare = np.uint8(8 - format.code_bits)
    return (codes << spare).view(np.int8) >> spare.view(np.int8)  # sign extension


def encode_nvfp4_words(packed_codes: np.ndarray, natural_scales: np.ndarray, divisor: float) -> np.ndarray:
    """Payload from packed codes uint8 [N, K/2], natural E4M3FN scales uint8 [N, K/16], FP32 divisor d_w (5.3)."""
    n, half = packed_codes.shape
    geometry = BlockScaleGeometry.of((n, 2 * half))
    if natural_scales.shape != (n, geometry.groups_per_row):
        raise ArtifactError(f"NVFP4 scales must have shape {(n, geometry.groups_per_row)}")
    divisor = np.float32(divisor)
    check_nvfp4_words(natural_scales, divisor)
    payload = np.zeros(geometry.payload_bytes, np.uint8)
    geometry.code_plane(payload)[...] = packed_codes
    payload[geometry.scale_plane_offset : geometry.weight_divisor_offset] = swizzle_scales(natural_scales)
    geometry.divisor(payload)[0] = divisor
    return payload


def check_nvfp4_words(scales: np.ndarray, divisor: np.float32) -> None:
    """Legality of NVFP4 scales, in any order, and of the divisor d_w; every code is legal (4.3)."""
    if scales.max() > 0x7E:
        raise ArtifactError("NVFP4 scales must be nonnegative finite E4M3FN words")
    if not (np.isfinite(divisor) and divisor > 0):
        raise ArtifactError("NVFP4 weight divisor must be finite and positive")


def nvfp4_words(payload: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray, np.float32]:
    """Explicit words of an NVFP4 tensor: packed codes uint8 [N, K/2], natural scales uint8 [N, K/16], d_w."""
    check_payload_bytes(payload, NVFP4, shape)
    geometry = BlockScaleGeometry.of(shape)
    scales = unswizzle_scales(geometry.scale_tiles(payload), geometry.n, geometry.groups_per_row)
    return geometry.code_plane(payload), scales, geometry.divisor(payload)[0]


def encode_fp8_words(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Payload from E4M3FN codes uint8 [N, K] and BF16 row scale words uint16 [N] (4.5, 5.4)."""
    check_fp8_words(codes, scales)
    geometry = RowScaleGeometry.of(codes.shape)
    payload = np.zeros(geometry.payload_bytes, np.uint8)
    geometry.code_plane(payload)[...] = codes
    geometry.scale_plane(payload)[...] = scales
    return payload


def check_fp8_words(codes: np.ndarray, scales: np.ndarray) -> None:
    """Legality of row-scaled FP8 words (4.5)."""
    if scales.shape != codes.shape[:1]:
        raise ArtifactError(f"row-scaled FP8 scales must have shape {codes.shape[:1]}")
    magnitudes = codes & np.uint8(0x7F)
    if magnitudes.max() == 0x7F:
        raise ArtifactError("row-scaled FP8 codes must be finite E4M3FN words")
    if scales.max() >= 0x7F80:
        raise ArtifactError("row-scaled FP8 scales must be nonnegative finite BF16 words")
    if magnitudes[scales == 0].any():
        raise ArtifactError("a zero row scale requires only signed-zero FP8 codes")


def fp8_words(payload: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Explicit words of a row-scaled FP8 tensor: codes uint8 [N, K] and BF16 scale words uint16 [N]."""
    check_payload_bytes(payload, FP8_E4M3FN_ROW_BF16S, shape)
    geometry = RowScaleGeometry.of(shape)
    return geometry.code_plane(payload), geometry.scale_plane(payload)


def _grouped(format: str) -> NumericFormat:
    row = numeric_format(format)
    if not row.is_grouped:
        raise ArtifactError(f"{format} is not a grouped numeric format")
    return row
