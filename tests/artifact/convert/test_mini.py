"""The mini checkpoint in all five profiles: the published bytes, and values within half a step of the source."""

from __future__ import annotations

import hashlib
from functools import cache

import numpy as np
import pytest
from support.checkpoints import MINI, mini_tensors, write_checkpoint, write_in_order

from ninfer_nb.artifact.binder import bind
from ninfer_nb.artifact.codec import check_words, decode
from ninfer_nb.artifact.container import Artifact
from ninfer_nb.artifact.convert import Request, compare, convert
from ninfer_nb.artifact.directory import Identity
from ninfer_nb.artifact.inventory import TensorSpec, inventory
from ninfer_nb.artifact.packing import fp8_words, grouped_words, nvfp4_words
from ninfer_nb.artifact.registry import known, lookup
from ninfer_nb.artifact.words import E4M3FN_VALUES, bf16_to_f32, f16_to_f32, f32_to_bf16

PROFILES = ("groupwise-int", "groupwise-int-w8", "nvfp4", "nvfp4-fp8", "nvfp4-split")


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """`converted(weights_id)` is a converted file; each is made once."""
    folder = tmp_path_factory.mktemp("mini")

    @cache
    def path(weights_id: str):
        out = folder / f"{weights_id}.ninfer"
        convert(Request(Identity("ninfer-mini", weights_id), MINI), out)
        return out

    return path


@pytest.mark.parametrize("weights_id", PROFILES)
def test_converting_gives_the_published_bytes(converted, weights_id):
    row = known(Identity("ninfer-mini", weights_id))
    data = converted(weights_id).read_bytes()
    assert (len(data), hashlib.sha256(data).hexdigest()) == (row.bytes, row.sha256)


def test_the_bundled_file_is_the_converted_one(converted):
    assert lookup("mini").read_bytes() == converted("groupwise-int").read_bytes()


@pytest.mark.parametrize("weights_id", PROFILES)
def test_every_word_is_legal(converted, weights_id):
    with Artifact.open(converted(weights_id)) as artifact:
        bound = bind(artifact)
        for name in bound.names:
            check_words(bound.payload(name), bound.spec(name).format, bound.spec(name).shape)


def test_source_order_and_shards_do_not_matter(converted, tmp_path):
    tensors = mini_tensors()
    names = list(tensors)
    np.random.default_rng(5).shuffle(names)
    shuffled = {name: tensors[name] for name in names}
    sharded = write_checkpoint(tmp_path / "sharded", shuffled, shards=4)
    single = write_checkpoint(tmp_path / "single", {})
    write_in_order(single / "model.safetensors", shuffled)
    for folder in (sharded, single):
        out = folder.with_suffix(".ninfer")
        convert(Request(Identity("ninfer-mini", "nvfp4-fp8"), folder), out)
        assert out.read_bytes() == converted("nvfp4-fp8").read_bytes()


def test_comparing_finds_one_changed_byte(converted, tmp_path):
    path = converted("groupwise-int")
    request = Request(Identity("ninfer-mini", "groupwise-int"), MINI)
    summary = compare(path, request)
    assert (summary["compared_objects"], summary["draft_ids"]) == (164, "artifact")
    data = bytearray(path.read_bytes())
    with Artifact.open(path) as artifact:
        at = artifact.directory.payload_offset + artifact.entry("text/layers/3/attention/output").offset + 7
    data[at] ^= 0x10
    changed = tmp_path / "changed.ninfer"
    changed.write_bytes(data)
    found = rf"text/layers/3/attention/output differs .* at byte 7: {data[at]:#04x}, expected {data[at] ^ 0x10:#04x}"
    with pytest.raises(ValueError, match=found):
        compare(changed, request)


class Source:
    """The mini's parameters as float32, and the stored matrices put together from them by hand."""

    def __init__(self):
        self.tensors = mini_tensors()

    def __getitem__(self, name: str) -> np.ndarray:
        dtype, words = self.tensors[name]
        return bf16_to_f32(words) if dtype == "BF16" else words

    def text(self, layer: str, role: str) -> np.ndarray:
        return self.layer(f"model.language_model.layers.{layer}.", role)

    def layer(self, stem: str, role: str) -> np.ndarray:
        def get(name: str) -> np.ndarray:
            return self[stem + name]

        if role in ("attention/query_key", "attention/gate_value", "attention/query_key_gate_value"):
            heads = get("self_attn.q_proj.weight").reshape(4, 512, 256)
            rows = {
                "query": heads[:, :256].reshape(1024, 256),
                "gate": heads[:, 256:].reshape(1024, 256),
                "key": get("self_attn.k_proj.weight"),
                "value": get("self_attn.v_proj.weight"),
            }
            return np.concatenate([rows[part] for part in role.removeprefix("attention/").split("_")])
        if role in ("gdn/query_key", "gdn/value_z", "gdn/query_key_value_z"):
            mixed = get("linear_attn.in_proj_qkv.weight")
            rows = {"query": mixed[:256], "key": mixed[256:512], "value": mixed[512:]}
            rows["z"] = get("linear_attn.in_proj_z.weight")
            return np.concatenate([rows[part] for part in role.removeprefix("gdn/").split("_")])
        if role == "gdn/convolution":
            return get("linear_attn.conv1d.weight")[:, 0, :].T
        if role == "gdn/a_b_projection":
            return np.concatenate([get("linear_attn.in_proj_a.weight"), get("linear_attn.in_proj_b.weight")])
        if role == "mlp/gate_up":
            return np.concatenate([get("mlp.gate_proj.weight"), get("mlp.up_proj.weight")])
        names = {
            "input_norm": "input_layernorm.weight",
            "post_attention_norm": "post_attention_layernorm.weight",
            "attention/query_norm": "self_attn.q_norm.weight",
            "attention/key_norm": "self_attn.k_norm.weight",
            "attention/output": "self_attn.o_proj.weight",
            "gdn/a_log": "linear_attn.A_log",
            "gdn/dt_bias": "linear_attn.dt_bias",
            "gdn/a_projection": "linear_attn.in_proj_a.weight",
            "gdn/b_projection": "linear_attn.in_proj_b.weight",
            "gdn/norm": "linear_attn.norm.weight",
            "gdn/output": "linear_attn.out_proj.weight",
            "mlp/down": "mlp.down_proj.weight",
        }
        return get(names[role])

    def value(self, name: str, draft_ids: np.ndarray) -> np.ndarray:
        fixed = {
            "text/token_embedding": "model.language_model.embed_tokens.weight",
            "text/final_norm": "model.language_model.norm.weight",
            "text/output_head": "lm_head.weight",
            "mtp/input_projection": "mtp.fc.weight",
            "mtp/embedding_norm": "mtp.pre_fc_norm_embedding.weight",
            "mtp/hidden_norm": "mtp.pre_fc_norm_hidden.weight",
            "mtp/final_norm": "mtp.norm.weight",
        }
        if name == "text/draft_head":
            return self["lm_head.weight"][draft_ids]
        if name in fixed:
            return self[fixed[name]]
        if name.startswith("mtp/layer/"):
            return self.layer("mtp.layers.0.", name.removeprefix("mtp/layer/"))
        if name.startswith("vision/"):
            return self[_vision_name(name)]
        layer, role = name.removeprefix("text/layers/").split("/", 1)
        return self.text(layer, role)


def _vision_name(name: str) -> str:
    """`vision/layers/0/attention/qkv_bias` -> `model.visual.blocks.0.attn.qkv.bias`."""
    kind = "bias" if name.endswith("bias") else "weight"
    stem = name.removesuffix("/bias").removesuffix("/weight").removesuffix("_bias").split("/", 1)[1].replace("/", ".")
    for ours, theirs in (
        ("layers.", "blocks."),
        ("attention.output", "attn.proj"),
        ("attention.qkv", "attn.qkv"),
        (".fc1", ".linear_fc1"),
        (".fc2", ".linear_fc2"),
        ("patch_embedding", "patch_embed.proj"),
        ("position_embedding", "pos_embed"),
    ):
        stem = stem.replace(ours, theirs)
    return f"model.visual.{stem}.{kind}"


def error_bounds(spec: TensorSpec, payload: np.ndarray, source: np.ndarray) -> np.ndarray:
    """How far a stored value may be from its source, from the scales that the encoder chose."""
    if spec.format in ("BF16", "FP32"):
        return np.zeros(spec.shape, np.float32)
    if spec.format == "NVFP4":  # widest half step of E2M1 below a code of 4 is 0.5, up to 6 it is 1
        _, scales, divisor = nvfp4_words(payload, spec.shape)
        steps = np.repeat(E4M3FN_VALUES[scales] / divisor, 16, axis=1)
        # a block's largest value may be scaled to 6 * (1 + 1/16): rounding of the scale, then saturation
        return steps * np.where(np.abs(source) <= 4 * steps, 0.5, 1.0) + np.abs(source) / 16
    if spec.format.startswith("FP8"):
        _, scales = fp8_words(payload, spec.shape)
        # three fraction bits; the subnormal step is 2**-9, and the scale's rounding may saturate 448
        return np.maximum(np.abs(source) / 16, bf16_to_f32(scales)[:, None] * 2.0**-10) * (1 + 2**-7)
    _, scales = grouped_words(payload, spec.format, spec.shape)
    group = {"Q4G64_F16S": 64, "Q5G64_F16S": 64, "Q6G64_F16S": 64, "W8G32_F16S": 32}[spec.format]
    steps = np.repeat(f16_to_f32(scales), group, axis=1)[:, : spec.shape[1]]
    return steps * 0.5 + np.abs(source) * 2.0**-10


@pytest.mark.parametrize("weights_id", PROFILES)
def test_values_are_within_the_encoders_error_of_the_source(converted, weights_id):
    source = Source()
    with Artifact.open(converted(weights_id)) as artifact:
        ids = artifact.payload("text/draft_head_token_ids").view("<i4").copy()
        for spec in inventory(artifact.identity):
            if not isinstance(spec, TensorSpec) or spec.shape == () or spec.format == "I32":
                continue
            wanted = source.value(spec.name, ids).reshape(spec.shape)
            if spec.name.endswith("gdn/norm"):
                wanted = bf16_to_f32(f32_to_bf16(wanted))
            payload = artifact.payload(spec.name)
            difference = np.abs(decode(payload, spec.format, spec.shape) - wanted)
            assert (difference <= error_bounds(spec, payload, wanted)).all(), spec.name


def test_resources_are_the_source_files(converted):
    with Artifact.open(converted("nvfp4")) as artifact:
        for name in ("tokenizer.json", "chat_template.jinja", "video_preprocessor_config.json"):
            assert artifact.resource(f"frontend/{name}") == (MINI / name).read_bytes()


def test_draft_head_without_a_ranking_has_the_lowest_ids_and_all_special_ones(converted):
    with Artifact.open(converted("groupwise-int")) as artifact:
        ids = artifact.payload("text/draft_head_token_ids").view("<i4")
    assert ids[:1580].tolist() == list(range(1580))
    assert {4063, 4064, 4065, 4075, 4095} <= set(ids[1580:].tolist())
    assert (np.diff(ids) > 0).all()
