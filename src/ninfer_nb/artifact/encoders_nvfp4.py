"""Our own encoder to NVFP4, for sources that have BF16 weights only.

The divisor `d_w = 448 * 4 / max|W|` of the matrix makes the largest block scale meet the end of its range. A block of
16 is quantised twice: with the scale that puts its largest weight on the largest code, `e4m3fn(max|block| * d_w / 6)`,
and with the one that puts it on 4, where the codes lie closer together; the smaller squared error wins, the first one
on a tie (the idea of "Four Over Six", Cook et al., 2025). A block too small for any scale gets the smallest. Codes are
`e2m1(w * (d_w / s))`, nearest even. Binary32 throughout, in blocks of rows.

Quantised sources bring words of their own, which are kept (`artifact-format.md` 4.3).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..errors import ArtifactError
from .codec import row_blocks
from .encoders import as_float32, check_float_matrix, largest_magnitudes
from .layouts import BLOCK, BlockScaleGeometry, pack_nibbles, swizzle_scales
from .words import E2M1_VALUES, E4M3FN_MAX, E4M3FN_VALUES, f32_to_e4m3fn

_SMALLEST_SCALE = np.uint8(1)
_TARGETS = (np.float32(6), np.float32(4))  # the codes that a block's largest weight may meet

# Activations at a W4A4 site are scaled by d_x before they get block scales. Without calibration we take the power of
# two that leaves blocks with a largest value of 0.024 to 672 in the normal range of the scale.
INPUT_DIVISOR = np.float32(4)


def encode_nvfp4(x: np.ndarray) -> np.ndarray:
    """Quantise a matrix [N, K], floats or BF16 words as uint16; returns the payload, uint8.

    `x` may be anything with shape, dtype and row slices; it is read twice. ArtifactError for NaN and infinity, and for
    shapes that the layout refuses.
    """
    check_float_matrix(x, "NVFP4 quantization")
    geometry = BlockScaleGeometry.of(x.shape)
    divisor = _divisor(x)
    payload = np.zeros(geometry.payload_bytes, np.uint8)
    codes, tiles = geometry.code_plane(payload), geometry.scale_tiles(payload)
    scales = np.empty((geometry.n, geometry.groups_per_row), np.uint8)
    for rows in row_blocks(*x.shape):
        codes[rows], scales[rows] = _quantise_blocks(as_float32(x[rows]), divisor)
    tiles.reshape(-1)[:] = swizzle_scales(scales)
    geometry.divisor(payload)[0] = divisor
    return payload


def _divisor(x: np.ndarray) -> np.float32:
    largest = np.float32(0)
    for rows in row_blocks(*x.shape):
        largest = max(largest, largest_magnitudes(as_float32(x[rows]).reshape(1, -1))[0])
        if not np.isfinite(largest):
            raise ArtifactError("NVFP4 quantization source contains NaN or infinity")
    if largest == 0:
        return np.float32(1)
    with np.errstate(over="ignore"):
        divisor = np.float32(E4M3FN_MAX * _TARGETS[-1]) / largest
    return divisor if np.isfinite(divisor) else np.finfo(np.float32).max


def _quantise_blocks(values: np.ndarray, divisor: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """float32 [rows, K] to packed codes uint8 [rows, K/2] and scale words uint8 [rows, K/16]."""
    blocks = values.reshape(len(values), -1, BLOCK)
    maxima = largest_magnitudes(blocks)
    first, second = (_candidate(blocks, maxima, divisor, target) for target in _TARGETS)
    better = second.errors < first.errors
    codes = np.where(better[..., None], second.codes, first.codes)
    return pack_nibbles(codes.reshape(values.shape)), np.where(better, second.scales, first.scales)


class _Candidate(NamedTuple):
    codes: np.ndarray  # [rows, blocks, 16] u8
    scales: np.ndarray  # [rows, blocks] u8
    errors: np.ndarray  # [rows, blocks] f32, squared and summed


def _candidate(blocks: np.ndarray, maxima: np.ndarray, divisor: np.float32, target: np.float32) -> _Candidate:
    scales = f32_to_e4m3fn(maxima * (divisor / target))
    scales[(scales == 0) & (maxima > 0)] = _SMALLEST_SCALE
    wide = E4M3FN_VALUES[scales]
    scaled = blocks * np.divide(divisor, wide, out=np.zeros_like(wide), where=wide > 0)[..., None]
    codes = _e2m1(scaled)
    scaled -= E2M1_VALUES[codes]
    scaled *= wide[..., None]  # errors of both candidates in the same unit
    return _Candidate(codes, scales, np.einsum("rbi,rbi->rb", scaled, scaled))


def _e2m1(values: np.ndarray) -> np.ndarray:
    """E2M1 words of float32 values: the magnitudes' midpoints passed, ties to the even code; larger ones saturate."""
    codes = np.signbit(values).view(np.uint8) << np.uint8(3)
    values = np.abs(values)
    for midpoint, tie_goes_up in ((0.25, 0), (0.75, 1), (1.25, 0), (1.75, 1), (2.5, 0), (3.5, 1), (5.0, 0)):
        passed = values >= np.float32(midpoint) if tie_goes_up else values > np.float32(midpoint)
        codes += passed.view(np.uint8)
    return codes
