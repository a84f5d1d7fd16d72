"""Memory of the CUDA backend: persistent buffers, phase scratch, frames, and the way from host to device.

Knows nothing of ops; `cuda.memory` has the arenas themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np

from ...artifact.words import bf16_to_f32, f32_to_bf16
from ...cuda.memory import (
    WORDS,
    Arena,
    DeviceArray,
    PinnedBuffer,
    align,
    copy_to_device,
    copy_to_host,
    upload,
)
from ...cuda.stream import Event, Stream
from ...cuda.tensormap import TENSOR_MAP_BYTES, encode_tensor_map

BLOCK_BYTES = 64 << 20
STAGE_BYTES = 32 << 20
STAGES = 4
COPY_THREADS = 4  # one core reads a mapped file at about 8 GB/s, the link takes 50


class Persistent:
    """Buffers that live as long as the backend, carved from blocks of device memory."""

    def __init__(self, name: str, block_bytes: int = BLOCK_BYTES):
        self.name = name
        self.block_bytes = block_bytes
        self._blocks: list[Arena] = []

    def take(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        size = align(DeviceArray.at(0, tuple(shape), dtype).nbytes)
        if not self._blocks or self._blocks[-1].free < size:
            self._blocks.append(Arena.allocate(f"{self.name} block {len(self._blocks)}", max(size, self.block_bytes)))
            if size >= self.block_bytes and len(self._blocks) > 1:  # a full block must not hide one with room
                self._blocks[-2:] = self._blocks[-1], self._blocks[-2]
                return self._blocks[-2].take(self.name, tuple(shape), dtype)
        return self._blocks[-1].take(self.name, tuple(shape), dtype)

    @property
    def used(self) -> int:
        return sum(block.used for block in self._blocks)

    @property
    def capacity(self) -> int:
        return sum(block.capacity for block in self._blocks)

    def close(self) -> None:
        for block in self._blocks:
            block.close()
        self._blocks.clear()


class Uploader:
    """Pageable host memory to the device through a ring of pinned stages; host copies and transfers overlap."""

    def __init__(self, stream: Stream):
        self._stream = stream
        self._stages = [PinnedBuffer(STAGE_BYTES) for _ in range(STAGES)]
        self._sent = [Event() for _ in range(STAGES)]
        self._pool = ThreadPoolExecutor(COPY_THREADS)
        self._next = 0
        self.bytes = 0

    @property
    def staging_bytes(self) -> int:
        return STAGES * STAGE_BYTES

    def copy(self, target: int, payload: np.ndarray) -> None:
        """Queue `payload` (uint8) for the address `target`; the array may be dropped when this returns."""
        for start in range(0, payload.nbytes, STAGE_BYTES):
            piece = payload[start : start + STAGE_BYTES]
            stage, sent = self._stages[self._next], self._sent[self._next]
            sent.synchronize()
            self._fill(stage.words[: piece.nbytes], piece)
            copy_to_device(target + start, stage.ptr, piece.nbytes, self._stream)
            self._stream.record(sent)
            self._next = (self._next + 1) % STAGES
        self.bytes += payload.nbytes

    def _fill(self, stage: np.ndarray, piece: np.ndarray) -> None:
        share = align(-(-piece.nbytes // COPY_THREADS), 4096)
        parts = [slice(start, start + share) for start in range(0, piece.nbytes, share)]
        list(self._pool.map(lambda part: np.copyto(stage[part], piece[part]), parts))

    def close(self) -> None:
        self._stream.synchronize()
        self._pool.shutdown()
        for stage in self._stages:
            stage.close()


class TensorMaps:
    """Descriptors of arrays for the copy engine, made on first use and kept in a fixed table on the device."""

    SLOTS = 2048

    def __init__(self, memory: Persistent, stream: Stream):
        self._table = memory.take((self.SLOTS, TENSOR_MAP_BYTES), "u8")
        self._stream = stream
        self._slots: dict[tuple, int] = {}

    def address(self, array: DeviceArray, box: tuple[int, int]) -> int:
        """Device address of the map of `array` for tiles of `box` under the 128-byte swizzle."""
        key = (array.ptr, array.shape, array.row_stride, array.dtype, box)
        if key not in self._slots:
            if len(self._slots) == self.SLOTS:
                self._stream.synchronize()  # kernels in flight may still read what is about to be overwritten
                self._slots.clear()
            slot = self._table[len(self._slots)]
            upload(slot, encode_tensor_map(array, box), self._stream)
            self._slots[key] = slot.ptr
        return self._slots[key]


class Queue(Protocol):
    """Where a frame's copies go; nothing is copied while `rehearsing`."""

    stream: Stream
    rehearsing: bool


class CudaFrame:
    """A few small arrays in one pinned and one device buffer; each crossing is one copy."""

    def __init__(self, fields: Mapping[str, tuple[tuple[int, ...], str]], memory: Persistent, queue: Queue):
        offsets, size = {}, 0
        for name, (shape, dtype) in fields.items():
            offsets[name] = size
            size += align(DeviceArray.at(0, shape, dtype).nbytes, 16)
        self._queue = queue
        self._host = PinnedBuffer(max(size, 16))
        self._device = memory.take((max(size, 16),), "u8")
        self.host = {name: self._host.array(*fields[name], offset) for name, offset in offsets.items()}
        self.device = {name: DeviceArray.at(self._device.ptr + offsets[name], *fields[name]) for name in fields}
        self._host.words[:] = 0

    def upload(self) -> None:
        if not self._queue.rehearsing:
            copy_to_device(self._device.ptr, self._host.ptr, self._device.nbytes, self._queue.stream)

    def download(self) -> None:
        if not self._queue.rehearsing:
            copy_to_host(self._host.ptr, self._device.ptr, self._device.nbytes, self._queue.stream)


def words_of(array: np.ndarray, dtype: str) -> np.ndarray:
    """Host values as the device's words: float32 to bf16 rounds to nearest even."""
    if dtype == "bf16":
        return f32_to_bf16(np.asarray(array, np.float32))
    return np.ascontiguousarray(array, WORDS[dtype])


def values_of(words: np.ndarray, dtype: str) -> np.ndarray:
    """The device's words as host values: bf16 comes back as float32."""
    if dtype == "bf16":
        return bf16_to_f32(words)
    return words
