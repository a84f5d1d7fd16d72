"""One request from prompt to last token: prefill chunks, then decode rounds, each round committed to the output."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..frontend.frontend import Frontend
from ..frontend.output import Delta, FinishReason
from ..ops import PAGE, Progress
from .options import Limits
from .request import Request, output_limit
from .results import GenerationResult
from .rounds import Rounds, Row
from .sampling import SamplingParams

LANE = 0


class Generation:
    """Iterate for text deltas; `result` is complete when the iteration ends.

    `cancel` may be called from any thread or from a signal handler: the iteration ends at the next token or chunk.
    """

    def __init__(
        self,
        request: Request,
        sampling: SamplingParams,
        rounds: Rounds,
        limits: Limits,
        frontend: Frontend,
        progress: Progress | None = None,
    ):
        ids = request.prompt.ids
        self._limit, by_request = output_limit(len(ids), request.max_new_tokens, limits.max_context)
        self._limit_reason = FinishReason.OUTPUT_LIMIT if by_request else FinishReason.CONTEXT_CAPACITY
        self._request, self._rounds, self._chunk, self._progress = request, rounds, limits.prefill_chunk, progress
        self._session = frontend.output_session(
            thinking=request.prompt.thinking,
            stop_token_ids=request.stop_token_ids,
            stop_strings=request.stop_strings,
            model_stops=not request.ignore_eos,
            raw=request.raw_output,
        )
        self._cancelled = False
        self.result = GenerationResult(sampling, prompt_tokens=len(ids))
        self.result.timings.prepare = request.prompt.prepare_seconds
        self._deltas = self._run()

    def cancel(self) -> None:
        self._cancelled = True

    def close(self) -> None:
        """Abandon the iteration: nothing more is executed."""
        self._deltas.close()

    def __iter__(self) -> Iterator[Delta]:
        return self._deltas

    def _run(self) -> Iterator[Delta]:
        timings, started = self.result.timings, time.perf_counter()
        self._rounds.claim(self)
        try:
            token = self._prefill()
            timings.prefill = time.perf_counter() - started
            while token is not None:
                if not self.result.token_ids:
                    timings.first_token = time.perf_counter() - started + timings.prepare
                yield from self._commit(token)
                if self._session.finish is not None:
                    break
                token = self._decode()
            if self._session.finish is None:
                self._session.preview_terminal(FinishReason.CANCELLED)
                yield from self._session.commit_preview()
        finally:
            timings.total = time.perf_counter() - started + timings.prepare
            self._finish()

    def _prefill(self) -> int | None:
        """Execute the prompt in chunks; the first token, or None when cancelled before it."""
        ids, rounds = self._request.prompt.ids, self._rounds
        needed = len(ids) + self._limit - 1
        rounds.begin(LANE, range(-(-needed // PAGE)))
        hidden = None
        for base in range(0, len(ids), self._chunk):
            if self._cancelled:
                return None
            hidden = rounds.prefill(LANE, ids[base : base + self._chunk], base)
            if self._progress:
                self._progress("text", min(base + self._chunk, len(ids)), len(ids))
        return rounds.first_token(hidden, LANE, len(ids), self.result.sampling)

    def _decode(self) -> int | None:
        if self._cancelled:
            return None
        started = time.perf_counter()
        produced = self.result.token_ids
        position = self.result.prompt_tokens + len(produced) - 1
        (token,) = self._rounds.decode([Row(LANE, produced[-1], position, self.result.sampling)])
        self.result.timings.decode += time.perf_counter() - started
        return token

    def _commit(self, token: int) -> Iterator[Delta]:
        self._session.preview([token], self._limit - len(self.result.token_ids), self._limit_reason)
        self.result.token_ids.append(token)
        yield from self._session.commit_preview()

    def _finish(self) -> None:
        result, session = self.result, self._session
        result.content, result.reasoning = session.content, session.reasoning
        result.reasoning_tokens = session.reasoning_tokens
        if session.finish is not None:
            result.finish_reason = str(session.finish)
        self._rounds.release()
