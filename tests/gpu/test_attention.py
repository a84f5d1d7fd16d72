"""RoPE, KV append, attention and GDN projections on the GPU against the reference backend."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the cuda extra (numba-cuda)")
pytest.importorskip("ml_dtypes", reason="needs the test extra (ml-dtypes)")

import itertools

from support.tolerance import check_pointwise, check_reduction

from ninfer_nb.ops import Columns, KvLayer, Rope

EPS = 1e-6
DIM = 256
HEADS = [(4, 2), (24, 4), (16, 2)]


def paged(pair, rng, kv_heads, lanes, pages, codec):
    """A pool with shuffled pages, random old content; a pair of KvLayer."""
    shape = (lanes * pages + 1, kv_heads, 64, DIM)
    table = pair.buffer(rng.permutation(lanes * pages).reshape(lanes, pages), "i32")
    if codec == "bf16":
        keys, values = (pair.buffer(rng.standard_normal(shape), "bf16") for _ in range(2))
        scales = [(None, None)] * 2
    else:
        keys, values = (pair.buffer(rng.integers(-127, 128, shape), "i8") for _ in range(2))
        scales = [pair.buffer(rng.random((*shape[:3], 4)) / 50, "f16") for _ in range(2)]
    return [KvLayer(keys[i], values[i], scales[0][i], scales[1][i], table[i]) for i in range(2)]


def columns_of(pair, lengths, width, lanes, valid, axes=1):
    """Row b's columns are at positions lengths[b] - 1 and on; max_visible as the engine gives it."""
    at = np.concatenate([np.arange(n - 1, n - 1 + width) for n in lengths])
    rope = at if axes == 1 else np.stack([at, at + 3, at + 7])
    where = pair.buffer(at, "i32"), pair.buffer(rope, "i32"), pair.buffer(lanes, "i32")
    live = pair.buffer(valid, "i32") if valid is not None else (None, None)
    return [Columns(len(lengths), width, where[0][i], where[1][i], where[2][i], live[i], at.max() + 1) for i in (0, 1)]


@pytest.mark.parametrize("codec", ["bf16", "int8"])
@pytest.mark.parametrize(("q_heads", "kv_heads"), HEADS)
@pytest.mark.parametrize(
    ("lengths", "width", "valid"), [([1], 1, None), ([900, 64, 65], 1, None), ([60, 3], 9, [9, 4])]
)
@pytest.mark.parametrize("axes", [1, 3])
def test_rope_append(pair, rng, q_heads, kv_heads, codec, lengths, width, valid, axes):
    count, wide = len(lengths) * width, (q_heads + 2 * kv_heads) * DIM
    joint = pair.buffer(rng.standard_normal((count, wide)) * 2, "bf16")
    gains = [pair.weight(rng.standard_normal(DIM) * 0.2, "BF16") for _ in range(2)]
    cache = paged(pair, rng, kv_heads, len(lengths), 16, codec)
    columns = columns_of(pair, lengths, width, rng.permutation(len(lengths)), valid, axes)
    rope = Rope((1e7 ** -(np.arange(0, 64, 2) / 64)).astype(np.float32))
    edges = (0, q_heads * DIM, (q_heads + kv_heads) * DIM, wide)

    def call(ops, i):
        q, k, v = (joint[i][:, a:b] for a, b in itertools.pairwise(edges))
        ops.rope_append(q, k, v, gains[0][i], gains[1][i], EPS, rope, cache[i], columns[i])

    pair.run(call)
    live = np.concatenate([np.arange(width) < (valid[b] if valid else width) for b in range(len(lengths))])
    got = pair.cuda.read(joint[0])
    check_reduction(got[live], joint[1][live], "rms norm")
    if codec == "bf16":
        check_reduction(pair.cuda.read(cache[0].keys), cache[1].keys, "rms norm")
        np.testing.assert_array_equal(pair.cuda.read(cache[0].values), cache[1].values)
    else:
        np.testing.assert_array_equal(pair.cuda.read(cache[0].values), cache[1].values)
        np.testing.assert_array_equal(pair.cuda.read(cache[0].value_scales), cache[1].value_scales)
        check_pointwise(pair.cuda.read(cache[0].key_scales), cache[1].key_scales, "rope")
        off = np.abs(pair.cuda.read(cache[0].keys).astype(int) - cache[1].keys)
        assert off.max() <= 1
        assert (off > 0).mean() < 0.02


CASES = [
    ([1], 1, None), ([63], 1, None), ([64], 1, None), ([2000], 1, None), ([1, 700, 65, 129], 1, None), ([500], 6, None),
    ([1], 16, None), ([300, 10], 4, [4, 1]), ([300, 10], 4, [0, 3]), ([1], 130, None), ([100], 77, [70]),
]  # fmt: skip


@pytest.mark.parametrize("codec", ["bf16", "int8"])
@pytest.mark.parametrize(("q_heads", "kv_heads"), HEADS)
@pytest.mark.parametrize(("lengths", "width", "valid"), CASES)
def test_attention(pair, rng, q_heads, kv_heads, codec, lengths, width, valid):
    count, wide = len(lengths) * width, q_heads * DIM
    cache = paged(pair, rng, kv_heads, len(lengths), 33, codec)
    columns = columns_of(pair, lengths, width, rng.permutation(len(lengths)), valid)
    q, gate = (pair.buffer(rng.standard_normal((count, wide)), "bf16") for _ in range(2))
    out = pair.poisoned((count, wide))
    pair.run(lambda ops, i: ops.attention(q[i], gate[i], cache[i], columns[i], DIM**-0.5, out[i]))
    check_reduction(pair.cuda.read(out[0]), out[1], f"attention {codec}")


def test_attention_ignores_broken_keys_beyond_the_end(pair, rng):
    cache = paged(pair, rng, 2, 1, 4, "bf16")
    page = int(cache[1].table[0, 0])
    poison = pair.cuda.read(cache[0].keys)
    poison[page, :, 10:] = np.nan
    for plane, _side in ((cache[0].keys, 0), (cache[0].values, 0)):
        pair.cuda.write(plane, poison)
    cache[1].keys[...] = cache[1].values[...] = poison
    columns = columns_of(pair, [10], 1, [0], None)
    q, gate = (pair.buffer(rng.standard_normal((1, 4 * DIM)), "bf16") for _ in range(2))
    out = pair.poisoned((1, 4 * DIM))
    pair.run(lambda ops, i: ops.attention(q[i], gate[i], cache[i], columns[i], DIM**-0.5, out[i]))
    check_reduction(pair.cuda.read(out[0]), out[1], "attention bf16")


@pytest.mark.parametrize("format", ["NVFP4", "Q5G64_F16S", "BF16"])
@pytest.mark.parametrize("count", [1, 5, 16, 40])
@pytest.mark.parametrize("joined", [True, False])
def test_gdn_project(pair, rng, format, count, joined):
    width, heads, wide = 5120, 48, 1024
    weight = pair.weight(rng.standard_normal((wide, width)) / 70, format)
    ab = rng.standard_normal((2 * heads, width)) / 70
    controls = [pair.weight(part, "BF16") for part in ([ab] if joined else [ab[:heads], ab[heads:]])]
    a_log, dt = (pair.weight(rng.standard_normal(heads), "FP32") for _ in range(2))
    x, gain = pair.buffer(rng.standard_normal((count, width)) * 3, "bf16"), pair.weight(rng.random(width), "BF16")
    joint, g, beta = pair.poisoned((count, wide)), *(pair.poisoned((count, heads), "f32") for _ in range(2))

    def call(ops, i):
        parts = [c[i] for c in controls]
        ops.gdn_project(x[i], gain[i], EPS, [weight[i]], parts, a_log[i], dt[i], joint[i], g[i], beta[i])

    pair.run(call)
    check_reduction(pair.cuda.read(joint[0]), joint[1], "gdn input")
    check_reduction(pair.cuda.read(g[0]), g[1], "gdn controls")
    check_reduction(pair.cuda.read(beta[0]), beta[1], "gdn controls")
