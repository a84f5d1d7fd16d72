"""The stochastic sampler in float32, in the exact order of `model.md` 12.3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..rng import uniform24

CANDIDATES = 20  # hard cap, also when top_k is off

F = np.float32


@dataclass(frozen=True)
class Candidates:
    """Filtered distribution of one row: `ids` by falling logit, `probabilities` summing to one over the support."""

    ids: np.ndarray  # [n] i64
    probabilities: np.ndarray  # [n] f32


def penalise(logits: np.ndarray, counts: np.ndarray, presence: float, frequency: float) -> np.ndarray:
    """logits [domain] f32 minus presence (once per seen token) and frequency (per occurrence)."""
    out = logits.astype(np.float32, copy=True)
    seen = np.flatnonzero(counts > 0)
    out[seen] -= F(presence)
    if frequency != 0:
        out[seen] -= F(frequency) * counts[seen].astype(np.float32)
    return out


def top_candidates(logits: np.ndarray, top_k: int) -> np.ndarray:
    """Ids of the largest logits, falling, ties to the lower id; at most `CANDIDATES`."""
    keep = min(CANDIDATES, logits.size)
    if 0 < top_k < keep:
        keep = top_k
    bound = np.partition(logits, logits.size - keep)[logits.size - keep]
    pool = np.flatnonzero(logits >= bound)
    return pool[np.lexsort((pool, -logits[pool]))][:keep]


def filtered(logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float) -> Candidates:
    """Distribution after top-k, min-p and top-p, renormalised (`model.md` 12.3 steps 2 to 5)."""
    ids = top_candidates(logits, top_k)
    inverse = F(1) / F(temperature)
    weights = np.exp(logits[ids] * inverse - logits[ids[0]] * inverse, dtype=np.float32)
    total = F(0)
    for w in weights:
        total += w
    kept, mass = 0, F(0)
    for j, w in enumerate(weights):
        if j > 0 and min_p > 0 and w < F(min_p) * weights[0]:
            break
        mass += w
        kept = j + 1
        if top_p < 1 and mass >= F(top_p) * total:
            break
    return Candidates(ids[:kept], weights[:kept] / mass)


def draw(candidates: Candidates, seed: int, position: int, purpose: int) -> int:
    """First candidate whose cumulative probability exceeds the draw, else the last of the support."""
    u = F(uniform24(seed, position, purpose)) / F(1 << 24)
    cumulative = F(0)
    for token, p in zip(candidates.ids, candidates.probabilities, strict=True):
        cumulative += p
        if u < cumulative:
            return int(token)
    return int(candidates.ids[-1])
