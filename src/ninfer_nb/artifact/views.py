"""Rows and columns of stored matrices, without decoding a single word (`artifact-format.md` 5.2 to 5.4).

A view is never an object of a file. Row spans say where rows lie in place; `take_rows` and `take_columns` make a
standalone payload of the same format. Codes are moved, never repacked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import ArtifactError
from .formats import FormatClass, NumericFormat, numeric_format
from .layouts import (
    BLOCK,
    K_TILE,
    SCALE_TILE_ROWS,
    BlockScaleGeometry,
    RowScaleGeometry,
    RowSplitGeometry,
    encoded_bytes,
    unswizzle_scales,
)
from .packing import check_payload_bytes, encode_nvfp4_words


@dataclass(frozen=True)
class Span:
    """Bytes of one plane, `offset` from the start of the parent's payload."""

    offset: int
    bytes: int


def row_spans(format: str, shape: Sequence[int], start: int, stop: int) -> tuple[Span, ...]:
    """Where rows `[start, stop)` lie: one span a plane.

    NVFP4 rows come in whole scale tiles of 128, with the divisor as a third span.
    """
    row = numeric_format(format)
    _check_range(start, stop, shape[0], row)
    count = stop - start
    if row.is_grouped:
        planes = RowSplitGeometry.of(row, shape)
        widths = (
            (planes.base_offset, planes.base_row_bytes),
            (planes.high_offset, planes.high_row_bytes),
            (planes.scale_offset, planes.scale_row_bytes),
        )
        return tuple(Span(offset + start * width, count * width) for offset, width in widths if width)
    if row.kind is FormatClass.ROW_FLOAT:
        planes = RowScaleGeometry.of(shape)
        k = shape[1]
        return Span(start * k, count * k), Span(planes.scale_plane_offset + 2 * start, 2 * count)
    if row.kind is FormatClass.BLOCK_FLOAT:
        if start % SCALE_TILE_ROWS or stop % SCALE_TILE_ROWS:
            raise ArtifactError("NVFP4 row views start and end on multiples of 128 rows")
        tiles = BlockScaleGeometry.of(shape)
        codes, scales = tiles.k // 2, tiles.groups_per_row
        return (
            Span(start * codes, count * codes),
            Span(tiles.scale_plane_offset + start * scales, count * scales),
            Span(tiles.weight_divisor_offset, 4),
        )
    width = encoded_bytes(format, shape) // shape[0]
    return (Span(start * width, count * width),)


def take_rows(payload: np.ndarray, format: str, shape: Sequence[int], rows: Sequence[int] | slice) -> np.ndarray:
    """Payload of the given rows in the given order, repeats allowed. NVFP4 needs whole multiples of 128 rows."""
    check_payload_bytes(payload, format, shape)
    row = numeric_format(format)
    index = _row_index(rows, shape[0], row)
    new = (len(index), *shape[1:])
    if row.is_grouped:
        old, made = RowSplitGeometry.of(row, shape), RowSplitGeometry.of(row, new)
        out = np.zeros(made.payload_bytes, np.uint8)
        made.base_plane(out)[...] = old.base_plane(payload)[index]
        if old.high_bytes:
            made.high_plane(out)[...] = old.high_plane(payload)[index]
        made.scale_plane(out)[...] = old.scale_plane(payload)[index]
        return out
    if row.kind is FormatClass.ROW_FLOAT:
        old, made = RowScaleGeometry.of(shape), RowScaleGeometry.of(new)
        out = np.zeros(made.payload_bytes, np.uint8)
        made.code_plane(out)[...] = old.code_plane(payload)[index]
        made.scale_plane(out)[...] = old.scale_plane(payload)[index]
        return out
    if row.kind is FormatClass.BLOCK_FLOAT:
        codes, scales, divisor = _block_words(payload, shape)
        return encode_nvfp4_words(codes[index], scales[index], divisor)
    return np.ascontiguousarray(payload.reshape(shape[0], -1)[index]).reshape(-1)


def take_columns(payload: np.ndarray, format: str, shape: Sequence[int], start: int, stop: int) -> np.ndarray:
    """Payload of columns `[start, stop)`, whole storage tiles: 128 of a grouped format, 64 of NVFP4."""
    check_payload_bytes(payload, format, shape)
    row = numeric_format(format)
    n, k = shape
    tile = K_TILE if row.is_grouped else 64 if row.kind is FormatClass.BLOCK_FLOAT else 1
    ends_whole = stop % tile == 0 or stop == k
    if not (0 <= start < stop <= k and start % tile == 0 and ends_whole):
        raise ArtifactError(f"columns {start}:{stop} of a {format} matrix with {k} must be whole tiles of {tile}")
    if row.is_grouped:
        return _grouped_columns(payload, row, shape, start, stop)
    if row.kind is FormatClass.ROW_FLOAT:
        old, made = RowScaleGeometry.of(shape), RowScaleGeometry.of((n, stop - start))
        out = np.zeros(made.payload_bytes, np.uint8)
        made.code_plane(out)[...] = old.code_plane(payload)[:, start:stop]
        made.scale_plane(out)[...] = old.scale_plane(payload)
        return out
    if row.kind is FormatClass.BLOCK_FLOAT:
        codes, scales, divisor = _block_words(payload, shape)
        return encode_nvfp4_words(codes[:, start // 2 : stop // 2], scales[:, start // BLOCK : stop // BLOCK], divisor)
    words = payload.reshape(n, k, row.word_bytes)
    return np.ascontiguousarray(words[:, start:stop]).reshape(-1)


def _grouped_columns(
    payload: np.ndarray, format: NumericFormat, shape: Sequence[int], start: int, stop: int
) -> np.ndarray:
    old = RowSplitGeometry.of(format, shape)
    made = RowSplitGeometry.of(format, (shape[0], stop - start))
    groups = slice(start // format.group, start // format.group + made.groups_per_row)
    out = np.zeros(made.payload_bytes, np.uint8)
    made.base_plane(out)[...] = old.base_plane(payload)[:, groups]
    if old.high_bytes:
        made.high_plane(out)[...] = old.high_plane(payload)[:, groups]
    made.scale_plane(out)[...] = old.scale_plane(payload)[:, groups]
    return out


def _block_words(payload: np.ndarray, shape: Sequence[int]) -> tuple[np.ndarray, np.ndarray, float]:
    tiles = BlockScaleGeometry.of(shape)
    scales = unswizzle_scales(tiles.scale_tiles(payload), tiles.n, tiles.groups_per_row)
    return tiles.code_plane(payload), scales, float(tiles.divisor(payload)[0])


def _row_index(rows: Sequence[int] | slice, n: int, format: NumericFormat) -> np.ndarray:
    if isinstance(rows, slice):
        _check_range(rows.start, rows.stop, n, format)
        return np.arange(rows.start, rows.stop)
    index = np.asarray(rows, np.int64)
    if index.size == 0:
        raise ArtifactError("at least one row is required")
    if index.min() < 0 or index.max() >= n:
        raise ArtifactError(f"row index is outside the {_kind(format)} tensor")
    return index


def _check_range(start: int, stop: int, n: int, format: NumericFormat) -> None:
    if stop <= start:
        raise ArtifactError("at least one row is required")
    if start < 0 or stop > n:
        raise ArtifactError(f"row range is outside the {_kind(format)} tensor")


def _kind(format: NumericFormat) -> str:
    return format.layout.rpartition("-v")[0].replace("-k128", "")
