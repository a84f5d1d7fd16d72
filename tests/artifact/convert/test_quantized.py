"""Quantised companions: their words reach the artifact unchanged, and what does not fit together is refused."""

from __future__ import annotations

import numpy as np
import pytest
from support.checkpoints import (
    ATTENTION_IN,
    DOWN,
    GATE_UP,
    GDN_IN,
    MINI,
    mini_config,
    mini_tensors,
    mixed_companion,
    nvfp4_companion,
    write_checkpoint,
)

from ninfer_nb.artifact.binder import bind
from ninfer_nb.artifact.codec import decode
from ninfer_nb.artifact.container import Artifact
from ninfer_nb.artifact.convert import Request, compare, convert
from ninfer_nb.artifact.directory import Identity
from ninfer_nb.artifact.encoders import encode_fp8_rows, encode_grouped
from ninfer_nb.artifact.words import E2M1_VALUES, E4M3FN_VALUES, bf16_to_f32
from ninfer_nb.errors import ArtifactError

NVFP4 = Identity("ninfer-mini", "nvfp4")
SPLIT = Identity("ninfer-mini", "nvfp4-split")
MIXED = Identity("ninfer-mini", "nvfp4-fp8")
LAYERS = "model.language_model.layers."


def dequantised(tensors, linear: str) -> np.ndarray:
    """float32 weights of a quantised source linear, straight from its fields."""
    if linear + ".weight_packed" in tensors:
        packed = tensors[linear + ".weight_packed"][1]
        codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(len(packed), -1)
        scales = np.repeat(E4M3FN_VALUES[tensors[linear + ".weight_scale"][1]], 16, axis=1)
        return E2M1_VALUES[codes] * scales / tensors[linear + ".weight_global_scale"][1]
    scales = bf16_to_f32(tensors[linear + ".weight_scale"][1])
    return E4M3FN_VALUES[tensors[linear + ".weight"][1]] * scales


def fused(tensors, layer: int, linears: tuple[str, ...]) -> np.ndarray:
    """The stored matrix of the linears that are joined in a layer."""
    parts = [dequantised(tensors, f"{LAYERS}{layer}.{linear}") for linear in linears]
    if linears != ATTENTION_IN:
        return np.concatenate(parts)
    heads = parts[0].reshape(4, 2, 256, 256)
    query, gate = heads[:, 0].reshape(1024, 256), heads[:, 1].reshape(1024, 256)
    return np.concatenate([query, parts[1], gate, parts[2]])


@pytest.fixture(scope="module", params=[NVFP4, SPLIT], ids=str)
def nvfp4(request, tmp_path_factory):
    """The companion's tensors and the file made with it."""
    folder = tmp_path_factory.mktemp("nvfp4")
    tensors, config = nvfp4_companion()
    source = Request(request.param, MINI, write_checkpoint(folder / "companion", tensors, config, shards=2))
    report = convert(source, folder / "out.ninfer")
    with Artifact.open(folder / "out.ninfer") as artifact:
        yield tensors, artifact, source, report


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mixed")
    tensors, config = mixed_companion()
    source = Request(MIXED, MINI, write_checkpoint(folder / "companion", tensors, config))
    report = convert(source, folder / "out.ninfer")
    with Artifact.open(folder / "out.ninfer") as artifact:
        yield tensors, artifact, source, report


def value(artifact: Artifact, name: str) -> np.ndarray:
    entry = artifact.entry(name)
    return decode(artifact.payload(name), entry.format, entry.shape)


@pytest.mark.parametrize(
    ("name", "layer", "linears"),
    [
        ("text/layers/7/attention/query_key_gate_value", 7, ATTENTION_IN),
        ("text/layers/0/gdn/query_key_value_z", 0, GDN_IN),
        ("text/layers/5/mlp/gate_up", 5, GATE_UP),
        ("text/layers/3/mlp/down", 3, DOWN),
    ],
)
def test_nvfp4_words_are_kept(nvfp4, name, layer, linears):
    tensors, artifact, _, _ = nvfp4
    assert artifact.entry(name).format == "NVFP4"
    assert np.array_equal(value(artifact, name), fused(tensors, layer, linears))
    role = {ATTENTION_IN: "attention/input", GDN_IN: "gdn/input", GATE_UP: "mlp/gate_up", DOWN: "mlp/down"}[linears]
    divisor = artifact.payload(f"text/layers/{layer}/{role}_projection/input_scale_divisor").view("<f4")
    assert divisor == tensors[f"{LAYERS}{layer}.{linears[0]}.input_global_scale"][1]


def test_the_rest_of_an_nvfp4_file_comes_from_the_base(nvfp4):
    base = mini_tensors()
    _, artifact, _, _ = nvfp4
    words = base[LAYERS + "3.self_attn.o_proj.weight"][1]
    assert np.array_equal(artifact.payload("text/layers/3/attention/output").view("<u2"), words.reshape(-1))
    head = encode_grouped(base["lm_head.weight"][1], "W8G32_F16S")
    assert np.array_equal(artifact.payload("text/output_head"), head)


def test_both_kinds_bind_and_compare(nvfp4, mixed):
    for _, artifact, source, report in (nvfp4, mixed):
        bind(artifact)
        summary = compare(artifact.path, source)
        assert summary["made_by"] == report["made_by"]
    assert nvfp4[3]["made_by"]["NVFP4: source NVFP4"] == 29
    assert mixed[3]["made_by"]["FP8_E4M3FN_ROW_BF16S: source FP8"] == 21
    assert mixed[3]["made_by"]["FP8_E4M3FN_ROW_BF16S: MAXABS_BF16S_RECIP_E4M3FN_RNE_V1"] == 1


@pytest.mark.parametrize(
    ("name", "layer", "linears", "format"),
    [
        ("text/layers/3/attention/query_key_gate_value", 3, ATTENTION_IN, "FP8_E4M3FN_ROW_BF16S"),
        ("text/layers/6/gdn/query_key_value_z", 6, GDN_IN, "FP8_E4M3FN_ROW_BF16S"),
        ("text/layers/6/mlp/gate_up", 6, GATE_UP, "FP8_E4M3FN_ROW_BF16S"),
        ("text/layers/5/mlp/gate_up", 5, GATE_UP, "NVFP4"),
    ],
)
def test_mixed_words_are_kept(mixed, name, layer, linears, format):
    tensors, artifact, _, _ = mixed
    assert artifact.entry(name).format == format
    assert np.array_equal(value(artifact, name), fused(tensors, layer, linears))


def test_mixed_head_and_embedding_have_different_sources(mixed):
    tensors, artifact, _, _ = mixed
    base = mini_tensors()
    assert np.array_equal(value(artifact, "text/output_head"), dequantised(tensors, "lm_head"))
    embedding = encode_fp8_rows(base["model.language_model.embed_tokens.weight"][1])
    assert np.array_equal(artifact.payload("text/token_embedding"), embedding)
    ids = artifact.payload("text/draft_head_token_ids").view("<i4")
    head = base["lm_head.weight"][1][ids]
    assert np.array_equal(artifact.payload("text/draft_head"), encode_grouped(head, "Q4G64_F16S"))


def test_mixed_text_words_come_from_the_companion(tmp_path):
    tensors, config = mixed_companion()
    norm = LAYERS + "2.input_layernorm.weight"
    tensors[norm] = ("BF16", tensors[norm][1] ^ 1)
    companion = write_checkpoint(tmp_path / "companion", tensors, config)
    convert(Request(MIXED, MINI, companion), tmp_path / "out.ninfer")
    with Artifact.open(tmp_path / "out.ninfer") as artifact:
        assert np.array_equal(artifact.payload("text/layers/2/input_norm").view("<u2"), tensors[norm][1])


def replaced(name, change):
    """An edit of one tensor: `change(words)` gives the new words, or None to remove it."""

    def edit(tensors, config):
        dtype, words = tensors.pop(name)
        new = change(words.copy())
        if new is not None:
            tensors[name] = (dtype, new)

    return edit


def added(name, dtype, words):
    return lambda tensors, config: tensors.__setitem__(name, (dtype, words))


def configured(path, new):
    def edit(tensors, config):
        *parents, last = path.split(".")
        for parent in parents:
            config = config[parent]
        config[last] = new

    return edit


def poked(position, word):
    def change(words):
        words.reshape(-1)[position] = word
        return words

    return change


DIVISOR = np.float32([3.0])
GATE = LAYERS + "1.mlp.gate_proj"
EARLY = LAYERS + "3.self_attn.q_proj"

BAD_NVFP4 = [
    (replaced(GATE + ".weight_packed", lambda w: None), GATE + ".weight_packed is missing"),
    (
        replaced(GATE + ".weight_packed", lambda w: w[:-1]),
        r"weight_packed has shape \[767, 128\]; expected \[768, 128\]",
    ),
    (
        replaced(GATE + ".weight_scale", lambda w: w[:, :-1]),
        r"weight_scale has shape \[768, 15\]; expected \[768, 16\]",
    ),
    (
        replaced(GATE + ".weight_global_scale", lambda w: DIVISOR),
        "text/layers/1/mlp/gate_up: fused weight_global_scale words do not match",
    ),
    (
        replaced(GATE + ".input_global_scale", lambda w: DIVISOR),
        "text/layers/1/mlp/gate_up: fused input_global_scale words do not match",
    ),
    (
        replaced(LAYERS + "1.mlp.down_proj.weight_global_scale", lambda w: w * 0),
        r"down_proj.weight_global_scale: divisor must be finite and positive",
    ),
    (
        replaced(LAYERS + "1.mlp.down_proj.input_global_scale", lambda w: w * np.float32(np.inf)),
        r"down_proj.input_global_scale: divisor must be finite and positive",
    ),
    (
        replaced(GATE + ".weight_scale", poked(70, 0x80)),
        "text/layers/1/mlp/gate_up: NVFP4 scales must be nonnegative finite E4M3FN words",
    ),
    (
        replaced(GATE + ".weight_scale", poked(-1, 0x7F)),
        "text/layers/1/mlp/gate_up: NVFP4 scales must be nonnegative finite E4M3FN words",
    ),
    (
        added(GATE + ".weight", "BF16", np.zeros((768, 256), np.uint16)),
        GATE + ".weight does not belong to this linear's format",
    ),
    (
        added(EARLY + ".weight_packed", "U8", np.zeros((2048, 128), np.uint8)),
        EARLY + ".weight_packed does not belong to this linear's format",
    ),
    (replaced(EARLY + ".weight", poked(524287, 0x3F80)), EARLY + ".weight differs from the base checkpoint's"),
    (configured("quantization_config.format", "nvfp4"), "quantization_config.format is 'nvfp4'; expected 'mixed-prec"),
    (configured("quantization_config.config_groups.group_0.weights.group_size", 32), "weights.group_size is 32; expe"),
    (configured("quantization_config.config_groups.group_0.weights.dynamic", 0), "weights.dynamic is 0; expected Fal"),
    (configured("quantization_config.config_groups.group_1", {}), "config_groups.group_1 is not expected"),
    (configured("text_config.hidden_size", 512), "text_config.hidden_size is 512; expected 256"),
]


@pytest.mark.parametrize(("edit", "message"), BAD_NVFP4, ids=[message[-40:] for _, message in BAD_NVFP4])
def test_bad_nvfp4_companions_are_refused(tmp_path, edit, message):
    tensors, config = nvfp4_companion()
    edit(tensors, config)
    _refused(tmp_path, NVFP4, tensors, config, message)


FP8_HEAD = "lm_head.weight"
BAD_MIXED = [
    (replaced(FP8_HEAD, poked(12345, 0xFF)), "text/output_head: row-scaled FP8 codes must be finite E4M3FN words"),
    (
        replaced("lm_head.weight_scale", poked(9, 0x8001)),
        "text/output_head: row-scaled FP8 scales must be nonnegative finite BF16 words",
    ),
    (
        replaced("lm_head.weight_scale", lambda w: w[:, 0]),
        r"lm_head.weight_scale has shape \[4096\]; expected \[4096, 1\]",
    ),
    (
        added(LAYERS + "7.mlp.up_proj.weight_packed", "U8", np.zeros((768, 128), np.uint8)),
        "7.mlp.up_proj.weight_packed does not belong to this linear's format",
    ),
    (added("model.visual.extra", "F32", DIVISOR), "quantized tensor model.visual.extra is not part of the recipe"),
    (
        configured("quantization_config.quantization_status", "frozen"),
        "quantization_status is 'frozen'; expected 'comp",
    ),
]


@pytest.mark.parametrize(("edit", "message"), BAD_MIXED, ids=[message[-40:] for _, message in BAD_MIXED])
def test_bad_mixed_companions_are_refused(tmp_path, edit, message):
    tensors, config = mixed_companion()
    edit(tensors, config)
    _refused(tmp_path, MIXED, tensors, config, message)


def test_groupwise_files_take_no_companion(tmp_path):
    companion = write_checkpoint(tmp_path / "companion", mini_tensors(), mini_config())
    with pytest.raises(ArtifactError, match="has no quantized linears"):
        convert(Request(Identity("ninfer-mini", "groupwise-int"), MINI, companion), tmp_path / "out.ninfer")


def _refused(folder, identity, tensors, config, message):
    companion = write_checkpoint(folder / "companion", tensors, config)
    with pytest.raises(ArtifactError, match=message):
        convert(Request(identity, MINI, companion), folder / "out.ninfer")
    assert [path.name for path in folder.iterdir()] == ["companion"]
