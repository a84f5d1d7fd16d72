"""The text side of one artifact: conversation to prompt ids, sampled ids to text, default stop tokens.

Built from the artifact's `frontend/` resources (`inventories.md` 4.1). Knows nothing of engines, devices or weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import msgspec

from ..errors import ArtifactError, RequestError
from . import prompt
from .messages import Conversation
from .output import OutputSession, StopString
from .processor import IMAGE_PROCESSOR, VIDEO_PROCESSOR, MediaLimits
from .template import TEMPLATE_RESOURCE, ChatTemplate
from .tokenizer import TOKENIZER_CONFIG, TOKENIZER_JSON, Tokenizer, TokenizerConfig

GENERATION_CONFIG = "frontend/generation_config.json"


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | Annotated[list[int], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class PreparedPrompt:
    """`thinking`: the prompt ends inside an open reasoning block, so the output starts as reasoning."""

    text: str
    ids: list[int]
    thinking: bool


class Frontend:
    """Immutable after construction and safe to share between threads."""

    def __init__(
        self,
        model_id: str,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        stop_tokens: tuple[int, ...],
        media_limits: MediaLimits,
    ) -> None:
        self.model_id = model_id
        self.tokenizer = tokenizer
        self.template = template
        self.stop_tokens = stop_tokens  # the model's own, in the order of generation_config.json
        self.media_limits = media_limits

    @classmethod
    def from_resources(cls, resource: Callable[[str], bytes], *, token_domain: int, model_id: str) -> Frontend:
        """`resource(name)` gives the bytes of a `frontend/` resource. Raises ArtifactError naming the resource."""
        config_bytes = resource(TOKENIZER_CONFIG)
        tokenizer = Tokenizer.from_resources(resource(TOKENIZER_JSON), config_bytes, token_domain)
        template_bytes = resource(TEMPLATE_RESOURCE)
        template = ChatTemplate.from_resource(template_bytes)
        inline = TokenizerConfig.parse(config_bytes).chat_template
        if inline is None or inline.encode() != template_bytes:
            raise ArtifactError(f"{TOKENIZER_CONFIG}: chat_template must equal {TEMPLATE_RESOURCE}")
        stop_tokens = _stop_tokens(resource(GENERATION_CONFIG), token_domain)
        limits = MediaLimits.from_resources(resource(IMAGE_PROCESSOR), resource(VIDEO_PROCESSOR), model_id)
        return cls(model_id, tokenizer, template, stop_tokens, limits)

    @property
    def efforts(self) -> tuple[str, ...]:
        """Reasoning efforts that the template offers, weakest first; empty if it has none."""
        return self.template.kind.efforts

    def render(
        self,
        conversation: Conversation,
        *,
        thinking: bool = True,
        effort: str | None = None,
        preserve_thinking: bool = False,
    ) -> str:
        """Prompt text with the generation prompt; each media part is one placeholder. Raises RequestError."""
        return prompt.render(
            self.template, conversation, thinking=thinking, effort=effort, preserve_thinking=preserve_thinking
        )

    def encode(self, text: str) -> list[int]:
        """Ids of prompt text, special tokens recognised. Raises RequestError for text that is not valid Unicode."""
        return self.tokenizer.encode(text)

    def prepare(
        self,
        conversation: Conversation,
        *,
        thinking: bool = True,
        effort: str | None = None,
        preserve_thinking: bool = False,
    ) -> PreparedPrompt:
        """Render and encode a conversation without media. Raises RequestError."""
        if conversation.has_media:
            raise RequestError("Vision is disabled for this Engine")
        text = self.render(conversation, thinking=thinking, effort=effort, preserve_thinking=preserve_thinking)
        return PreparedPrompt(text, self.encode(text), thinking)

    def turn_frontier(self, ids: Sequence[int]) -> int | None:
        """Tokens up to the end of the first assistant opener after the last user message; None if there is none.

        What follows may be rewritten by a later turn (reasoning is dropped), what precedes is not.
        """
        user = _last(ids, self._opener("user"), self.encode("<tool_response>"))
        if user is None:
            return None
        opener = self._opener("assistant")
        at = next((i for i in range(user, len(ids)) if list(ids[i : i + len(opener)]) == opener), None)
        return None if at is None else at + len(opener)

    def _opener(self, role: str) -> list[int]:
        return self.encode(f"<|im_start|>{role}\n")

    def output_session(
        self,
        *,
        thinking: bool,
        stop_token_ids: Iterable[int] = (),
        stop_strings: Sequence[StopString] = (),
        model_stops: bool = True,
        raw: bool = False,
        preserve_special: bool = False,
    ) -> OutputSession:
        """Decoder of one generation. `model_stops` False leaves only the caller's stop tokens."""
        return OutputSession(
            self.tokenizer,
            thinking=thinking,
            stop_tokens={*stop_token_ids, *(self.stop_tokens if model_stops else ())},
            stop_strings=stop_strings,
            raw=raw,
            preserve_special=preserve_special,
        )


def _stop_tokens(data: bytes, token_domain: int) -> tuple[int, ...]:
    """Default stop ids of `generation_config.json`, duplicates removed."""
    try:
        eos = msgspec.json.decode(data, type=_GenerationConfig).eos_token_id
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{GENERATION_CONFIG}: {error}") from None
    stops = tuple(dict.fromkeys([eos] if isinstance(eos, int) else eos))
    for token in stops:
        if not 0 <= token < token_domain:
            raise ArtifactError(f"{GENERATION_CONFIG}: eos_token_id {token} is outside 0..{token_domain - 1}")
    return stops


def _last(ids: Sequence[int], pattern: list[int], excluded: list[int]) -> int | None:
    """Where `pattern` begins for the last time without `excluded` right after it."""
    for i in range(len(ids) - len(pattern), -1, -1):
        after = i + len(pattern)
        if list(ids[i:after]) == pattern and list(ids[after : after + len(excluded)]) != excluded:
            return i
    return None
