"""The recorded cases of `tests/data/golden/mini`: prompts, logits and greedy text of transformers in float32."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np

DATA = Path(__file__).parents[1] / "data"
GOLDEN = DATA / "golden" / "mini"
CHECKPOINT = DATA / "mini"


@cache
def cases() -> dict[str, dict]:
    """All cases by name."""
    return {case["name"]: case for case in json.loads((GOLDEN / "cases.json").read_text())}


def text_names() -> list[str]:
    return [name for name, case in cases().items() if case["grid"] is None]


@cache
def logits(name: str) -> np.ndarray:
    with np.load(GOLDEN / "arrays.npz") as arrays:
        return arrays[f"{name}.logits"]


def stops() -> frozenset[int]:
    eos = json.loads((CHECKPOINT / "generation_config.json").read_text())["eos_token_id"]
    return frozenset([eos] if isinstance(eos, int) else eos)
