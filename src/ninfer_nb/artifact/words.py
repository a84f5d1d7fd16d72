"""Conversions between binary32 and the small float words of the file: BF16, binary16, E4M3FN, E2M1.

Every narrowing rounds once, to nearest with ties to even. Knows nothing of groups, scales or layouts.
Arrays of any shape go in; words are unsigned integers, values are float32 (`artifact-format.md` 4.1 to 4.3).
"""

from __future__ import annotations

import numpy as np

E4M3FN_MAX = 448.0
E2M1_MAX = 6.0

_ABS = np.uint32(0x7FFFFFFF)
_EXPONENT = np.uint32(0x7F800000)


def bf16_to_f32(words: np.ndarray) -> np.ndarray:
    """BF16 words (uint16) to their exact float32 values; NaN payloads are kept."""
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 values to BF16 words (uint16); a NaN becomes a quiet NaN of the same sign."""
    bits = _bits(values)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    words = (rounded >> np.uint32(16)).astype(np.uint16)
    nan = (bits & _ABS) > _EXPONENT
    if nan.any():
        words = np.where(nan, (bits >> np.uint32(16)).astype(np.uint16) | np.uint16(0x7FC0), words)
    return words


def f16_to_f32(words: np.ndarray) -> np.ndarray:
    """binary16 words (uint16) to their exact float32 values."""
    return words.astype(np.uint16, copy=False).view(np.float16).astype(np.float32)


def f32_to_f16(values: np.ndarray) -> np.ndarray:
    """float32 values to binary16 words (uint16); subnormals are kept, 65520 and above become infinity."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(values, dtype=np.float32).astype(np.float16).view(np.uint16)


def e4m3fn_to_f32(words: np.ndarray) -> np.ndarray:
    """E4M3FN words (uint8) to their exact float32 values; 0x7f and 0xff are NaN."""
    return E4M3FN_VALUES[words]


def f32_to_e4m3fn(values: np.ndarray, saturate: bool = True) -> np.ndarray:
    """float32 values to E4M3FN words (uint8). The sign is kept, also of a zero result; NaN stays NaN.

    Above 448 the result is 448 with `saturate`; without it, what rounds above 448 becomes NaN.
    """
    bits = _bits(values)
    magnitude = bits & _ABS
    limit = np.float32(E4M3FN_MAX if saturate else 512).view(np.uint32)
    codes = _small_float_codes(np.minimum(magnitude, limit), mantissa_bits=3, min_exponent=-6)
    np.minimum(codes, 0x7F, out=codes)
    nan = magnitude > _EXPONENT
    if nan.any():
        codes[nan] = 0x7F
    return _with_sign(codes, bits, 7)


def e2m1_to_f32(words: np.ndarray) -> np.ndarray:
    """E2M1 words (uint8, one per element, 0..15) to their exact float32 values."""
    return E2M1_VALUES[words]


def f32_to_e2m1(values: np.ndarray) -> np.ndarray:
    """float32 values, not NaN, to E2M1 words (uint8, one per element), saturating at 6; the sign is kept."""
    bits = _bits(values)
    limit = np.float32(E2M1_MAX).view(np.uint32)
    codes = _small_float_codes(np.minimum(bits & _ABS, limit), mantissa_bits=1, min_exponent=0)
    return _with_sign(codes, bits, 3)


def _bits(values: np.ndarray) -> np.ndarray:
    return np.asarray(values, dtype=np.float32).view(np.uint32)


def _with_sign(codes: np.ndarray, bits: np.ndarray, sign_bit: int) -> np.ndarray:
    codes |= (bits >> np.uint32(31)) << np.uint32(sign_bit)
    return codes.astype(np.uint8)


def _small_float_codes(magnitude: np.ndarray, mantissa_bits: int, min_exponent: int) -> np.ndarray:
    """Round magnitudes (binary32 bits, sign clear, finite) to codes `exponent << mantissa_bits | mantissa`.

    Adding 2**(e - mantissa_bits + 23) to a value in [2**e, 2**(e+1)) makes the adder itself round it, ties to
    even, to a multiple of the target's spacing and leaves that multiple in the low bits of the sum. With `e` held
    at `min_exponent` or above the same sum is right for subnormals; a carry into the next exponent is right too.
    """
    shift = 23 - mantissa_bits
    anchor = np.maximum(magnitude & _EXPONENT, np.uint32((127 + min_exponent) << 23))
    anchor += np.uint32(shift << 23)
    total = np.asarray(magnitude.view(np.float32) + anchor.view(np.float32)).view(np.uint32)
    codes = total - anchor
    codes += anchor >> np.uint32(shift)
    codes -= np.uint32((127 + min_exponent + shift) << mantissa_bits)
    return codes


def _table(bits: int, mantissa_bits: int, bias: int) -> np.ndarray:
    """Values of all words of a sign-exponent-mantissa format that has no infinities."""
    words = np.arange(1 << bits)
    sign = np.where(words >> (bits - 1), -1.0, 1.0)
    mantissa = words & ((1 << mantissa_bits) - 1)
    exponent = (words >> mantissa_bits) & ((1 << (bits - 1 - mantissa_bits)) - 1)
    fraction = mantissa / (1 << mantissa_bits) + (exponent > 0)
    return (sign * fraction * 2.0 ** (np.maximum(exponent, 1) - bias)).astype(np.float32)


E2M1_VALUES = _table(4, mantissa_bits=1, bias=1)
E4M3FN_VALUES = _table(8, mantissa_bits=3, bias=7)
E4M3FN_VALUES[[0x7F, 0xFF]] = np.nan
for _values in (E2M1_VALUES, E4M3FN_VALUES):
    _values.flags.writeable = False
