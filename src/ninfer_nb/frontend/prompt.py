"""From a conversation to prompt text: the input rules around the chat template (`serving.md` 9.2).

The templates refuse `developer` turns and later `system` turns; both are rendered here all the same. Knows nothing of
tokens.
"""

from __future__ import annotations

import re
import secrets
from typing import Any

from ..errors import RequestError
from .messages import INSTRUCTION_ROLES, Conversation, Message, Role, TextPart
from .output import ASCII_WHITESPACE
from .template import ChatTemplate


def render(
    template: ChatTemplate,
    conversation: Conversation,
    *,
    thinking: bool = True,
    effort: str | None = None,
    preserve_thinking: bool = False,
) -> str:
    """Prompt text with the generation prompt; every media part stands as one placeholder. Raises RequestError."""
    # A later instruction goes through the template as a user turn in the guise of a tool response, which no template
    # takes for a query, and is put in its place afterwards. The mark is random so that no message can contain it.
    mark = secrets.token_hex(16)
    messages = []
    for index, message in enumerate(conversation.messages):
        if message.role in INSTRUCTION_ROLES:
            if any(message.media):
                raise RequestError("system and developer messages can hold text only")
            if index:
                guise = f"<tool_response>{mark}{index}</tool_response>"
                messages.append({"role": str(Role.USER), "content": guise})
                continue
        messages.append(_template_message(message))
    text = template.render(
        messages,
        conversation.tools,
        thinking=thinking,
        effort=effort,
        preserve_thinking=preserve_thinking,
    )
    return re.sub(
        rf"<\|im_start\|>user\n<tool_response>{mark}(\d+)</tool_response>",
        lambda match: f"<|im_start|>system\n{conversation.messages[int(match[1])].text.strip(ASCII_WHITESPACE)}",
        text,
    )


def _template_message(message: Message) -> dict[str, Any]:
    role = Role.SYSTEM if message.role is Role.DEVELOPER else message.role
    rendered: dict[str, Any] = {"role": str(role), "content": _template_content(message)}
    if message.reasoning:
        rendered["reasoning_content"] = message.reasoning
    if message.tool_calls:
        calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
        rendered["tool_calls"] = [{"type": "function", "function": call} for call in calls]
    return rendered


def _template_content(message: Message) -> str | list[dict[str, str]]:
    if not any(message.media):
        return message.text
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": str(part.kind)}
        for part in message.parts
    ]
