"""JSON text in and out without losing what the client or the model wrote.

Member order and number literals survive a round trip (`serving.md` 16.4 and 16.13): `2.50`, `-0`, `1e400` and
integers of any length come back digit for digit. Knows nothing of messages or tools.
"""

from __future__ import annotations

import json
import re
from typing import Any

NUMBER_LITERAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_MAX_PLAIN_DIGITS = 300  # beyond this Python may refuse int <-> str conversion
_MAX_DEPTH = 200  # containers inside each other; keeps `dumps` and templates clear of Python's recursion limit
_SURROGATE = re.compile("[\ud800-\udfff]")


class NumberLiteral(float):
    """A JSON number that Python would print differently; prints as it was written."""

    __slots__ = ("literal",)

    def __new__(cls, literal: str) -> NumberLiteral:
        self = super().__new__(cls, literal)
        self.literal = literal
        return self

    def __str__(self) -> str:
        return self.literal

    __repr__ = __str__


def _parse_int(literal: str) -> int | NumberLiteral:
    if len(literal) > _MAX_PLAIN_DIGITS or literal == "-0":
        return NumberLiteral(literal)
    return int(literal)


def _parse_float(literal: str) -> float:
    value = float(literal)
    return value if repr(value) == literal else NumberLiteral(literal)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_int=_parse_int, parse_float=_parse_float, parse_constant=_refuse_constant)


def loads(text: str) -> Any:
    """Parse strict JSON (no NaN, no Infinity). Raises ValueError, also for more than 200 nested containers."""
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    if text.count("[") + text.count("{") > _MAX_DEPTH:
        _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        containers = [item for item in level if isinstance(item, (dict, list))]
        if not containers:
            return
        level = [member for item in containers for member in (item.values() if isinstance(item, dict) else item)]
    raise ValueError("JSON is nested too deeply")


def quote(text: str) -> str:
    """A JSON string literal, non-ASCII kept; lone surrogates, which UTF-8 cannot carry, stay escaped."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def dumps(value: Any, *, compact: bool = False) -> str:
    """JSON text of `value`, non-ASCII kept. Separators are `, ` and `: `, or without spaces if `compact`.

    Equals `json.dumps(value, ensure_ascii=False)` for values without `NumberLiteral`s and lone surrogates.
    """
    comma, colon = (",", ":") if compact else (", ", ": ")

    def text_of(item: Any) -> str:
        if isinstance(item, str):
            return quote(item)
        if isinstance(item, NumberLiteral):
            return item.literal
        if isinstance(item, dict):
            members = (f"{quote(_key(key))}{colon}{text_of(member)}" for key, member in item.items())
            return "{" + comma.join(members) + "}"
        if isinstance(item, (list, tuple)):
            return "[" + comma.join(map(text_of, item)) + "]"
        return json.dumps(item)

    return text_of(value)


def _key(key: Any) -> str:
    return key if isinstance(key, str) else json.dumps(key)
