"""A backend that only counts: the same allocation code that builds an engine tells here how many bytes it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from . import Progress

ALIGNMENT = 256  # of every region on a device

_DTYPES = {"bf16": np.uint16, "f16": np.float16, "f32": np.float32, "i8": np.int8, "i32": np.int32, "u64": np.uint64}


class CountingFrame:
    """A frame without memory."""

    def __init__(self, arrays: Mapping[str, np.ndarray]):
        self.host = self.device = arrays

    def upload(self) -> None:
        pass

    def download(self) -> None:
        pass


class CountingOps:
    """Stands for an `Ops`: buffers have shapes and no memory, every op does nothing."""

    name = "counting"

    def __init__(self) -> None:
        self.persistent = 0  # bytes of `empty` and frames
        self.workspace_peak = 0
        self._workspace = 0

    def empty(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        buffer = _shape_only(shape, dtype)
        self.persistent += _aligned(buffer.nbytes)
        return buffer

    def frame(self, fields: Mapping[str, tuple[tuple[int, ...], str]]) -> CountingFrame:
        return CountingFrame({name: self.empty(*field) for name, field in fields.items()})

    @contextmanager
    def scope(self) -> Iterator[None]:
        held = self._workspace
        try:
            yield
        finally:
            self._workspace = held

    def take(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        buffer = _shape_only(shape, dtype)
        self._workspace += _aligned(buffer.nbytes)
        self.workspace_peak = max(self.workspace_peak, self._workspace)
        return buffer

    def rehearse(self, bodies: Iterable[Callable[[], None]], progress: Progress | None = None) -> None:
        for body in bodies:
            body()

    def graph(self, body: Callable[[], None]) -> Callable[[], None]:
        return body

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("_"):
            raise AttributeError(name)
        return _nothing


def _nothing(*_: Any) -> None:
    pass


def _shape_only(shape: Sequence[int], dtype: str) -> np.ndarray:
    return np.broadcast_to(np.zeros((), _DTYPES[dtype]), tuple(shape))


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
