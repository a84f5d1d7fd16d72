"""Running requests on the engine from an event loop: preparation off the loop, events as they come, one outcome."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import partial

from ..engine.engine import Engine
from ..engine.generation import Generation
from ..engine.request import Prompt, Request
from ..engine.results import GenerationResult
from ..errors import NInferError, Overloaded, RequestError
from ..frontend.answer import Answer, AnswerEvent
from ..frontend.output import Channel, FinishReason, StopString
from ..frontend.toolcalls import CallArguments, CallEnd, CallStart, ParsedCall
from .errors import ApiError, of_engine
from .journal import Journal
from .work import Defaults, Work, check_effort


@dataclass
class Outcome:
    """A finished answer: what every protocol puts into its own shape."""

    result: GenerationResult
    reasoning: str
    content: str
    calls: list[ParsedCall]
    dropped_calls: int = 0

    @property
    def hit_limit(self) -> bool:
        return self.result.finish_reason in (FinishReason.OUTPUT_LIMIT, FinishReason.CONTEXT_CAPACITY)

    @property
    def cancelled(self) -> bool:
        return self.result.finish_reason == FinishReason.CANCELLED

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the answer."""
        return self.result.stop_string.text if self.result.stop_string else None


@dataclass(eq=False)
class Running:
    """One request on the engine. Iterate for events; then `outcome` is there. `close` cancels what still runs."""

    work: Work
    number: int
    generation: Generation
    prompt_tokens: int
    answer: Answer
    serving: Serving
    entered: float
    progress: tuple[int, int] = (0, 0)  # prompt tokens done, in all
    outcome: Outcome | None = None
    _closed: bool = field(default=False, repr=False)

    async def events(self) -> AsyncIterator[list[AnswerEvent]]:
        """Batches of answer events. Raises ApiError when the request fails."""
        try:
            async for delta in self.generation:
                reasoning = delta.channel is Channel.REASONING
                yield self._wanted(self.answer.feed([delta], in_reasoning=reasoning))
        except (NInferError, RuntimeError, MemoryError) as error:
            raise of_engine(error) from error
        in_reasoning = self.generation.result.ended_in_reasoning
        events = self.answer.feed([], in_reasoning=in_reasoning)
        yield self._wanted(events + self.answer.finish(in_reasoning=in_reasoning))
        calls = self.answer.calls
        kept = calls[:1] if self.work.single_call else calls
        self.outcome = Outcome(
            self.generation.result, self.answer.reasoning, self.answer.content, kept, len(calls) - len(kept)
        )

    def _wanted(self, events: list[AnswerEvent]) -> list[AnswerEvent]:
        """Without the calls that a request for a single one does not get."""
        if not self.work.single_call:
            return events
        return [e for e in events if not isinstance(e, (CallStart, CallArguments, CallEnd)) or e.index == 0]

    async def whole(self) -> Outcome:
        """Everything at once."""
        try:
            async for _ in self.events():
                pass
        except ApiError as error:
            self.fail(error)
            raise
        finally:
            self.close()
        return self.outcome

    def fail(self, error: ApiError) -> None:
        """The request has ended with an error; said once."""
        if not self._closed:
            self._closed = True
            self.generation.close()
            self.serving.ended(self, error)

    def close(self) -> None:
        """The response is over, or its client is gone."""
        if self._closed:
            return
        self._closed = True
        if self.outcome is None:
            self.generation.close()
            self.serving.ended(self, ApiError(499, "client disconnected", code="client_disconnected"))
        else:
            self.serving.ended(self, None)


class Serving:
    """The engine, and the requests on it."""

    def __init__(self, engine: Engine, model_id: str, defaults: Defaults, journal: Journal):
        self.engine, self.model_id, self.defaults, self.journal = engine, model_id, defaults, journal
        self.running: set[Running] = set()
        self.draining = False
        self._numbers = 0

    @property
    def failed(self) -> bool:
        return self.engine.failure is not None

    def check_open(self) -> None:
        """Raises ApiError while the server takes no requests."""
        if self.draining:
            raise ApiError(503, "the server is shutting down", code="service_unavailable", type="server_error")
        if self.failed:
            message = f"the engine has failed: {self.engine.failure}"
            raise ApiError(503, message, code="service_unavailable", type="server_error")

    async def prepare(self, work: Work) -> Prompt:
        """Template and tokens, off the event loop. Raises ApiError."""
        check_effort(work.effort, self.engine.frontend.efforts, work.effort_param)
        call = partial(
            self.engine.prepare, work.conversation, thinking=work.thinking, effort=work.effort,
            preserve_thinking=work.preserve_thinking,
        )  # fmt: skip
        try:
            return await asyncio.get_running_loop().run_in_executor(None, call)
        except NInferError as error:
            raise of_engine(error) from error

    async def start(self, work: Work) -> Running:
        """Submit a request. Raises ApiError, which is logged as a rejection."""
        entered = time.monotonic()
        self._numbers += 1
        number = self._numbers
        try:
            self.check_open()
            if self.engine.is_full:
                raise of_engine(Overloaded("full"))
            return self._submit(work, number, await self.prepare(work), entered)
        except (RequestError, NInferError) as error:
            failure = of_engine(error)
            self.journal.rejected(number, work, failure)
            raise failure from error
        except ApiError as error:
            self.journal.rejected(number, work, error)
            raise

    def _submit(self, work: Work, number: int, prompt: Prompt, entered: float) -> Running:
        sampling = work.sampling
        if sampling.seed is None:  # an omitted seed is a new one each time
            sampling = replace(sampling, seed=secrets.randbits(64))
        request = Request(
            prompt, work.max_tokens, sampling, stop_strings=tuple(StopString(text) for text in work.stops)
        )
        generation = self.engine.submit(request)
        answer = Answer(work.conversation.tools, parse_calls=work.parse_calls, longest_name=work.longest_name)
        running = Running(work, number, generation, len(prompt.ids), answer, self, entered)
        self.running.add(running)
        self.journal.started(running)
        return running

    def ended(self, running: Running, error: ApiError | None) -> None:
        self.running.discard(running)
        self.journal.ended(running, error)

    def cancel_all(self) -> None:
        for running in list(self.running):
            running.generation.cancel()
