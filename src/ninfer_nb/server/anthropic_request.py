"""Anthropic Messages requests (`serving.md` 7.1, 16.1) to `Work`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..frontend.messages import (
    Conversation,
    MediaKind,
    MediaPart,
    Message,
    Part,
    Role,
    SourceKind,
    TextPart,
    ToolCall,
)
from .chat_request import sampling_of
from .errors import invalid
from .fields import INT32_MAX, array, boolean, integer, mapping, required_string, strings
from .work import (
    ANTHROPIC_TOOL_NAME,
    Defaults,
    Ignored,
    Work,
    choose_tools,
    joined_text,
    resolve_thinking,
    strip_nonce,
    text_message,
)

LONGEST_NAME = 128
EFFORTS = ("low", "medium", "high", "xhigh", "max")


def parse_anthropic(body: Mapping[str, Any], defaults: Defaults, *, count_only: bool = False) -> Work:
    """Raises ApiError naming the field."""
    model, ignored = required_string(body, "model"), Ignored()
    if body.get("output_format") is not None:
        raise _no_structure("output_format")
    messages = _system(body) + _messages(body)
    tools, dropped = _tools(body, ignored)
    choice, single = _tool_choice(body, dropped)
    tools = choose_tools(tools, choice, ignored_only=bool(dropped))
    thinking, effort = _thinking(body, defaults)
    maximum = integer(body, "max_tokens")
    if maximum is not None and maximum <= 0:
        raise invalid("max_tokens must be positive", "max_tokens")
    if maximum is not None and maximum > INT32_MAX:
        raise invalid("max_tokens is out of range", "max_tokens")
    stops = body.get("stop_sequences")
    if stops is not None and not isinstance(stops, list):
        raise invalid("stop_sequences must be an array of strings", "stop_sequences")
    preserve = boolean(body, "preserve_thinking")
    return Work(
        "anthropic_messages",
        model,
        strip_nonce(Conversation(tuple(messages), tools), defaults.strip_prefixes),
        defaults.max_tokens if maximum is None else maximum,
        maximum is not None,
        sampling_of(body, defaults),
        thinking,
        effort,
        defaults.preserve_thinking if preserve is None else preserve,
        stops=tuple(stop for stop in strings(stops or [], "stop_sequences") if stop),
        stream=bool(boolean(body, "stream")) and not count_only,
        tool_choice=choice,
        offered_tools=len(tools),
        longest_name=LONGEST_NAME,
        single_call=single,
        ignored=tuple(ignored.names),
        effort_param="output_config",
    )


def _no_structure(param: str) -> Exception:
    message = 'structured output (json_schema) is not supported yet; use {"type":"text"}'
    return invalid(message, param, "output_config_option_not_supported")


def _thinking(body: Mapping[str, Any], defaults: Defaults) -> tuple[bool, str | None]:
    thinking = mapping(body, "thinking")
    explicit = None
    if thinking is not None:
        if not isinstance(thinking.get("type"), str):
            raise invalid("thinking.type must be a string", "thinking")
        explicit = thinking["type"] != "disabled"
    config = mapping(body, "output_config") or {}
    if config.get("format") is not None:
        raise _no_structure("output_config")
    for key, value in config.items():
        if key not in ("effort", "format") and value is not None:
            message = f"output_config.{key} is not supported"
            raise invalid(message, "output_config", "output_config_option_not_supported")
    effort = config.get("effort")
    if effort is not None and effort not in EFFORTS:
        raise invalid(f"output_config.effort must be one of {', '.join(EFFORTS)}", "output_config")
    return resolve_thinking(effort, explicit, defaults.thinking, "output_config")


def _tools(body: Mapping[str, Any], ignored: Ignored) -> tuple[list[dict[str, Any]], set[str]]:
    """(tools in the template's form, names and types of those that are not ours to call)."""
    kept, dropped = [], set()
    for index, tool in enumerate(array(body, "tools") or []):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise invalid(f"{where} must be an object", "tools")
        name, schema = tool.get("name"), tool.get("input_schema")
        if schema is None:
            kind = tool.get("type")
            if not isinstance(kind, str):
                raise invalid(f"{where} needs an input_schema", "tools", "tool_type_not_supported")
            ignored.add(f"tools.{kind}")
            dropped |= {kind, *([name] if isinstance(name, str) else [])}
            continue
        if not isinstance(name, str) or not ANTHROPIC_TOOL_NAME.match(name):
            raise invalid(f"{where}.name must match [A-Za-z0-9_-]{{1,128}}", "tools")
        if not isinstance(schema, dict):
            raise invalid(f"{where}.input_schema must be an object", "tools")
        function: dict[str, Any] = {"name": name}
        if tool.get("description") is not None:
            if not isinstance(tool["description"], str):
                raise invalid(f"{where}.description must be a string", "tools")
            function["description"] = tool["description"]
        function["parameters"] = schema
        kept.append({"type": "function", "function": function})
    return kept, dropped


def _tool_choice(body: Mapping[str, Any], dropped: set[str]) -> tuple[str, bool]:
    """(choice, whether only one call is wanted)."""
    choice = mapping(body, "tool_choice")
    if choice is None:
        return "auto", False
    single = boolean(choice, "disable_parallel_tool_use", "tool_choice.disable_parallel_tool_use") is True
    match choice.get("type"):
        case "auto" | "none" as kind:
            return kind, single
        case "any":
            return "required", single
        case "tool":
            name = choice.get("name")
            if not isinstance(name, str):
                raise invalid("tool_choice.name must be a string", "tool_choice")
            if name in dropped:
                raise invalid("tool_choice names a tool that is ignored", "tool_choice", "tool_type_not_supported")
            return name, single
    raise invalid("tool_choice.type must be auto, any, none or tool", "tool_choice")


# -- messages ------------------------------------------------------------------------------------------


def _system(body: Mapping[str, Any]) -> list[Message]:
    system = body.get("system")
    if system is None:
        return []
    text = system if isinstance(system, str) else _texts(system, "system")
    return [text_message(Role.SYSTEM, text)] if text else []


def _texts(blocks: Any, where: str) -> str:
    """Text blocks joined by line breaks, empty ones left out."""
    if not isinstance(blocks, list):
        raise invalid(f"{where} must be a string or an array of text blocks", where.partition("[")[0])
    found = []
    for block in blocks:
        if not isinstance(block, dict) or block.get("type") != "text" or not isinstance(block.get("text"), str):
            raise invalid(f"{where} can hold text blocks only", where.partition("[")[0])
        found.append(block["text"])
    return "\n".join(text for text in found if text)


def _messages(body: Mapping[str, Any]) -> list[Message]:
    items = array(body, "messages")
    if not items:
        raise invalid("messages must be a non-empty array", "messages")
    roles, out = [], []
    for index, item in enumerate(items):
        where = f"messages[{index}]"
        if not isinstance(item, dict):
            raise invalid(f"{where} must be an object", "messages")
        role, content = item.get("role"), item.get("content")
        if not isinstance(content, (str, list)):
            raise invalid(f"{where}.content must be a string or an array", "messages")
        match role:
            case "user":
                out += _user(content, where)
            case "assistant":
                out.append(_assistant(content, where))
            case "system":
                text = content if isinstance(content, str) else _texts(content, where)
                out.append(text_message(Role.SYSTEM, text))
            case _:
                raise invalid(f"{where}.role must be user, assistant or system", "messages", "unsupported_role")
        roles.append(role)
    _check_order(roles)
    return out


def _check_order(roles: list[str]) -> None:
    """Runs of system messages follow a user message and precede an assistant message or the end."""
    for index, role in enumerate(roles):
        if role != "system":
            continue
        before = next((r for r in reversed(roles[:index]) if r != "system"), None)
        after = next((r for r in roles[index:] if r != "system"), None)
        if before != "user" or after not in ("assistant", None):
            raise invalid(
                "a system message must follow a user message and be last or precede an assistant message",
                "messages",
                "invalid_message_order",
            )


def _user(content: str | list[Any], where: str) -> list[Message]:
    """One user turn, cut at each tool result."""
    if isinstance(content, str):
        return [text_message(Role.USER, content)]
    if not content:
        raise invalid(f"{where}.content must not be empty", "messages")
    out: list[Message] = []
    parts: list[Part] = []
    for index, block in enumerate(content):
        at = f"{where}.content[{index}]"
        if not isinstance(block, dict):
            raise invalid(f"{at} must be an object", "messages")
        if block.get("type") == "tool_result":
            if parts:
                out.append(Message(Role.USER, _joined(parts)))
                parts = []
            out.append(_tool_result(block, at))
        else:
            parts.append(_block(block, at))
    if parts:
        out.append(Message(Role.USER, _joined(parts)))
    return out


def _joined(parts: list[Part]) -> tuple[Part, ...]:
    """Neighbouring texts as one."""
    out: list[Part] = []
    run: list[str] = []
    for part in [*parts, None]:
        if isinstance(part, TextPart):
            run.append(part.text)
            continue
        if run:
            out.append(TextPart(joined_text(run)))
            run = []
        if part is not None:
            out.append(part)
    return tuple(out)


def _block(block: Mapping[str, Any], at: str) -> Part:
    match block.get("type"):
        case "text":
            if not isinstance(block.get("text"), str):
                raise invalid(f"{at}.text must be a string", "messages")
            return TextPart(block["text"])
        case "image":
            return _image(block.get("source"), at)
    raise invalid(f"{at}.type {block.get('type')} is not supported", "messages", "modality_not_supported")


def _image(source: Any, at: str) -> MediaPart:
    if isinstance(source, dict) and source.get("type") == "base64":
        media, data = source.get("media_type"), source.get("data")
        if isinstance(media, str) and isinstance(data, str):
            return MediaPart(MediaKind.IMAGE, SourceKind.DATA, f"data:{media};base64,{data}", media)
    if isinstance(source, dict) and source.get("type") == "url":
        url = source.get("url")
        if isinstance(url, str) and url.startswith(("http://", "https://")):
            return MediaPart(MediaKind.IMAGE, SourceKind.URL, url)
    raise invalid(f"{at}.source must be base64 data or an http(s) url", "messages")


def _tool_result(block: Mapping[str, Any], at: str) -> Message:
    identity, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(identity, str) or not identity:
        raise invalid(f"{at}.tool_use_id must be a non-empty string", "messages")
    if content is None or isinstance(content, str):
        return Message(Role.TOOL, (TextPart(content or ""),), tool_call_id=identity)
    if not isinstance(content, list):
        raise invalid(f"{at}.content must be a string or an array", "messages")
    parts = []
    for index, item in enumerate(content):
        if not isinstance(item, dict):
            raise invalid(f"{at}.content[{index}] must be an object", "messages")
        parts.append(_block(item, f"{at}.content[{index}]"))
    return Message(Role.TOOL, _joined(parts) or (TextPart(""),), tool_call_id=identity)


def _assistant(content: str | list[Any], where: str) -> Message:
    if isinstance(content, str):
        return text_message(Role.ASSISTANT, content)
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(content):
        at = f"{where}.content[{index}]"
        if not isinstance(block, dict):
            raise invalid(f"{at} must be an object", "messages")
        match block.get("type"):
            case "text":
                texts.append(_block(block, at).text)
            case "thinking":
                if isinstance(block.get("thinking"), str):
                    thoughts.append(block["thinking"])
            case "redacted_thinking":
                pass
            case "tool_use":
                calls.append(_tool_use(block, at))
            case other:
                raise invalid(f"{at}.type {other} is not supported", "messages", "modality_not_supported")
    if not texts and not thoughts and not calls:
        raise invalid(f"{where} has no usable block", "messages")
    message = Message(Role.ASSISTANT, (TextPart("\n".join(texts)),) if texts else ())
    return replace(message, reasoning="\n".join(thoughts), tool_calls=tuple(calls))


def _tool_use(block: Mapping[str, Any], at: str) -> ToolCall:
    identity, name, arguments = block.get("id"), block.get("name"), block.get("input")
    if not isinstance(identity, str) or not identity:
        raise invalid(f"{at}.id must be a non-empty string", "messages")
    if not isinstance(name, str) or not ANTHROPIC_TOOL_NAME.match(name):
        raise invalid(f"{at}.name must match [A-Za-z0-9_-]{{1,128}}", "messages")
    if not isinstance(arguments, dict):
        raise invalid(f"{at}.input must be an object", "messages")
    return ToolCall(name, arguments, identity)
