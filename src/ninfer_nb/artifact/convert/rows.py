"""Rows of several source tensors as one matrix, read a few at a time.

The encoders index a matrix by blocks of rows, so this stands in for an array that would not fit in memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from .checkpoint import ITEM_BYTES, Checkpoint
from .recipe import Part

_WORDS = {"BF16": np.uint16, "F32": np.float32, "U8": np.uint8, "F8_E4M3": np.uint8}


@dataclass(frozen=True)
class _Run:
    """Consecutive rows of one tensor."""

    tensor: str
    first: int
    count: int


class JoinedRows:
    """A read-only matrix [N, K] of source words: uint16 (BF16), float32, or uint8, all parts of one dtype.

    `x[start:stop]` reads those rows; nothing is kept.
    """

    ndim = 2

    def __init__(self, checkpoint: Checkpoint, parts: Sequence[Part], columns: int):
        (dtype,) = {checkpoint.tensors[part.tensor].dtype for part in parts}
        self._checkpoint = checkpoint
        self._runs = [_Run(part.tensor, first, stop - first) for part in parts for first, stop in part.ranges]
        self._ends = list(accumulate(run.count for run in self._runs))
        self._row_bytes = columns * ITEM_BYTES[dtype]
        self.dtype = np.dtype(_WORDS[dtype])
        self.shape = (self._ends[-1], columns)

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, step = rows.indices(self.shape[0])
        assert step == 1
        pieces = []
        index = bisect_right(self._ends, start)
        while start < stop:
            run, end = self._runs[index], self._ends[index]
            first = run.first + start - (end - run.count)
            count = min(stop, end) - start
            pieces.append(self._checkpoint.read(run.tensor, first * self._row_bytes, (first + count) * self._row_bytes))
            start += count
            index += 1
        joined = pieces[0] if len(pieces) == 1 else np.concatenate(pieces or [np.empty(0, np.uint8)])
        return joined.view(self.dtype).reshape(-1, self.shape[1])
