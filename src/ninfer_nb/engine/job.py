"""One submitted request on its way through the engine (`runtime.md` 8)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from ..errors import ContextLengthExceeded
from ..frontend.output import Delta, FinishReason, OutputSession
from ..model.state import pages_for
from .pages import AccountingError
from .results import GenerationResult
from .reuse import Wish
from .sampling import SamplingParams
from .sequence import Tokens


@dataclass(frozen=True)
class Vector:
    """What an active request holds, component by component; components never stand in for each other."""

    lanes: int
    main_pages: int
    draft_pages: int

    def __add__(self, other: Vector) -> Vector:
        return Vector(
            self.lanes + other.lanes, self.main_pages + other.main_pages, self.draft_pages + other.draft_pages
        )

    def fits(self, capacity: Vector) -> bool:
        return (
            self.lanes <= capacity.lanes
            and self.main_pages <= capacity.main_pages
            and self.draft_pages <= capacity.draft_pages
        )


NOTHING = Vector(0, 0, 0)


@dataclass(frozen=True)
class Budget:
    """How much a request may produce, and the pages for it (`runtime.md` 8.1)."""

    tokens: int
    limit_reason: FinishReason
    vector: Vector

    @classmethod
    def of(cls, prompt: int, requested: int, max_context: int, window: int) -> Budget:
        """Raises ContextLengthExceeded for a prompt that does not fit."""
        if prompt > max_context:
            raise ContextLengthExceeded(
                f"prepared prompt has {prompt} tokens, exceeding Engine max_context {max_context}"
            )
        most = max_context - prompt + 1
        tokens = min(requested, most)
        reserved = prompt + tokens - 1
        draft = pages_for(min(max_context, reserved + window - 1)) if window else 0
        reason = FinishReason.OUTPUT_LIMIT if requested <= most else FinishReason.CONTEXT_CAPACITY
        return cls(tokens, reason, Vector(1, pages_for(reserved), draft))


class State(Enum):
    WAITING = auto()
    PREFILL = auto()
    ACTIVE = auto()
    DONE = auto()


@dataclass(eq=False)
class Job:
    """Owned by the engine's thread, except `cancelled`, which anyone may set.

    `emit` and `done` are called on the engine's thread and must return at once. `done` gets the error, or None.
    """

    id: int
    prompt: Tokens
    budget: Budget
    sampling: SamplingParams
    session: OutputSession
    result: GenerationResult
    emit: Callable[[list[Delta]], None]
    done: Callable[[Exception | None], None]
    wish: Wish = field(default_factory=Wish)
    deadline: float = float("inf")
    submitted: float = field(default_factory=time.monotonic)
    state: State = State.WAITING
    cancelled: bool = False
    produced: int = 0
    work: int = 0  # service quanta left (`runtime.md` 9.1)
    on_prefill: Callable[[int, int], None] | None = None  # tokens done, in all

    @property
    def remaining(self) -> int:
        """Tokens that may still be produced."""
        return self.budget.tokens - self.produced

    def spend(self) -> None:
        self.work -= 1
        if self.work < 0:
            raise AccountingError(f"request {self.id} did more work than planned")

    def finish(self, error: Exception | None = None) -> None:
        """Exactly once: the result is complete, or `error` says why there is none."""
        if self.state is State.DONE:
            raise AccountingError(f"request {self.id} ended twice")
        self.state = State.DONE
        session, result = self.session, self.result
        result.content, result.reasoning = session.content, session.reasoning
        result.reasoning_tokens = session.reasoning_tokens
        if session.finish is not None:
            result.finish_reason = str(session.finish)
        result.stop_string = session.stop_string
        result.ended_in_reasoning = session.in_reasoning
        result.timings.total = time.monotonic() - self.submitted + result.timings.prepare
        self.done(error)
