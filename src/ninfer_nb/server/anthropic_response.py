"""Anthropic Messages answers, whole and streamed (`serving.md` 7.2, 7.3, 16.2, 16.9)."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

from ..frontend.answer import AnswerEvent, ReasoningDelta
from ..frontend.jsontext import loads
from ..frontend.toolcalls import CallArguments, CallEnd, CallStart, ContentDelta
from .chat_response import call_id
from .errors import ApiError
from .serving import Outcome, Running
from .sse import event_frame

PING = event_frame("ping", {"type": "ping"})


def stop_fields(outcome: Outcome) -> dict[str, Any]:
    """`stop_reason` and `stop_sequence`."""
    if outcome.calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    if outcome.hit_limit:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if outcome.stop_string is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": outcome.stop_string}
    return {"stop_reason": "end_turn", "stop_sequence": None}


def usage(prompt: int, reused: int, generated: int) -> dict[str, int]:
    return {
        "input_tokens": prompt - reused,
        "cache_read_input_tokens": reused,
        "cache_creation_input_tokens": 0,
        "output_tokens": generated,
    }


def message(outcome: Outcome, model: str) -> dict[str, Any]:
    """The message object of a whole answer."""
    content: list[dict[str, Any]] = []
    if outcome.reasoning:
        content.append({"type": "thinking", "thinking": outcome.reasoning, "signature": ""})
    if outcome.content:
        content.append({"type": "text", "text": outcome.content})
    for call in outcome.calls:
        content.append({"type": "tool_use", "id": call_id(), "name": call.name, "input": loads(call.arguments)})
    result = outcome.result
    return {
        "id": f"msg_{secrets.token_hex(8)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content or [{"type": "text", "text": ""}],
        **stop_fields(outcome),
        "usage": usage(result.prompt_tokens, result.reused_prompt_tokens, len(result.token_ids)),
    }


class AnthropicStream:
    """Frames of one streamed answer; blocks follow each other and never overlap."""

    def __init__(self, running: Running, model: str):
        self._running, self._model = running, model
        self._index = -1  # of the open or last block
        self._open: str | None = None

    async def frames(self) -> AsyncIterator[bytes]:
        """`message_start`, blocks, `message_delta`, `message_stop`; or an `error` event that ends the stream."""
        running = self._running
        try:
            yield self._start()
            async for events in running.events():
                for event in events:
                    for frame in self._frames_of(event):
                        yield frame
            if self._index < 0:
                yield self._begin("text", {"type": "text", "text": ""})
            if self._open:
                yield self._end()
            outcome, result = running.outcome, running.outcome.result
            counted = usage(result.prompt_tokens, result.reused_prompt_tokens, len(result.token_ids))
            yield event_frame(
                "message_delta", {"type": "message_delta", "delta": stop_fields(outcome), "usage": counted}
            )
            yield event_frame("message_stop", {"type": "message_stop"})
        except ApiError as error:
            running.fail(error)
            yield event_frame("error", error.anthropic())
        finally:
            running.close()

    def _start(self) -> bytes:
        empty = {
            "id": f"msg_{secrets.token_hex(8)}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage(self._running.prompt_tokens, 0, 0),
        }
        return event_frame("message_start", {"type": "message_start", "message": empty})

    def _frames_of(self, event: AnswerEvent) -> list[bytes]:
        match event:
            case ReasoningDelta(text):
                start = {"type": "thinking", "thinking": "", "signature": ""}
                return [*self._ensure("thinking", start), self._delta({"type": "thinking_delta", "thinking": text})]
            case ContentDelta(text):
                start = {"type": "text", "text": ""}
                return [*self._ensure("text", start), self._delta({"type": "text_delta", "text": text})]
            case CallStart(_, name):
                block = {"type": "tool_use", "id": call_id(), "name": name, "input": {}}
                return [*([self._end()] if self._open else []), self._begin("tool_use", block)]
            case CallArguments(_, fragment):
                return [self._delta({"type": "input_json_delta", "partial_json": fragment})]
            case CallEnd():
                return [self._end()]
        return []

    def _ensure(self, kind: str, start: dict[str, Any]) -> list[bytes]:
        if self._open == kind:
            return []
        return [*([self._end()] if self._open else []), self._begin(kind, start)]

    def _begin(self, kind: str, block: dict[str, Any]) -> bytes:
        self._open, self._index = kind, self._index + 1
        payload = {"type": "content_block_start", "index": self._index, "content_block": block}
        return event_frame("content_block_start", payload)

    def _delta(self, delta: dict[str, Any]) -> bytes:
        payload = {"type": "content_block_delta", "index": self._index, "delta": delta}
        return event_frame("content_block_delta", payload)

    def _end(self) -> bytes:
        self._open = None
        return event_frame("content_block_stop", {"type": "content_block_stop", "index": self._index})
