"""Conversations: what the command line reads from a file and the server from a request, before any rendering.

Parses the messages file of `cli.md` 6. Media parts are carried as sources, not opened. Knows nothing of templates,
tokens or HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..errors import RequestError
from .jsontext import loads


class Role(StrEnum):
    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


INSTRUCTION_ROLES = frozenset((Role.SYSTEM, Role.DEVELOPER))


class MediaKind(StrEnum):
    IMAGE = "image"
    VIDEO = "video"


class SourceKind(StrEnum):
    URL = "url"
    DATA = "data"  # a base64 data URI
    PATH = "path"


@dataclass(frozen=True)
class TextPart:
    text: str


@dataclass(frozen=True)
class MediaPart:
    """An image or a video. `location` is a URL, a whole data URI, or a path relative to the working directory."""

    kind: MediaKind
    source: SourceKind
    location: str
    media_type: str | None = None

    @classmethod
    def from_location(cls, kind: MediaKind, location: str, media_type: str | None = None) -> MediaPart:
        """Tell URL, data URI and path apart by their beginning."""
        if location.startswith(("http://", "https://")):
            return cls(kind, SourceKind.URL, location, media_type)
        if location.startswith("data:"):
            declared = location[5:].partition(",")[0].partition(";")[0]
            return cls(kind, SourceKind.DATA, location, declared if media_type is None else media_type)
        return cls(kind, SourceKind.PATH, location.removeprefix("file://"), media_type)


Part = TextPart | MediaPart


@dataclass(frozen=True)
class ToolCall:
    """A call that the assistant made earlier. `arguments` keeps the member order of its JSON text."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True)
class Message:
    """One turn. Text parts follow each other without a separator; `reasoning` is empty when none was given."""

    role: Role
    parts: tuple[Part, ...]
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def media(self) -> Iterator[MediaPart]:
        return (part for part in self.parts if isinstance(part, MediaPart))

    @property
    def text(self) -> str:
        """All text parts, media left out."""
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))


@dataclass(frozen=True)
class Conversation:
    """Messages and the tools offered; tool objects are rendered as they were written."""

    messages: tuple[Message, ...]
    tools: tuple[Any, ...] = ()

    @classmethod
    def from_prompt(cls, text: str) -> Conversation:
        """A single user message."""
        return cls((Message(Role.USER, (TextPart(text),)),))

    @classmethod
    def from_json(cls, text: str) -> Conversation:
        """Parse the text of a messages file. Raises RequestError naming the message and field."""
        try:
            document = loads(text)
        except ValueError as error:
            raise RequestError(f"failed to parse messages JSON: {error}") from None
        tools: Any = []
        if isinstance(document, dict):
            if "messages" not in document:
                raise RequestError("messages JSON object must contain messages")
            tools = document.get("tools", [])
            document = document["messages"]
        if not isinstance(document, list) or not document:
            raise RequestError("messages JSON must be a non-empty array")
        if not isinstance(tools, list):
            raise RequestError("messages JSON tools must be an array")
        return cls(tuple(_message(item, f"message {i}") for i, item in enumerate(document)), tuple(tools))

    @classmethod
    def from_file(cls, path: str | Path) -> Conversation:
        """Read and parse a messages file. Raises RequestError."""
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise RequestError(f"failed to open messages JSON: {path}: {error.strerror}") from None
        except ValueError:
            raise RequestError(f"failed to open messages JSON: {path!r} is not a path") from None
        try:
            text = data.decode("utf-8-sig")  # editors on Windows like to put the mark in front
        except UnicodeDecodeError as error:
            raise RequestError(f"failed to parse messages JSON: byte {error.start} is not UTF-8") from None
        return cls.from_json(text)

    @property
    def has_media(self) -> bool:
        return any(True for message in self.messages for _ in message.media)

    @property
    def tool_capable(self) -> bool:
        """Whether generated tool calls are looked for: tools are offered, or the history holds tool turns."""
        return bool(self.tools) or any(message.tool_calls or message.role is Role.TOOL for message in self.messages)


_FIELDS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id")


def _message(item: Any, where: str) -> Message:
    if not isinstance(item, dict):
        raise RequestError(f"{where} must be an object")
    for key in item:
        if key not in _FIELDS:
            raise RequestError(f"{where} contains unsupported field: {key}")
    for key in ("role", "content"):
        if key not in item:
            raise RequestError(f"{where} must contain {key}")
    role = item["role"]
    if not isinstance(role, str):
        raise RequestError(f"{where} role must be a string")
    if role not in Role.__members__.values():
        raise RequestError(f"unsupported chat role: {role}")
    calls = _tool_calls(item, Role(role), where)
    parts = _parts(item["content"], where)
    if not parts and not calls:
        raise RequestError(f"{where} has empty content")
    reasoning = _string(item, "reasoning_content", where) or ""
    call_id = _string(item, "tool_call_id", where)
    if call_id is not None and role != Role.TOOL:
        raise RequestError(f"{where} tool_call_id is only allowed in tool messages")
    return Message(Role(role), parts, reasoning, calls, call_id)


def _string(item: Mapping[str, Any], key: str, where: str) -> str | None:
    """Member `key`, None if it is absent."""
    if key in item and not isinstance(item[key], str):
        raise RequestError(f"{where} {key} must be a string")
    return item.get(key)


def _parts(content: Any, where: str) -> tuple[Part, ...]:
    if content is None:
        return ()
    if isinstance(content, str):
        return (TextPart(content),)
    if not isinstance(content, list):
        raise RequestError(f"{where} content must be a string, null or a non-empty array")
    if not content:
        raise RequestError(f"{where} has empty content")
    return tuple(_part(item, f"{where} content part {index}") for index, item in enumerate(content))


def _part(item: Any, where: str) -> Part:
    if not isinstance(item, dict):
        raise RequestError(f"{where} must be an object")
    kind = item.get("type")
    if kind == "text" or "text" in item:
        if not isinstance(item.get("text"), str):
            raise RequestError(f"{where} text must be a string")
        return TextPart(item["text"])
    for media in MediaKind:
        keys = (str(media), f"{media}_url")
        if kind in keys or any(key in item for key in keys):
            return _media(item, media, where)
    raise RequestError(f"{where} must be text, image or video, not type {kind}")


def _media(item: Mapping[str, Any], kind: MediaKind, where: str) -> MediaPart:
    source, url = item.get(kind), item.get(f"{kind}_url")
    nested = url.get("url") if isinstance(url, dict) else None
    location = next((text for text in (source, url, nested) if isinstance(text, str) and text), None)
    if location is None:
        raise RequestError(f"{where} has no media source")
    return MediaPart.from_location(kind, location, _string(item, "media_type", where))


def _tool_calls(item: Mapping[str, Any], role: Role, where: str) -> tuple[ToolCall, ...]:
    if "tool_calls" not in item:
        return ()
    if role is not Role.ASSISTANT:
        raise RequestError(f"{where} tool_calls is only allowed in assistant messages")
    calls = item["tool_calls"]
    if not isinstance(calls, list) or not calls:
        raise RequestError(f"{where} tool_calls must be a non-empty array")
    return tuple(_tool_call(call, f"{where} tool call {index}") for index, call in enumerate(calls))


def _tool_call(item: Any, where: str) -> ToolCall:
    if not isinstance(item, dict):
        raise RequestError(f"{where} must be an object")
    function = item.get("function", item)
    if not isinstance(function, dict):
        raise RequestError(f"{where} function must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not name:
        raise RequestError(f"{where} name must be a non-empty string")
    if "arguments" not in function:
        raise RequestError(f"{where} must contain arguments")
    return ToolCall(name, parse_arguments(function["arguments"], where), _string(item, "id", where))


def parse_arguments(arguments: Any, where: str) -> Mapping[str, Any]:
    """Arguments of an earlier call: an object, or a string that holds one (an empty string: no arguments).

    Raises RequestError with `where` in front.
    """
    if isinstance(arguments, str):
        try:
            arguments = loads(arguments) if arguments else {}
        except ValueError as error:
            raise RequestError(f"{where} arguments are not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise RequestError(f"{where} arguments must be a JSON object")
    return arguments
