"""Numeric formats, encoders and layouts against vectors that other people's code made."""

import json
from pathlib import Path

import numpy as np
import pytest

from ninfer_nb.artifact.codec import check_words, decode, decode_rows
from ninfer_nb.artifact.encoders import encode_fp8_rows, encode_grouped
from ninfer_nb.artifact.formats import FormatClass, check_layout, numeric_format
from ninfer_nb.artifact.layouts import (
    BlockScaleGeometry,
    RowScaleGeometry,
    RowSplitGeometry,
    encoded_bytes,
    swizzle_scales,
)
from ninfer_nb.artifact.packing import (
    encode_direct,
    encode_fp8_words,
    encode_grouped_words,
    encode_nvfp4_words,
    fp8_words,
    grouped_words,
    nvfp4_words,
)
from ninfer_nb.artifact.views import row_spans, take_rows
from ninfer_nb.artifact.words import E2M1_VALUES, E4M3FN_VALUES, f32_to_bf16
from ninfer_nb.errors import ArtifactError

GOLDEN = Path(__file__).parents[1] / "data/golden/artifact"


def text(name):
    return json.loads((GOLDEN / f"{name}.json").read_text())


def arrays(name):
    with np.load(GOLDEN / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}


GROUPED, GROUPED_TEXT = arrays("grouped"), text("grouped")
NVFP4, NVFP4_TEXT = arrays("nvfp4"), text("nvfp4")
FP8, FP8_TEXT = arrays("fp8_row"), text("fp8_row")
VIEWS, VIEWS_TEXT = arrays("row_views"), text("row_views")
DIRECT, GEOMETRY = arrays("direct"), text("geometry")


@pytest.mark.parametrize("case", sorted(GROUPED_TEXT["cases"]))
@pytest.mark.parametrize("format", ["Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S"])
def test_grouped_encoder_and_decoder(case, format):
    expected, x = GROUPED_TEXT["cases"][case].get(format), GROUPED[f"{case}/x"]
    if expected is None:
        pytest.fail(f"no vector for {case} {format}") if f"{case}/{format}/payload" in GROUPED else None
        return
    if "error" in expected:
        with pytest.raises(ArtifactError, match=expected["error"]):
            encode_grouped(x, format)
        return
    payload, stem = encode_grouped(x, format), f"{case}/{format}/"
    np.testing.assert_array_equal(payload, GROUPED[stem + "payload"])
    codes, scales = grouped_words(payload, format, x.shape)
    np.testing.assert_array_equal(codes, GROUPED[stem + "codes"])
    np.testing.assert_array_equal(scales, GROUPED[stem + "scale_words"])
    values = decode(payload, format, x.shape)
    np.testing.assert_array_equal(values, GROUPED[stem + "dequant_f32"])
    np.testing.assert_array_equal(f32_to_bf16(values), GROUPED[stem + "dequant_bf16_words"])
    check_words(payload, format, x.shape)


@pytest.mark.parametrize("case", GROUPED_TEXT["rejects"], ids=lambda case: f"{case[0]}-{case[1]}")
def test_grouped_encoder_refuses(case):
    name, format, error = case
    with pytest.raises(ArtifactError, match=error):
        encode_grouped(GROUPED[f"{name}/x"], format)


@pytest.mark.parametrize("case", [case for case in FP8_TEXT["cases"] if case.startswith("_")])
def test_fp8_extreme_row_maxima(case):
    expected = {name: int(word, 16) for name, word in FP8_TEXT["cases"][case].items()}
    codes, scales = fp8_words(encode_fp8_rows(np.array([[expected["word"]]], np.uint16)), (1, 1))
    assert (codes[0, 0], scales[0]) == (expected["code"], expected["scale_word"])


@pytest.mark.parametrize("case", [case for case in FP8_TEXT["cases"] if not case.startswith("_")])
def test_fp8_rows(case):
    x = FP8[f"{case}/x_bf16_words"]
    payload = encode_fp8_rows(x)
    np.testing.assert_array_equal(payload, FP8[f"{case}/payload"])
    codes, scales = fp8_words(payload, x.shape)
    np.testing.assert_array_equal(codes, FP8[f"{case}/codes"])
    np.testing.assert_array_equal(scales, FP8[f"{case}/scale_words"])
    np.testing.assert_array_equal(decode(payload, "FP8_E4M3FN_ROW_BF16S", x.shape), FP8[f"{case}/dequant_f32"])


@pytest.mark.parametrize("case", FP8_TEXT["encoder_rejects"], ids=lambda case: case[0])
def test_fp8_encoder_refuses(case):
    x = FP8[f"reject_{case[0]}/x_bf16_words"]
    if case[1] is None:
        encode_fp8_rows(x)
    else:
        with pytest.raises(ArtifactError, match=case[1]):
            encode_fp8_rows(x)


def test_fp8_explicit_words_and_their_limits():
    codes, scales = FP8["explicit/codes"], FP8["explicit/scale_words"]
    np.testing.assert_array_equal(encode_fp8_words(codes, scales), FP8["explicit/payload"])
    for label, error in FP8_TEXT["layout_rejects"]:
        bad_codes, bad_scales = codes.copy(), scales.copy()
        kind, _, word = label.partition(" ")
        if kind == "code":
            bad_codes[0, 0] = int(word, 16)
        elif word.startswith("0x"):
            bad_scales[0] = int(word, 16)
        else:
            bad_scales[0], bad_codes[0, 0] = 0, 0x38
        with pytest.raises(ArtifactError, match=error):
            encode_fp8_words(bad_codes, bad_scales)


@pytest.mark.parametrize("case", NVFP4_TEXT["cases"], ids=lambda case: case["key"])
def test_nvfp4_layout_and_values(case):
    key, shape = case["key"], case["shape"]
    divisor = NVFP4[f"{key}/divisor_word"].view(np.float32).reshape(-1)[0]
    payload = encode_nvfp4_words(NVFP4[f"{key}/packed_codes"], NVFP4[f"{key}/natural_scales"], divisor)
    np.testing.assert_array_equal(payload, NVFP4[f"{key}/payload"])
    np.testing.assert_array_equal(swizzle_scales(NVFP4[f"{key}/natural_scales"]), NVFP4[f"{key}/swizzled_scales"])
    codes, scales, found = nvfp4_words(payload, shape)
    np.testing.assert_array_equal(codes, NVFP4[f"{key}/packed_codes"])
    np.testing.assert_array_equal(scales, NVFP4[f"{key}/natural_scales"])
    assert found == divisor
    geometry = BlockScaleGeometry.of(shape)
    assert {name: getattr(geometry, name) for name in case if hasattr(geometry, name)}.items() <= case.items()
    if f"{key}/weight_f64" in NVFP4:
        values = decode(payload, "NVFP4", shape)
        np.testing.assert_array_equal(values, NVFP4[f"{key}/weight_f64"].astype(np.float32))


def test_nvfp4_tables():
    np.testing.assert_array_equal(E2M1_VALUES, NVFP4["e2m1_values_f64"])
    np.testing.assert_array_equal(E4M3FN_VALUES, NVFP4["e4m3fn_values_f64"])


@pytest.mark.parametrize("case", NVFP4_TEXT["shape_results"], ids=str)
def test_nvfp4_shapes(case):
    shape, error = case
    if error is None:
        assert encoded_bytes("NVFP4", shape) > 0
    else:
        with pytest.raises(ArtifactError, match=error):
            encoded_bytes("NVFP4", shape)


@pytest.mark.parametrize("case", NVFP4_TEXT["word_results"], ids=lambda case: case[0])
def test_nvfp4_words(case):
    label, error = case
    codes, scales, divisor = np.zeros((128, 32), np.uint8), np.full((128, 4), 0x38, np.uint8), np.float32(1)
    word = int(label.rpartition(" ")[2], 16)
    if label.startswith("scale"):
        scales[5, 1] = word
    else:
        divisor = np.array([word], np.uint32).view(np.float32)[0]
    if error is None:
        encode_nvfp4_words(codes, scales, divisor)
    else:
        with pytest.raises(ArtifactError, match=error):
            encode_nvfp4_words(codes, scales, divisor)


@pytest.mark.parametrize("case", sorted({key.split("/")[0] for key in DIRECT}))
def test_direct_words_are_kept(case):
    words = DIRECT[f"{case}/words"]
    payload = encode_direct(words, case.split("_")[0])
    np.testing.assert_array_equal(payload, DIRECT[f"{case}/payload"])


@pytest.mark.parametrize("case", VIEWS_TEXT, ids=lambda case: case["format"])
def test_row_views(case):
    format, shape, payload = case["format"], case["shape"], VIEWS[f"{case['format']}/payload"]
    first, count = case["slice"]
    sliced = take_rows(payload, format, shape, slice(first, first + count))
    np.testing.assert_array_equal(sliced, VIEWS[f"{format}/slice_payload"])
    np.testing.assert_array_equal(take_rows(payload, format, shape, case["gather"]), VIEWS[f"{format}/gather_payload"])
    spans = row_spans(format, shape, first, first + count)
    views = ("base", "high", "scale") if case["high_row_bytes"] else ("base", "scale")
    expected = [(case[f"{view}_view"], count * case[f"{view}_row_bytes"]) for view in views]
    assert [(span.offset, span.bytes) for span in spans] == expected
    whole = decode(payload, format, shape)
    np.testing.assert_array_equal(decode(sliced, format, (count, shape[1])), whole[first : first + count])
    np.testing.assert_array_equal(decode_rows(payload, format, shape, np.array(case["gather"])), whole[case["gather"]])


@pytest.mark.parametrize("case", VIEWS_TEXT, ids=lambda case: case["format"])
def test_grouped_explicit_words(case):
    format = case["format"]
    codes, scales = VIEWS[f"{format}/explicit_codes"], VIEWS[f"{format}/explicit_scale_words"]
    values = VIEWS[f"{format}/explicit_dequant_f32"]
    payload = encode_grouped_words(codes, scales, format, values.shape)
    np.testing.assert_array_equal(payload, VIEWS[f"{format}/explicit_payload"])
    np.testing.assert_array_equal(decode(payload, format, values.shape), values)


@pytest.mark.parametrize("case", GEOMETRY["geometry"], ids=lambda case: f"{case[1]}-{case[2]}")
def test_geometry(case):
    layout, format, shape, expected = case
    row = check_layout(layout, format)
    if row.is_grouped:
        geometry = RowSplitGeometry.of(row, shape)
    elif row.kind is FormatClass.BLOCK_FLOAT:
        geometry = BlockScaleGeometry.of(shape)
    elif row.kind is FormatClass.ROW_FLOAT:
        geometry = RowScaleGeometry.of(shape)
    else:
        assert encoded_bytes(format, shape) == expected["payload_bytes"]
        return
    names = {"base_bytes_per_group": "base_group_bytes", "high_bytes_per_group": "high_group_bytes"}
    for name, value in expected.items():
        assert getattr(geometry, names.get(name, name)) == value, name


@pytest.mark.parametrize("case", GEOMETRY["rejects"], ids=lambda case: f"{case[0]}-{case[1]}-{case[2]}")
def test_geometry_refuses(case):
    layout, format, shape, error = case
    with pytest.raises(ArtifactError) as raised:
        check_layout(layout, format)
        encoded_bytes(numeric_format(format).name, shape)
    assert str(raised.value) == error
