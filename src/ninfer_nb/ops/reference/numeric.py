"""Rounding and elementwise functions of the reference backend, in float32."""

from __future__ import annotations

import numpy as np


def round_bf16(x: np.ndarray) -> np.ndarray:
    """Nearest-even rounding of float32 to BF16 values, returned as float32 (NaN stays NaN)."""
    words = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    rounded = words + (np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1)))
    rounded &= np.uint32(0xFFFF0000)
    out = rounded.view(np.float32)
    nan = np.isnan(x)
    if nan.any():
        out[nan] = np.nan
    return out


def sigmoid(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.float32(1) / (np.float32(1) + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return x / (np.float32(1) + np.exp(-x))


def softplus(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def rms(x: np.ndarray, eps: float) -> np.ndarray:
    """1 / sqrt(mean(x^2) + eps) over the last axis, kept as an axis of length one."""
    mean = np.einsum("...d,...d->...", x, x, dtype=np.float64)[..., None] / x.shape[-1]
    return (1.0 / np.sqrt(mean + eps)).astype(np.float32)


def quantise_int8_groups(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """INT8 group-64 codec (`runtime.md` 6): x [..., D] f32 -> codes [..., D] i8, scales [..., D/64] f16."""
    groups = x.reshape(*x.shape[:-1], -1, 64)
    with np.errstate(over="ignore"):
        scale = (np.abs(groups).max(axis=-1) / np.float32(127)).astype(np.float16)
    wide = scale.astype(np.float32)
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
    codes = np.clip(np.rint(groups * inverse[..., None]), -127, 127).astype(np.int8)
    return codes.reshape(x.shape), scale


def dequantise_int8_groups(codes: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Inverse of `quantise_int8_groups`: codes [..., D] i8, scales [..., D/64] f16 -> f32 [..., D]."""
    groups = codes.reshape(*codes.shape[:-1], -1, 64).astype(np.float32)
    return (groups * scales.astype(np.float32)[..., None]).reshape(codes.shape)
