"""Tool calls in generated text, recognised while it arrives (`serving.md` 10 and 16.14).

    <tool_call> <function=NAME> (<parameter=KEY> VALUE </parameter>)* </function> </tool_call>

A call is committed once its beginning leaves no doubt; from then on it is never taken back. Before that, anything
malformed is ordinary text. No result depends on how the text was cut. Knows nothing of tokens or protocols.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, NamedTuple, Protocol

from .jsontext import quote
from .output import ASCII_WHITESPACE
from .toolvalues import STRING, ToolSchemas, Types, json_value

CALL = "<tool_call>"
CALL_END = "</tool_call>"
FUNCTION = "<function="
FUNCTION_END = "</function>"
PARAMETER = "<parameter="
PARAMETER_END = "</parameter>"

LONGEST_NAME = 64

_NAME_CHARACTERS = string.ascii_letters + string.digits + "_-"
_CLOSERS = (PARAMETER_END, FUNCTION_END, CALL_END)
_ANY_CLOSER = re.compile("|".join(map(re.escape, _CLOSERS)))


class ContentDelta(NamedTuple):
    text: str


class CallStart(NamedTuple):
    """Call number `index`, counted from 0, belongs to the answer."""

    index: int
    name: str


class CallArguments(NamedTuple):
    """A fragment of the arguments; all fragments of one call join to a compact JSON object."""

    index: int
    fragment: str


class CallEnd(NamedTuple):
    index: int


Event = ContentDelta | CallStart | CallArguments | CallEnd


class ParsedCall(NamedTuple):
    """`arguments` is compact JSON text in the order in which the model wrote the parameters."""

    name: str
    arguments: str


def held_suffix(text: str, *tags: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of one of `tags`."""
    longest = max(map(len, tags)) - 1
    start = text.find("<", max(0, len(text) - longest))
    while start >= 0:
        if any(tag.startswith(text[start:]) and len(text) - start < len(tag) for tag in tags):
            return len(text) - start
        start = text.find("<", start + 1)
    return 0


class Broken(Exception):
    """The text left the grammar of a call."""


class CallHandler(Protocol):
    """What a scanner reports, in the order of the text."""

    def function(self, name: str) -> None: ...

    def parameter(self, key: str, on_own_line: bool) -> None: ...

    def value(self, text: str) -> None: ...

    def parameter_end(self) -> None: ...

    def function_end(self) -> None: ...


class CallScanner:
    """Reads one call, from after `<tool_call>` to the end of `</tool_call>`, in pieces of any size.

    Values are reported in pieces, without one line break at either end. `rest` is the text that has not been read yet.
    """

    def __init__(self, handler: CallHandler, longest_name: int = LONGEST_NAME) -> None:
        self.rest = ""
        self.closed = False
        self._handler = handler
        self._longest_name = longest_name
        self._state: Callable[[], bool] = self._open

    def feed(self, text: str) -> None:
        """Raises Broken after everything before the break has been reported."""
        self.rest += text
        while not self.closed and self._state():
            pass

    def _expect(self, **tags: str) -> str | None:
        """Skip white space, take the tag that follows and return its name; None while the text may become a tag."""
        self.rest = self.rest.lstrip(ASCII_WHITESPACE)
        for name, tag in tags.items():
            if self.rest.startswith(tag):
                self.rest = self.rest[len(tag) :]
                return name
        if any(tag.startswith(self.rest) for tag in tags.values()):
            return None
        raise Broken

    def _open(self) -> bool:
        if self._expect(function=FUNCTION) is None:
            return False
        self._state = self._name
        return True

    def _name(self) -> bool:
        end = len(self.rest) - len(self.rest.lstrip(_NAME_CHARACTERS))
        if end > self._longest_name:
            raise Broken
        if end == len(self.rest):
            return False
        if not end or self.rest[end] != ">":
            raise Broken
        name, self.rest = self.rest[:end], self.rest[end + 1 :]
        self._handler.function(name)
        self._state = self._body
        return True

    def _body(self) -> bool:
        tag = self._expect(parameter=PARAMETER, end=FUNCTION_END)
        if tag is None:
            return False
        if tag == "parameter":
            self._state = self._parameter
        else:
            self._handler.function_end()
            self._state = self._end
        return True

    def _parameter(self) -> bool:
        key, closed, rest = self.rest.partition(">")
        if "\n" in key or (closed and not key):
            raise Broken
        if not rest:
            return False
        self.rest = rest.removeprefix("\n")
        self._handler.parameter(key, rest[0] == "\n")
        self._state = self._value
        return True

    def _value(self) -> bool:
        closer = _ANY_CLOSER.search(self.rest)
        if closer is None:
            end = len(self.rest) - held_suffix(self.rest, *_CLOSERS)
            end -= self.rest.endswith("\n", 0, end)
            self._report_value(end)
            return False
        self._report_value(closer.start() - self.rest.endswith("\n", 0, closer.start()))
        if closer[0] != PARAMETER_END:
            raise Broken
        self.rest = self.rest.removeprefix("\n").removeprefix(PARAMETER_END)
        self._handler.parameter_end()
        self._state = self._body
        return True

    def _report_value(self, end: int) -> None:
        if end:
            self._handler.value(self.rest[:end])
            self.rest = self.rest[end:]

    def _end(self) -> bool:
        self.closed = self._expect(end=CALL_END) is not None
        return self.closed


class CallReader:
    """One call: its name, and its arguments as JSON fragments that wait in `fragments`.

    A string value becomes fragments as it arrives, any other value when its parameter closes. Of two parameters
    with one name the first stands.
    """

    def __init__(self, schemas: ToolSchemas, longest_name: int = LONGEST_NAME) -> None:
        self.name = ""
        self.committed = False
        self.fragments: list[str] = []
        self._schemas = schemas
        self._scanner = CallScanner(self, longest_name)
        self._keys: set[str] = set()
        self._key: str | None = None  # of the open parameter, unless it is ignored
        self._types: Types = STRING
        self._pieces: list[str] = []

    @property
    def declared(self) -> bool:
        """Whether the function is one of the offered tools."""
        return self.name in self._schemas

    @property
    def complete(self) -> bool:
        return self._scanner.closed

    @property
    def rest(self) -> str:
        """Text that was fed and not read: what follows a complete call."""
        return self._scanner.rest

    def feed(self, text: str) -> None:
        """Raises Broken when the text leaves the grammar; what came before it counts."""
        self._scanner.feed(text)

    def close(self) -> None:
        """End the arguments where they are: an open string is closed, an open value of another type dropped."""
        if self._key is not None and self._types == STRING:
            self.fragments.append('"')
        self._key = None
        self.fragments.append("}" if self._keys else "{}")

    def function(self, name: str) -> None:
        self.name = name

    def parameter(self, key: str, on_own_line: bool) -> None:
        self.committed |= self.declared and on_own_line
        self._key = None if key in self._keys else key
        self._types = self._schemas.types(self.name, key)
        self._pieces = []
        if self._types == STRING:
            self._member('"')

    def value(self, text: str) -> None:
        if self._types != STRING:
            self._pieces.append(text)
        elif self._key is not None:
            self.fragments.append(quote(text)[1:-1])

    def parameter_end(self) -> None:
        if self._types != STRING:
            self._member(json_value("".join(self._pieces), self._types))
        elif self._key is not None:
            self.fragments.append('"')
        self._key = None

    def function_end(self) -> None:
        self.committed |= self.declared

    def _member(self, value: str) -> None:
        if self._key is not None:
            self.fragments.append(("," if self._keys else "{") + quote(self._key) + ":" + value)
            self._keys.add(self._key)


class _Mode(Enum):
    CONTENT = auto()  # no call so far
    CALL = auto()
    BETWEEN = auto()  # after a complete call
    TEXT = auto()  # no further calls: everything is content
    DISCARD = auto()  # a committed call broke off: nothing counts any more


class ToolCallParser:
    """Splits the content channel of one answer into content and calls.

    tools: the tool objects of the prompt. A call of any other function counts once it is complete.
    """

    def __init__(self, tools: Sequence[Any], *, longest_name: int = LONGEST_NAME) -> None:
        self._schemas = ToolSchemas(tools)
        self._longest_name = longest_name
        self._mode = _Mode.CONTENT
        self._call = CallReader(self._schemas, longest_name)
        self._held = ""  # text that may belong to a call, the whole text of a call that is not committed included
        self._events: list[Event] = []
        self._content: list[str] = []
        self._names: list[str] = []
        self._arguments: list[list[str]] = []
        self._steps = {_Mode.CONTENT: self._in_content, _Mode.CALL: self._in_call, _Mode.BETWEEN: self._between}
        self.truncated = False  # generation ended inside a committed call

    @property
    def content(self) -> str:
        """All content so far."""
        return "".join(self._content)

    @property
    def calls(self) -> list[ParsedCall]:
        """Committed calls so far; their arguments are whole after `finish`."""
        return [ParsedCall(name, "".join(parts)) for name, parts in zip(self._names, self._arguments, strict=True)]

    def feed(self, text: str) -> list[Event]:
        """Take the next piece of content. Returns what is certain by now."""
        while text and self._mode in self._steps:
            text = self._steps[self._mode](text)
        if self._mode is _Mode.TEXT:
            self._emit_content(text)
        return self._take_events()

    def finish(self) -> list[Event]:
        """Generation has ended."""
        if self._mode is _Mode.CALL and self._call.committed:
            self.truncated = True
            self._end_call(_Mode.DISCARD)
        elif self._mode is not _Mode.BETWEEN or self._held.strip(ASCII_WHITESPACE):
            self._emit_content(self._held)
        self._held = ""
        return self._take_events()

    def _in_content(self, text: str) -> str:
        """Each step takes text, works with what was held before it, and returns what it leaves to the next step."""
        text = self._held + text
        before, found, after = text.partition(CALL)
        if found:
            content = before.rstrip(ASCII_WHITESPACE)
            self._emit_content(content)
            self._begin_call(text[len(content) : len(text) - len(after)])
            return after
        content = text[: len(text) - held_suffix(text, CALL)].rstrip(ASCII_WHITESPACE)
        self._emit_content(content)
        self._held = text[len(content) :]
        return ""

    def _between(self, text: str) -> str:
        text = self._held + text
        rest = text.lstrip(ASCII_WHITESPACE)
        if rest.startswith(CALL):
            after = rest.removeprefix(CALL)
            self._begin_call(text[: len(text) - len(after)])
            return after
        if CALL.startswith(rest):
            self._held = text
            return ""
        self._mode, self._held = _Mode.TEXT, ""
        return text

    def _begin_call(self, raw: str) -> None:
        self._mode, self._held = _Mode.CALL, raw
        self._call = CallReader(self._schemas, self._longest_name)

    def _in_call(self, text: str) -> str:
        call, was_committed = self._call, self._call.committed
        if not was_committed:
            self._held += text
        try:
            call.feed(text)
        except Broken:
            if call.committed:
                self._publish(was_committed)
                self._end_call(_Mode.DISCARD)
                return ""
            self._mode, text, self._held = _Mode.TEXT, self._held, ""
            return text
        call.committed |= call.complete
        self._publish(was_committed)
        if call.complete:
            self._end_call(_Mode.BETWEEN)
            return call.rest
        return ""

    def _publish(self, was_committed: bool) -> None:
        """Hand out what the committed call has gathered."""
        if not self._call.committed:
            return
        if not was_committed:
            self._held = ""
            self._events.append(CallStart(len(self._names), self._call.name))
            self._names.append(self._call.name)
            self._arguments.append([])
        fragment = "".join(self._call.fragments)
        self._call.fragments.clear()
        if fragment:
            self._arguments[-1].append(fragment)
            self._events.append(CallArguments(len(self._names) - 1, fragment))

    def _end_call(self, mode: _Mode) -> None:
        self._call.close()
        self._publish(was_committed=True)
        self._events.append(CallEnd(len(self._names) - 1))
        self._mode = mode

    def _emit_content(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._events.append(ContentDelta(text))

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events
