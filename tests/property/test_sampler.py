"""The sampler: a distribution over its support, drawn from by the counter-based generator, blind to other rows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_nb.ops import SamplingRows
from ninfer_nb.ops.reference import ReferenceOps
from ninfer_nb.ops.reference.sampling import filtered, penalise
from ninfer_nb.ops.rng import DECODE, PREFILL, uniform24

SEEDS = st.integers(0, 2**32 - 1)


def logits_of(seed, domain=200):
    return np.round(np.random.default_rng(seed).standard_normal(domain) * 8).astype(np.float32) / 4  # with ties


@settings(deadline=None)
@given(SEEDS, st.floats(0.05, 2), st.integers(0, 40), st.floats(0, 1), st.floats(0, 1))
def test_distribution(seed, temperature, top_k, top_p, min_p):
    logits = logits_of(seed)
    found = filtered(logits, temperature, top_k, top_p, min_p)
    ids, p = found.ids, found.probabilities.astype(np.float64)
    assert 1 <= len(ids) <= min(20, top_k or 20)
    assert abs(p.sum() - 1) < 1e-5 and (p > 0).all()
    assert (np.diff(p) <= 1e-7).all()
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    assert ids.tolist() == order[: len(ids)]


@settings(deadline=None)
@given(SEEDS, st.floats(0.05, 2))
def test_narrower_filters_keep_a_prefix(seed, temperature):
    logits = logits_of(seed)
    wide = filtered(logits, temperature, 0, 1.0, 0.0).ids.tolist()
    for top_k, top_p, min_p in ((5, 1.0, 0.0), (0, 0.5, 0.0), (0, 1.0, 0.3)):
        kept = filtered(logits, temperature, top_k, top_p, min_p).ids.tolist()
        assert kept == wide[: len(kept)]


@given(SEEDS, st.floats(-2, 2, width=32), st.floats(-2, 2, width=32))
def test_penalties_touch_seen_tokens_only(seed, presence, frequency):
    logits, counts = logits_of(seed), np.random.default_rng(seed).integers(0, 4, 200).astype(np.int32)
    out = penalise(logits, counts, presence, frequency)
    np.testing.assert_array_equal(out[counts == 0], logits[counts == 0])
    wanted = logits - np.float32(presence) - np.float32(frequency) * counts
    np.testing.assert_allclose(out[counts > 0], wanted[counts > 0], atol=1e-5)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**20), st.integers(0, 4))
def test_draws_are_reproducible_and_in_range(seed, position, purpose):
    u = uniform24(seed, position, purpose)
    assert 0 <= u < 2**24 and u == uniform24(seed, position, purpose)


@settings(deadline=None, max_examples=50)
@given(SEEDS, st.permutations(range(6)), st.sampled_from([PREFILL, DECODE]))
def test_a_row_does_not_see_the_others(seed, order, purpose):
    rng, n, domain = np.random.default_rng(seed), 6, 200
    logits = np.stack([logits_of(seed + i, domain) for i in range(n)])
    fields = {
        "temperature": rng.choice([0.0, 0.5, 1.0], n).astype(np.float32), "top_k": rng.integers(0, 30, n, np.int32),
        "top_p": rng.random(n, np.float32), "min_p": (rng.random(n) / 4).astype(np.float32),
        "presence": rng.choice([0, 1.5], n).astype(np.float32), "frequency": rng.choice([0, 0.5], n).astype(np.float32),
        "seed": rng.integers(0, 2**63, n, np.uint64), "position": rng.integers(0, 4096, n, np.int32),
    }  # fmt: skip

    def sample(rows):
        counts = np.ones((n, domain), np.int32)
        out = np.empty(len(rows), np.int32)
        picked = {name: values[rows] for name, values in fields.items()}
        where = SamplingRows(**picked, lanes=np.array(rows, np.int32), counts=counts)
        ReferenceOps().sample(logits[rows], domain, where, purpose, out)
        return out, counts

    together, counts = sample(list(range(n)))
    shuffled, other = sample(list(order))
    np.testing.assert_array_equal(shuffled, together[list(order)])
    np.testing.assert_array_equal(other, counts)
    assert sample([3])[0][0] == together[3]
