"""What every protocol's request comes down to, and the choices they share (`serving.md` 5.1, 5.4, 16.1, 16.5)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..engine.sampling import SamplingOverrides
from ..frontend.messages import Conversation, Message, Role, TextPart
from ..frontend.toolcalls import LONGEST_NAME
from .errors import invalid

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
NEVER_OFFERED = ("minimal", "high", "max")
NONCE_PREFIX = "x-anthropic-billing-header:"
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
ANTHROPIC_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}\Z")


@dataclass(frozen=True)
class Defaults:
    """What the server assumes where a request is silent."""

    max_tokens: int = 8192
    thinking: bool = True
    preserve_thinking: bool = False
    overrides: SamplingOverrides = field(default_factory=SamplingOverrides)
    strip_prefixes: tuple[str, ...] = (NONCE_PREFIX,)


@dataclass(frozen=True)
class Work:
    """One request, checked, with every choice made; nothing of its protocol's shape is left in it but its name."""

    protocol: str  # "openai_chat_completions", "openai_responses" or "anthropic_messages"
    model: str
    conversation: Conversation  # with the tools that are rendered
    max_tokens: int
    max_tokens_from_client: bool
    sampling: SamplingOverrides
    thinking: bool
    effort: str | None
    preserve_thinking: bool
    stops: tuple[str, ...] = ()
    stream: bool = False
    tool_choice: str = "auto"
    offered_tools: int = 0
    longest_name: int = LONGEST_NAME
    single_call: bool = False  # only the first call is returned
    ignored: tuple[str, ...] = ()  # fields that were accepted and not used
    effort_param: str = "reasoning_effort"

    @property
    def parse_calls(self) -> bool:
        return self.conversation.tool_capable


class Ignored:
    """Collects what a request asks for and does not get."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def add(self, name: str) -> None:
        self.names[name] = None

    def present(self, body: Mapping[str, Any], *keys: str) -> None:
        """Note the keys that are there and not null."""
        for key in keys:
            if body.get(key) is not None:
                self.add(key)


def resolve_thinking(effort: str | None, explicit: bool | None, default: bool, param: str) -> tuple[bool, str | None]:
    """(whether to think, effort for the template) from an effort word and an explicit switch. Raises ApiError."""
    if effort is None:
        return (default if explicit is None else explicit), None
    if effort not in EFFORTS:
        raise invalid(f"{param} must be one of {', '.join(EFFORTS)}", param)
    thinking = effort != "none"
    if explicit is not None and explicit != thinking:
        raise invalid(f"{param} {effort} contradicts enable_thinking", param, "conflicting_template_option")
    return thinking, effort if thinking else None


def check_effort(effort: str | None, offered: Sequence[str], param: str) -> None:
    """Raises ApiError for an effort that the loaded template does not have."""
    if effort is not None and (effort in NEVER_OFFERED or effort not in offered):
        have = f"; it offers {', '.join(offered)}" if offered else ""
        raise invalid(f"{param} {effort} is not offered by this model{have}", param, "reasoning_effort_not_supported")


def choose_tools(tools: Sequence[Mapping[str, Any]], choice: str, *, ignored_only: bool) -> tuple[Any, ...]:
    """The tools to render for a choice: "auto", "required", "none", or a name. Raises ApiError."""
    if choice == "none":
        return ()
    if not tools:
        if choice != "auto":
            raise invalid("tool_choice requires tools", "tool_choice")
        return ()
    if choice in ("auto", "required"):
        return tuple(tools)
    chosen = [tool for tool in tools if tool["function"]["name"] == choice]
    if not chosen:
        raise invalid(f"tool_choice names an unknown function: {choice}", "tool_choice")
    return tuple(chosen)


def strip_nonce(conversation: Conversation, prefixes: Sequence[str]) -> Conversation:
    """Without a first line of the first instruction message that changes with every request (`serving.md` 16.5)."""
    if not prefixes or not conversation.messages:
        return conversation
    first = conversation.messages[0]
    if first.role not in (Role.SYSTEM, Role.DEVELOPER) or not first.text.startswith(tuple(prefixes)):
        return conversation
    rest = first.text.partition("\n")[2].lstrip("\r\n")
    message = replace(first, parts=(TextPart(rest),))
    return replace(conversation, messages=(message, *conversation.messages[1:]))


def joined_text(parts: Sequence[str]) -> str:
    """Text parts as one: a line break before each that is not empty."""
    out = ""
    for index, part in enumerate(parts):
        out += f"\n{part}" if index and part else part
    return out


def text_message(role: Role, text: str) -> Message:
    return Message(role, (TextPart(text),))
