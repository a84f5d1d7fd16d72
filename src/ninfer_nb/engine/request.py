"""What a caller asks of the engine (`runtime.md` 4): a prepared prompt, an output limit, sampling and stops."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import RequestError
from ..frontend.output import StopString
from .sampling import SamplingOverrides

DEFAULT_MAX_NEW_TOKENS = 128
PRESET = SamplingOverrides()


@dataclass(frozen=True)
class Prompt:
    """A rendered and tokenised conversation. `prepare_seconds` is what that took."""

    ids: tuple[int, ...]
    thinking: bool  # output starts inside a reasoning block
    text: str = ""
    prepare_seconds: float = 0.0


@dataclass(frozen=True)
class Request:
    """One generation.

    `stop_token_ids` are added to the model's own stop tokens, which `ignore_eos` turns off. `raw_output` keeps
    reasoning and special tokens in one content channel.
    """

    prompt: Prompt
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    sampling: SamplingOverrides = PRESET
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[StopString, ...] = ()
    ignore_eos: bool = False
    raw_output: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise RequestError(f"max_new_tokens must be positive, got {self.max_new_tokens}")


def output_limit(prompt_tokens: int, requested: int, max_context: int) -> tuple[int, bool]:
    """(tokens that may be generated, whether the request and not the context sets that bound) (`cli.md` 8.3).

    The last generated token needs no cache slot. Raises RequestError for a prompt that does not fit.
    """
    if prompt_tokens > max_context:
        raise RequestError(f"prepared prompt has {prompt_tokens} tokens, exceeding Engine max_context {max_context}")
    capacity = max_context - prompt_tokens + 1
    return min(requested, capacity), requested <= capacity
