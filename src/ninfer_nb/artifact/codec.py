"""Payload bytes to values, for every numeric format, and the deep check of their words (`artifact-format.md` 4, 5).

Decoding gives the exact stored values as float32 (I32: int32), in blocks of rows that stay in cache.
Knows nothing of files; the way from words to bytes is `packing.py`, from values to words `encoders.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import ArtifactError
from .formats import FormatClass, NumericFormat, numeric_format
from .layouts import BLOCK, BlockScaleGeometry, RowScaleGeometry, RowSplitGeometry
from .packing import (
    DIRECT_DTYPE,
    check_fp8_words,
    check_grouped_words,
    check_nvfp4_words,
    check_payload_bytes,
    grouped_row_words,
)
from .words import E2M1_VALUES, E4M3FN_VALUES, bf16_to_f32, f16_to_f32

BLOCK_ELEMENTS = 1 << 17  # 512 KiB of float32: a block and its temporaries stay in a core's cache

# One gather decodes a whole byte: two nibble lanes, or the high bits of eight (Q5) or four (Q6) lanes.
_NIBBLES = np.stack([np.arange(256) & 15, np.arange(256) >> 4], axis=1)
_SIGNED_PAIRS = (((_NIBBLES + 8) & 15) - 8).astype(np.float32)
_UNSIGNED_PAIRS = _NIBBLES.astype(np.float32)
_E2M1_PAIRS = E2M1_VALUES[_NIBBLES]
_HIGH_LANES = {
    5: ((np.arange(256)[:, None] >> np.arange(8)) & 1) * np.float32(-16),
    6: np.float32([0, 16, -32, -16])[(np.arange(256)[:, None] >> np.arange(0, 8, 2)) & 3],
}


def row_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Slices that cover `rows` rows in blocks of about `BLOCK_ELEMENTS` elements."""
    step = max(1, BLOCK_ELEMENTS // columns)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def decode(payload: np.ndarray, format: str, shape: Sequence[int]) -> np.ndarray:
    """Values of a whole tensor: uint8 payload to float32 `shape` (int32 for I32).

    NVFP4 values are the correctly rounded float32 quotient code * scale / d_w; all other formats are exact.
    Legality of words is not checked here (see `check_words`).
    """
    check_payload_bytes(payload, format, shape)
    row = numeric_format(format)
    if row.kind is FormatClass.DIRECT:
        return _decode_direct(payload.view(DIRECT_DTYPE[format]).reshape(shape))
    out = np.empty(shape, np.float32)
    for block in row_blocks(*out.shape):
        _decode_matrix_rows(payload, row, shape, block, out[block])
    return out


def decode_rows(payload: np.ndarray, format: str, shape: Sequence[int], rows: np.ndarray | slice) -> np.ndarray:
    """Values of some rows of a matrix: float32 [len(rows), K]; `rows` are indices (repeats allowed) or a slice.

    Only the bytes of those rows are read, so a row of a memory-mapped embedding costs a few pages.
    """
    check_payload_bytes(payload, format, shape)
    if len(shape) != 2:
        raise ArtifactError(f"rows can be decoded from rank 2 only, got rank {len(shape)}")
    row = numeric_format(format)
    if row.kind is FormatClass.DIRECT:
        return _decode_direct(payload.view(DIRECT_DTYPE[format]).reshape(shape)[rows])
    if isinstance(rows, slice):
        rows = np.arange(*rows.indices(shape[0]))
    rows = np.asarray(rows)
    if rows.size and (rows.min() < 0 or rows.max() >= shape[0]):
        raise ArtifactError(f"row index is outside the tensor of {shape[0]} rows")
    out = np.empty((rows.size, shape[1]), np.float32)
    for block in row_blocks(*out.shape):
        _decode_matrix_rows(payload, row, shape, rows.reshape(-1)[block], out[block])
    return out


def check_words(payload: np.ndarray, format: str, shape: Sequence[int]) -> None:
    """Deep scan of one tensor: every word legal, every padding lane and fill byte zero (7, optional deep scan)."""
    check_payload_bytes(payload, format, shape)
    row = numeric_format(format)
    if row.is_grouped:
        _check_grouped(payload, RowSplitGeometry.of(row, shape), row)
    elif row.kind is FormatClass.BLOCK_FLOAT:
        geometry = BlockScaleGeometry.of(shape)
        check_nvfp4_words(geometry.scale_tiles(payload), geometry.divisor(payload)[0])
    elif row.kind is FormatClass.ROW_FLOAT:
        geometry = RowScaleGeometry.of(shape)
        codes, scales = geometry.code_plane(payload), geometry.scale_plane(payload)
        for block in row_blocks(*shape):
            check_fp8_words(codes[block], scales[block])
        _check_fill(payload, geometry.code_plane_bytes, geometry.scale_plane_offset)


def _check_grouped(payload: np.ndarray, geometry: RowSplitGeometry, format: NumericFormat) -> None:
    scales = geometry.scale_plane(payload)
    for block in row_blocks(geometry.n, geometry.k_pad):
        codes = grouped_row_words(payload, geometry, format, block)
        check_grouped_words(codes, scales[block], format)
        if codes.reshape(len(codes), -1)[:, geometry.k :].any():
            raise ArtifactError(f"{format.name} padding lanes must have zero codes")
    if scales[:, -(-geometry.k // geometry.group) :].any():
        raise ArtifactError(f"{format.name} padding groups must have zero scales")
    _check_fill(payload, geometry.base_bytes, geometry.high_offset)
    _check_fill(payload, geometry.high_offset + geometry.high_bytes, geometry.scale_offset)


def _check_fill(payload: np.ndarray, start: int, stop: int) -> None:
    if payload[start:stop].any():
        raise ArtifactError(f"fill bytes {start} to {stop} between planes must be zero")


def _decode_direct(words: np.ndarray) -> np.ndarray:
    return bf16_to_f32(words) if words.dtype == np.uint16 else words.copy()


def _decode_matrix_rows(
    payload: np.ndarray, format: NumericFormat, shape: Sequence[int], rows: np.ndarray | slice, out: np.ndarray
) -> None:
    """Decode the given rows of a quantised matrix into `out` float32 [len(rows), K]."""
    with np.errstate(over="ignore", invalid="ignore"):  # illegal words decode to infinity or NaN, quietly
        if format.is_grouped:
            _decode_grouped_rows(payload, RowSplitGeometry.of(format, shape), format, rows, out)
        elif format.kind is FormatClass.BLOCK_FLOAT:
            _decode_nvfp4_rows(payload, BlockScaleGeometry.of(shape), rows, out)
        else:
            geometry = RowScaleGeometry.of(shape)
            values = E4M3FN_VALUES[geometry.code_plane(payload)[rows]]
            np.multiply(values, bf16_to_f32(geometry.scale_plane(payload)[rows])[:, None], out=out)


def _decode_grouped_rows(
    payload: np.ndarray, geometry: RowSplitGeometry, format: NumericFormat, rows: np.ndarray | slice, out: np.ndarray
) -> None:
    base = geometry.base_plane(payload)[rows]
    lanes = (*base.shape[:2], format.group)
    if format.code_bits == 8:
        values = base.view(np.int8).astype(np.float32)
    elif format.code_bits == 4:
        values = _SIGNED_PAIRS[base].reshape(lanes)
    else:
        values = _UNSIGNED_PAIRS[base].reshape(lanes)
        values += _HIGH_LANES[format.code_bits][geometry.high_plane(payload)[rows]].reshape(lanes)
    values *= f16_to_f32(geometry.scale_plane(payload)[rows])[..., None]
    out[...] = values.reshape(len(values), -1)[:, : geometry.k]


def _decode_nvfp4_rows(
    payload: np.ndarray, geometry: BlockScaleGeometry, rows: np.ndarray | slice, out: np.ndarray
) -> None:
    if isinstance(rows, slice):
        rows = np.arange(rows.start, rows.stop)
    lanes = (rows.size, geometry.groups_per_row, BLOCK)
    values = _E2M1_PAIRS[geometry.code_plane(payload)[rows]].reshape(lanes)
    values *= E4M3FN_VALUES[_scale_rows(geometry, payload, rows)][..., None]
    np.divide(values.reshape(out.shape), geometry.divisor(payload)[0], out=out)


def _scale_rows(geometry: BlockScaleGeometry, payload: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Natural scales uint8 [len(rows), K/16] of some rows: each row is one word of four scales in every tile."""
    tiles = geometry.scale_tiles(payload).reshape(-1, geometry.k_tiles, 32, 4, 4)
    return tiles[rows // 128, :, rows % 32, rows % 128 // 32].reshape(rows.size, -1)
