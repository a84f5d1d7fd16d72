"""Strict values of flags (`cli.md` 1.4 and 1.6): the whole text is consumed, and a bad one is named by its flag.

Each function returns a parser for one flag. `option` makes the Typer option that uses it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import typer

from ..errors import NInferError

_DIGITS = re.compile(r"[0-9]{1,40}\Z")
_DECIMAL = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?\Z")

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
INT32_MAX = 2**31 - 1

Parser = Callable[[str], Any]


class BadValue(NInferError):
    """A value that its flag does not accept. Not a ValueError, which Typer would put into words of its own."""


def option(flag: str, parser: Callable[[str], Parser], metavar: str, help: str) -> Any:
    """`parser(label)` gives the parser of the flag; the label is its name without dashes."""
    parse = parser(flag.lstrip("-"))
    return typer.Option(
        flag,
        parser=lambda value: parse(value) if isinstance(value, str) else value,  # a default is a value already
        metavar=metavar,
        help=help,
        show_default=False,
    )


def switch(flag: str, help: str) -> Any:
    """A flag without a value."""
    return typer.Option(flag, help=help, show_default=False)


def unsigned(low: int = 0, high: int = U32_MAX, message: str | None = None) -> Callable[[str], Parser]:
    """Base-10 digits in `[low, high]`; `message` is for a number that is out of range."""

    def labelled(label: str) -> Parser:
        def parse(text: str) -> int:
            if not _DIGITS.match(text):
                raise BadValue(f"invalid {label}: {text}")
            if not low <= int(text) <= high:
                raise BadValue(message or f"invalid {label}: {text}")
            return int(text)

        return parse

    return labelled


def decimal(low: float, high: float) -> Callable[[str], Parser]:
    """A finite decimal in `[low, high]`."""

    def labelled(label: str) -> Parser:
        def parse(text: str) -> float:
            number = float(text) if _DECIMAL.match(text) else math.nan
            if not low <= number <= high:
                raise BadValue(f"invalid {label}: {text}")
            return number

        return parse

    return labelled


def word(*words: str, what: str | None = None) -> Callable[[str], Parser]:
    """One of a few words; `what` names the thing in the error where the flag does not."""

    def labelled(label: str) -> Parser:
        def parse(text: str) -> str:
            if text not in words:
                raise BadValue(f"invalid {what or label}: {text}")
            return text

        return parse

    return labelled


def word_or_unsigned(*words: str, low: int = 0) -> Callable[[str], Parser]:
    """One of a few words, or a number: `auto|cpu|N`."""

    def labelled(label: str) -> Parser:
        number = unsigned(low)(label)
        return lambda text: text if text in words else number(text)

    return labelled


def nonempty(label: str) -> Parser:
    """A string that must not be empty."""

    def parse(text: str) -> str:
        if not text:
            raise BadValue(f"--{label} must not be empty")
        return text

    return parse
