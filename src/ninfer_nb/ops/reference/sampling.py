"""The stochastic sampler in float32, in the exact order of `model.md` 12.3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .. import SamplingRows
from ..rng import uniform24

CANDIDATES = 20  # hard cap, also when top_k is off

F = np.float32


@dataclass(frozen=True)
class Candidates:
    """Filtered distribution of one row: `ids` by falling logit, `probabilities` summing to one over the support."""

    ids: np.ndarray  # [n] i64
    probabilities: np.ndarray  # [n] f32


@dataclass(frozen=True)
class Settings:
    """Sampler settings of one row."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence: float
    frequency: float
    seed: int

    @classmethod
    def of_row(cls, rows: SamplingRows, b: int) -> Settings:
        return cls(
            rows.temperature[b], int(rows.top_k[b]), rows.top_p[b], rows.min_p[b],
            rows.presence[b], rows.frequency[b], int(rows.seed[b]),
        )  # fmt: skip

    @property
    def penalised(self) -> bool:
        return self.presence != 0 or self.frequency != 0

    def distribution(self, logits: np.ndarray, counts: np.ndarray) -> Candidates:
        """What a token is drawn from, after penalties and filters: logits, counts [domain]."""
        if self.penalised:
            logits = penalise(logits, counts, self.presence, self.frequency)
        return filtered(logits, self.temperature, self.top_k, self.top_p, self.min_p)


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
