"""From sampled ids to text: one `OutputSession` per request (`runtime.md` 8.2, `cli.md` 8.2).

Incremental UTF-8, the split into reasoning and content, stop strings over token borders, stop tokens and the output
limit. Two phases: `preview` decides how many of the offered tokens count and leaves no trace, `commit_preview`
publishes. Knows nothing of models, sampling or tool calls.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from .tokenizer import Tokenizer

ASCII_WHITESPACE = " \t\n\v\f\r"
THINK_END = "</think>"


class FinishReason(StrEnum):
    OUTPUT_LIMIT = "output-limit"
    CONTEXT_CAPACITY = "context-capacity"
    STOP_TOKEN = "stop-token"
    STOP_STRING = "stop-string"
    CANCELLED = "cancelled"


class Channel(StrEnum):
    REASONING = "reasoning"
    CONTENT = "content"


class Delta(NamedTuple):
    """Newly published text of one channel; never empty."""

    channel: Channel
    text: str


@dataclass(frozen=True)
class StopString:
    """Ends generation when `text` appears on `channel`; the text itself is left out unless `include_in_output`."""

    text: str
    channel: Channel = Channel.CONTENT
    include_in_output: bool = False


@dataclass(frozen=True)
class Preview:
    """How many of the offered tokens belong to the output, and why generation ends there (None: it goes on)."""

    accepted: int
    finish: FinishReason | None


class _Pattern:
    """Knuth-Morris-Pratt automaton of one string: the state is the length of the prefix matched so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.fallback = [0] * (len(text) + 1)  # [n]: longest proper border of text[:n]
        length = 0
        for index in range(1, len(text)):
            length = self.step(length, text[index])
            self.fallback[index + 1] = length

    def step(self, state: int, char: str) -> int:
        while state and self.text[state] != char:
            state = self.fallback[state]
        return state + 1 if self.text[state] == char else 0

    def feed(self, state: int, text: str) -> tuple[int, int]:
        """Advance over `text`. Returns (state, end): `end` is the index after the first full match, or -1."""
        if not state and self.text[0] not in text:
            return 0, -1
        for index, char in enumerate(text):
            state = self.step(state, char)
            if state == len(self.text):
                return state, index + 1
        return state, -1


class _StopSet:
    """The stop strings of one channel, in order of declaration."""

    def __init__(self, stops: Sequence[StopString]) -> None:
        self.stops = stops
        self.patterns = [_Pattern(stop.text) for stop in stops]
        self.start = (0,) * len(stops)


class _State:
    """Everything that changes while tokens are decoded. Copied by `preview`, so that a preview leaves no trace."""

    __slots__ = (
        "content_held", "content_match", "in_reasoning", "published", "reasoning_held", "reasoning_match",
        "reasoning_tokens", "strip_leading", "think_held", "think_match", "utf8_held",
    )  # fmt: skip

    def __init__(self, in_reasoning: bool, reasoning_match: tuple[int, ...], content_match: tuple[int, ...]) -> None:
        self.in_reasoning = in_reasoning
        self.strip_leading = False
        self.utf8_held = b""  # an incomplete UTF-8 sequence
        self.think_held = ""  # a proper prefix of </think>
        self.think_match = 0
        self.reasoning_held = ""  # a proper prefix of a stop string
        self.reasoning_match = reasoning_match
        self.content_held = ""
        self.content_match = content_match
        self.reasoning_tokens = 0
        self.published: list[Delta] = []

    def copy(self) -> _State:
        other = object.__new__(_State)
        other.in_reasoning = self.in_reasoning
        other.strip_leading = self.strip_leading
        other.utf8_held = self.utf8_held
        other.think_held = self.think_held
        other.think_match = self.think_match
        other.reasoning_held = self.reasoning_held
        other.reasoning_match = self.reasoning_match
        other.content_held = self.content_held
        other.content_match = self.content_match
        other.reasoning_tokens = self.reasoning_tokens
        other.published = self.published.copy()
        return other


class OutputSession:
    """Decodes the output of one request.

    thinking: decoding starts in the reasoning channel (the prompt ended in `<think>`); `raw` overrides it.
    stop_tokens: ids that end generation; their own text is withheld unless `publish_stop_token` or `raw`.
    raw: one content channel, special tokens printed. preserve_special: special tokens printed, channels kept.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        thinking: bool,
        stop_tokens: Iterable[int] = (),
        stop_strings: Sequence[StopString] = (),
        raw: bool = False,
        preserve_special: bool = False,
        publish_stop_token: bool = False,
    ) -> None:
        unique = tuple(dict.fromkeys(stop_strings))
        if any(not stop.text for stop in unique):
            raise ValueError("a stop string is empty")
        self._tokenizer = tokenizer
        self._stop_tokens = frozenset(stop_tokens)
        self._show_special = raw or preserve_special
        self._publish_stop_token = raw or publish_stop_token
        self._reasoning_stops = _StopSet([stop for stop in unique if stop.channel is Channel.REASONING])
        self._content_stops = _StopSet([stop for stop in unique if stop.channel is Channel.CONTENT])
        self._think = _Pattern(THINK_END)
        self._state = _State(thinking and not raw, self._reasoning_stops.start, self._content_stops.start)
        self._pending: tuple[_State, tuple[int, ...], FinishReason | None, StopString | None] | None = None
        self._matched: StopString | None = None  # set while a token is decoded
        self.tokens: list[int] = []  # every accepted id, the stop token included
        self.finish: FinishReason | None = None
        self.stop_string: StopString | None = None  # the one that ended generation
        self._texts: dict[Channel, list[str]] = {channel: [] for channel in Channel}

    @property
    def in_reasoning(self) -> bool:
        return self._state.in_reasoning

    @property
    def reasoning_tokens(self) -> int:
        return self._state.reasoning_tokens

    @property
    def reasoning(self) -> str:
        """All reasoning text published so far."""
        return "".join(self._texts[Channel.REASONING])

    @property
    def content(self) -> str:
        """All content text published so far."""
        return "".join(self._texts[Channel.CONTENT])

    def preview(self, tokens: Sequence[int], remaining: int, limit_reason: FinishReason) -> Preview:
        """Decide how many of `tokens` (one round, at most `remaining`) the output takes.

        A finish before the end of the round rejects the later tokens. Raises RequestError for an id outside the token
        domain. Call `commit_preview` (or `discard_preview`) before the next preview.
        """
        self._check_idle()
        if not 1 <= len(tokens) <= remaining:
            raise ValueError(f"a round must offer 1 to {remaining} tokens, not {len(tokens)}")
        state = self._state.copy()
        for count, token in enumerate(tokens, 1):
            state, finish = self._accept(state, token)
            if finish is not None:
                return self._hold(state, tokens[:count], finish)
        if len(tokens) == remaining:
            self._flush(state)
            return self._hold(state, tokens, limit_reason)
        return self._hold(state, tokens, None)

    def preview_terminal(self, reason: FinishReason = FinishReason.CANCELLED) -> Preview:
        """End without a further token: held text is published."""
        self._check_idle()
        state = self._state.copy()
        self._flush(state)
        return self._hold(state, (), reason)

    def discard_preview(self) -> None:
        self._pending = None
        self._matched = None

    def commit_preview(self) -> list[Delta]:
        """Take over the outstanding preview. Returns at most one reasoning and one content delta, in this order."""
        if self._pending is None:
            raise RuntimeError("there is no preview to commit")
        state, tokens, self.finish, self.stop_string = self._pending
        self.discard_preview()
        self._state = state
        self.tokens.extend(tokens)
        deltas = []
        for channel in Channel:
            text = "".join(delta.text for delta in state.published if delta.channel is channel)
            if text:
                self._texts[channel].append(text)
                deltas.append(Delta(channel, text))
        state.published.clear()
        return deltas

    def _check_idle(self) -> None:
        if self._pending is not None:
            raise RuntimeError("the previous preview was not committed")
        if self.finish is not None:
            raise RuntimeError(f"the output has already finished: {self.finish}")

    def _hold(self, state: _State, tokens: Sequence[int], finish: FinishReason | None) -> Preview:
        self._pending = (state, tuple(tokens), finish, self._matched)
        return Preview(len(tokens), finish)

    def _accept(self, state: _State, token: int) -> tuple[_State, FinishReason | None]:
        """Decode one token into `state`. A stop token's text takes part in stop string matching, then is withdrawn."""
        if state.in_reasoning:
            state.reasoning_tokens += 1
        data = self._tokenizer.token_bytes(token)
        if not self._show_special and self._tokenizer.is_special(token):
            data = b""
        if token not in self._stop_tokens:
            return state, FinishReason.STOP_STRING if self._decode(state, data) else None
        before = state.copy()
        if self._decode(state, data):
            return state, FinishReason.STOP_STRING
        if not self._publish_stop_token:
            state = before
        self._flush(state)
        return state, FinishReason.STOP_TOKEN

    def _decode(self, state: _State, data: bytes) -> bool:
        """Returns whether a stop string was completed; then everything still held has been dropped."""
        text, used = utf_8_decode(state.utf8_held + data, "replace", False)
        state.utf8_held = (state.utf8_held + data)[used:]
        if not text:
            return False
        return self._feed_reasoning(state, text) if state.in_reasoning else self._feed_content(state, text)

    def _feed_reasoning(self, state: _State, text: str) -> bool:
        state.think_match, end = self._think.feed(state.think_match, text)
        combined = state.think_held + text
        if end < 0:
            split = len(combined) - state.think_match
            state.think_held = combined[split:]
            return self._publish_reasoning(state, combined[:split])
        end += len(state.think_held)
        state.think_held = ""
        if self._publish_reasoning(state, combined[: end - len(THINK_END)]):
            return True
        self._close_reasoning(state)
        state.strip_leading = True
        return self._feed_content(state, combined[end:])

    def _close_reasoning(self, state: _State) -> None:
        if state.reasoning_held:
            state.published.append(Delta(Channel.REASONING, state.reasoning_held))
            state.reasoning_held = ""
        state.in_reasoning = False

    def _feed_content(self, state: _State, text: str) -> bool:
        if state.strip_leading:
            text = text.lstrip(ASCII_WHITESPACE)
            state.strip_leading = not text
        text, state.content_held, state.content_match, matched = self._match(
            self._content_stops, state.content_held, state.content_match, text
        )
        if text:
            state.published.append(Delta(Channel.CONTENT, text))
        return matched

    def _publish_reasoning(self, state: _State, text: str) -> bool:
        text, state.reasoning_held, state.reasoning_match, matched = self._match(
            self._reasoning_stops, state.reasoning_held, state.reasoning_match, text
        )
        if text:
            state.published.append(Delta(Channel.REASONING, text))
        return matched

    def _match(
        self, stops: _StopSet, held: str, match: tuple[int, ...], text: str
    ) -> tuple[str, str, tuple[int, ...], bool]:
        """Returns (text to publish, text to hold, automaton states, whether a stop string was completed)."""
        if not stops.stops:
            return text, "", match, False
        combined = held + text
        advanced = []
        best: tuple[int, StopString] | None = None
        for stop, pattern, start in zip(stops.stops, stops.patterns, match, strict=True):
            state, end = pattern.feed(start, text)
            advanced.append(state)
            begin = len(held) + end - len(stop.text)
            if end >= 0 and (best is None or begin < best[0]):
                best = begin, stop
        if best is not None:
            begin, self._matched = best
            cut = begin + len(self._matched.text) if self._matched.include_in_output else begin
            return combined[:cut], "", match, True
        split = len(combined) - max(advanced)
        return combined[:split], combined[split:], tuple(advanced), False

    def _flush(self, state: _State) -> None:
        """Publish everything held, as ordinary text; an incomplete UTF-8 tail becomes one U+FFFD."""
        tail = "\ufffd" if state.utf8_held else ""
        state.utf8_held = b""
        if state.in_reasoning:
            text, channel = state.reasoning_held + state.think_held + tail, Channel.REASONING
        else:
            text, channel = state.content_held + tail, Channel.CONTENT
        state.reasoning_held = state.think_held = state.content_held = ""
        if text:
            state.published.append(Delta(channel, text))
