"""OpenAI Chat Completions answers, whole and streamed (`serving.md` 5.3)."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from ..frontend.answer import AnswerEvent, ReasoningDelta
from ..frontend.toolcalls import CallArguments, CallStart, ContentDelta
from .errors import ApiError
from .serving import Outcome, Running
from .sse import data_frame


def usage(outcome: Outcome) -> dict[str, Any]:
    """Token counts of one answer."""
    result = outcome.result
    prompt, generated = result.prompt_tokens, len(result.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": result.reused_prompt_tokens},
        "completion_tokens_details": {"reasoning_tokens": result.reasoning_tokens},
    }


def finish_reason(outcome: Outcome) -> str:
    if outcome.calls:
        return "tool_calls"
    return "length" if outcome.hit_limit else "stop"


def completion(outcome: Outcome, model: str) -> dict[str, Any]:
    """The `chat.completion` object."""
    message: dict[str, Any] = {"role": "assistant", "content": outcome.content}
    if outcome.reasoning:
        message["reasoning_content"] = outcome.reasoning
    if outcome.calls:
        message["content"] = outcome.content or None
        message["tool_calls"] = [
            {"id": call_id(), "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in outcome.calls
        ]
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason(outcome)}],
        "usage": usage(outcome),
    }


def call_id() -> str:
    return f"call_{secrets.token_hex(8)}"


class ChatStream:
    """Frames of one streamed answer."""

    def __init__(self, running: Running, model: str, with_usage: bool):
        self._running, self._with_usage = running, with_usage
        self._base = {
            "id": f"chatcmpl-{secrets.token_hex(8)}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": model,
        }

    async def frames(self) -> AsyncIterator[bytes]:
        """Role, deltas, final chunk, usage, `[DONE]`; an error ends the stream without it."""
        running = self._running
        try:
            yield self._chunk({"role": "assistant", "content": ""})
            async for events in running.events():
                for event in events:
                    delta = self._delta(event)
                    if delta is not None:
                        yield self._chunk(delta)
            yield self._chunk({}, finish_reason(running.outcome))
            if self._with_usage:
                yield data_frame({**self._base, "choices": [], "usage": usage(running.outcome)})
            yield b"data: [DONE]\n\n"
        except ApiError as error:
            running.fail(error)
            yield data_frame(error.openai())
        finally:
            running.close()

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        chunk = {**self._base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
        if self._with_usage:
            chunk["usage"] = None
        return data_frame(chunk)

    @staticmethod
    def _delta(event: AnswerEvent) -> dict[str, Any] | None:
        match event:
            case ReasoningDelta(text):
                return {"reasoning_content": text}
            case ContentDelta(text):
                return {"content": text}
            case CallStart(index, name):
                function = {"name": name, "arguments": ""}
                return {"tool_calls": [{"index": index, "id": call_id(), "type": "function", "function": function}]}
            case CallArguments(index, fragment):
                return {"tool_calls": [{"index": index, "function": {"arguments": fragment}}]}
        return None
