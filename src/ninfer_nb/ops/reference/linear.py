"""Matrix products of the reference backend, and its weight handle."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ...artifact.codec import decode, decode_rows

TILE = 8  # with fewer rows, or an output this narrow, BLAS picks other kernels with another order of sums


def matmul_nt(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x [T, K] @ w [N, K].T in float32, each row the same bits whatever T is.

    BLAS sums one row in an order that depends on the shape only for very short operands; with the row count padded
    to a multiple of eight it does not (a property test checks this).
    """
    if w.shape[0] <= 4 * TILE:
        return np.einsum("tk,nk->tn", x, w, dtype=np.float64).astype(np.float32)
    rows = x.shape[0]
    pad = -rows % TILE
    if pad:
        x = np.concatenate([x, np.zeros((pad, x.shape[1]), np.float32)])
    return (x @ w.T)[:rows]


class ReferenceWeight:
    """One stored tensor; matrices are decoded to float32 on first use and kept."""

    def __init__(self, payload: np.ndarray, format: str, shape: tuple[int, ...]):
        self.payload = payload
        self.format = format
        self.shape = tuple(shape)

    @classmethod
    def dense(cls, array: np.ndarray) -> ReferenceWeight:
        """A weight that was never encoded, for comparison with an unquantised checkpoint."""
        self = cls(np.empty(0, np.uint8), "FP32", array.shape)
        self.array = np.ascontiguousarray(array)
        return self

    @cached_property
    def array(self) -> np.ndarray:
        """Exact stored values, float32 (int32 for I32), `shape`."""
        return decode(self.payload, self.format, self.shape)

    def rows(self, ids: np.ndarray) -> np.ndarray:
        """Decoded rows [n, K] float32, without decoding the rest of the table."""
        if "array" in self.__dict__:
            return self.array[ids]
        return decode_rows(self.payload, self.format, self.shape, ids)
