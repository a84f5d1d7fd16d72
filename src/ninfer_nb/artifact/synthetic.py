"""Made-up payloads of the exact registered inventories, for memory plans and speed, never for text (`cli.md` 12).

A payload is a handful of segments, each filled with 64-bit words that depend on (seed, object index, word index) only,
so host and device make the same bytes. Words are legal for their format, padding is zero, and matrices have values of
about 1/sqrt(K), so that activations stay finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .formats import FormatClass, NumericFormat, numeric_format
from .inventory import TensorSpec
from .layouts import BlockScaleGeometry, RowScaleGeometry, RowSplitGeometry, encoded_bytes
from .words import E2M1_VALUES, E4M3FN_VALUES, f32_to_bf16, f32_to_f16

# What becomes of a random word. `parameter` is the constant, or the BF16 exponent of NOISE.
BITS = 0  # random bytes
INT8 = 1  # random bytes without -128
E4M3 = 2  # random bytes without the NaN words
NOISE = 3  # BF16: random sign and fraction, one exponent
HALF = 4  # a 16-bit constant
WORD = 5  # a 32-bit constant
COUNT = 6  # 0, 1, 2, ... as int32

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_ONE_SCALE = 0x38  # E4M3FN 1.0, in every byte of the block scales


@dataclass(frozen=True)
class Segment:
    """`kind` fills `[offset, offset + bytes)`; both are multiples of 8 but for a last piece.

    Row-split planes with padding lanes have one segment a row; `rows` and `stride` (bytes) repeat it.
    """

    kind: int
    offset: int
    bytes: int
    parameter: int = 0
    rows: int = 1
    stride: int = 0


def segments(spec: TensorSpec) -> tuple[Segment, ...]:
    """How to fill a zeroed payload of `spec`."""
    row = numeric_format(spec.format)
    size = encoded_bytes(spec.format, spec.shape)
    if row.kind is FormatClass.DIRECT:
        return _direct(spec, size)
    rows, columns = spec.shape
    if row.is_grouped:
        return _grouped(spec, rows, columns)
    if row.kind is FormatClass.BLOCK_FLOAT:
        tiles = BlockScaleGeometry.of(spec.shape)
        divisor = np.float32(_rms(E2M1_VALUES) * math.sqrt(columns))
        return (
            Segment(BITS, 0, tiles.code_plane_bytes),
            Segment(HALF, tiles.scale_plane_offset, tiles.scale_plane_bytes, _ONE_SCALE * 0x0101),
            Segment(WORD, tiles.weight_divisor_offset, 4, int(divisor.view(np.uint32))),
        )
    planes = RowScaleGeometry.of(spec.shape)
    finite = E4M3FN_VALUES[np.isfinite(E4M3FN_VALUES)]
    scale = int(f32_to_bf16(np.float32(1 / (_rms(finite) * math.sqrt(columns)))))
    return (
        Segment(E4M3, 0, planes.code_plane_bytes),
        Segment(HALF, planes.scale_plane_offset, planes.scale_plane_bytes, scale),
    )


def _direct(spec: TensorSpec, size: int) -> tuple[Segment, ...]:
    if spec.format == "I32":
        return (Segment(COUNT, 0, size),)
    if spec.format == "FP32":
        return (Segment(WORD, 0, size, int(np.float32(1).view(np.uint32))),)
    if len(spec.shape) == 1:  # gains: plain ones are 1, those with a unit offset 0
        return (Segment(HALF, 0, size, int(f32_to_bf16(np.float32(1)))),) if spec.name.endswith("gdn/norm") else ()
    exponent = 127 + round(-0.5 * math.log2(spec.shape[-1]))
    return (Segment(NOISE, 0, size, exponent),)


def _grouped(spec: TensorSpec, rows: int, columns: int) -> tuple[Segment, ...]:
    format = numeric_format(spec.format)
    planes = RowSplitGeometry.of(format, spec.shape)
    codes = np.arange(format.qmin, format.qmax + 1)
    scale = int(f32_to_f16(np.float32(1 / (_rms(codes) * math.sqrt(columns)))))
    kind = INT8 if format.code_bits == 8 else BITS

    def plane(kind: int, offset: int, live_bytes: int, row_bytes: int, parameter: int = 0) -> Segment:
        """Lanes of a row lie in order, so its padding is the end of the row."""
        if live_bytes == row_bytes:
            return Segment(kind, offset, rows * row_bytes, parameter)
        return Segment(kind, offset, live_bytes, parameter, rows, row_bytes)

    groups = -(-columns // format.group)
    live = _lane_bytes(columns, planes.base_group_bytes, format)
    parts = [plane(kind, planes.base_offset, live, planes.base_row_bytes)]
    if planes.high_bytes:
        live = _lane_bytes(columns, planes.high_group_bytes, format)
        parts.append(plane(BITS, planes.high_offset, live, planes.high_row_bytes))
    parts.append(plane(HALF, planes.scale_offset, 2 * groups, planes.scale_row_bytes, scale))
    return tuple(parts)


def _lane_bytes(columns: int, group_bytes: int, format: NumericFormat) -> int:
    bits = group_bytes * 8 // format.group
    assert columns * bits % 8 == 0, "a registered matrix ends inside a byte"
    return columns * bits // 8


def _rms(values: Sequence[float] | np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(np.asarray(values, np.float64)))))


def stream(seed: int, index: int) -> int:
    """The 64-bit start of object `index`'s words."""
    return int(mix(np.array([seed ^ (index * 0xD1B54A32D192ED03 & 0xFFFFFFFFFFFFFFFF)], np.uint64))[0])


def mix(words: np.ndarray) -> np.ndarray:
    """SplitMix64's output function with its increment, elementwise on uint64."""
    with np.errstate(over="ignore"):
        x = words + _INCREMENT
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def payload(spec: TensorSpec, seed: int, index: int) -> np.ndarray:
    """The payload of object `index` of an inventory, uint8."""
    size = encoded_bytes(spec.format, spec.shape)
    out = np.zeros(size, np.uint8)
    start = stream(seed, index)
    for segment in segments(spec):
        for row in range(segment.rows):
            begin = segment.offset + row * segment.stride
            out[begin : begin + segment.bytes] = _fill(segment, start, begin)
    return out


def _fill(segment: Segment, start: int, begin: int) -> np.ndarray:
    """Bytes of one row of a segment; word `w` of the payload has the hash of `start + w`."""
    first, last = begin // 8, -(-(begin + segment.bytes) // 8)
    with np.errstate(over="ignore"):
        words = mix(np.arange(first, last, dtype=np.uint64) + np.uint64(start))
    if segment.kind == INT8:
        codes = words.view(np.uint8)
        codes[codes == 0x80] = 0x7F
    elif segment.kind == E4M3:
        codes = words.view(np.uint8)
        codes[(codes & 0x7F) == 0x7F] ^= 1
    elif segment.kind == NOISE:
        halves = words.view(np.uint16)
        halves &= np.uint16(0x807F)
        halves |= np.uint16(segment.parameter << 7)
    elif segment.kind == HALF:
        words.view(np.uint16)[:] = segment.parameter
    elif segment.kind == WORD:
        words.view(np.uint32)[:] = segment.parameter
    elif segment.kind == COUNT:
        words.view(np.int32)[:] = np.arange(2 * first, 2 * last)
    skip = begin - 8 * first
    return words.view(np.uint8)[skip : skip + segment.bytes]
