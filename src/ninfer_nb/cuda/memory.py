"""Device memory: arenas carved into named pieces, array views, pinned host buffers, copies.

Knows nothing of what the bytes mean. Nothing here allocates after start-up but `Arena.allocate` and `PinnedBuffer`.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from ninfer_nb.cuda.errors import CudaError, OutOfDeviceMemory, check, driver
from ninfer_nb.cuda.stream import Stream

ALIGNMENT = 256
POISON = 0xFF  # every float format here reads it as NaN

# device dtype -> the NumPy dtype of its words on the host
WORDS = {
    "u8": np.dtype(np.uint8), "i8": np.dtype(np.int8), "e4m3": np.dtype(np.uint8), "u16": np.dtype(np.uint16),
    "bf16": np.dtype(np.uint16), "f16": np.dtype(np.float16), "u32": np.dtype(np.uint32), "i32": np.dtype(np.int32),
    "f32": np.dtype(np.float32), "u64": np.dtype(np.uint64), "i64": np.dtype(np.int64), "f64": np.dtype(np.float64),
}  # fmt: skip


def align(size: int, alignment: int = ALIGNMENT) -> int:
    return -(-size // alignment) * alignment


@dataclass(frozen=True)
class DeviceArray:
    """A view of device memory: address, shape, dtype (a key of WORDS) and the leading axis' stride in elements.

    All axes but the first are contiguous. For one axis the stride is 1, for none 0.
    """

    ptr: int
    shape: tuple[int, ...]
    dtype: str
    row_stride: int

    @classmethod
    def at(cls, ptr: int, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """A contiguous view."""
        return cls(ptr, tuple(shape), dtype, math.prod(shape[1:]) if shape else 0)

    @property
    def itemsize(self) -> int:
        return WORDS[self.dtype].itemsize

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements, gaps between rows not counted."""
        return self.size * self.itemsize

    @property
    def contiguous(self) -> bool:
        return len(self.shape) < 1 or self.shape[0] <= 1 or self.row_stride == math.prod(self.shape[1:])

    def __getitem__(self, index: int | slice | tuple[slice, slice]) -> DeviceArray:
        """A row (one axis fewer), a range of rows, or ranges of rows and columns; steps are not supported."""
        if isinstance(index, tuple):
            rows, columns = index
            start, stop, step = columns.indices(self.shape[1])
            if step != 1:
                raise IndexError(f"a device array slice has step 1, not {step}")
            return self[rows].columns(start, stop)
        if isinstance(index, slice):
            start, stop, step = index.indices(self.shape[0])
            if step != 1:
                raise IndexError(f"a device array slice has step 1, not {step}")
            shape = (max(stop - start, 0), *self.shape[1:])
            return DeviceArray(self._row(start), shape, self.dtype, self.row_stride)
        if not -self.shape[0] <= index < self.shape[0]:
            raise IndexError(f"row {index} of a device array with {self.shape[0]} rows")
        return DeviceArray.at(self._row(index % self.shape[0]), self.shape[1:], self.dtype)

    def _row(self, index: int) -> int:
        return self.ptr + index * self.row_stride * self.itemsize

    def columns(self, start: int, stop: int) -> DeviceArray:
        """Columns [start, stop) of a matrix, keeping the row stride."""
        if len(self.shape) != 2 or not 0 <= start <= stop <= self.shape[1]:
            raise IndexError(f"columns {start}:{stop} of a device array of shape {self.shape}")
        return DeviceArray(self.ptr + start * self.itemsize, (self.shape[0], stop - start), self.dtype, self.row_stride)

    def reshape(self, *shape: int) -> DeviceArray:
        """Another shape of the same elements. A strided view must keep its leading axis."""
        if math.prod(shape) != self.size:
            raise ValueError(f"cannot reshape a device array of shape {self.shape} to {shape}")
        if self.contiguous:
            return DeviceArray.at(self.ptr, shape, self.dtype)
        if not shape or shape[0] != self.shape[0]:
            raise ValueError(f"a strided device array of shape {self.shape} keeps its leading axis, not {shape}")
        return DeviceArray(self.ptr, tuple(shape), self.dtype, self.row_stride)

    def view(self, dtype: str) -> DeviceArray:
        """The same bytes as another dtype of the same width."""
        if WORDS[dtype].itemsize != self.itemsize:
            raise ValueError(f"cannot view {self.dtype} as {dtype}: the widths differ")
        return DeviceArray(self.ptr, self.shape, dtype, self.row_stride)


class Arena:
    """A span of device memory handed out in aligned, named pieces. Not thread-safe."""

    def __init__(self, name: str, base: int, capacity: int):
        """Manages [base, base + capacity), which the caller owns; `Arena.allocate` owns its memory."""
        self.name, self.base, self.capacity = name, base, capacity
        self.used = 0
        self.high_water = 0
        self.pieces: list[tuple[str, int, int]] = []  # name, offset, bytes
        self._owned = False

    @classmethod
    def allocate(cls, name: str, capacity: int) -> Arena:
        """Takes `capacity` bytes of the current device."""
        api = driver()
        status, pointer = api.cuMemAlloc(max(capacity, 1))
        if status == api.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            free, _ = check(api.cuMemGetInfo())
            raise OutOfDeviceMemory(f"arena {name!r} needs {capacity:,} bytes; the device has {free:,} bytes free")
        check((status,))
        arena = cls(name, int(pointer), capacity)
        arena._owned = True
        return arena

    @property
    def free(self) -> int:
        return self.capacity - self.used

    def take(self, name: str, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """The next piece, 256-byte aligned; OutOfDeviceMemory names arena, piece, wanted and free bytes."""
        array = DeviceArray.at(self.base + self.used, shape, dtype)
        wanted = align(array.nbytes)
        if wanted > self.free:
            raise OutOfDeviceMemory(
                f"arena {self.name!r}: {name!r} needs {wanted:,} bytes, {self.free:,} of {self.capacity:,} are free"
            )
        self.pieces.append((name, self.used, array.nbytes))
        self.used += wanted
        self.high_water = max(self.high_water, self.used)
        return array

    @contextmanager
    def scope(self) -> Iterator[Arena]:
        """Gives back, at the end of the block, what was taken inside it."""
        used, count = self.used, len(self.pieces)
        try:
            yield self
        finally:
            self.used = used
            del self.pieces[count:]

    def poison(self) -> None:
        """Fills everything not taken with NaN words, so that a read of unwritten memory shows. Synchronous."""
        if self.free:
            check(driver().cuMemsetD8(self.base + self.used, POISON, self.free))

    def close(self) -> None:
        if self._owned:
            check(driver().cuMemFree(self.base))
            self._owned = False


class PinnedBuffer:
    """Page-locked host memory that the device reaches directly; `words` is its NumPy view (uint8)."""

    def __init__(self, nbytes: int):
        self.nbytes = nbytes
        self.ptr = int(check(driver().cuMemHostAlloc(nbytes, driver().CU_MEMHOSTALLOC_PORTABLE)))
        self.words = np.frombuffer((ctypes.c_uint8 * nbytes).from_address(self.ptr), np.uint8)

    def array(self, shape: tuple[int, ...], dtype: str, offset: int = 0) -> np.ndarray:
        """A NumPy view of part of the buffer."""
        words = WORDS[dtype]
        nbytes = math.prod(shape) * words.itemsize
        return self.words[offset : offset + nbytes].view(words).reshape(shape)

    def close(self) -> None:
        """Frees the memory; no view of it may be used afterwards."""
        check(driver().cuMemFreeHost(self.ptr))


def copy_to_device(target: int, source: int, nbytes: int, stream: Stream) -> None:
    """Asynchronous when the host address is pinned."""
    check(driver().cuMemcpyHtoDAsync(target, source, nbytes, stream.handle))


def copy_to_host(target: int, source: int, nbytes: int, stream: Stream) -> None:
    """Asynchronous when the host address is pinned."""
    check(driver().cuMemcpyDtoHAsync(target, source, nbytes, stream.handle))


def copy_on_device(target: int, source: int, nbytes: int, stream: Stream) -> None:
    check(driver().cuMemcpyDtoDAsync(target, source, nbytes, stream.handle))


def fill(array: DeviceArray, byte: int, stream: Stream) -> None:
    """Sets every byte of the elements; gaps between rows stay."""
    width = array.nbytes // array.shape[0] if array.shape and array.shape[0] else array.nbytes
    rows = array.nbytes // width if width else 0
    if rows and not array.contiguous:
        pitch = array.row_stride * array.itemsize
        check(driver().cuMemsetD2D8Async(array.ptr, pitch, byte, width, rows, stream.handle))
    elif rows:
        check(driver().cuMemsetD8Async(array.ptr, byte, array.nbytes, stream.handle))


def upload(array: DeviceArray, values: np.ndarray, stream: Stream) -> None:
    """Copies host words of the same shape and width into the view, and waits. For start-up and tests."""
    words = np.ascontiguousarray(values)
    if words.shape != array.shape or words.itemsize != array.itemsize:
        raise CudaError(f"upload of {words.dtype} {words.shape} into {array.dtype} {array.shape}")
    _copy_rows(array, words, stream, to_device=True)


def download(array: DeviceArray, stream: Stream) -> np.ndarray:
    """The view's words on the host, after the stream's earlier work. For tests and start-up."""
    words = np.empty(array.shape, WORDS[array.dtype])
    _copy_rows(array, words, stream, to_device=False)
    return words


def _copy_rows(array: DeviceArray, words: np.ndarray, stream: Stream, *, to_device: bool) -> None:
    if array.size == 0:
        return
    host = words.ctypes.data
    pieces = [(array.ptr, host, array.nbytes)]
    if not array.contiguous:
        width = array.nbytes // array.shape[0]
        pieces = [(array[i : i + 1].ptr, host + i * width, width) for i in range(array.shape[0])]
    for device, address, nbytes in pieces:
        if to_device:
            copy_to_device(device, address, nbytes, stream)
        else:
            copy_to_host(address, device, nbytes, stream)
    stream.synchronize()
