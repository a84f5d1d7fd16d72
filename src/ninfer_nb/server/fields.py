"""Strict reading of JSON bodies: every wrong type is a 400 that names its field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..frontend.jsontext import NumberLiteral, loads
from .errors import invalid

INT32_MAX = 2**31 - 1


def parse_body(data: bytes) -> dict[str, Any]:
    """The object in a request body. Raises ApiError."""
    try:
        body = loads(data.decode("utf-8"))
    except ValueError:
        raise invalid("request body is not valid JSON") from None
    if not isinstance(body, dict):
        raise invalid("request body must be a JSON object")
    return body


def string(body: Mapping[str, Any], key: str, name: str | None = None) -> str | None:
    """A string, or None where it is absent or null."""
    value = body.get(key)
    if value is not None and not isinstance(value, str):
        raise invalid(f"{name or key} must be a string", name or key)
    return value


def required_string(body: Mapping[str, Any], key: str, name: str | None = None) -> str:
    """A string that is not empty."""
    value = string(body, key, name)
    if not value:
        raise invalid(f"{name or key} must be a non-empty string", name or key)
    return value


def boolean(body: Mapping[str, Any], key: str, name: str | None = None) -> bool | None:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{name or key} must be a boolean", name or key)
    return value


def integer(body: Mapping[str, Any], key: str, name: str | None = None) -> int | None:
    """A JSON integer of any size, or None."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int):
        if isinstance(value, NumberLiteral) and value.literal.lstrip("-").isdigit():
            raise invalid(f"{name or key} is out of range", name or key)
        raise invalid(f"{name or key} must be an integer", name or key)
    return value


def number(body: Mapping[str, Any], key: str, low: float, high: float) -> float | None:
    """A finite number in [low, high], or None."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise invalid(f"{key} must be a number", key)
    if not low <= value <= high:
        raise invalid(f"{key} must be in [{low:g},{high:g}]", key)
    return float(value)


def top_k(body: Mapping[str, Any]) -> int | None:
    value = integer(body, "top_k")
    if value is not None and value < 0:
        raise invalid("top_k must be nonnegative", "top_k")
    return None if value is None else min(value, INT32_MAX)


def seed(body: Mapping[str, Any]) -> int | None:
    value = integer(body, "seed")
    if value is not None and not 0 <= value < 2**64:
        raise invalid("seed must be in [0,18446744073709551615]", "seed")
    return value


def mapping(body: Mapping[str, Any], key: str, name: str | None = None) -> Mapping[str, Any] | None:
    value = body.get(key)
    if value is not None and not isinstance(value, dict):
        raise invalid(f"{name or key} must be an object", name or key)
    return value


def array(body: Mapping[str, Any], key: str, name: str | None = None) -> list[Any] | None:
    value = body.get(key)
    if value is not None and not isinstance(value, list):
        raise invalid(f"{name or key} must be an array", name or key)
    return value


def strings(value: Any, name: str) -> list[str]:
    """A list of strings; a single one stands for itself."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise invalid(f"{name} must be a string or an array of strings", name)
    return values
