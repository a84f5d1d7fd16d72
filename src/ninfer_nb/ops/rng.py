"""Counter-based random numbers of the sampler (`model.md` 12.4): no state, one draw per (seed, position, purpose)."""

from __future__ import annotations

MASK = (1 << 64) - 1

PREFILL, DECODE, SPECULATIVE_ACCEPT, SPECULATIVE_CORRECTION, SPECULATIVE_BONUS = range(5)
SPECULATIVE_DRAWS = (SPECULATIVE_ACCEPT, SPECULATIVE_CORRECTION, SPECULATIVE_BONUS)


def mix(x: int) -> int:
    """SplitMix64 finaliser with its increment."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def uniform24(seed: int, position: int, purpose: int) -> int:
    """24 random bits; divide by 2**24 for a float32-exact number in [0, 1)."""
    k = mix(seed ^ (((position & 0xFFFFFFFF) * 0xD1B54A32D192ED03) & MASK))
    return mix(k ^ ((purpose & 0xFFFFFFFF) << 21)) >> 40
