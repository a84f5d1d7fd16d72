"""The delta rule: chunked against recurrent form, convolution history, and a restatement by hand."""

import numpy as np
import pytest

from ninfer_nb.ops.reference import gdn


def inputs(n, seed=0, hk=2, hv=6, d=128, dtype=np.float64):
    rng = np.random.default_rng(seed)
    q, k = (rng.standard_normal((n, hk, d)).astype(dtype) for _ in range(2))
    v = rng.standard_normal((n, hv, d)).astype(dtype)
    g = -np.exp(rng.standard_normal((n, hv))).astype(dtype)
    beta = rng.uniform(0, 1, (n, hv)).astype(dtype)
    state = rng.standard_normal((hv, d, d)).astype(dtype)
    return q, k, v, g, beta, state


@pytest.mark.parametrize("n", [1, 63, 64, 65, 128, 200])
def test_chunked_equals_recurrent(n):
    q, k, v, g, beta, state = inputs(n)
    other = state.copy()
    want = gdn.recurrent(q, k, v, g, beta, state)
    got = gdn.chunked(q, k, v, g, beta, other)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * np.abs(want).max())
    np.testing.assert_allclose(other, state, rtol=0, atol=1e-12 * np.abs(state).max())


def test_chunked_survives_total_decay():
    """Sums of g far below the exponent range: ratios of exponentials would be 0/0."""
    q, k, v, g, beta, state = inputs(128, dtype=np.float32)
    g[:] = -40
    other = state.copy()
    np.testing.assert_allclose(
        gdn.chunked(q, k, v, g, beta, other), gdn.recurrent(q, k, v, g, beta, state), rtol=1e-4, atol=1e-5
    )


def test_one_step_by_hand():
    q, k, v, g, beta, state = inputs(1, hk=1, hv=2, d=4)
    before = state.copy()
    out = gdn.recurrent(q, k, v, g, beta, state)
    kn = k[0, 0] / np.sqrt((k[0, 0] ** 2).sum() + 1e-6)
    qn = q[0, 0] / np.sqrt((q[0, 0] ** 2).sum() + 1e-6)
    for h in range(2):
        decayed = np.exp(g[0, h]) * before[h]
        after = decayed + np.outer(beta[0, h] * (v[0, h] - decayed @ kn), kn)
        np.testing.assert_allclose(state[h], after, rtol=1e-6)
        np.testing.assert_allclose(out[0, h], after @ qn / 2, rtol=1e-6)


def test_convolution_continues_over_calls():
    rng = np.random.default_rng(1)
    u = rng.standard_normal((20, 12)).astype(np.float32)
    taps = rng.standard_normal((4, 12)).astype(np.float32)
    whole, last = gdn.causal_conv(u, taps, np.zeros((3, 12), np.float32))
    history, parts = np.zeros((3, 12), np.float32), []
    for start, stop in ((0, 1), (1, 3), (3, 4), (4, 20)):
        part, history = gdn.causal_conv(u[start:stop], taps, history)
        parts.append(part)
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(history, last)
    np.testing.assert_array_equal(history, u[-3:])
