"""A deterministic world for the real scheduler: a scripted model, a fake clock, random arrivals, cancels and faults.

The scripted model is exact: its next token is a function of all tokens before it, its recurrent state is a running
hash, and its caches are arrays of token ids behind real block tables. So every wrong page, stale state, lost fold or
misplaced checkpoint changes a token or trips an assertion.

python tests/support/simulation.py --steps 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ninfer_nb.engine.job import Budget, Job, State
from ninfer_nb.engine.program import Chunk, Commit, Outcome, Row
from ninfer_nb.engine.results import GenerationResult
from ninfer_nb.engine.reuse import Wish
from ninfer_nb.engine.sampling import SamplingParams
from ninfer_nb.engine.scheduler import Scheduler, Settings
from ninfer_nb.engine.sequence import Checkpoint, CheckpointKind, Tokens
from ninfer_nb.errors import NonFiniteLogits, QueueTimeout, Unavailable
from ninfer_nb.frontend.output import FinishReason, Preview

VOCABULARY = 50
PAGE = 64
GREEDY = SamplingParams(0.0, 1.0, 0)


def absorb(state: int, token: int) -> int:
    return (state * 1000003 + token + 1) & 0xFFFFFFFF


def next_token(state: int) -> int:
    return ((state * 2654435761) >> 13) % VOCABULARY


def continuation(prompt: Sequence[int], count: int, stops: frozenset[int]) -> list[int]:
    """What the scripted model says after `prompt`."""
    state, out = 0, []
    for token in prompt:
        state = absorb(state, token)
    while len(out) < count:
        out.append(next_token(state))
        state = absorb(state, out[-1])
        if out[-1] in stops:
            break
    return out


class FaultError(RuntimeError):
    """A scripted failure of a unit."""


@dataclass
class Faults:
    """Chances of what can go wrong in a unit."""

    prefill: float = 0.0
    not_finite: float = 0.0
    decode: float = 0.0


@dataclass
class Lane:
    ids: list[int] = field(default_factory=list)  # executed tokens
    state: int = 0
    tail: tuple[int, int] = (0, 0)  # (length, state) that a hidden column stands for
    kept: tuple[list[int], int, tuple[int, int]] = field(default_factory=lambda: ([], 0, (0, 0)))


class ScriptedProgram:
    """Implements `Program` exactly, and asserts that it is asked for sensible things."""

    def __init__(self, rng: random.Random, lanes: int, pages: Sequence[int], window: int, faults: Faults):
        self.rng, self.window, self.faults = rng, window, faults
        self.lanes = [Lane() for _ in range(lanes)]
        self.tables = [[[] for _ in range(lanes)] for _ in pages]
        self.caches = [[[-1] * PAGE for _ in range(count)] for count in pages]
        self.pending: dict[int, list[tuple[int, int]]] = {}  # lane -> (token executed, state after it)
        self.decoded: list[tuple[int, ...]] = []  # lanes of each round
        self.last_chunk: list[tuple[int, int]] = []
        self.lost = False

    def publish(self, pool: int, lane: int, first: int, page_ids: Sequence[int]) -> None:
        table = self.tables[pool][lane]
        del table[first:]
        table += page_ids

    def _write(self, pool: int, lane: int, position: int, token: int) -> None:
        self.caches[pool][self.tables[pool][lane][position // PAGE]][position % PAGE] = token

    def _read(self, pool: int, lane: int, position: int) -> int:
        return self.caches[pool][self.tables[pool][lane][position // PAGE]][position % PAGE]

    def _check_cache(self, lane: int, following: int | None) -> None:
        """Some positions of both caches hold what they should."""
        ids = self.lanes[lane].ids
        for position in {0, len(ids) - 1, *(self.rng.randrange(len(ids)) for _ in range(2))}:
            assert self._read(0, lane, position) == ids[position], "main cache"
            if self.window and following is not None:
                after = ids[position + 1] if position + 1 < len(ids) else following
                assert self._read(1, lane, position) == after, "draft cache"

    def reset(self, lane: int) -> None:
        self.lanes[lane].ids, self.lanes[lane].state = [], 0

    def start(self, lane: int) -> None:
        pass

    def capture(self, lane: int, chunk_offset: int) -> None:
        it = self.lanes[lane]
        it.kept = (list(it.ids), it.state, self.last_chunk[chunk_offset])

    def restore(self, lane: int, tail: bool) -> None:
        it = self.lanes[lane]
        it.ids, it.state, it.tail = list(it.kept[0]), it.kept[1], it.kept[2]

    def _execute(self, lane: int, token: int) -> None:
        it = self.lanes[lane]
        self._write(0, lane, len(it.ids), token)
        it.ids.append(token)
        it.state = absorb(it.state, token)

    def prefill(self, chunk: Chunk) -> Outcome | None:
        it = self.lanes[chunk.lane]
        assert len(it.ids) == chunk.base, "a prefill begins where the state is"
        self.last_chunk = []
        for token in chunk.ids:
            self._execute(chunk.lane, token)
            self.last_chunk.append((len(it.ids), it.state))
            if self.rng.random() < self.faults.prefill / len(chunk.ids):
                raise FaultError("prefill")
        following = chunk.following
        if following is None:
            it.tail = self.last_chunk[-1]
            return self._first(chunk)
        self._align(chunk.lane, chunk.base, [*chunk.ids[1:], following])
        return None

    def _align(self, lane: int, base: int, following: Sequence[int]) -> None:
        if self.window:
            for i, token in enumerate(following):
                self._write(1, lane, base + i, token)

    def _first(self, chunk: Chunk) -> Outcome:
        if self.rng.random() < self.faults.not_finite:
            return Outcome(())
        it = self.lanes[chunk.lane]
        assert it.tail == (chunk.prompt_tokens, it.state), "the tail is the prompt's last column"
        token = next_token(it.state)
        self._align(chunk.lane, chunk.base, [*chunk.ids[1:], token] if chunk.ids else [])
        if not chunk.ids and self.window:
            self._write(1, chunk.lane, chunk.prompt_tokens - 1, token)
        self._check_cache(chunk.lane, token)
        return Outcome((token,), self._guess(absorb(it.state, token), chunk.drafts))

    def finish(self, chunk: Chunk) -> Outcome:
        return self._first(chunk)

    def bridge(self, lane: int, position: int, token: int) -> None:
        assert self.lanes[lane].tail[0] == position + 1, "the tail is the column that the bridge needs"
        self._write(1, lane, position, token)

    def _guess(self, state: int, count: int) -> tuple[int, ...]:
        out = []
        for _ in range(max(count, 0)):
            token = next_token(state) if self.rng.random() < 0.7 else self.rng.randrange(VOCABULARY)
            out.append(token)
            state = absorb(state, token)
        return tuple(out)

    def decode(self, rows: Sequence[Row]) -> list[Outcome]:
        self.decoded.append(tuple(row.lane for row in rows))
        if self.rng.random() < self.faults.decode:
            self.lost = True
            raise FaultError("decode")
        return [self._verify(row) for row in rows]

    def _verify(self, row: Row) -> Outcome:
        it = self.lanes[row.lane]
        assert len(it.ids) == row.position, "a round begins where the state is"
        self._check_cache(row.lane, row.token)
        if self.rng.random() < self.faults.not_finite:
            self.pending[row.lane] = []
            return Outcome(())
        state, tokens, steps = it.state, [], []
        for i, token in enumerate([row.token, *row.drafts]):
            self._write(0, row.lane, row.position + i, token)
        for i, token in enumerate([row.token, *row.drafts]):
            state = absorb(state, token)
            steps.append((token, state))
            tokens.append(next_token(state))
            if i < len(row.drafts) and row.drafts[i] != tokens[-1]:
                break
        self.pending[row.lane] = steps
        it.tail = (row.position + len(steps), state)
        if not self.window:
            self._fold(row.lane, 1)
            return Outcome(tuple(tokens))
        self._align(row.lane, row.position, tokens)
        count = len(tokens)
        room = self.capacity - row.position - count - 1
        extent = max(0, min(self.window, row.remaining - count - 1, room))
        return Outcome(tuple(tokens), self._guess(absorb(state, tokens[-1]), extent))

    capacity = 0  # max_context

    def _fold(self, lane: int, count: int) -> None:
        it = self.lanes[lane]
        for token, state in self.pending[lane][:count]:
            it.ids.append(token)
            it.state = state
        if count:
            it.tail = (len(it.ids), it.state)

    def commit(self, commits: Sequence[Commit]) -> None:
        assert tuple(commit.lane for commit in commits) == self.decoded[-1]
        for commit in commits:
            self._fold(commit.lane, commit.tokens)

    def recover(self) -> bool:
        return not self.lost


class ScriptedSession:
    """Output of a request: ends at stop tokens, else at its limit."""

    content = reasoning = ""
    reasoning_tokens = 0
    in_reasoning = False
    stop_string = None

    def __init__(self, stops: frozenset[int]):
        self.stops, self.finish, self._held = stops, None, None
        self.tokens: list[int] = []

    def preview(self, tokens: Sequence[int], remaining: int, limit_reason: FinishReason) -> Preview:
        assert self._held is None and self.finish is None and 1 <= len(tokens) <= remaining
        count = next((i for i, token in enumerate(tokens, 1) if token in self.stops), None)
        finish = FinishReason.STOP_TOKEN if count else limit_reason if len(tokens) == remaining else None
        self._held = (list(tokens[: count or len(tokens)]), finish)
        return Preview(len(self._held[0]), finish)

    def preview_terminal(self, reason: FinishReason) -> Preview:
        assert self._held is None and self.finish is None
        self._held = ([], reason)
        return Preview(0, reason)

    def commit_preview(self) -> list[int]:
        tokens, self.finish = self._held
        self._held = None
        self.tokens += tokens
        return tokens


@dataclass
class Ended:
    error: Exception | None


class World:
    """Random requests against a scheduler; `step` is one unit of work, with checks."""

    def __init__(
        self,
        seed: int,
        *,
        lanes: int = 3,
        window: int = 0,
        max_context: int = 400,
        pages: int = 12,
        max_pending: int = 6,
        faults: Faults | None = None,
        cancels: float = 0.01,
        timeouts: bool = True,
        reuse: bool = True,
    ):
        self.rng = random.Random(seed)
        self.lanes, self.window, self.max_context, self.max_pending = lanes, window, max_context, max_pending
        self.cancels, self.timeouts = cancels, timeouts
        row_pages = -(-max_context // PAGE)
        draft = pages + lanes * (-(-(window - 1) // PAGE)) if window else 0
        self.program = ScriptedProgram(
            self.rng, lanes, [pages, draft] if window else [pages], window, faults or Faults()
        )
        self.program.capacity = max_context
        self.now = 0.0
        settings = Settings(lanes, max_context, 128, pages, draft, row_pages, reuse)
        self.scheduler = Scheduler(self.program, settings, lambda: self.now)
        self.jobs: dict[int, Job] = {}
        self.ended: dict[int, Ended] = {}
        self.history: list[tuple[int, ...]] = []  # finished conversations, for prompts that continue them
        self.submitted = 0
        self.outcomes: dict[str, int] = {}
        self.paths: dict[str, int] = {}
        self.surprises: list[Exception] = []  # errors that no scripted fault explains

    # -- requests ------------------------------------------------------------------------------------

    def arrive(self) -> None:
        """One new request, if the queue has room."""
        outstanding = len(self.jobs) - len(self.ended)
        if outstanding >= self.lanes + self.max_pending:
            return
        rng = self.rng
        prompt = self._prompt()
        stops = frozenset(rng.sample(range(VOCABULARY), rng.choice([0, 0, 1, 3])))
        budget = Budget.of(len(prompt), rng.choice([1, 2, 3, 10, 40, 1000]), self.max_context, self.window)
        if not budget.vector.fits(self.scheduler.capacity):
            return
        self.submit(prompt, budget, stops, self.now + rng.uniform(5, 500) if self.timeouts else float("inf"))

    def submit(self, prompt: tuple[int, ...], budget: Budget, stops: frozenset[int], deadline: float) -> Job:
        self.submitted += 1
        identity = self.submitted
        wish = None
        if self.rng.random() < 0.7:
            kind = self.rng.choice(list(CheckpointKind))
            frontier = len(prompt) if kind is CheckpointKind.RESPONSE else self.rng.randint(1, len(prompt))
            wish = Checkpoint(kind, frontier)
        job = Job(
            identity, Tokens(prompt), budget, GREEDY, ScriptedSession(stops), GenerationResult(GREEDY, len(prompt)),
            emit=lambda deltas: None,
            done=lambda error: self._done(identity, error),
            wish=Wish(self.rng.random() < 0.95, wish),
            deadline=deadline,
            submitted=self.now,
        )  # fmt: skip
        job.result.speculative.window = self.window
        self.jobs[identity] = job
        self.scheduler.submit(job)
        return job

    def _prompt(self) -> tuple[int, ...]:
        rng = self.rng
        fresh = [rng.randrange(VOCABULARY) for _ in range(rng.choice([1, 5, 63, 64, 65, 130, 300]))]
        if self.history and rng.random() < 0.8:
            base = list(rng.choice(self.history[-self.lanes :]))
            cut = rng.choice([len(base), len(base) - 1, rng.randint(1, len(base))])
            fresh = base[:cut] + fresh[: rng.choice([0, 1, 10, 80])] or base
        return tuple(fresh[: self.max_context])

    def _done(self, identity: int, error: Exception | None) -> None:
        assert identity not in self.ended, "a request ends once"
        self.ended[identity] = Ended(error)
        expected = (FaultError, NonFiniteLogits, QueueTimeout, Unavailable)
        if error is not None and not isinstance(error, expected):
            self.surprises.append(error)
        job = self.jobs[identity]
        got = list(job.session.tokens)
        want = continuation(job.prompt.ids, job.budget.tokens, job.session.stops)
        assert got == want[: len(got)], f"request {identity}: wrong tokens"
        if error is None and job.session.finish is not FinishReason.CANCELLED:
            assert got == want and job.result.token_ids == want
            reason = FinishReason.STOP_TOKEN if want[-1] in job.session.stops else job.budget.limit_reason
            assert job.session.finish is reason
            self.history.append((*job.prompt.ids, *want)[: self.max_context])
        name = type(error).__name__ if error else str(job.session.finish)
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        path = job.result.prefix_reuse_path
        self.paths[path] = self.paths.get(path, 0) + 1

    # -- steps ---------------------------------------------------------------------------------------

    def step(self, arrivals: float = 0.1) -> bool:
        """Perhaps an arrival and a cancellation, then one unit; False when the scheduler had nothing to do."""
        rng, scheduler = self.rng, self.scheduler
        if rng.random() < arrivals:
            self.arrive()
        if rng.random() < self.cancels and len(self.jobs) > len(self.ended):
            alive = [job for identity, job in self.jobs.items() if identity not in self.ended]
            rng.choice(alive).cancelled = True
        self.now += 1.0
        ready = [lane.index for lane in scheduler.lanes.of_state(State.ACTIVE) if not lane.job.cancelled]
        rounds = len(self.program.decoded)
        previous, owner = scheduler.last, scheduler.owner
        ran = scheduler.step()
        if self.surprises:
            raise self.surprises[0]
        if len(self.program.decoded) > rounds:
            assert self.program.decoded[-1] == tuple(ready), "a round holds every decode-ready lane, in order"
        elif ran and ready and owner is not None:
            assert previous is not scheduler.last or previous.name == "DECODE", "prefill and decode alternate"
        held = [lane.job.budget.vector for lane in scheduler.lanes if lane.job]
        assert sum(v.main_pages for v in held) <= scheduler.capacity.main_pages
        if self.submitted % 16 == 0:
            scheduler.check_integrity()
            self._forget()
        if len(self.program.decoded) > 1000:
            del self.program.decoded[:-1]
        return ran

    def _forget(self) -> None:
        """Requests that have ended, so that a long run stays small."""
        for identity in list(self.ended):
            del self.ended[identity], self.jobs[identity]

    def drain(self, limit: int = 100_000) -> None:
        """No more arrivals: everything ends."""
        for _ in range(limit):
            if not self.step(arrivals=0.0) and self.scheduler.idle:
                break
        assert self.scheduler.idle, "requests are stuck"
        self.scheduler.check_integrity()
        for lane in self.scheduler.lanes:
            lane.sequence.release()
        for pool in self.scheduler.pools:
            assert len(pool.free) == pool.pages and pool.entitled == 0, "pages leaked"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    started, done = time.perf_counter(), 0
    world_seed, requests, outcomes = options.seed, 0, {}
    while done < options.steps:
        rng = random.Random(world_seed)
        world = World(
            world_seed, lanes=rng.randint(1, 8), window=rng.choice([0, 1, 3, 5]), pages=rng.choice([10, 15, 30, 56]),
            faults=Faults(rng.choice([0, 0.02]), rng.choice([0, 0.003])), cancels=rng.choice([0, 0.01, 0.1]),
        )  # fmt: skip
        arrivals = rng.choice([0.03, 0.1, 0.3])
        count = min(20_000, options.steps - done)
        for _ in range(count):
            world.step(arrivals)
        world.drain()
        done, requests, world_seed = done + count, requests + world.submitted, world_seed + 1
        for name, n in (world.outcomes | world.paths).items():
            outcomes[name] = outcomes.get(name, 0) + n
    seconds = time.perf_counter() - started
    print(f"{done} steps, {requests} requests in {seconds:.0f} s ({seconds / done * 1e6:.0f} us a step): {outcomes}")


if __name__ == "__main__":
    main()
