"""The real scheduler over a scripted exact model: invariants 20 to 28 and 31 to 39 of the runtime specification.

`support.simulation` checks after every unit; what is here chooses worlds, and asks for what only a whole run shows.
"""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulation import FaultError, Faults, World, continuation

from ninfer_nb.engine.admission import Admission, total
from ninfer_nb.engine.job import Budget, Vector
from ninfer_nb.errors import Unavailable
from ninfer_nb.frontend.output import FinishReason

worlds = {
    "lanes": st.integers(1, 8),
    "window": st.sampled_from([0, 1, 2, 3, 5]),
    "pages": st.sampled_from([8, 10, 15, 30, 56]),
}


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), arrivals=st.sampled_from([0.03, 0.1, 0.4]), **worlds)
def test_invariants_20_to_28_31_to_37_any_traffic(seed, arrivals, lanes, window, pages):
    """Every token is right, every request ends once, rounds hold all ready lanes, pages balance and come back."""
    world = World(seed, lanes=lanes, window=window, pages=pages, faults=Faults(0.02, 0.003), cancels=0.02)
    for _ in range(1500):
        world.step(arrivals)
    world.drain()
    assert len(world.jobs) == len(world.ended)


def test_the_worlds_reach_every_path():
    """What the simulation is said to cover, it does."""
    paths, outcomes = set(), set()
    for seed in range(6):
        world = World(seed, lanes=3, window=seed % 2 * 3, pages=20, faults=Faults(0.05, 0.005), cancels=0.01)
        for _ in range(4000):
            world.step(0.08)
        world.drain()
        paths |= world.paths.keys()
        outcomes |= world.outcomes.keys()
    restores = {"restore_turn_checkpoint", "restore_response_checkpoint"}
    assert paths >= {"full_reset", "append_frontier", *restores}
    reasons = {"output-limit", "context-capacity", "stop-token", "cancelled"}
    assert outcomes >= {*reasons, "QueueTimeout", "FaultError", "NonFiniteLogits"}


@pytest.mark.parametrize("window", [0, 3])
def test_invariant_27_a_request_alone_and_in_company_says_the_same(window):
    """`World` compares every result with the request computed alone; here no request is lost on the way."""
    world = World(11, lanes=8, window=window, pages=56, cancels=0, timeouts=False)
    for _ in range(3000):
        world.step(0.3)
    world.drain()
    assert set(world.outcomes) <= {"output-limit", "context-capacity", "stop-token"}


@pytest.mark.parametrize("window", [0, 3])
def test_invariant_33_tokens_are_the_same_with_reuse_off(window):
    """Both worlds see the same prompts; each checks every token against the exact model."""
    for reuse in (True, False):
        world = World(5, lanes=2, window=window, pages=20, cancels=0, timeouts=False, reuse=reuse)
        for _ in range(3000):
            world.step(0.1)
        world.drain()
        assert ("append_frontier" in world.paths) == reuse


@pytest.mark.parametrize("window", [0, 4])
def test_ten_thousand_cancels_leave_every_page_free(window):
    world = World(3, lanes=4, window=window, pages=20, cancels=0.5, timeouts=False)
    while world.outcomes.get("cancelled", 0) < 10_000:
        world.step(0.9)
    world.drain()


def test_invariant_26_everybody_is_served_without_cancels_and_timeouts():
    """Small requests arrive without end; the large one that needs the whole pool still gets its turn."""
    world = World(9, lanes=4, pages=7, max_context=400, cancels=0, timeouts=False, max_pending=8)
    for _ in range(100):
        world.step(0.5)
    prompt = tuple(range(40))
    large = world.submit(prompt, Budget.of(len(prompt), 361, 400, 0), frozenset(), float("inf"))
    assert large.budget.vector.main_pages == 7
    for _ in range(3000):
        world.step(0.9)
        if large.session.finish is not None:
            break
    assert large.session.finish is not None, "a protected request starves"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_invariants_24_and_25_protection(data):
    """Donors and credit never grow in an epoch, backfills fit beside the head, a draining queue admits nobody else."""
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    capacity = Vector(4, 20, 0)
    admission, active, pending, epoch = Admission(capacity), [], [], None
    identity = 0
    for _ in range(120):
        if rng.random() < 0.5 and len(pending) < 8:
            identity += 1
            pending.append(_Waiting(identity, Vector(1, rng.randint(1, 20), 0), rng.randint(1, 60)))
        for job in list(active):
            job.work -= 1
            if job.work <= 0:
                active.remove(job)
        room = total(active)

        def work(job, room=room):
            return job.work if (room + job.budget.vector).fits(capacity) else None

        before = admission.protection
        known = (before.epoch, before.donors, before.credit, before.draining) if before else None
        chosen = admission.choose(tuple(pending), tuple(active), work)
        guard = admission.protection
        if known and guard and guard.epoch == known[0]:
            assert guard.donors == known[1] and guard.credit <= known[2]
            assert not known[3] or chosen is None, "nobody is admitted while draining"
        if guard:
            epoch = guard.epoch
            running = set(active) | ({chosen} if chosen else set())
            stays = [j for j in guard.incumbents if j in running and j not in guard.donors]
            beside = total(stays) + total(j for j in guard.persistent if j in running)
            assert (beside + guard.head.budget.vector).fits(capacity)
        if chosen:
            pending.remove(chosen)
            active.append(chosen)
            assert total(active).fits(capacity)
    assert epoch is None or epoch <= admission.epochs


class _Waiting:
    def __init__(self, identity, vector, work):
        self.id, self.work, self.budget = identity, work, _Budget(vector)


class _Budget:
    def __init__(self, vector):
        self.vector = vector


def test_invariant_38_a_prefill_fault_ends_only_its_request():
    world = World(21, lanes=3, window=3, pages=20, faults=Faults(prefill=0.3), cancels=0, timeouts=False)
    for _ in range(4000):
        world.step(0.2)
    world.drain()
    assert world.outcomes["FaultError"] > 50 and world.outcomes["output-limit"] > 50


def test_invariant_39_a_failed_round_ends_every_request_once():
    world = World(4, lanes=4, window=2, pages=30, faults=Faults(decode=0.01), cancels=0, timeouts=False)
    world.surprises = _Ignored()
    with pytest.raises(FaultError, match="decode"):
        for _ in range(5000):
            world.step(0.5)
    rounds = len(world.program.decoded)
    world.scheduler.stop(Unavailable("failed"))
    assert len(world.jobs) == len(world.ended)
    assert not world.scheduler.step() and len(world.program.decoded) == rounds
    world.submit((1, 2), Budget.of(2, 3, 400, 2), frozenset(), float("inf"))
    assert len(world.jobs) == len(world.ended)


class _Ignored(list):
    def append(self, _):
        pass


def test_cancelling_while_waiting_and_while_running():
    world = World(1, lanes=1, pages=8, cancels=0, timeouts=False)
    running = world.submit((1, 2, 3), Budget.of(3, 50, 400, 0), frozenset(), float("inf"))
    waiting = world.submit((4, 5), Budget.of(2, 50, 400, 0), frozenset(), float("inf"))
    for _ in range(5):
        world.step(0)
    waiting.cancelled = True
    world.step(0)
    assert waiting.session.finish is FinishReason.CANCELLED and waiting.session.tokens == []
    running.cancelled = True
    world.step(0)
    assert running.session.finish is FinishReason.CANCELLED
    assert running.session.tokens == continuation((1, 2, 3), 50, frozenset())[: len(running.session.tokens)]
    assert world.scheduler.idle and len(world.scheduler.pools[0].free) == 8, "a cancelled sequence is not kept"


def test_the_same_seed_is_the_same_world():
    first, second = [World(77, lanes=4, window=3, pages=20) for _ in range(2)]
    for world in (first, second):
        for _ in range(2000):
            world.step(0.2)
    assert (first.outcomes, first.paths, first.submitted) == (second.outcomes, second.paths, second.submitted)
