"""Linear maps on the GPU against the reference backend: every format, row bucket, epilogue and odd size."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the cuda extra (numba-cuda)")
pytest.importorskip("ml_dtypes", reason="needs the test extra (ml-dtypes)")

from support.tolerance import check_reduction

EPS = 1e-6
GROUPED = ["Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S"]
FORMATS = ["BF16", *GROUPED, "FP8_E4M3FN_ROW_BF16S", "NVFP4"]
SHAPES = [(128, 256), (640, 1152), (1536, 5120), (5120, 17408)]


def values(rng, shape):
    """Weights with a few large rows and columns, as trained ones have."""
    weight = rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[1] ** -0.5)
    weight[rng.integers(0, shape[0], 3)] *= 8
    weight[:, rng.integers(0, shape[1], 3)] *= 4
    return weight


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 12, 16, 45])
@pytest.mark.parametrize("format", FORMATS)
def test_linear(pair, rng, format, rows):
    for shape in SHAPES[: 4 if rows in (1, 8, 16) else 2]:
        weight = pair.weight(values(rng, shape), format)
        x, out = pair.buffer(rng.standard_normal((rows, shape[1])), "bf16"), pair.poisoned((rows, shape[0]))
        pair.run(lambda ops, i, x=x, weight=weight, out=out: ops.linear(x[i], weight[i], out[i]))
        check_reduction(pair.cuda.read(out[0]), out[1], "linear")


@pytest.mark.parametrize("format", FORMATS)
def test_rows_that_end_inside_a_tile(pair, rng, format):
    height = 128 if format == "NVFP4" else 77
    weight = pair.weight(values(rng, (height, 512)), format)
    x, out = pair.buffer(rng.standard_normal((2, 512)), "bf16"), pair.poisoned((2, height))
    pair.run(lambda ops, i: ops.linear(x[i], weight[i], out[i]))
    check_reduction(pair.cuda.read(out[0]), out[1], "linear")


@pytest.mark.parametrize("rows", [17, 128, 300, 1024])
@pytest.mark.parametrize("format", FORMATS)
def test_linear_of_many_rows(pair, rng, format, rows):
    """Heights and rows that end inside tiles; fewer and more tiles than blocks, so that some are cut by k."""
    for shape in [(384, 256), (1680 if format != "NVFP4" else 1664, 5120)] + [(17408, 1152)] * (rows == 300):
        weight = pair.weight(values(rng, shape), format)
        x, out = pair.buffer(rng.standard_normal((rows, shape[1])), "bf16"), pair.poisoned((rows, shape[0]))
        pair.run(lambda ops, i, x=x, weight=weight, out=out: ops.linear(x[i], weight[i], out[i]))
        check_reduction(pair.cuda.read(out[0]), out[1], "linear")


@pytest.mark.parametrize("formats", [("NVFP4",), ("Q5G64_F16S", "Q4G64_F16S"), ("BF16", "BF16")])
def test_norm_linear_of_many_rows(pair, rng, formats):
    heights, width, rows = (640, 256)[: len(formats)], 5120, 130
    weights = [pair.weight(values(rng, (n, width)), f) for n, f in zip(heights, formats, strict=True)]
    x, gain = pair.buffer(rng.standard_normal((rows, width)) * 3, "bf16"), pair.weight(rng.random(width), "BF16")
    out = pair.poisoned((rows, sum(heights)))
    pair.run(lambda ops, i: ops.norm_linear(x[i], gain[i], EPS, [w[i] for w in weights], out[i]))
    check_reduction(pair.cuda.read(out[0]), out[1], "attention input")


@pytest.mark.parametrize("rows", [1, 5, 16, 40, 257])
@pytest.mark.parametrize("format", FORMATS)
def test_linear_add(pair, rng, format, rows):
    weight = pair.weight(values(rng, (640, 1152)), format)
    x, out = pair.buffer(rng.standard_normal((rows, 1152)), "bf16"), pair.buffer(rng.random((rows, 640)), "bf16")
    pair.run(lambda ops, i: ops.linear_add(x[i], weight[i], out[i]))
    check_reduction(pair.cuda.read(out[0]), out[1], "linear")


@pytest.mark.parametrize("rows", [1, 4, 11, 16])
@pytest.mark.parametrize("formats", [("NVFP4",), ("Q5G64_F16S", "Q4G64_F16S"), ("BF16", "BF16"), ("W8G32_F16S",)])
def test_norm_linear(pair, rng, formats, rows):
    heights, width = (640, 256)[: len(formats)], 5120
    weights = [pair.weight(values(rng, (n, width)), f) for n, f in zip(heights, formats, strict=True)]
    x, gain = pair.buffer(rng.standard_normal((rows, width)) * 3, "bf16"), pair.weight(rng.random(width), "BF16")
    out = pair.poisoned((rows, sum(heights)))
    pair.run(lambda ops, i: ops.norm_linear(x[i], gain[i], EPS, [w[i] for w in weights], out[i]))
    check_reduction(pair.cuda.read(out[0]), out[1], "attention input")


@pytest.mark.parametrize("rows", [1, 2, 6, 16, 33, 200])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("inner", "width"), [(384, 256), (1728, 5120)])
def test_norm_swiglu(pair, rng, format, rows, inner, width):
    inner = -(-inner // 64) * 64
    weight = pair.weight(values(rng, (2 * inner, width)), format)
    x, gain = pair.buffer(rng.standard_normal((rows, width)) * 3, "bf16"), pair.weight(rng.random(width), "BF16")
    out = pair.poisoned((rows, inner))
    pair.run(lambda ops, i: ops.norm_swiglu(x[i], gain[i], EPS, weight[i], out[i]))
    check_reduction(pair.cuda.read(out[0]), out[1], "swiglu")


def test_the_same_rows_give_the_same_bits_again(pair, rng):
    weight = pair.weight(values(rng, (1536, 5120)), "Q4G64_F16S")
    x, out = pair.buffer(rng.standard_normal((4, 5120)), "bf16"), pair.poisoned((4, 1536))
    seen = []
    for _ in range(5):
        pair.run(lambda ops, i: ops.linear(x[i], weight[i], out[i]))
        seen.append(pair.cuda.read(out[0]).tobytes())
    assert len(set(seen)) == 1
