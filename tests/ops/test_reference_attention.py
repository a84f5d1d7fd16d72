"""Paged attention: against a dense float64 softmax, over page permutations, with garbage beyond the frontier."""

import numpy as np
import pytest

from ninfer_nb.ops import Columns, KvLayer, Rope
from ninfer_nb.ops.reference import ReferenceOps, ReferenceWeight
from ninfer_nb.ops.reference import attention as attn
from ninfer_nb.ops.reference.numeric import dequantise_int8_groups, quantise_int8_groups, round_bf16

HQ, HKV, D, SCALE = 4, 2, 256, 1 / 16


def cache(pages, kv_dtype="bf16", order=None, garbage=0.0):
    plane = (pages, HKV, 64, D)
    table = np.array([range(pages) if order is None else order], np.int32)
    if kv_dtype == "bf16":
        return KvLayer(np.full(plane, garbage, np.float32), np.full(plane, garbage, np.float32), None, None, table)
    scales = np.full((*plane[:3], D // 64), np.nan, np.float16)
    return KvLayer(np.full(plane, 77, np.int8), np.full(plane, 77, np.int8), scales, scales.copy(), table)


def columns(start, n, valid=None):
    positions = np.arange(start, start + n, dtype=np.int32)
    return Columns(1, n, positions, positions, np.zeros(1, np.int32), valid, start + n)


def sequence(n, seed=0):
    rng = np.random.default_rng(seed)
    return (round_bf16(rng.standard_normal((n, h * D)).astype(np.float32)) for h in (HQ, HKV, HKV))


def run(q, k, v, kv, steps):
    out, start = np.full(q.shape, np.nan, np.float32), 0
    for n in steps:
        c, span = columns(start, n), slice(start, start + n)
        attn.append(k[span].reshape(n, HKV, D), v[span].reshape(n, HKV, D), kv, c)
        out[span] = attn.attention(q[span].reshape(n, HQ, D), kv, c, SCALE).reshape(n, -1)
        start += n
    return out


def dense(q, k, v):
    q, k, v = (x.astype(np.float64).reshape(len(x), -1, D) for x in (q, k, v))
    out = np.empty_like(q)
    for h in range(HQ):
        scores = q[:, h] @ k[:, h // 2].T * SCALE
        scores[np.triu_indices(len(q), 1)] = -np.inf
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, h] = weights / weights.sum(axis=1, keepdims=True) @ v[:, h // 2]
    return out.reshape(len(q), -1)


@pytest.mark.parametrize("n", [1, 63, 64, 65, 300])
def test_matches_a_dense_softmax(n):
    q, k, v = sequence(n)
    np.testing.assert_allclose(run(q, k, v, cache(5), [n]), dense(q, k, v), atol=3e-6)


def test_steps_pages_and_garbage_do_not_change_a_bit():
    q, k, v = sequence(300)
    want = run(q, k, v, cache(5), [300])
    np.testing.assert_array_equal(run(q, k, v, cache(5, garbage=np.nan), [37, 1, 1, 128, 133]), want)
    np.testing.assert_array_equal(run(q, k, v, cache(9, order=[7, 0, 3, 8, 1]), [1] * 20 + [280]), want)


def test_int8_cache_reads_its_own_codes():
    q, k, v = sequence(130)
    decoded = [dequantise_int8_groups(*quantise_int8_groups(x.reshape(-1, HKV, D))).reshape(x.shape) for x in (k, v)]
    np.testing.assert_allclose(run(q, k, v, cache(3, "int8"), [100, 30]), dense(q, *decoded), atol=3e-6)


def test_inert_columns_write_nothing_and_give_zero():
    q, k, v = sequence(8)
    kv, out = cache(1), np.full(q.shape, np.nan, np.float32)
    c = columns(0, 8, np.array([3], np.int32))
    attn.append(k.reshape(8, HKV, D), v.reshape(8, HKV, D), kv, c)
    ReferenceOps().attention(q, np.zeros_like(q), kv, c, SCALE, out)
    assert (kv.keys[0, :, 3:] == 0).all()
    assert (kv.keys[0, :, :3] != 0).all()
    assert (out[3:] == 0).all()
    assert np.isfinite(out).all()


def test_int8_codec_rules():
    x = np.zeros((5, 64), np.float32)
    x[1, 3] = 1e-12  # scale underflows binary16
    x[2] = np.linspace(-3, 3, 64)
    x[3, 0] = -0.0
    x[4] = -x[2]
    codes, scales = quantise_int8_groups(x)
    assert scales[[0, 1, 3], 0].tolist() == [0, 0, 0]
    assert (codes[[0, 1, 3]] == 0).all()
    assert codes[2, 0] == -127 and codes[2, -1] == 127
    np.testing.assert_array_equal(codes[4], -codes[2])
    assert scales[4] == scales[2]
    error = np.abs(dequantise_int8_groups(codes, scales)[2] - x[2])
    assert error.max() <= float(scales[2, 0]) * 0.502


def test_rope_axes_and_untouched_dims():
    rope = Rope((1e7 ** (-np.arange(32) / 32)).astype(np.float32))
    x = np.random.default_rng(0).standard_normal((5, 2, D)).astype(np.float32)
    single = attn.rotate(x, np.arange(5), rope)
    np.testing.assert_array_equal(single[..., 64:], x[..., 64:])
    np.testing.assert_array_equal(attn.rotate(x, np.tile(np.arange(5), (3, 1)), rope), single)
    mixed = attn.rotate(x, np.stack([np.arange(5), np.full(5, 7), np.full(5, 9)]), rope)
    at7, at9 = (attn.rotate(x, np.full(5, p), rope) for p in (7, 9))
    for pair in range(32):
        want = (single, at7, at9)[pair % 3]
        np.testing.assert_array_equal(mixed[..., [pair, pair + 32]], want[..., [pair, pair + 32]])


def test_head_norm_adds_one_to_the_gain():
    x = np.random.default_rng(0).standard_normal((3, HQ * D)).astype(np.float32)
    q, k, zero = x.copy(), x[:, : HKV * D].copy(), ReferenceWeight.dense(np.zeros(D, np.float32))
    v = k.copy()
    position_zero = Columns(1, 3, np.zeros(3, np.int32), np.zeros(3, np.int32), np.zeros(1, np.int32))
    rope = Rope((1e7 ** (-np.arange(32) / 32)).astype(np.float32))
    ReferenceOps(round_bf16=False).rope_append(q, k, v, zero, zero, 1e-6, rope, cache(1), position_zero)
    np.testing.assert_allclose((q.reshape(3, HQ, D) ** 2).mean(axis=-1), 1, rtol=1e-5)
