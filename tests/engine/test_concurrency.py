"""Requests together on the mini: the same text as alone, reuse with the same bits, faults that stay where they are."""

import asyncio
import json
import random
import threading

import numpy as np
import pytest
from support.golden_cases import cases, text_names

from ninfer_nb.engine.engine import Engine
from ninfer_nb.engine.options import EngineOptions
from ninfer_nb.engine.request import Prompt, Request
from ninfer_nb.engine.sampling import SamplingOverrides
from ninfer_nb.errors import ContextLengthExceeded, NonFiniteLogits, Overloaded, QueueTimeout, Unavailable
from ninfer_nb.frontend.messages import Conversation

GREEDY = SamplingOverrides(greedy=True)
MTP = {"spec": "mtp", "draft_tokens": 3}
ENGINES = {"off": {}, "mtp": MTP}


def opened(**options) -> Engine:
    return Engine.open("mini", EngineOptions(device="cpu", **options))


def requests() -> list[Request]:
    """Different prompts, lengths and settings, greedy and sampled."""
    found = []
    for i, name in enumerate(text_names()[:12]):
        case = cases()[name]
        sampling = GREEDY if i % 2 else SamplingOverrides(temperature=0.8, presence_penalty=0.4 * (i % 3), seed=i)
        found.append(Request(Prompt(tuple(case["prompt_ids"]), case["thinking"]), 6 + 3 * i, sampling))
    return found


@pytest.fixture(scope="module", params=ENGINES)
def alone(request):
    """Options of a kind of engine, and what each request says on one that runs nothing else."""
    options = ENGINES[request.param]
    with opened(prefix_reuse=False, **options) as engine:
        return options, [engine.generate(r).wait().token_ids for r in requests()]


@pytest.mark.parametrize(("lanes", "seed"), [(2, 1), (3, 2), (8, 3), (8, 4)])
def test_invariant_27_text_does_not_depend_on_company(alone, lanes, seed):
    """Whatever joins and leaves in whatever order; rows of a round number from 1 to `lanes`."""
    options, expected = alone
    rng, order = random.Random(seed), list(range(len(expected)))
    rng.shuffle(order)
    with opened(max_concurrency=lanes, kv_capacity="auto", max_context=1024, **options) as engine:
        running = {}
        for i in order:
            running[i] = engine.submit(requests()[i])
            if rng.random() < 0.3:
                running[rng.choice(list(running))].wait()
        for i, generation in running.items():
            assert generation.wait().token_ids == expected[i], f"request {i}"
        engine.check_integrity()
        assert engine.stats().running_requests == 0


def first_logits(engine: Engine, prompt: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """Logits after the prompt, and how many of its tokens were reused."""
    result = engine.generate(Request(Prompt(prompt, False), 1, GREEDY)).wait()
    return engine._program.logits[0].copy(), result.reused_prompt_tokens


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_invariant_33_reuse_gives_the_bits_of_a_cold_run(options):
    """A second turn, an edited turn and an exact repetition, after a cancellation and rejected drafts."""
    with opened(**options) as warm:
        talk = Conversation.from_prompt("What is the capital of France?")
        prompt = warm.prepare(talk, thinking=False)
        said = warm.generate(Request(prompt, 40, GREEDY)).wait()
        history = prompt.ids + tuple(said.token_ids)
        tail = tuple(warm.frontend.encode("\n<|im_start|>user\nWhat is prefill?<|im_end|>\n<|im_start|>assistant\n"))
        edited = prompt.ids[: prompt.checkpoint.frontier] + tuple(warm.frontend.encode("Rome.<|im_end|>")) + tail
        for follow, reused in ((history + tail, len(history) - 1), (history + tail, len(history + tail))):
            got, count = first_logits(warm, follow)
            assert count == reused
            with opened(**options) as cold:
                want, none = first_logits(cold, follow)
            assert none == 0
            np.testing.assert_array_equal(got, want)
        warm.generate(Request(prompt, 40, GREEDY)).wait()
        dropped = warm.generate(Request(Prompt(history, False), 200, GREEDY, ignore_eos=True))
        next(iter(dropped))
        dropped.close()
        warm.generate(Request(prompt, 40, GREEDY)).wait()
        got, count = first_logits(warm, edited)
        assert count == prompt.checkpoint.frontier
        with opened(**options) as cold:
            np.testing.assert_array_equal(got, first_logits(cold, edited)[0])


def test_a_conversation_is_continued_where_the_template_allows_it():
    """With thinking, the next turn drops the reasoning: the turn checkpoint is taken up instead of the frontier."""
    with opened(max_context=1024) as engine:
        talk = Conversation.from_prompt("What is prefill?")
        first = engine.generate(Request(engine.prepare(talk), 96, GREEDY)).wait()
        assert first.prefix_reuse_path == "full_reset" and first.reasoning
        messages = [
            {"role": "user", "content": "What is prefill?"},
            {"role": "assistant", "content": first.content},
            {"role": "user", "content": "What is the capital of France?"},
        ]
        prompt = engine.prepare(Conversation.from_json(json.dumps(messages)), thinking=True)
        second = engine.generate(Request(prompt, 96, GREEDY)).wait()
        assert second.prefix_reuse_path == "restore_turn_checkpoint"
        assert second.reused_prompt_tokens > 10
    with opened(max_context=1024, prefix_reuse=False) as engine:
        assert engine.generate(Request(prompt, 96, GREEDY)).wait().token_ids == second.token_ids


@pytest.mark.parametrize("options", ENGINES.values(), ids=ENGINES)
def test_a_poisoned_lane_ends_one_request_and_never_touches_the_next(options):
    with opened(max_concurrency=2, kv_capacity="auto", max_context=512, **options) as engine:
        prompts = [engine.prepare(Conversation.from_prompt(q), thinking=False) for q in ("Tell a story.", "Hi.")]
        want = [engine.generate(Request(p, 60, GREEDY, ignore_eos=True)).wait().token_ids for p in prompts]
        doomed = engine.submit(Request(prompts[0], 400, GREEDY, ignore_eos=True))
        next(iter(doomed))
        lane = next(lane for lane in engine._scheduler.lanes if lane.job).index
        company = engine.submit(Request(prompts[1], 60, GREEDY, ignore_eos=True))
        for layer in engine._program.state.gdn:
            layer.state[lane] = np.nan
        with pytest.raises(NonFiniteLogits):
            doomed.wait()
        assert company.wait().token_ids == want[1]
        for layer in (*engine._program.state.kv, *filter(None, [engine._program.state.draft])):
            layer.keys[...] = layer.values[...] = np.nan  # nothing runs: all of it is beyond any frontier
        for sequence in (lane.sequence for lane in engine._scheduler.lanes):
            sequence.release()
        again = [engine.submit(Request(p, 60, GREEDY, ignore_eos=True)) for p in prompts]
        assert [generation.wait().token_ids for generation in again] == want
        engine.check_integrity()


def test_a_request_that_fails_in_prefill_leaves_the_others_alone(monkeypatch):
    with opened(max_concurrency=3, kv_capacity="auto", max_context=512, prefill_chunk=128) as engine:
        good = requests()[:2]
        want = [engine.generate(r).wait().token_ids for r in good]
        real, marked = engine._program.prefill, 4000

        def prefill(chunk):
            if marked in chunk.ids:
                raise MemoryError("made up")
            return real(chunk)

        monkeypatch.setattr(engine._program, "prefill", prefill)
        bad = Request(Prompt((5,) * 200 + (marked,), False), 5)
        generations = [engine.submit(good[0]), engine.submit(bad), engine.submit(good[1])]
        with pytest.raises(MemoryError, match="made up"):
            generations[1].wait()
        assert [generations[i].wait().token_ids for i in (0, 2)] == want
        engine.check_integrity()


def test_a_failed_round_ends_everything_and_later_requests(monkeypatch):
    with opened(max_concurrency=2, kv_capacity="auto", max_context=512) as engine:
        generations = [engine.submit(Request(r.prompt, 400, GREEDY, ignore_eos=True)) for r in requests()[:2]]
        for generation in generations:
            next(iter(generation))

        def broken(rows):
            raise RuntimeError("the device is gone")

        monkeypatch.setattr(engine._program, "decode", broken)
        for generation in generations:
            with pytest.raises(RuntimeError, match="device is gone"):
                generation.wait()
        with pytest.raises(Unavailable, match="device is gone"):
            engine.submit(requests()[0])


def test_limits_of_the_queue():
    with opened(max_pending_requests=1, pending_timeout_ms=200) as engine:
        prompt = requests()[0].prompt
        slow = engine.submit(Request(prompt, 400, GREEDY, ignore_eos=True))
        waiting = engine.submit(Request(prompt, 3))
        with pytest.raises(Overloaded, match="2 requests are outstanding"):
            engine.submit(Request(prompt, 3))
        with pytest.raises(QueueTimeout):
            waiting.wait()
        slow.close()
        assert engine.generate(Request(prompt, 2, GREEDY)).wait().token_ids
        assert engine.generate(Request(prompt, 0)).wait().finish_reason == "output-limit"


def test_a_request_that_can_never_fit_is_refused():
    with opened(max_concurrency=2, max_context=256, kv_capacity=256) as engine:
        assert engine.limits.shape.pages == 4
        with pytest.raises(ContextLengthExceeded, match="257 tokens, exceeding Engine max_context 256"):
            engine.submit(Request(Prompt((1,) * 257, False)))
        both = [engine.submit(Request(Prompt((7,) * 150, False), 40, GREEDY)) for _ in range(3)]
        assert len({tuple(generation.wait().token_ids) for generation in both}) == 1


def test_closing_the_engine_ends_what_runs():
    engine = opened()
    generation = engine.submit(Request(requests()[0].prompt, 400, GREEDY, ignore_eos=True))
    next(iter(generation))
    engine.close()
    with pytest.raises(Unavailable):
        generation.wait()
    with pytest.raises(Unavailable):
        engine.submit(requests()[0])


def test_many_threads_and_an_event_loop():
    with opened(max_concurrency=4, kv_capacity="auto", max_context=512) as engine:
        wanted = [engine.generate(r).wait().content for r in requests()[:6]]
        found = [None] * 6

        def call(i):
            found[i] = "".join(d.text for d in engine.generate(requests()[i]) if d.channel == "content")

        threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == wanted

        async def all_at_once():
            async def one(i):
                return "".join([d.text async for d in engine.submit(requests()[i]) if d.channel == "content"])

            return await asyncio.gather(*map(one, range(6)))

        assert asyncio.run(all_at_once()) == wanted
