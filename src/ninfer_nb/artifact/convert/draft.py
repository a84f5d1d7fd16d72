"""The token ids of the optimised proposal head, from how often each token occurs (`inventories.md` 7.5)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from ...errors import ArtifactError
from ..geometry import Geometry


def draft_token_ids(counts: np.ndarray, forced: np.ndarray, rows: int) -> np.ndarray:
    """Ids int32 [rows], the most frequent first, all of `forced` among them.

    `counts` int64 [T] over the token domain, `forced` ascending and unique. Ties go to the lower id, and to an id that
    is not forced. With more forced ids than rows, the most frequent of them.
    """
    order = np.argsort(-counts, kind="stable")
    is_forced = np.zeros(counts.size, bool)
    is_forced[forced] = True
    if forced.size >= rows:
        return order[is_forced[order]][:rows].astype(np.int32)
    chosen = np.concatenate([order[~is_forced[order]][: rows - forced.size], forced])
    if chosen.size != rows:
        raise ArtifactError(f"draft head needs {rows} ids; the token domain has {counts.size}")
    return chosen[np.argsort(-counts[chosen], kind="stable")].astype(np.int32)


def read_counts(ranking: Path | None, g: Geometry) -> np.ndarray:
    """Counts int64 [T]: the first row of a ranking file of little-endian int64 [*, V], or zeros without one."""
    if ranking is None:
        return np.zeros(g.token_domain, np.int64)
    try:
        size = ranking.stat().st_size
        words = np.fromfile(ranking, "<i8", g.vocab_rows)
    except OSError as error:
        raise ArtifactError(f"{ranking}: {error.strerror}") from None
    row_bytes = 8 * g.vocab_rows
    if size == 0 or size % row_bytes:
        raise ArtifactError(f"{ranking}: ranking has {size} bytes; expected a positive multiple of {row_bytes}")
    if words.min() < 0:
        raise ArtifactError(f"{ranking}: count of id {int(np.argmin(words))} is negative")
    return words[: g.token_domain].astype(np.int64)


def special_ids(tokenizer_config: bytes, token_domain: int) -> np.ndarray:
    """Ids of the special added tokens inside the token domain, ascending."""
    try:
        added = json.loads(tokenizer_config).get("added_tokens_decoder", {})
        ids = {int(key) for key, token in added.items() if token.get("special") is True}
    except (ValueError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"tokenizer_config.json: added_tokens_decoder is invalid: {error}") from None
    return np.array(sorted(id for id in ids if 0 <= id < token_domain), np.int64)
