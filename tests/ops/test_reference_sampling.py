"""The stochastic sampler against a plain restatement in float64, and its edge rules."""

import math

import numpy as np
import pytest

from ninfer_nb.ops import SamplingRows
from ninfer_nb.ops.reference import ReferenceOps
from ninfer_nb.ops.reference.sampling import filtered, penalise, top_candidates
from ninfer_nb.ops.rng import DECODE, uniform24


def rows(n, counts=None, **given):
    defaults = {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.0, "presence": 0.0, "frequency": 0.0}
    fields = {**defaults, **given}
    kinds = {"top_k": np.int32}
    columns = {name: np.full(n, value, kinds.get(name, np.float32)) for name, value in fields.items()}
    return SamplingRows(
        **columns,
        seed=np.arange(n, dtype=np.uint64),
        position=np.full(n, 5, np.int32),
        lanes=np.arange(n, dtype=np.int32),
        counts=np.zeros((n, 1), np.int32) if counts is None else counts,
    )


def plain_distribution(logits, temperature, top_k, top_p, min_p):
    """{token: probability}, from the text of the specification, in float64."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[: top_k if 0 < top_k < 20 else 20]
    weights = [math.exp((logits[i] - logits[order[0]]) / temperature) for i in order]
    kept, mass = [], 0.0
    for j, w in enumerate(weights):
        if j and min_p > 0 and w < min_p * weights[0]:
            break
        kept.append(j)
        mass += w
        if top_p < 1 and mass >= top_p * sum(weights):
            break
    return {order[j]: weights[j] / mass for j in kept}


@pytest.mark.parametrize("top_k", [0, 1, 7, 19, 20, 500])
@pytest.mark.parametrize(("top_p", "min_p"), [(1.0, 0.0), (0.8, 0.0), (0.0, 0.0), (1.0, 0.2), (0.95, 1.0)])
def test_distribution(top_k, top_p, min_p):
    logits = np.random.default_rng(top_k).standard_normal(300).astype(np.float32) * 3
    got = filtered(logits, 0.9, top_k, top_p, min_p)
    want = plain_distribution(logits.tolist(), 0.9, top_k, top_p, min_p)
    assert got.ids.tolist() == list(want)
    np.testing.assert_allclose(got.probabilities, list(want.values()), rtol=2e-6)


def test_ties_go_to_the_lower_id():
    logits = np.zeros(50, np.float32)
    logits[30] = -0.0
    assert top_candidates(logits, 0).tolist() == list(range(20))
    logits[40] = 1
    assert top_candidates(logits, 3).tolist() == [40, 0, 1]


def test_penalties_count_presence_once_and_frequency_each_time():
    logits = np.zeros(4, np.float32)
    counts = np.array([0, 1, 3, 0], np.int32)
    np.testing.assert_array_equal(penalise(logits, counts, 0.5, 0.0), [0, -0.5, -0.5, 0])
    np.testing.assert_array_equal(penalise(logits, counts, 0.5, 0.25), [0, -0.75, -1.25, 0])
    assert (logits == 0).all()


def test_draw_frequencies_match_the_distribution():
    """Chi-square of 4000 draws with fixed seeds against the filtered distribution, 99.9 % bound."""
    logits = np.random.default_rng(3).standard_normal(64).astype(np.float32)
    n = 4000
    out = np.empty(n, np.int32)
    ReferenceOps().sample(np.tile(logits, (n, 1)), 64, rows(n, top_p=1.0, top_k=8), DECODE, out)
    want = plain_distribution(logits.tolist(), 0.7, 8, 1.0, 0.0)
    observed = np.array([(out == token).sum() for token in want])
    assert observed.sum() == n
    expected = n * np.array(list(want.values()))
    assert ((observed - expected) ** 2 / expected).sum() < 24.3  # 7 degrees of freedom


def test_draw_is_the_first_cumulative_above_u():
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    out = np.empty(40, np.int32)
    ReferenceOps().sample(np.tile(logits, (40, 1)), 3, rows(40, temperature=1.0, top_p=1.0), DECODE, out)
    u = np.array([uniform24(seed, 5, DECODE) / 2**24 for seed in range(40)])
    assert out.tolist() == np.searchsorted([0.5, 0.8], u, side="right").tolist()


def test_greedy_rows_ignore_penalties_and_counts():
    logits = np.zeros((2, 10), np.float32)
    logits[:, 7] = 1
    counts = np.zeros((2, 10), np.int32)
    counts[:, 7] = 100
    out = np.empty(2, np.int32)
    ReferenceOps().sample(logits, 10, rows(2, counts, temperature=0.0, presence=2.0), DECODE, out)
    assert out.tolist() == [7, 7]
    assert counts[:, 7].tolist() == [100, 100]


def test_counts_follow_the_lane():
    logits = np.zeros((2, 10), np.float32)
    logits[:, 4] = 50
    counts = np.zeros((2, 10), np.int32)
    inputs = rows(2, counts, presence=1.0)
    inputs.lanes[:] = [1, 0]
    inputs.presence[0] = 0.5
    out = np.empty(2, np.int32)
    ReferenceOps().sample(logits, 10, inputs, DECODE, out)
    assert counts[:, 4].tolist() == [1, 1]


def test_ids_beyond_the_domain_are_never_chosen():
    logits = np.zeros((1, 30), np.float32)
    logits[0, 25:] = 99
    out = np.empty(1, np.int32)
    ReferenceOps().argmax(logits, 25, out)
    assert out[0] == 0
    ReferenceOps().sample(logits, 25, rows(1), DECODE, out)
    assert out[0] < 25


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_non_finite_logit_gives_minus_one_for_its_row_alone(bad):
    logits = np.zeros((3, 30), np.float32)
    logits[1, 11] = bad
    logits[2, 29] = bad  # outside the domain
    out = np.empty(3, np.int32)
    ReferenceOps().argmax(logits, 25, out)
    assert out.tolist() == [0, -1, 0]
    ReferenceOps().sample(logits, 25, rows(3), DECODE, out)
    assert out[1] == -1
    assert (out[[0, 2]] >= 0).all()
