"""The comparison criteria of `model.md` 15: `reduction` bounds rel_l2 and gross error, `pointwise` every element."""

from __future__ import annotations

import numpy as np

U = 1 / 256

REDUCTION = {  # op family -> rel_l2, gross absolute, gross relative to the largest reference value
    "linear": (U, U, 2 * U),
    "swiglu": (3.3e-3, 5.0e-3, 6.3e-3),
    "attention input": (2.9e-3, 4.0e-3, 4.5e-3),
    "gdn input": (3.0e-3, 4.0e-3, 3.5e-3),
    "convolution": (1.85e-3, 1.0e-3, 3.7e-3),
    "gdn output": (4.1e-3, 5.0e-6, 5.5e-3),
    "gdn state": (2.7e-3, 1.0e-5, 3.9e-3),
    "gdn controls": (8.0e-4, 1.5e-4, 1.05e-3),
    "rms norm": (1.85e-3, 1.0e-5, 3.4e-3),
    "attention bf16": (2.8e-3, 1.0e-3, 2.7e-3),
    "attention int8": (3.15e-3, 1.1e-3, 2.2e-3),
}
POINTWISE = {"embedding": (2.0**-134, 3.8e-3), "residual add": (0.0, 3.95e-3), "rope": (0.0, 6.9e-3)}


def check_reduction(got: np.ndarray, want: np.ndarray, family: str) -> None:
    """`want` is the float64 oracle of the whole op."""
    relative, absolute, to_largest = REDUCTION[family]
    assert np.isfinite(got).all(), f"{family}: output is not finite"
    error = got.astype(np.float64) - want
    norm = np.linalg.norm(want)
    assert np.linalg.norm(error) <= relative * norm, f"{family}: rel_l2 {np.linalg.norm(error) / norm:.2e}"
    bound = absolute + to_largest * np.abs(want).max()
    assert np.abs(error).max() <= bound, f"{family}: gross error {np.abs(error).max():.2e} over {bound:.2e}"


def check_pointwise(got: np.ndarray, want: np.ndarray, family: str) -> None:
    absolute, relative = POINTWISE[family]
    error, bound = np.abs(got.astype(np.float64) - want), absolute + relative * np.abs(want)
    assert (error <= bound).all(), f"{family}: error {error.max():.2e}"
