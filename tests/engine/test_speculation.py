"""MTP on the mini changes speed and never text: greedy equality, acceptance, the distribution of sampled tokens."""

from collections import Counter

import numpy as np
import pytest
from support.golden_cases import cases, text_names

from ninfer_nb.engine.engine import Engine
from ninfer_nb.engine.options import EngineOptions
from ninfer_nb.engine.request import Prompt, Request
from ninfer_nb.engine.sampling import SamplingOverrides
from ninfer_nb.engine.sequence import Checkpoint, CheckpointKind
from ninfer_nb.ops.reference import sampling
from ninfer_nb.ops.reference.speculation import accept_greedy, accept_sampled
from ninfer_nb.ops.rng import DECODE

GREEDY = SamplingOverrides(greedy=True, presence_penalty=0.7, frequency_penalty=0.3)


def opened(window: int, **more) -> Engine:
    spec = {"spec": "mtp", "draft_tokens": window} if window else {}
    return Engine.open("mini", EngineOptions(device="cpu", **spec, **more))


def answers(engine: Engine, names: list[str]) -> list:
    requests = [Request(Prompt(tuple(cases()[n]["prompt_ids"]), cases()[n]["thinking"]), 96, GREEDY) for n in names]
    return [engine.generate(request).wait() for request in requests]


@pytest.fixture(scope="module")
def plain():
    with opened(0) as engine:
        return {
            name: result.token_ids for name, result in zip(text_names(), answers(engine, text_names()), strict=True)
        }


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5])
def test_greedy_text_is_the_text_without_speculation(plain, window):
    """On the reference backend exactly: a column's bits do not depend on the columns beside it."""
    names = text_names() if window == 3 else text_names()[window::4]
    with opened(window) as engine:
        results = answers(engine, names)
    for name, result in zip(names, results, strict=True):
        assert result.token_ids == plain[name], name
    stats = [result.speculative for result in results]
    rounds, drafted = sum(s.rounds for s in stats), sum(s.drafted for s in stats)
    assert drafted > 0 and rounds < sum(map(len, plain.values()))
    if window == 3:
        first = sum(s.accepted_at[0] for s in stats if s.accepted_at) / rounds
        assert first >= 0.85, f"acceptance at depth 1 is {first:.3f}"


def test_the_proposal_head_changes_drafts_only(plain):
    names = text_names()[::5]
    with opened(3, lm_head_draft=True) as engine:
        for name, result in zip(names, answers(engine, names), strict=True):
            assert result.token_ids == plain[name]


def test_near_the_end_of_the_context(plain):
    """Rounds shrink to single tokens, and the last position is used."""
    ids = tuple(cases()[text_names()[0]]["prompt_ids"])
    for room in (0, 1, 2, 3, 5):
        texts = []
        for window in (0, 3):
            with opened(window, max_context=len(ids) + room) as engine:
                result = engine.generate(Request(Prompt(ids, False), 50, GREEDY, ignore_eos=True)).wait()
            assert (len(result.token_ids), result.finish_reason) == (room + 1, "context-capacity")
            texts.append(result.token_ids)
        assert texts[0] == texts[1]


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Per degree of freedom, over cells with at least five expected."""
    large = expected >= 5
    rest = np.array([counts[~large].sum()]), np.array([expected[~large].sum()])
    observed, wanted = (np.concatenate([x[large], y]) for x, y in zip((counts, expected), rest, strict=True))
    keep = wanted > 0
    return float(((observed[keep] - wanted[keep]) ** 2 / wanted[keep]).sum() / max(keep.sum() - 1, 1))


@pytest.mark.parametrize("penalties", [(0.0, 0.0), (0.6, 0.2)])
def test_sampled_tokens_follow_the_target_whatever_the_draft(penalties):
    """First and second token of a round, for a good and a poor draft, against the filtered distributions."""
    rng, draws = np.random.default_rng(0), 6000
    logits = (rng.standard_normal((3, 40)) * 2).astype(np.float32)
    counts = rng.integers(0, 2, 40).astype(np.int32)
    first = sampling.Settings(0.9, 0, 0.95, 0.0, *penalties, 0).distribution(logits[0], counts)
    best = np.zeros(3, np.int64)
    for guess in (int(first.ids[0]), int(first.ids[-1])):
        found = np.zeros((2, 40))
        for seed in range(draws):
            settings = sampling.Settings(0.9, 0, 0.95, 0.0, *penalties, seed)
            tokens = accept_sampled(logits, best, np.array([guess, 7]), settings, counts.copy(), 11)
            found[0, tokens[0]] += 1
            if len(tokens) > 1:
                found[1, tokens[1]] += 1
        expected = np.zeros(40)
        expected[first.ids] = first.probabilities * draws
        assert chi_square(found[0], expected) < 2.0
        seen = counts.copy()
        seen[guess] += 1
        second = sampling.Settings(0.9, 0, 0.95, 0.0, *penalties, 0).distribution(logits[1], seen)
        expected = np.zeros(40)
        expected[second.ids] = second.probabilities * found[1].sum()
        assert found[1].sum() > 0 and chi_square(found[1], expected) < 2.5


def test_sampled_engine_output_has_the_plain_distribution():
    """Four tokens of a fixed prompt over 150 seeds, with and without speculation: two samples of one distribution."""
    ids, found = tuple(cases()["07_recall_plain"]["prompt_ids"]), []
    prompt = Prompt(ids, False, checkpoint=Checkpoint(CheckpointKind.RESPONSE, len(ids)))  # executed once
    for window in (0, 3):
        with opened(window, max_context=512) as engine:
            sampling = [SamplingOverrides(temperature=2.0, top_p=1.0, seed=seed) for seed in range(150)]
            results = [engine.generate(Request(prompt, 4, s)).wait() for s in sampling]
        found.append(Counter(tuple(result.token_ids) for result in results))
    pooled = found[0] + found[1]
    used = [text for text, count in pooled.items() if count >= 8]
    statistic = sum((found[0][text] - found[1][text]) ** 2 / pooled[text] for text in used) / len(used)
    assert len(used) >= 4 and statistic < 2.2


def test_counts_are_the_tokens_that_were_licensed():
    counts = np.zeros(40, np.int32)
    logits = np.full((2, 40), -9.0, np.float32)
    logits[0, 5] = logits[1, 6] = 9.0
    settings = sampling.Settings(0.7, 0, 0.9, 0.0, 0.5, 0.5, 3)
    assert accept_sampled(logits, np.array([5, 6]), np.array([5]), settings, counts, 0) == [5, 6]
    assert np.flatnonzero(counts).tolist() == [5, 6]


def test_not_finite_logits_count_only_where_they_decide():
    assert accept_greedy(np.array([1, 2]), np.array([3, -1, -1])) == [3]
    assert accept_greedy(np.array([3, 2]), np.array([3, -1, 0])) == []
    settings = sampling.Settings(1.0, 1, 1.0, 0.0, 0.0, 0.0, 0)
    logits = np.eye(3, 40, dtype=np.float32) * 9
    assert accept_sampled(logits, np.array([0, -1, 2]), np.array([0, 1]), settings, np.zeros(40, np.int32), 0) == []
    assert sampling.draw(settings.distribution(logits[0], None), 0, 0, DECODE) == 0
