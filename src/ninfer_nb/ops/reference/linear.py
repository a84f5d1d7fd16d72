"""Matrix products of the reference backend, and its weight handle."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ...artifact.codec import decode, decode_rows

TILE = 8  # rows of every BLAS call: the order of its sums depends on the shape of its operands


def matmul_nt(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x [T, K] @ w [N, K].T in float32, each row the same bits whatever T is.

    BLAS chooses kernels, and with them the order of sums, by shape; so every call it gets here has the same shape:
    NumPy hands a stack of matrices to it one at a time. Outputs too narrow for that are summed in float64 instead.
    """
    if w.shape[0] <= 4 * TILE:
        return np.einsum("tk,nk->tn", x, w, dtype=np.float64).astype(np.float32)
    rows, depth = x.shape
    pad = -rows % TILE
    if pad:
        x = np.concatenate([x, np.zeros((pad, depth), np.float32)])
    return (x.reshape(-1, TILE, depth) @ w.T).reshape(-1, w.shape[0])[:rows]


class ReferenceWeight:
    """One stored tensor; matrices are decoded to float32 on first use and kept."""

    def __init__(self, payload: np.ndarray, format: str, shape: tuple[int, ...]):
        self.payload = payload
        self.format = format
        self.shape = tuple(shape)
        self.nbytes = payload.nbytes

    @classmethod
    def dense(cls, array: np.ndarray) -> ReferenceWeight:
        """A weight that was never encoded, for comparison with an unquantised checkpoint."""
        self = cls(np.empty(0, np.uint8), "FP32", array.shape)
        self.array = np.ascontiguousarray(array)
        self.nbytes = self.array.nbytes
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
