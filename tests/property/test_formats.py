"""Numeric formats: words survive packing, values survive encoding within the step of their group, views are slices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_nb.artifact.codec import check_words, decode, decode_rows
from ninfer_nb.artifact.encoders import encode_fp8_rows, encode_grouped
from ninfer_nb.artifact.encoders_nvfp4 import encode_nvfp4
from ninfer_nb.artifact.formats import numeric_format
from ninfer_nb.artifact.layouts import swizzle_scales, unswizzle_scales
from ninfer_nb.artifact.views import take_columns, take_rows
from ninfer_nb.artifact.words import bf16_to_f32, f32_to_bf16, f32_to_e4m3fn

GROUPED = ("Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S")
SEEDS = st.integers(0, 2**32 - 1)


def bf16_matrix(seed, n, k, spread=4):
    """BF16 words of values over several magnitudes, zeros among them."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n, k)) * 10.0 ** rng.uniform(-spread, spread / 2, (n, 1))
    values[rng.random((n, k)) < 0.1] = 0
    return f32_to_bf16(values.astype(np.float32))


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.sampled_from(GROUPED), st.integers(1, 5), st.integers(1, 400))
def test_grouped_values_are_within_half_a_step_and_the_rounding_of_the_scale(seed, format, n, k):
    x = bf16_matrix(seed, n, k)
    payload, row = encode_grouped(x, format), numeric_format(format)
    check_words(payload, format, x.shape)
    values, source = decode(payload, format, x.shape), bf16_to_f32(x)
    for start in range(0, k, row.group):
        group = source[:, start : start + row.group]
        step = np.abs(group).max(axis=1, keepdims=True) / row.qmax
        error = np.abs(values[:, start : start + row.group] - group)
        scale_error = step * 2**-11 + 2**-25  # binary16 rounds the scale, by more where it is subnormal
        assert (error <= step * 0.5 + row.qmax * scale_error * 1.01).all()


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.integers(1, 5), st.integers(1, 300))
def test_fp8_rows_are_within_the_word_spacing(seed, n, k):
    x = bf16_matrix(seed, n, k)
    payload = encode_fp8_rows(x)
    check_words(payload, "FP8_E4M3FN_ROW_BF16S", x.shape)
    values, source = decode(payload, "FP8_E4M3FN_ROW_BF16S", x.shape), bf16_to_f32(x)
    largest = np.abs(source).max(axis=1, keepdims=True)
    assert (np.abs(values - source) <= np.abs(source) * 2**-4 * 1.01 + largest / 448 * 2**-9).all()


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.integers(1, 2), st.integers(1, 5))
def test_nvfp4_values_are_within_the_code_spacing(seed, n_tiles, k_tiles):
    x = bf16_matrix(seed, 128 * n_tiles, 64 * k_tiles, spread=1)
    payload = encode_nvfp4(x)
    check_words(payload, "NVFP4", x.shape)
    values, source = decode(payload, "NVFP4", x.shape), bf16_to_f32(x)
    blocks = np.abs(source).reshape(len(source), -1, 16).max(axis=2)
    bound = np.repeat(blocks / 6 * 1.07 + np.abs(source).max() * 2**-17, 16, axis=1)  # half the widest code step
    assert (np.abs(values - source) <= bound).all()


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.sampled_from((*GROUPED, "FP8_E4M3FN_ROW_BF16S", "BF16")), st.data())
def test_views_are_slices_of_the_values(seed, format, data):
    n, k = data.draw(st.integers(1, 6)), 128 * data.draw(st.integers(1, 4))
    x = bf16_matrix(seed, n, k)
    if format == "BF16":
        payload = x.reshape(-1).view(np.uint8)
    else:
        payload = encode_fp8_rows(x) if format.startswith("FP8") else encode_grouped(x, format)
    whole = decode(payload, format, x.shape)
    rows = data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=8))
    np.testing.assert_array_equal(
        decode(take_rows(payload, format, x.shape, rows), format, (len(rows), k)), whole[rows]
    )
    np.testing.assert_array_equal(decode_rows(payload, format, x.shape, np.array(rows)), whole[rows])
    start = data.draw(st.integers(0, k // 128 - 1)) * 128
    stop = data.draw(st.integers(start // 128 + 1, k // 128)) * 128
    columns = take_columns(payload, format, x.shape, start, stop)
    np.testing.assert_array_equal(decode(columns, format, (n, stop - start)), whole[:, start:stop])


@pytest.mark.parametrize(("rows", "columns"), [(slice(0, 128), (0, 128)), (slice(128, 256), (64, 128))])
def test_nvfp4_views(rows, columns):
    x = bf16_matrix(1, 256, 128, spread=0)
    payload = encode_nvfp4(x)
    whole = decode(payload, "NVFP4", x.shape)
    np.testing.assert_array_equal(decode(take_rows(payload, "NVFP4", x.shape, rows), "NVFP4", (128, 128)), whole[rows])
    part = take_columns(payload, "NVFP4", x.shape, *columns)
    shape = (256, columns[1] - columns[0])
    np.testing.assert_array_equal(decode(part, "NVFP4", shape), whole[:, columns[0] : columns[1]])


@given(SEEDS, st.integers(1, 3), st.integers(1, 5))
def test_scale_swizzle_is_a_permutation(seed, n_tiles, k_tiles):
    natural = np.random.default_rng(seed).integers(0, 127, (128 * n_tiles, 4 * k_tiles), dtype=np.uint8)
    np.testing.assert_array_equal(unswizzle_scales(swizzle_scales(natural), *natural.shape), natural)


@given(st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_narrow_words_equal_ml_dtypes(values):
    import ml_dtypes

    x = np.array(values, np.float32)
    np.testing.assert_array_equal(
        f32_to_bf16(x)[~np.isnan(x)], x.astype(ml_dtypes.bfloat16).view(np.uint16)[~np.isnan(x)]
    )
    small = np.clip(x[np.isfinite(x)], -448, 448)
    np.testing.assert_array_equal(f32_to_e4m3fn(small), small.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
