"""Tensor maps: the 128-byte descriptors with which the bulk copy engine addresses a tile of an array."""

from __future__ import annotations

import ctypes

import numpy as np

from ninfer_nb.cuda.errors import CudaError, check, driver
from ninfer_nb.cuda.memory import DeviceArray

_KINDS = {"u8": "UINT8", "i8": "UINT8", "e4m3": "UINT8", "u16": "UINT16", "bf16": "BFLOAT16", "f16": "FLOAT16",
          "u32": "UINT32", "i32": "INT32", "f32": "FLOAT32"}  # fmt: skip
TENSOR_MAP_BYTES = 128


def encode_tensor_map(array: DeviceArray, box: tuple[int, ...], *, swizzle: int = 128) -> np.ndarray:
    """The descriptor (uint8 [128]) of `array`, 1 to 3 axes, for tiles of shape `box` (outermost axis first).

    swizzle: 0, 32, 64 or 128 bytes; box[-1] times the item size may not exceed it (if not 0). Elements out of range
    read as zero and are not written. The address and the row stride must be multiples of 16 bytes. Put the result into
    device memory at a multiple of 64 bytes. Source: driver API, cuTensorMapEncodeTiled.
    """
    api = driver()
    shape = array.shape
    inner_row = shape[-1] * array.itemsize
    strides = [array.row_stride * array.itemsize] + [inner_row] * (len(shape) - 2)
    if not 1 <= len(shape) <= 3 or len(box) != len(shape):
        raise CudaError(f"a tensor map needs 1 to 3 axes and a box of as many, not shape {shape} and box {box}")
    if swizzle and box[-1] * array.itemsize > swizzle:
        raise CudaError(f"a tile row of {box[-1] * array.itemsize} bytes exceeds the {swizzle}-byte swizzle")
    swizzles = api.CUtensorMapSwizzle
    encoded = check(
        api.cuTensorMapEncodeTiled(
            api.CUtensorMapDataType[f"CU_TENSOR_MAP_DATA_TYPE_{_KINDS[array.dtype]}"],
            len(shape),
            array.ptr,
            [api.cuuint64_t(n) for n in reversed(shape)],
            [api.cuuint64_t(n) for n in reversed(strides[: len(shape) - 1])],
            [api.cuuint32_t(n) for n in reversed(box)],
            [api.cuuint32_t(1)] * len(shape),
            api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzles[f"CU_TENSOR_MAP_SWIZZLE_{f'{swizzle}B' if swizzle else 'NONE'}"],
            api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    )
    return np.frombuffer(ctypes.string_at(encoded.getPtr(), TENSOR_MAP_BYTES), np.uint8).copy()
