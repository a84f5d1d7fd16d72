"""Where the planes of an encoded tensor lie, and how codes are packed into them (`artifact-format.md` 5).

Shapes and bytes only: knows nothing of the values that codes and scales stand for, nor of files.
Offsets are relative to the first byte of the object's payload.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from ..errors import ArtifactError
from .formats import BLOCK_SCALE, CONTIGUOUS, ROW_SPLIT, NumericFormat, numeric_format

TENSOR_ALIGNMENT = 256
RESOURCE_ALIGNMENT = 1
K_TILE = 128  # columns of a row-split row are padded to whole tiles
SCALE_TILE_ROWS = 128  # an NVFP4 scale tile is 128 rows x 4 groups, 512 bytes
SCALE_TILE_GROUPS = 4
BLOCK = 16  # weights that share one NVFP4 scale
MAX_RANK = 16


def align_up(value: int, alignment: int) -> int:
    return -(-value // alignment) * alignment


@dataclass(frozen=True)
class RowSplitGeometry:
    """Planes of `row-split-k128-v1` for one grouped tensor `[n, k]` (5.2): base codes, high bits, binary16 scales.

    In each plane a group's bytes are contiguous and groups are row-major over (row, physical group).
    """

    n: int
    k: int
    group: int
    base_group_bytes: int
    high_group_bytes: int

    @classmethod
    def of(cls, format: NumericFormat, shape: Sequence[int]) -> RowSplitGeometry:
        n, k = _matrix_shape(shape)
        return cls(n, k, format.group, format.base_group_bytes, format.high_group_bytes)

    @property
    def k_pad(self) -> int:
        return align_up(self.k, K_TILE)

    @property
    def groups_per_row(self) -> int:
        return self.k_pad // self.group

    @property
    def base_row_bytes(self) -> int:
        return self.groups_per_row * self.base_group_bytes

    @property
    def high_row_bytes(self) -> int:
        return self.groups_per_row * self.high_group_bytes

    @property
    def scale_row_bytes(self) -> int:
        return self.groups_per_row * 2

    @property
    def base_offset(self) -> int:
        return 0

    @property
    def base_bytes(self) -> int:
        return self.n * self.base_row_bytes

    @property
    def high_offset(self) -> int:
        return align_up(self.base_bytes, TENSOR_ALIGNMENT)

    @property
    def high_bytes(self) -> int:
        return self.n * self.high_row_bytes

    @property
    def scale_offset(self) -> int:
        return self.high_offset + align_up(self.high_bytes, TENSOR_ALIGNMENT)

    @property
    def scale_bytes(self) -> int:
        return self.n * self.scale_row_bytes

    @property
    def payload_bytes(self) -> int:
        return self.scale_offset + self.scale_bytes

    def base_plane(self, payload: np.ndarray) -> np.ndarray:
        """View of the base plane, uint8 [n, groups, bytes of a group]."""
        span = payload[self.base_offset : self.base_offset + self.base_bytes]
        return span.reshape(self.n, self.groups_per_row, self.base_group_bytes)

    def high_plane(self, payload: np.ndarray) -> np.ndarray:
        """View of the high plane, uint8 [n, groups, bytes of a group]; the last axis is empty without high bits."""
        span = payload[self.high_offset : self.high_offset + self.high_bytes]
        return span.reshape(self.n, self.groups_per_row, self.high_group_bytes)

    def scale_plane(self, payload: np.ndarray) -> np.ndarray:
        """View of the scales, binary16 words as uint16 [n, groups]."""
        span = payload[self.scale_offset : self.payload_bytes]
        return span.view("<u2").reshape(self.n, self.groups_per_row)


@dataclass(frozen=True)
class BlockScaleGeometry:
    """Planes of `blockscale-k16-m128x4-v1` for NVFP4 `[n, k]` (5.3): codes, swizzled scales, one divisor word."""

    n: int
    k: int

    @classmethod
    def of(cls, shape: Sequence[int]) -> BlockScaleGeometry:
        n, k = _matrix_shape(shape)
        if n % SCALE_TILE_ROWS or k % (BLOCK * SCALE_TILE_GROUPS):
            raise ArtifactError(f"{BLOCK_SCALE} requires N divisible by 128 and K divisible by 64")
        return cls(n, k)

    @property
    def groups_per_row(self) -> int:
        return self.k // BLOCK

    @property
    def k_tiles(self) -> int:
        return self.groups_per_row // SCALE_TILE_GROUPS

    @property
    def code_plane_bytes(self) -> int:
        return self.n * self.k // 2

    @property
    def scale_plane_offset(self) -> int:
        return align_up(self.code_plane_bytes, TENSOR_ALIGNMENT)

    @property
    def scale_plane_bytes(self) -> int:
        return self.n * self.groups_per_row

    @property
    def weight_divisor_offset(self) -> int:
        return self.scale_plane_offset + self.scale_plane_bytes

    @property
    def payload_bytes(self) -> int:
        return self.weight_divisor_offset + 4

    def code_plane(self, payload: np.ndarray) -> np.ndarray:
        """View of the packed codes, uint8 [n, k/2]; the low nibble is the even column."""
        return payload[: self.code_plane_bytes].reshape(self.n, self.k // 2)

    def scale_tiles(self, payload: np.ndarray) -> np.ndarray:
        """View of the swizzled scales, uint8 [n/128, k/64, 512]."""
        span = payload[self.scale_plane_offset : self.weight_divisor_offset]
        return span.reshape(self.n // SCALE_TILE_ROWS, self.k_tiles, SCALE_TILE_ROWS * SCALE_TILE_GROUPS)

    def divisor(self, payload: np.ndarray) -> np.ndarray:
        """View of the FP32 weight divisor `d_w`, one element."""
        return payload[self.weight_divisor_offset : self.payload_bytes].view("<f4")


@dataclass(frozen=True)
class RowScaleGeometry:
    """Planes of `row-scale-v1` for row-scaled FP8 `[n, k]` (5.4): one byte per weight, one BF16 scale per row."""

    n: int
    k: int

    @classmethod
    def of(cls, shape: Sequence[int]) -> RowScaleGeometry:
        return cls(*_matrix_shape(shape))

    @property
    def code_plane_bytes(self) -> int:
        return self.n * self.k

    @property
    def scale_plane_offset(self) -> int:
        return align_up(self.code_plane_bytes, TENSOR_ALIGNMENT)

    @property
    def scale_plane_bytes(self) -> int:
        return 2 * self.n

    @property
    def payload_bytes(self) -> int:
        return self.scale_plane_offset + self.scale_plane_bytes

    def code_plane(self, payload: np.ndarray) -> np.ndarray:
        """View of the E4M3FN codes, uint8 [n, k]."""
        return payload[: self.code_plane_bytes].reshape(self.n, self.k)

    def scale_plane(self, payload: np.ndarray) -> np.ndarray:
        """View of the BF16 row scales, uint16 [n]."""
        return payload[self.scale_plane_offset : self.payload_bytes].view("<u2")


def encoded_bytes(format: str, shape: Sequence[int]) -> int:
    """Payload bytes of a tensor of this format and logical shape; ArtifactError if the layout refuses the shape."""
    row = numeric_format(format)
    if row.layout == CONTIGUOUS:
        return _check_contiguous(shape) * row.word_bytes
    if row.layout == ROW_SPLIT:
        return RowSplitGeometry.of(row, shape).payload_bytes
    if row.layout == BLOCK_SCALE:
        return BlockScaleGeometry.of(shape).payload_bytes
    return RowScaleGeometry.of(shape).payload_bytes


def swizzle_scales(natural: np.ndarray) -> np.ndarray:
    """NVFP4 scales uint8 [n, k/16], row-major, to the order of the scale plane, uint8 [n * k/16] (5.3)."""
    n, groups = natural.shape
    tiles = natural.reshape(n // SCALE_TILE_ROWS, 4, 32, groups // SCALE_TILE_GROUPS, SCALE_TILE_GROUPS)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(-1)


def unswizzle_scales(swizzled: np.ndarray, n: int, groups: int) -> np.ndarray:
    """Inverse of `swizzle_scales`: the scale plane, uint8 [n * groups], to uint8 [n, groups]."""
    tiles = swizzled.reshape(n // SCALE_TILE_ROWS, groups // SCALE_TILE_GROUPS, 32, 4, SCALE_TILE_GROUPS)
    return tiles.transpose(0, 3, 2, 1, 4).reshape(n, groups)


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """Low four bits of codes uint8 [..., 2m] to uint8 [..., m], the even element in the low nibble."""
    pairs = np.ascontiguousarray(codes & np.uint8(15)).view("<u2")
    pairs |= pairs >> np.uint16(4)
    return pairs.astype(np.uint8)


def unpack_nibbles(packed: np.ndarray) -> np.ndarray:
    """Inverse of `pack_nibbles`: uint8 [..., m] to words 0..15, uint8 [..., 2m]."""
    out = np.empty((*packed.shape, 2), np.uint8)
    np.bitwise_and(packed, 15, out=out[..., 0])
    np.right_shift(packed, 4, out=out[..., 1])
    return out.reshape(*packed.shape[:-1], -1)


def pack_high_bits(codes: np.ndarray, code_bits: int) -> np.ndarray:
    """Bits 4 and up of codes uint8 [..., group] to the high plane's bytes (5.2): one bit (Q5) or two (Q6) a lane."""
    if code_bits == 5:
        return np.packbits(codes & np.uint8(16), axis=-1, bitorder="little")
    quads = np.ascontiguousarray((codes >> np.uint8(4)) & np.uint8(3)).view("<u4")
    quads |= quads >> np.uint32(6)
    quads |= quads >> np.uint32(12)
    return quads.astype(np.uint8)


def unpack_high_bits(packed: np.ndarray, code_bits: int) -> np.ndarray:
    """Inverse of `pack_high_bits`: uint8 [..., bytes] to the bits at their place in the code, uint8 [..., group]."""
    if code_bits == 5:
        return np.unpackbits(packed, axis=-1, bitorder="little") << np.uint8(4)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)
    lanes = ((packed[..., None] >> shifts) & np.uint8(3)) << np.uint8(4)
    return lanes.reshape(*packed.shape[:-1], -1)


def _matrix_shape(shape: Sequence[int]) -> tuple[int, int]:
    if len(shape) != 2:
        raise ArtifactError(f"layout requires rank 2, got rank {len(shape)}")
    _check_dimensions(shape)
    return int(shape[0]), int(shape[1])


def _check_contiguous(shape: Sequence[int]) -> int:
    """Element count of a direct tensor, after checking its shape."""
    _check_dimensions(shape)
    if len(shape) > MAX_RANK:
        raise ArtifactError(f"{CONTIGUOUS} supports rank 0 through {MAX_RANK}")
    return prod(int(dimension) for dimension in shape)


def _check_dimensions(shape: Sequence[int]) -> None:
    if any(dimension <= 0 for dimension in shape):
        raise ArtifactError("shape dimensions must be positive integers")
