"""A token's result does not depend on the columns that share its call (runtime.md invariants 6 and 27)."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_nb.ops.reference.linear import matmul_nt
from ninfer_nb.ops.reference.numeric import quantise_int8_groups, rms, round_bf16

SHAPES = st.sampled_from([(6, 256), (12, 256), (256, 768), (256, 1024), (1536, 256), (4096, 256), (216, 864)])


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.integers(0, 150), st.integers(1, 150), st.integers(0, 2**32))
def test_matmul_rows_are_independent(shape, start, count, seed):
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(shape).astype(np.float32)
    x = rng.standard_normal((300, shape[1])).astype(np.float32)
    np.testing.assert_array_equal(matmul_nt(x[start : start + count], w), matmul_nt(x, w)[start : start + count])


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(0, 2**32))
def test_norms_are_independent(count, seed):
    x = np.random.default_rng(seed).standard_normal((60, 6, 128)).astype(np.float32)
    np.testing.assert_array_equal(rms(x[:count], 1e-6), rms(x, 1e-6)[:count])


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_round_bf16_is_nearest_even(word):
    import ml_dtypes

    x = np.array([word], np.uint32).view(np.float32)
    want = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(round_bf16(x), want)


@settings(deadline=None)
@given(st.lists(st.floats(-1e4, 1e4, width=32), min_size=64, max_size=64))
def test_int8_codes_are_odd_and_bounded(values):
    x = round_bf16(np.array([values], np.float32))
    codes, scales = quantise_int8_groups(x)
    mirrored, same = quantise_int8_groups(-x)
    assert np.abs(codes.astype(int)).max() <= 127
    np.testing.assert_array_equal(mirrored, -codes)
    np.testing.assert_array_equal(scales, same)
