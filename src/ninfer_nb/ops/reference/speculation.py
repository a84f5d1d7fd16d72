"""Acceptance of drafts, and where the next drafts are made (`model.md` 11.3 and 13, `runtime.md` 10)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import Drafts, Verdict
from ..rng import SPECULATIVE_ACCEPT, SPECULATIVE_BONUS, SPECULATIVE_CORRECTION, uniform24
from .sampling import Candidates, Settings

F = np.float32


def accept_greedy(guesses: np.ndarray, best: np.ndarray) -> list[int]:
    """The longest prefix of guesses [n] that the target would have chosen, then its own choice; best [n + 1].

    Nothing when one of the columns that decide has a logit that is not finite (best -1).
    """
    accepted = 0
    while accepted < guesses.size and guesses[accepted] == best[accepted]:
        accepted += 1
    if best[accepted] < 0:
        return []
    return [*map(int, guesses[:accepted]), int(best[accepted])]


def accept_sampled(
    logits: np.ndarray, best: np.ndarray, guesses: np.ndarray, settings: Settings, counts: np.ndarray, position: int
) -> list[int]:
    """A guess is kept with the probability that the target gives it; logits [n + 1, domain], position E.

    Nothing when one of the columns that decide has a logit that is not finite (best -1).
    """
    seen = counts.copy() if settings.penalised else counts
    tokens: list[int] = []
    for i, guess in enumerate(map(int, guesses)):
        if best[i] < 0:
            return []
        kept = settings.distribution(logits[i], seen)
        chance = kept.probabilities[kept.ids == guess]
        if chance.size == 0 or not _uniform(settings, position + i + 1, SPECULATIVE_ACCEPT) < chance[0]:
            u = _uniform(settings, position + i + 1, SPECULATIVE_CORRECTION)
            tokens.append(_draw(kept, u, guess))
            break
        tokens.append(guess)
        if settings.penalised:
            seen[guess] += 1
    else:
        if best[guesses.size] < 0:
            return []
        kept = settings.distribution(logits[guesses.size], seen)
        tokens.append(_draw(kept, _uniform(settings, position + guesses.size + 1, SPECULATIVE_BONUS), None))
    if settings.penalised:
        np.add.at(counts, tokens, 1)
    return tokens


def plan_drafts(drafts: Drafts, verdict: Verdict, b: int, tokens: Sequence[int]) -> None:
    """Row b of the verdict; no tokens means that the row's logits were not finite."""
    width, window = drafts.width, drafts.width - 1
    mine = slice(b * width, (b + 1) * width)
    accepted = max(len(tokens) - 1, 0)
    anchor = tokens[-1] if tokens else 0
    verdict.tokens[mine] = [*tokens, *[0] * (width - len(tokens))]
    verdict.counts[b] = len(tokens)
    verdict.aligned[mine] = [*tokens[:accepted], *[anchor] * (width - accepted)]
    verdict.picks[b] = b * width + accepted
    frontier = int(drafts.positions[b]) + accepted + 1
    extent = min(window, int(drafts.remaining[b]) - accepted - 2, drafts.capacity - frontier - 1)
    for step in range(window - 1):
        verdict.draft_positions[step, b] = min(frontier + step, drafts.capacity - 1)
        verdict.draft_rope[step, b] = verdict.draft_positions[step, b] + drafts.rope_delta[b]
        verdict.draft_live[step, b] = step + 1 < extent


def _uniform(settings: Settings, position: int, purpose: int) -> np.float32:
    return F(uniform24(settings.seed, position, purpose)) / F(1 << 24)


def _draw(kept: Candidates, u: np.float32, excluded: int | None) -> int:
    """First candidate whose cumulative mass exceeds u times the mass without the excluded one."""
    allowed = kept.ids != (-1 if excluded is None else excluded)
    mass = F(0)
    for p in kept.probabilities[allowed]:
        mass += p
    if mass == 0:
        return int(kept.ids[0])
    goal, sum_ = u * mass, F(0)
    for token, p in zip(kept.ids[allowed], kept.probabilities[allowed], strict=True):
        sum_ += p
        if goal < sum_:
            return int(token)
    return int(kept.ids[allowed][-1])
