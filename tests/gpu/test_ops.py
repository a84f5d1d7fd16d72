"""The CUDA backend against the reference backend, op by op, through the protocol that the model uses.

The reference computes the same op from the same inputs in float32 or wider and rounds once, so a family's tolerance
(`model.md` 15) covers both sides' rounding.
"""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the cuda extra (numba-cuda)")
pytest.importorskip("ml_dtypes", reason="needs the test extra (ml-dtypes)")

from support.tolerance import check_reduction

from ninfer_nb.artifact.inventory import TensorSpec
from ninfer_nb.artifact.synthetic import payload
from ninfer_nb.cuda.memory import DeviceArray, download
from ninfer_nb.ops import Columns, Drafts, GdnLayer, GdnRecord, SamplingRows, Verdict
from ninfer_nb.ops.rng import DECODE

EPS = 1e-6


@pytest.mark.parametrize("width", [256, 5120])
@pytest.mark.parametrize("rows", [1, 3, 130])
def test_rms_norm(pair, rng, rows, width):
    x = pair.buffer(rng.standard_normal((rows, width)) * 3, "bf16")
    gain, out = pair.weight(rng.standard_normal(width) * 0.1, "BF16"), pair.poisoned((rows, width))
    pair.run(lambda ops, i: ops.rms_norm(x[i], gain[i], out[i], EPS))
    check_reduction(pair.cuda.read(out[0]), out[1], "rms norm")


FORMATS = ["BF16", "Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S", "FP8_E4M3FN_ROW_BF16S"]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("width", [256, 5120])
def test_embedding_is_exact_up_to_one_rounding(pair, rng, format, width):
    table = pair.weight(rng.standard_normal((77, width)), format)
    ids, out = pair.buffer(rng.integers(0, 77, 33), "i32"), pair.poisoned((33, width))
    pair.run(lambda ops, i: ops.embed(ids[i], table[i], out[i]))
    np.testing.assert_array_equal(pair.cuda.read(out[0]), out[1])


@pytest.mark.parametrize("gather", [True, False])
def test_row_copies(pair, rng, gather):
    index = pair.buffer(rng.permutation(9)[:5], "i32")
    x = pair.buffer(rng.standard_normal((9 if gather else 5, 264)), "bf16")
    out = pair.buffer(np.zeros((5 if gather else 9, 264)), "bf16")
    pair.run(lambda ops, i: (ops.gather_rows if gather else ops.scatter_rows)(x[i], index[i], out[i]))
    np.testing.assert_array_equal(pair.cuda.read(out[0]), out[1])


@pytest.mark.parametrize("domain", [4096, 248077])
def test_argmax_ties_and_broken_rows(pair, rng, domain):
    values = rng.standard_normal((8, domain + 243)).astype(np.float32)
    values[:, domain:] = np.nan  # rows of the head beyond the domain never count
    values[1, [17, 900, domain - 1]] = 50
    values[2, domain - 1] = 50
    values[3, 5] = np.nan
    values[4, 5] = np.inf
    values[5, :domain] = 0.0
    values[6, :domain] = -1e30
    logits, out = pair.buffer(values, "bf16"), pair.poisoned((8,), "i32")
    pair.run(lambda ops, i: ops.argmax(logits[i], domain, out[i]))
    got = pair.cuda.read(out[0])
    np.testing.assert_array_equal(got, out[1])
    assert got[[1, 2, 3, 4, 5, 6]].tolist() == [17, domain - 1, -1, -1, 0, 0]


def sampling_rows(side, fields, counts):
    return SamplingRows(**{name: fields[name][side] for name in fields}, counts=counts[side])


@pytest.mark.parametrize("domain", [4096, 248077])
@pytest.mark.parametrize("penalty", [0.0, 1.5])
def test_sampled_tokens_and_counts(pair, rng, domain, penalty):
    """The exponential may differ in its last bits, so a draw that falls on a border may differ: one in 400 at most."""
    same = np.concatenate([sample_case(pair, rng, domain, penalty) for _ in range(10)])
    assert (~same).sum() <= 1


def sample_case(pair, rng, domain, penalty):
    n = 8
    logits = pair.buffer(rng.standard_normal((n, domain)) * 4, "bf16")
    counts = pair.buffer(rng.integers(0, 3, (n, domain)), "i32")
    drawn = {
        "temperature": rng.choice([0.0, 0.3, 0.7, 1.0, 2.0], n), "top_p": rng.choice([0.0, 0.5, 0.9, 1.0], n),
        "min_p": rng.choice([0.0, 0.1], n), "presence": np.full(n, penalty), "frequency": np.full(n, penalty / 3),
    }  # fmt: skip
    fields = {name: pair.buffer(values, "f32") for name, values in drawn.items()}
    fields["top_k"] = pair.buffer(rng.choice([0, 1, 5, 20, 100], n), "i32")
    fields["seed"] = pair.buffer(rng.integers(0, 2**63, n, dtype=np.uint64), "u64")
    fields["position"] = pair.buffer(rng.integers(0, 2**20, n), "i32")
    fields["lanes"] = pair.buffer(rng.permutation(n), "i32")
    out = pair.poisoned((n,), "i32")

    def call(ops, i):
        rows = SamplingRows(**{name: field[i] for name, field in fields.items()}, counts=counts[i])
        ops.sample(logits[i], domain, rows, DECODE, out[i])

    pair.run(call)
    same = pair.cuda.read(out[0]) == out[1]
    if same.all():
        np.testing.assert_array_equal(pair.cuda.read(counts[0]), counts[1])
    return same


@pytest.mark.parametrize(("key_heads", "value_heads"), [(2, 6), (16, 48)])
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 1), (8, 1), (2, 4), (1, 16)])
def test_gdn_mix_of_few_columns(pair, rng, key_heads, value_heads, rows, width):
    mix_case(pair, rng, key_heads, value_heads, rows, width, valid=None)


def test_gdn_mix_leaves_inert_columns_alone(pair, rng):
    mix_case(pair, rng, 2, 6, 3, 4, valid=[0, 2, 4])


@pytest.mark.parametrize("length", [17, 64, 100, 513])
@pytest.mark.parametrize(("key_heads", "value_heads"), [(2, 6), (16, 48)])
def test_gdn_mix_of_a_prompt(pair, rng, key_heads, value_heads, length):
    mix_case(pair, rng, key_heads, value_heads, 1, length, valid=None)


def mix_case(pair, rng, key_heads, value_heads, rows, width, valid):
    channels, wide, slots, count = (2 * key_heads + value_heads) * 128, value_heads * 128, rows + 2, rows * width
    joint = pair.buffer(rng.standard_normal((count, channels + wide)), "bf16")
    taps, gain = pair.weight(rng.standard_normal((4, channels)) * 0.4, "BF16"), pair.weight(rng.random(128), "BF16")
    g = pair.buffer(-rng.random((count, value_heads)), "f32")
    beta = pair.buffer(rng.random((count, value_heads)), "f32")
    history = pair.buffer(rng.standard_normal((slots, 3, channels)), "bf16")
    state = pair.buffer(rng.standard_normal((slots, value_heads, 128, 128)) * 0.1, "f32")
    lanes = pair.buffer(rng.permutation(slots)[:rows], "i32")
    live = pair.buffer(valid, "i32") if valid is not None else (None, None)
    out = pair.poisoned((count, wide))
    before = state[1].copy()

    def call(ops, i):
        columns = Columns(rows, width, None, None, lanes[i], live[i])
        layer = GdnLayer(history[i], state[i])
        ops.gdn_mix(joint[i], taps[i], g[i], beta[i], gain[i], EPS, layer, columns, out[i])

    pair.run(call)
    check_reduction(pair.cuda.read(out[0]), out[1], "gdn output")
    check_reduction(pair.cuda.read(state[0]), state[1], "gdn state")
    np.testing.assert_array_equal(pair.cuda.read(history[0]), history[1])
    idle = np.setdiff1d(np.arange(slots), lanes[1])
    np.testing.assert_array_equal(pair.cuda.read(state[0])[idle], before[idle])


@pytest.mark.parametrize("valid", [[0, 1, 4], [4, 4, 2]])
def test_a_fold_gives_the_bits_of_the_steps_it_repeats(pair, rng, valid):
    """Record mode leaves the state alone; the fold moves it as running only the kept columns would."""
    key_heads, value_heads, rows, width = 2, 6, 3, 4
    channels, wide, count = (2 * key_heads + value_heads) * 128, value_heads * 128, rows * width
    joint = pair.buffer(rng.standard_normal((count, channels + wide)), "bf16")
    taps, gain = pair.weight(rng.standard_normal((4, channels)) * 0.4, "BF16"), pair.weight(rng.random(128), "BF16")
    g, beta = (pair.buffer(sign * rng.random((count, value_heads)), "f32") for sign in (-1, 1))
    past, held = rng.standard_normal((5, 3, channels)), rng.standard_normal((5, value_heads, 128, 128)) * 0.1
    once, twice = [(pair.buffer(past, "bf16"), pair.buffer(held, "f32")) for _ in range(2)]
    lanes, live, every = pair.buffer([3, 0, 2], "i32"), pair.buffer(valid, "i32"), pair.buffer([width] * rows, "i32")
    out, convolved = pair.poisoned((count, wide)), pair.poisoned((count, channels))

    def verify_and_fold(ops, i):
        layer = GdnLayer(once[0][i], once[1][i])
        columns = Columns(rows, width, None, None, lanes[i], every[i])
        ops.gdn_mix(joint[i], taps[i], g[i], beta[i], gain[i], EPS, layer, columns, out[i], convolved[i])
        record = GdnRecord(joint[i], convolved[i], g[i], beta[i])
        ops.gdn_fold(record, layer, Columns(rows, width, None, None, lanes[i], live[i]))

    def steps(ops, i):
        layer = GdnLayer(twice[0][i], twice[1][i])
        columns = Columns(rows, width, None, None, lanes[i], live[i])
        ops.gdn_mix(joint[i], taps[i], g[i], beta[i], gain[i], EPS, layer, columns, out[i])

    pair.run(verify_and_fold)
    pair.run(steps)
    for folded, stepped in zip(once, twice, strict=True):
        np.testing.assert_array_equal(pair.cuda.read(folded[0]), pair.cuda.read(stepped[0]))
    check_reduction(pair.cuda.read(once[1][0]), once[1][1], "gdn state")


@pytest.mark.parametrize("width", [2, 4, 6])
@pytest.mark.parametrize("penalties", [False, True])
def test_acceptance(pair, rng, width, penalties):
    """Rows that accept none, some and all drafts, greedy and sampled, one with a NaN: the same as the reference."""
    domain, rows, lanes = 4096, 8, 8
    logits = rng.standard_normal((rows * width, domain)).astype(np.float32) * 3
    best = logits.argmax(axis=1).reshape(rows, width)
    ids, extents = rng.integers(0, domain, (rows, width)), rng.integers(0, width, rows)
    extents[:4] = width - 1
    ids[:, 1:] = best[:, :-1]
    ids[2, 1] = (best[2, 0] + 1) % domain
    ids[3, -1] = (best[3, width - 2] + 1) % domain
    logits[5 * width] = np.nan
    temperature = np.where(np.arange(rows) % 2, 0.8, 0.0)
    values = {
        "temperature": (temperature, "f32"), "top_k": (np.full(rows, 20), "i32"), "top_p": (np.full(rows, 0.9), "f32"),
        "min_p": (np.full(rows, 0.01), "f32"), "presence": (np.full(rows, 0.5 * penalties), "f32"),
        "frequency": (np.full(rows, 0.25 * penalties), "f32"), "seed": (rng.integers(0, 2**62, rows), "u64"),
        "position": (rng.integers(5, 90, rows), "i32"), "lanes": (rng.permutation(lanes), "i32"),
    }  # fmt: skip
    fields = {name: pair.buffer(*value) for name, value in values.items()}
    counts = pair.buffer(rng.integers(0, 3, (lanes, domain)), "i32")
    given = [pair.buffer(a, "i32") for a in (ids.ravel(), extents, rng.integers(1, 9, rows), rng.integers(-3, 3, rows))]
    scores, capacity = pair.buffer(logits, "bf16"), 96
    sizes = [(rows * width,), (rows,), (rows * width,), (rows,), *[(max(width - 2, 1), rows)] * 3]
    results = [pair.poisoned(shape, "i32") for shape in sizes]

    def call(ops, i):
        which = SamplingRows(**{name: field[i] for name, field in fields.items()}, counts=counts[i])
        ids_, extents_, remaining, delta = (buffer[i] for buffer in given)
        drafts = Drafts(width, capacity, ids_, extents_, which.position, remaining, delta)
        ops.accept(scores[i], domain, drafts, which, Verdict(*[buffer[i] for buffer in results]))

    pair.run(call)
    checked = results[: 4 if width == 2 else 7]
    for ours, theirs in checked:
        np.testing.assert_array_equal(pair.cuda.read(ours), theirs)
    np.testing.assert_array_equal(pair.cuda.read(counts[0]), counts[1])


def test_copies_and_lookups(pair, rng):
    source, target = pair.buffer(rng.standard_normal((3, 64)), "bf16"), pair.poisoned((3, 64))
    table, index = rng.permutation(50).astype(np.int32), pair.buffer([3, -1, 49, 0], "i32")
    with pair.cuda.loading():
        ours = pair.cuda.weight(table.view(np.uint8), "I32", table.shape)
    tables = ours, pair.reference.weight(table.view(np.uint8), "I32", table.shape)
    pair.run(lambda ops, i: (ops.copy(source[i], target[i]), ops.lookup(tables[i], index[i])))
    np.testing.assert_array_equal(pair.cuda.read(target[0]), target[1])
    np.testing.assert_array_equal(pair.cuda.read(index[0]), index[1])


@pytest.mark.parametrize("shape", [(128, 256), (72, 216), (5, 4304)])
@pytest.mark.parametrize("format", [*FORMATS, "NVFP4", "I32", "FP32"])
def test_synthetic_payloads_are_the_same_bytes_as_on_the_host(cuda_ops, format, shape):
    if format == "NVFP4":
        shape = (128, 256)
    spec = TensorSpec("some/object", shape, format)
    weight = cuda_ops.synthetic(spec, 3, 11)
    want = payload(spec, 3, 11)
    got = download(DeviceArray.at(weight.codes, want.shape, "u8"), cuda_ops.stream)
    np.testing.assert_array_equal(got, want)
