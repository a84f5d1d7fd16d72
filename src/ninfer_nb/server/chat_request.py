"""OpenAI Chat Completions requests (`serving.md` 5.1, 5.2 and 5.4) to `Work`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..engine.sampling import SamplingOverrides
from ..errors import RequestError
from ..frontend.messages import (
    Conversation,
    MediaKind,
    MediaPart,
    Message,
    Part,
    Role,
    TextPart,
    ToolCall,
    parse_arguments,
)
from .errors import invalid
from .fields import INT32_MAX, array, boolean, integer, mapping, number, seed, string, strings, top_k
from .work import EFFORTS, TOOL_NAME, Defaults, Ignored, Work, choose_tools, resolve_thinking, strip_nonce

STRUCTURED = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "grammar",
    "json_schema",
)
MEDIA_SCHEMES = ("data:", "http://", "https://")


def parse_chat(body: Mapping[str, Any], model: str, defaults: Defaults) -> Work:
    """Raises ApiError naming the field."""
    ignored = Ignored()
    _refuse(body)
    conversation = Conversation(messages_of(body))
    tools, dropped = function_tools(body, ignored)
    choice = _tool_choice(body, dropped)
    tools = choose_tools(tools, choice, ignored_only=bool(dropped))
    effort, switch, preserve = _template_options(body, defaults)
    thinking, effort = resolve_thinking(effort, switch, defaults.thinking, "reasoning_effort")
    maximum, given = _max_tokens(body, defaults)
    stops = strings(body["stop"], "stop") if body.get("stop") is not None else []
    conversation = strip_nonce(replace(conversation, tools=tools), defaults.strip_prefixes)
    return Work(
        "openai_chat_completions",
        model,
        conversation,
        maximum,
        given,
        sampling_of(body, defaults),
        thinking,
        effort,
        preserve,
        stops=tuple(stop for stop in stops if stop),
        stream=bool(boolean(body, "stream")),
        tool_choice=choice,
        offered_tools=len(tools),
        single_call=boolean(body, "parallel_tool_calls") is False,
        ignored=tuple(ignored.names),
    )


def include_usage(body: Mapping[str, Any]) -> bool:
    """`stream_options.include_usage`."""
    options = mapping(body, "stream_options")
    return bool(options and boolean(options, "include_usage", "stream_options.include_usage"))


def sampling_of(body: Mapping[str, Any], defaults: Defaults) -> SamplingOverrides:
    """Request settings over the server's."""
    given = {
        "temperature": number(body, "temperature", 0, 2),
        "top_p": number(body, "top_p", 0, 1),
        "top_k": top_k(body),
        "presence_penalty": number(body, "presence_penalty", -2, 2),
        "frequency_penalty": number(body, "frequency_penalty", -2, 2),
        "seed": seed(body),
    }
    return replace(defaults.overrides, **{name: value for name, value in given.items() if value is not None})


def _refuse(body: Mapping[str, Any]) -> None:
    """Fields that would change the output and are not there."""
    for key in ("functions", "function_call"):
        if body.get(key) is not None:
            raise invalid(f"{key} is not supported; use tools", key, "tools_not_supported")
    for key in ("n", "best_of"):
        if integer(body, key) not in (None, 1):
            raise invalid("one completion per request; send n requests", key, "n_not_supported")
    format = mapping(body, "response_format")
    if format is not None and format.get("type") != "text":
        raise invalid(_no_structure(format), "response_format", "response_format_not_supported")
    for key in STRUCTURED:
        if body.get(key) is not None:
            raise invalid(_no_structure({"type": key}), key, "structured_outputs_not_supported")
    if boolean(body, "logprobs"):
        raise invalid("logprobs are not supported yet", "logprobs", "logprobs_not_supported")
    if integer(body, "top_logprobs") not in (None, 0):
        raise invalid("top_logprobs are not supported yet", "top_logprobs", "logprobs_not_supported")
    bias = mapping(body, "logit_bias")
    if bias and not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in bias.values()):
        raise invalid("logit_bias must map token ids to numbers", "logit_bias")


def _no_structure(format: Mapping[str, Any]) -> str:
    return f'structured output ({format.get("type")}) is not supported yet; use {{"type":"text"}}'


def _max_tokens(body: Mapping[str, Any], defaults: Defaults) -> tuple[int, bool]:
    for key in ("max_completion_tokens", "max_tokens"):
        value = integer(body, key)
        if value is not None:
            if value > INT32_MAX:
                raise invalid(f"{key} is out of range", key)
            return (value, True) if value > 0 else (defaults.max_tokens, False)
    return defaults.max_tokens, False


def _template_options(body: Mapping[str, Any], defaults: Defaults) -> tuple[str | None, bool | None, bool]:
    """(effort, explicit thinking switch, preserve_thinking)."""
    if "chat_template_kwargs" in body and not isinstance(body["chat_template_kwargs"], dict):
        raise invalid("chat_template_kwargs must be an object", "chat_template_kwargs")
    kwargs = body.get("chat_template_kwargs") or {}
    for key, value in kwargs.items():
        if key not in ("enable_thinking", "preserve_thinking") and value is not None:
            message = f"chat_template_kwargs.{key} is not supported"
            raise invalid(message, "chat_template_kwargs", "chat_template_option_not_supported")
    effort = string(body, "reasoning_effort")
    if effort is not None and effort not in EFFORTS:
        raise invalid(f"reasoning_effort must be one of {', '.join(EFFORTS)}", "reasoning_effort")
    thinking = _agreed(body, kwargs, "enable_thinking")
    preserve = _agreed(body, kwargs, "preserve_thinking")
    return effort, thinking, defaults.preserve_thinking if preserve is None else preserve


def _agreed(body: Mapping[str, Any], kwargs: Mapping[str, Any], key: str) -> bool | None:
    """A switch that may be given in two places. Raises ApiError when they contradict each other."""
    outer, inner = boolean(body, key), boolean(kwargs, key, f"chat_template_kwargs.{key}")
    if outer is not None and inner is not None and outer != inner:
        raise invalid(f"{key} contradicts chat_template_kwargs.{key}", key, "conflicting_template_option")
    return inner if outer is None else outer


# -- tools ---------------------------------------------------------------------------------------------


def function_tools(body: Mapping[str, Any], ignored: Ignored) -> tuple[list[dict[str, Any]], set[str]]:
    """(function tools as written, types and names of the others)."""
    kept, dropped = [], set()
    for index, tool in enumerate(array(body, "tools") or []):
        where = f"tools[{index}]"
        if not isinstance(tool, dict):
            raise invalid(f"{where} must be an object", "tools")
        kind = tool.get("type")
        if not isinstance(kind, str):
            raise invalid(f"{where}.type must be a string", "tools", "tool_type_not_supported")
        if kind != "function":
            ignored.add(f"tools.{kind}")
            dropped |= {kind, *([tool["name"]] if isinstance(tool.get("name"), str) else [])}
            continue
        check_function(tool.get("function"), f"{where}.function")
        kept.append(tool)
    return kept, dropped


def check_function(function: Any, where: str) -> None:
    """The members of a function tool. Raises ApiError."""
    if not isinstance(function, dict):
        raise invalid(f"{where} must be an object", "tools")
    name = function.get("name")
    if not isinstance(name, str) or not TOOL_NAME.match(name):
        raise invalid(f"{where}.name must match [A-Za-z0-9_-]{{1,64}}", "tools")
    for key, kind, noun in (
        ("description", str, "a string"),
        ("parameters", dict, "an object"),
        ("strict", bool, "a boolean"),
    ):
        if function.get(key) is not None and not isinstance(function[key], kind):
            raise invalid(f"{where}.{key} must be {noun}", "tools")


def _tool_choice(body: Mapping[str, Any], dropped: set[str]) -> str:
    choice = body.get("tool_choice")
    if choice is None or choice in ("auto", "none", "required"):
        return choice or "auto"
    if not isinstance(choice, dict):
        raise invalid("tool_choice must be auto, none, required or a function", "tool_choice")
    if choice.get("type") != "function":
        if choice.get("type") in dropped:
            raise invalid("tool_choice names a tool that is ignored", "tool_choice", "tool_type_not_supported")
        raise invalid("tool_choice.type must be function", "tool_choice")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise invalid("tool_choice.function.name must be a string", "tool_choice")
    if name in dropped:
        raise invalid("tool_choice names a tool that is ignored", "tool_choice", "tool_type_not_supported")
    return name


# -- messages ------------------------------------------------------------------------------------------


def messages_of(body: Mapping[str, Any]) -> tuple[Message, ...]:
    """The `messages` array. Raises ApiError."""
    messages = array(body, "messages")
    if not messages:
        raise invalid("messages must be a non-empty array", "messages")
    return tuple(_message(item, f"messages[{index}]") for index, item in enumerate(messages))


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise invalid(f"{where} must be an object", "messages")
    role = item.get("role")
    if not isinstance(role, str):
        raise invalid(f"{where}.role must be a string", "messages")
    if role not in Role.__members__.values():
        raise invalid(f"{where}.role {role} is not supported", "messages", "unsupported_role")
    if item.get("function_call") is not None:
        raise invalid(f"{where}.function_call is not supported", "messages", "tools_not_supported")
    if role != Role.ASSISTANT and item.get("tool_calls") is not None:
        raise invalid(f"{where}.tool_calls is only allowed in assistant messages", "messages")
    if role != Role.TOOL and item.get("tool_call_id") is not None:
        raise invalid(f"{where}.tool_call_id is only allowed in tool messages", "messages")
    content = item.get("content")
    if role == Role.ASSISTANT:
        return _assistant(item, where)
    if role == Role.TOOL:
        call = item.get("tool_call_id")
        if not isinstance(call, str) or not call:
            raise invalid(f"{where}.tool_call_id must be a non-empty string", "messages")
        if not isinstance(content, (str, list)):
            raise invalid(f"{where}.content must be a string", "messages")
        return Message(Role.TOOL, _parts(content, where), tool_call_id=call)
    if content is None:
        raise invalid(f"{where}.content is required", "messages")
    parts = _parts(content, where)
    if role != Role.USER and any(isinstance(part, MediaPart) for part in parts):
        raise invalid("system and developer messages can hold text only", "messages", "invalid_media")
    return Message(Role(role), parts)


def _assistant(item: Mapping[str, Any], where: str) -> Message:
    calls = item.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise invalid(f"{where}.tool_calls must be an array", "messages")
    content = item.get("content")
    if content is None and not calls:
        raise invalid(f"{where} needs content or tool_calls", "messages")
    reasoning = string(item, "reasoning_content", f"{where}.reasoning_content") or ""
    made = tuple(_call(call, f"{where}.tool_calls[{index}]") for index, call in enumerate(calls or []))
    return Message(Role.ASSISTANT, () if content is None else _parts(content, where), reasoning, made)


def _call(call: Any, where: str) -> ToolCall:
    if not isinstance(call, dict) or call.get("type", "function") != "function":
        raise invalid(f"{where} must be a function call", "messages")
    function, identity = call.get("function"), call.get("id")
    if not isinstance(identity, str) or not identity:
        raise invalid(f"{where}.id must be a non-empty string", "messages")
    if not isinstance(function, dict):
        raise invalid(f"{where}.function must be an object", "messages")
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not TOOL_NAME.match(name):
        raise invalid(f"{where}.function.name must match [A-Za-z0-9_-]{{1,64}}", "messages")
    if not isinstance(arguments, str):
        raise invalid(f"{where}.function.arguments must be a string that holds a JSON object", "messages")
    try:
        return ToolCall(name, parse_arguments(arguments, where), identity)
    except RequestError as error:
        raise invalid(str(error), "messages") from None


def _parts(content: Any, where: str) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    if not isinstance(content, list) or not content:
        raise invalid(f"{where}.content must be a string or a non-empty array", "messages")
    parts: list[Part] = []
    for index, item in enumerate(content):
        part = _part(item, f"{where}.content[{index}]")
        if isinstance(part, TextPart) and parts and isinstance(parts[-1], TextPart):
            parts[-1] = TextPart(parts[-1].text + (f"\n{part.text}" if part.text else ""))
        else:
            parts.append(part)
    return tuple(parts)


def _part(item: Any, where: str) -> Part:
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        raise invalid(f"{where} must be an object with a type", "messages")
    kind = item["type"]
    if kind == "text":
        if not isinstance(item.get("text"), str):
            raise invalid(f"{where}.text must be a string", "messages")
        return TextPart(item["text"])
    media = {"image_url": MediaKind.IMAGE, "video_url": MediaKind.VIDEO}.get(kind)
    if media is None:
        raise invalid(f"{where}.type {kind} is not supported", "messages", "modality_not_supported")
    source = item.get(kind)
    url = source.get("url") if isinstance(source, dict) else source
    if not isinstance(url, str) or not url.startswith(MEDIA_SCHEMES):
        raise invalid(f"{where}.{kind} must be a data:, http:// or https:// URL", "messages")
    return MediaPart.from_location(media, url)
