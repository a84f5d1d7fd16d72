"""One answer as a client sees it: reasoning, content and tool calls, folded from the deltas of an output session.

Adds the rule for calls inside reasoning that was never closed (`serving.md` 16.3). Knows nothing of protocols.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .output import ASCII_WHITESPACE, Channel, Delta
from .toolcalls import (
    CALL,
    LONGEST_NAME,
    Broken,
    CallArguments,
    CallEnd,
    CallReader,
    CallStart,
    ContentDelta,
    Event,
    ParsedCall,
    ToolCallParser,
    held_suffix,
)
from .toolvalues import ToolSchemas


class ReasoningDelta(NamedTuple):
    text: str


AnswerEvent = ReasoningDelta | Event


class _Calls:
    """Text behind a first `<tool_call>` that consists of complete calls of offered tools and white space."""

    def __init__(self, schemas: ToolSchemas, longest_name: int) -> None:
        self.calls: list[ParsedCall] = []
        self._schemas = schemas
        self._longest_name = longest_name
        self._reader: CallReader | None = CallReader(schemas, longest_name)
        self._between = ""  # a proper prefix of the next `<tool_call>`

    @property
    def complete(self) -> bool:
        return self._reader is None and not self._between

    def feed(self, text: str) -> None:
        """Raises Broken when the text is something else."""
        while text:
            if self._reader is None:
                text = (self._between + text).lstrip(ASCII_WHITESPACE)
                if not CALL.startswith(text[: len(CALL)]):
                    raise Broken
                if len(text) < len(CALL):
                    self._between = text
                    return
                text, self._between = text.removeprefix(CALL), ""
                self._reader = CallReader(self._schemas, self._longest_name)
            reader = self._reader
            reader.feed(text)
            if reader.name and not reader.declared:
                raise Broken
            if not reader.complete:
                return
            reader.close()
            self.calls.append(ParsedCall(reader.name, "".join(reader.fragments)))
            text, self._reader = reader.rest, None


class ReasoningTail:
    """Holds back the end of the reasoning text as long as it may turn out to be calls."""

    def __init__(self, schemas: ToolSchemas, longest_name: int = LONGEST_NAME) -> None:
        self._schemas = schemas
        self._longest_name = longest_name
        self._held = ""  # from the white space before the first `<tool_call>` that may begin the calls
        self._calls: _Calls | None = None

    def feed(self, text: str) -> str:
        """Returns the reasoning text that is certain by now."""
        released = []
        while text:
            if self._calls is None:
                text = self._held + text
                before, found, after = text.partition(CALL)
                end = len(before) if found else len(text) - held_suffix(text, CALL)
                released.append(text[:end].rstrip(ASCII_WHITESPACE))
                self._held = text[len(released[-1]) : len(text) - len(after)]
                self._calls = _Calls(self._schemas, self._longest_name) if found else None
                text = after
                continue
            self._held += text
            try:
                self._calls.feed(text)
                text = ""
            except Broken:  # look for the next candidate
                end = self._held.index(CALL) + len(CALL)
                released.append(self._held[:end])
                text, self._held, self._calls = self._held[end:], "", None
        return "".join(released)

    def close(self) -> str:
        """The reasoning was closed, so calls in it are drafts: everything held is reasoning."""
        held, self._held, self._calls = self._held, "", None
        return held

    def finish(self) -> tuple[str, list[ParsedCall]]:
        """Generation ended inside the reasoning. Returns the rest of the reasoning text and the calls."""
        if self._calls is not None and self._calls.complete:
            return "", self._calls.calls
        return self.close(), []


class Answer:
    """Fold of all deltas of one generation; the streamed events and the final fields agree by construction.

    tools: the tool objects of the prompt. parse_calls: whether calls are looked for (`Conversation.tool_capable`).
    """

    def __init__(self, tools: Sequence[Any] = (), *, parse_calls: bool, longest_name: int = LONGEST_NAME) -> None:
        self._parser = ToolCallParser(tools, longest_name=longest_name) if parse_calls else None
        self._tail = ReasoningTail(ToolSchemas(tools), longest_name) if parse_calls else None
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls_in_reasoning: list[ParsedCall] = []

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    @property
    def content(self) -> str:
        return self._parser.content if self._parser else "".join(self._content)

    @property
    def calls(self) -> list[ParsedCall]:
        """Calls so far; their arguments are whole after `finish`."""
        return self._calls_in_reasoning or (self._parser.calls if self._parser else [])

    @property
    def truncated(self) -> bool:
        """Whether the answer ended inside a call."""
        return self._parser is not None and self._parser.truncated

    def feed(self, deltas: Sequence[Delta], *, in_reasoning: bool) -> list[AnswerEvent]:
        """Take the deltas of one commit. `in_reasoning`: the session is still in its reasoning block after them."""
        events: list[AnswerEvent] = []
        for channel, text in deltas:
            if channel is Channel.REASONING:
                events += self._reason(self._tail.feed(text) if self._tail else text)
        if not in_reasoning and self._tail:
            events += self._reason(self._tail.close())
        for channel, text in deltas:
            if channel is Channel.CONTENT:
                events += self._say(text)
        return events

    def finish(self, *, in_reasoning: bool) -> list[AnswerEvent]:
        """Generation has ended."""
        if self._parser is None or self._tail is None:
            return []
        if not in_reasoning:
            return [*self._parser.finish()]
        text, self._calls_in_reasoning = self._tail.finish()
        events: list[AnswerEvent] = self._reason(text)
        for index, call in enumerate(self._calls_in_reasoning):
            events += [CallStart(index, call.name), CallArguments(index, call.arguments), CallEnd(index)]
        return events

    def _reason(self, text: str) -> list[AnswerEvent]:
        self._reasoning.append(text)
        return [ReasoningDelta(text)] if text else []

    def _say(self, text: str) -> list[AnswerEvent]:
        if self._parser:
            return [*self._parser.feed(text)]
        self._content.append(text)
        return [ContentDelta(text)]
