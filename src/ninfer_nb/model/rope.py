"""Rotary tables (`model.md` 6): inverse frequencies of the first `rope_dim` dims of each head."""

from __future__ import annotations

import numpy as np

from ..artifact.geometry import Geometry
from ..ops import Rope


def native_rope(geometry: Geometry) -> Rope:
    """`theta^(-i / (R/2))` for pair i, rounded once to float32."""
    half = geometry.rope_dim // 2
    exponents = -np.arange(half, dtype=np.float64) / half
    return Rope((geometry.rope_theta**exponents).astype(np.float32))
