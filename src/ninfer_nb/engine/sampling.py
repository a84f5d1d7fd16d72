"""Sampling settings: model presets, overrides and their ranges (`cli.md` 5, `model.md` 12.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from ..errors import RequestError


@dataclass(frozen=True)
class SamplingOverrides:
    """What a caller asks for; None keeps the preset. `greedy` forces temperature 0 and beats `temperature`."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    greedy: bool = False


@dataclass(frozen=True)
class SamplingParams:
    """Resolved settings of one request."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= 0

    @property
    def counts_tokens(self) -> bool:
        """Penalties need generated-token counts; greedy decoding never looks at them."""
        return not self.is_greedy and (self.presence_penalty != 0 or self.frequency_penalty != 0)


_THINKING = SamplingParams(temperature=1.0, top_p=0.95, top_k=20)
_PLAIN = SamplingParams(temperature=0.7, top_p=0.80, top_k=20, presence_penalty=1.5)
_MINI = SamplingParams(temperature=0.7, top_p=0.80, top_k=20)

PRESETS: dict[str, tuple[SamplingParams, SamplingParams]] = {  # model_id -> (thinking, non-thinking)
    "qwen3.6-27b": (_THINKING, _PLAIN),
    "qwen3.8-27b": (_THINKING, _PLAIN),
    "qwen3.6-35b-a3b": (replace(_THINKING, presence_penalty=1.5), _PLAIN),
    "ninfer-mini": (_MINI, _MINI),
}

_RANGES = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (0, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "seed": (0, 2**64 - 1),
}


def resolve_sampling(model_id: str, thinking: bool, overrides: SamplingOverrides) -> SamplingParams:
    """Preset, then overrides, then `greedy`. Raises RequestError naming the field that is out of range."""
    given = {f.name: getattr(overrides, f.name) for f in fields(overrides) if f.name != "greedy"}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        low, high = _RANGES[name]
        if not math.isfinite(value) or not low <= value <= high:
            raise RequestError(f"{name} must be in [{low}, {high}], got {value}")
    params = replace(PRESETS[model_id][0 if thinking else 1], **given)
    return replace(params, temperature=0.0) if overrides.greedy else params
