"""What a caller asks of the engine (`runtime.md` 2.1): a prepared prompt, an output limit, sampling and stops."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RequestError
from ..frontend.output import StopString
from .sampling import SamplingOverrides
from .sequence import Checkpoint

DEFAULT_MAX_NEW_TOKENS = 128
PRESET = SamplingOverrides()


@dataclass(frozen=True)
class Prompt:
    """A rendered and tokenised conversation. `prepare_seconds` is what that took.

    `checkpoint` is where the conversation may later be taken up again although its end was rewritten.
    """

    ids: tuple[int, ...]
    thinking: bool  # output starts inside a reasoning block
    text: str = ""
    prepare_seconds: float = 0.0
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True)
class Request:
    """One generation.

    `stop_token_ids` are added to the model's own stop tokens, which `ignore_eos` turns off. `raw_output` keeps
    reasoning and special tokens in one content channel. `reuse_prefix` False computes the whole prompt anew.
    """

    prompt: Prompt
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    sampling: SamplingOverrides = PRESET
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[StopString, ...] = ()
    ignore_eos: bool = False
    raw_output: bool = False
    reuse_prefix: bool = True

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise RequestError(f"max_new_tokens must not be negative, got {self.max_new_tokens}")
