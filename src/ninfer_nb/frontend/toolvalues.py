"""Parameter values of generated tool calls, typed by the tool's JSON schema (`serving.md` 16.4 and 10 rule 3).

From the text between a parameter's tags to JSON text. Validates nothing: a value that fits no declared type stays a
string. Knows nothing of the call grammar.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from .jsontext import NUMBER_LITERAL, dumps, loads, quote
from .output import ASCII_WHITESPACE

Types = frozenset[str]

NO_TYPES: Types = frozenset()
STRING: Types = frozenset({"string"})

_KNOWN = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_BOOLEANS = {"true": "true", "True": "true", "false": "false", "False": "false"}
_MAX_REFERENCES = 16  # `$ref`s followed one after the other


class ToolSchemas:
    """Type sets of the parameters of the offered tools. Of two tools with one name the first counts."""

    def __init__(self, tools: Sequence[Any]) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, dict) else None
            if isinstance(function, dict) and isinstance(function.get("name"), str):
                parameters = function.get("parameters")
                self._parameters.setdefault(function["name"], parameters if isinstance(parameters, dict) else {})

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def types(self, function: str, parameter: str) -> Types:
        """Declared types of a parameter; empty for an unknown function, an undeclared parameter or no type."""
        root = self._parameters.get(function, {})
        properties = root.get("properties")
        if not isinstance(properties, dict) or parameter not in properties:
            return NO_TYPES
        return frozenset(_types(properties[parameter], root, set(), 0)) & _KNOWN


def _types(schema: Any, root: Mapping[str, Any], seen: set[str], references: int) -> Iterator[str]:
    """Type names of a schema; every reference is followed once, since the result is a union."""
    if not isinstance(schema, dict):
        return
    declared = schema.get("type")
    if isinstance(declared, (str, list)):
        yield from [declared] if isinstance(declared, str) else (name for name in declared if isinstance(name, str))
        return
    if "enum" in schema or "const" in schema:
        values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema.get("const")]
        yield from map(_type_of, values)
        return
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen and references < _MAX_REFERENCES:
        seen.add(reference)
        yield from _types(_resolve(reference, root), root, seen, references + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        members = schema.get(key)
        for member in members if isinstance(members, list) else ():
            yield from _types(member, root, seen, references)


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    kinds = ((bool, "boolean"), (str, "string"), (list, "array"), (dict, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "number")


def _resolve(reference: str, root: Mapping[str, Any]) -> Any:
    """Target of a local JSON pointer such as `#/$defs/T`, None if there is none."""
    if not reference.startswith("#"):
        return None
    target: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict) and step in target:
            target = target[step]
        elif isinstance(target, list) and step.isdecimal() and int(step) < len(target):
            target = target[int(step)]
        else:
            return None
    return target


def json_value(text: str, types: Types) -> str:
    """JSON text of a parameter value. `text` has lost one line break on either side."""
    trimmed = text.strip(ASCII_WHITESPACE)
    if not types:
        return _any_json(trimmed)
    if types == STRING:
        return quote(text)
    if types == {"string", "null"}:
        return "null" if text == "null" else quote(text)
    if "null" in types and trimmed in ("null", "None"):
        return "null"
    if "boolean" in types and trimmed in _BOOLEANS:
        return _BOOLEANS[trimmed]
    if types & {"integer", "number"} and NUMBER_LITERAL.fullmatch(trimmed):
        return trimmed
    if types & {"array", "object"} and trimmed[:1] in ("[", "{"):
        try:
            return dumps(loads(trimmed), compact=True)
        except ValueError:
            pass
    return quote(text if "string" in types else trimmed)


def _any_json(text: str) -> str:
    try:
        return dumps(loads(text), compact=True)
    except ValueError:
        return quote(text)
