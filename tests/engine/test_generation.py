"""One request through the engine on the bundled model: text, limits, stops, cancellation, reproducibility."""

import pytest
from support.golden_cases import cases

from ninfer_nb.engine.engine import Engine
from ninfer_nb.engine.options import EngineOptions
from ninfer_nb.engine.request import Prompt, Request
from ninfer_nb.engine.sampling import SamplingOverrides
from ninfer_nb.errors import RequestError, UsageError
from ninfer_nb.frontend.messages import Conversation
from ninfer_nb.frontend.output import Channel, StopString

GREEDY = SamplingOverrides(greedy=True)


@pytest.fixture(scope="module")
def engine():
    with Engine.open("mini", EngineOptions(device="cpu")) as engine:
        yield engine


@pytest.fixture
def prompt(engine):
    return engine.prepare(Conversation.from_prompt("What is prefill?"), thinking=False)


def finish(generation):
    text = dict.fromkeys(Channel, "")
    for delta in generation:
        text[delta.channel] += delta.text
    assert text[Channel.CONTENT] == generation.result.content
    assert text[Channel.REASONING] == generation.result.reasoning
    return generation.result


def test_a_known_question(engine, prompt):
    result = finish(engine.generate(Request(prompt, sampling=GREEDY)))
    assert result.content.startswith("Prefill reads the whole prompt at once")
    assert result.finish_reason == "stop-token"
    assert result.token_ids[-1] in engine.frontend.stop_tokens
    assert 0 < result.timings.first_token <= result.timings.total


def test_reasoning_and_answer_are_split(engine):
    case = next(case for case in cases().values() if case["thinking"] and case["task"] == "explain")
    prompt = engine.prepare(Conversation.from_prompt(case["messages"][0]["content"]))
    assert list(prompt.ids) == case["prompt_ids"]
    result = finish(engine.generate(Request(prompt, 96, GREEDY)))
    assert result.reasoning and result.content and "</think>" not in result.reasoning + result.content
    assert 0 < result.reasoning_tokens < len(result.token_ids)


def test_raw_output_keeps_everything_in_one_channel(engine, prompt):
    result = finish(engine.generate(Request(prompt, sampling=GREEDY, raw_output=True)))
    assert result.content.endswith("<|im_end|>")


def test_output_limit(engine, prompt):
    result = finish(engine.generate(Request(prompt, 3, GREEDY)))
    assert (len(result.token_ids), result.finish_reason) == (3, "output-limit")


def test_ignore_eos_runs_to_the_limit(engine, prompt):
    result = finish(engine.generate(Request(prompt, 60, GREEDY, ignore_eos=True)))
    assert (len(result.token_ids), result.finish_reason) == (60, "output-limit")
    assert engine.frontend.stop_tokens[0] in result.token_ids


def test_stop_string_ends_and_is_left_out(engine, prompt):
    result = finish(engine.generate(Request(prompt, sampling=GREEDY, stop_strings=(StopString("whole"),))))
    assert (result.content, result.finish_reason) == ("Prefill reads the ", "stop-string")


def test_stop_token_of_the_caller(engine, prompt):
    free = finish(engine.generate(Request(prompt, sampling=GREEDY)))
    result = finish(engine.generate(Request(prompt, sampling=GREEDY, stop_token_ids=(free.token_ids[4],))))
    assert (result.token_ids, result.finish_reason) == (free.token_ids[:5], "stop-token")


def test_same_seed_same_text_other_seed_other_text(engine):
    prompt = engine.prepare(Conversation.from_prompt("Tell me a short story."), thinking=False)
    texts = [
        finish(engine.generate(Request(prompt, 40, SamplingOverrides(temperature=1.5, seed=seed)))).content
        for seed in (1, 1, 2, 3)
    ]
    assert texts[0] == texts[1]
    assert len(set(texts)) > 1


def test_cancel_between_tokens(engine, prompt):
    generation = engine.generate(Request(prompt, sampling=GREEDY))
    deltas = iter(generation)
    first = next(deltas)
    generation.cancel()
    rest = "".join(delta.text for delta in deltas)
    assert generation.result.finish_reason == "cancelled"
    assert generation.result.content == first.text + rest
    assert finish(engine.generate(Request(prompt, sampling=GREEDY))).finish_reason == "stop-token"


def test_an_abandoned_request_frees_its_lane(engine, prompt):
    generation = engine.generate(Request(prompt, 1000, GREEDY, ignore_eos=True))
    next(iter(generation))
    generation.close()
    assert finish(engine.generate(Request(prompt, 2, GREEDY))).token_ids


def test_a_request_that_never_started_can_be_closed(engine, prompt):
    engine.generate(Request(prompt)).close()
    assert finish(engine.generate(Request(prompt, 2, GREEDY))).token_ids


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"stop_token_ids": (4096,)}, "stop token id is outside the checkpoint vocabulary: 4096"),
        ({"sampling": SamplingOverrides(temperature=3.0)}, r"temperature must be in \[0.0, 2.0\], got 3.0"),
        ({"sampling": SamplingOverrides(min_p=float("nan"))}, "min_p must be in"),
        ({"prompt": Prompt((), False)}, "the prompt has no tokens"),
        ({"prompt": Prompt((1,) * 2049, False)}, "prepared prompt has 2049 tokens, exceeding Engine max_context 2048"),
    ],
)
def test_bad_requests_are_refused_before_any_work(engine, prompt, change, error):
    with pytest.raises(RequestError, match=error):
        engine.generate(Request(**{"prompt": prompt, **change}))
    assert finish(engine.generate(Request(prompt, 1, GREEDY))).token_ids


def test_context_capacity(prompt):
    """The last token needs no cache slot, and a full prompt still yields one token."""
    length = len(prompt.ids)
    for room, tokens in ((0, 1), (3, 4)):
        with Engine.open("mini", EngineOptions(device="cpu", max_context=length + room)) as engine:
            result = finish(engine.generate(Request(prompt, 50, GREEDY)))
            assert (len(result.token_ids), result.finish_reason) == (tokens, "context-capacity")


def test_long_prompts_go_through_in_chunks(engine):
    words = "The cat sat on the mat. " * 60
    prompt = engine.prepare(Conversation.from_prompt(words + "What is prefill?"), thinking=False)
    assert len(prompt.ids) > 300
    whole = finish(engine.generate(Request(prompt, 12, GREEDY))).token_ids
    seen = []
    options = EngineOptions(device="cpu", prefill_chunk=128)
    with Engine.open("mini", options, lambda *state: seen.append(state)) as chunked:
        assert finish(chunked.generate(Request(prompt, 12, GREEDY))).token_ids == whole
    text = [state[1:] for state in seen if state[0] == "text"]
    assert text[0] == (128, len(prompt.ids)) and text[-1] == (len(prompt.ids), len(prompt.ids))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_context": 4097}, "max_context exceeds the variant native context capacity: 4097 > 4096"),
        ({"max_context": 128, "kv_capacity": 64}, "--kv-capacity must be at least --max-context"),
        ({"max_context": 128, "kv_capacity": 256}, "kv_capacity is outside the usable range"),
        ({"prefill_chunk": 100}, "--prefill-chunk must be a multiple of 128"),
        ({"kv_dtype": "fp8"}, "invalid kv-dtype: fp8"),
    ],
)
def test_options_are_checked(options, error):
    with pytest.raises(UsageError, match=error):
        Engine.open("mini", EngineOptions(device="cpu", **options))


def test_int8_cache_answers_too():
    with Engine.open("mini", EngineOptions(device="cpu", kv_dtype="int8")) as engine:
        prompt = engine.prepare(Conversation.from_prompt("What is the capital of France?"), thinking=False)
        assert "Paris" in finish(engine.generate(Request(prompt, sampling=GREEDY))).content
        assert engine.memory_summary().kv_dtype == "int8"
