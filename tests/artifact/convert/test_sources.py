"""Base checkpoints that are not what the recipe needs: one error naming tensor, member or file, and no output."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.checkpoints import MINI, mini_config, mini_tensors, write_checkpoint, write_raw

from ninfer_nb.artifact.convert import Conversion, Request, convert
from ninfer_nb.artifact.convert.checkpoint import INDEX, SINGLE, Checkpoint
from ninfer_nb.artifact.directory import Identity
from ninfer_nb.errors import ArtifactError

MINI_INT = Identity("ninfer-mini", "groupwise-int")
FIRST = "model.language_model.layers.0."
NORM = FIRST + "input_layernorm.weight"


def refused(folder, message, identity=MINI_INT):
    out = folder.parent / "out.ninfer"
    with pytest.raises(ArtifactError, match=message):
        convert(Request(identity, folder), out)
    assert not list(folder.parent.glob("out*"))


BAD_TENSORS = [
    (NORM, None, NORM + " is missing"),
    ("mtp.fc.weight", None, "tensor mtp.fc.weight is missing"),
    ("model.visual.extra", ("BF16", np.zeros(3, np.uint16)), "tensor model.visual.extra is not part of the model"),
    (NORM, ("F32", np.zeros(256, np.float32)), NORM + " is F32; expected BF16"),
    (FIRST + "linear_attn.A_log", ("F16", np.zeros(6, np.float16)), "A_log is F16; expected BF16 or F32"),
    (NORM, ("BF16", np.zeros((256, 1), np.uint16)), r"input_layernorm.weight has shape \[256, 1\]; expected \[256\]"),
    (
        FIRST + "linear_attn.conv1d.weight",
        ("BF16", np.zeros((1280, 4), np.uint16)),
        r"conv1d.weight has shape \[1280, 4\]; expected \[1280, 1, 4\]",
    ),
]


@pytest.mark.parametrize(("name", "tensor", "message"), BAD_TENSORS, ids=[row[2][-40:] for row in BAD_TENSORS])
def test_tensors_must_be_those_of_the_model(tmp_path, name, tensor, message):
    tensors = mini_tensors()
    if tensor is None:
        del tensors[name]
    else:
        tensors[name] = tensor
    refused(write_checkpoint(tmp_path / "source", tensors), message)


@pytest.mark.parametrize("word", [0x7F80, 0xFF80, 0x7FC1])
def test_infinity_and_nan_in_a_matrix_name_the_object(tmp_path, word):
    tensors = mini_tensors()
    words = tensors["mtp.fc.weight"][1].copy()
    words[200, 511] = word
    tensors["mtp.fc.weight"] = ("BF16", words)
    folder = write_checkpoint(tmp_path / "source", tensors)
    refused(folder, "mtp/input_projection: grouped quantization source contains NaN or infinity")


def test_bf16_controls_are_widened_and_float_norms_rounded(tmp_path):
    """Published checkpoints have BF16 where the mini has FP32."""
    tensors = mini_tensors()
    words = np.arange(0x3F80, 0x3F86).astype(np.uint16)
    tensors[FIRST + "linear_attn.A_log"] = ("BF16", words)
    halfway = np.float32([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20])  # ties to even down and up, and above a tie
    norm = np.resize(halfway, 128)
    tensors[FIRST + "linear_attn.norm.weight"] = ("F32", norm)
    with Conversion(Request(MINI_INT, write_checkpoint(tmp_path / "source", tensors))) as conversion:
        payloads = {route.spec.name: route for route in conversion.routes}
        found = payloads["text/layers/0/gdn/a_log"].payload().view("<f4")
        assert found.tolist() == [1 + i / 128 for i in range(6)]
        found = payloads["text/layers/0/gdn/norm"].payload().view("<u2")
        assert found[:3].tolist() == [0x3F80, 0x3F82, 0x3F81]


BAD_CONFIG = [
    ("architectures", ["Qwen3_5ForCausalLM"], r"architectures is \['Qwen3_5ForCausalLM'\]; expected"),
    ("image_token_id", 4076, "image_token_id is 4076; expected 4075"),
    ("tie_word_embeddings", True, "tie_word_embeddings is True; expected False"),
    ("tie_word_embeddings", 0, "tie_word_embeddings is 0; expected False"),
    ("text_config.num_hidden_layers", 9, "text_config.num_hidden_layers is 9; expected 8"),
    ("text_config.layer_types.0", "full_attention", "text_config.layer_types is"),
    ("text_config.rope_parameters.mrope_section", [11, 11, 11], "mrope_section is"),
    ("text_config.rms_norm_eps", 1e-5, "rms_norm_eps is 1e-05; expected 1e-06"),
    ("vision_config.depth", None, "vision_config.depth is missing; expected 3"),
    ("quantization_config", {}, "the base checkpoint must not be quantized"),
]


@pytest.mark.parametrize(("path", "new", "message"), BAD_CONFIG, ids=[row[2][:40] for row in BAD_CONFIG])
def test_config_members_must_be_registered(tmp_path, path, new, message):
    config = mini_config()
    *parents, last = path.split(".")
    inner = config
    for parent in parents:
        inner = inner[parent]
    if new is None:
        del inner[last]
    elif isinstance(inner, list):
        inner[int(last)] = new
    else:
        inner[last] = new
    refused(write_checkpoint(tmp_path / "source", {}, config), message)


def test_resources_must_exist_and_not_be_empty(tmp_path):
    folder = write_checkpoint(tmp_path / "source", {})
    (folder / "chat_template.jinja").unlink()
    refused(folder, "chat_template.jinja: No such file or directory")
    (folder / "chat_template.jinja").touch()
    refused(folder, "chat_template.jinja: is empty")


def test_the_mini_is_not_a_27b_model():
    with pytest.raises(ArtifactError, match="vision_start_token_id is 4072; expected 248053"):
        Conversion(Request(Identity("qwen3.6-27b", "groupwise-int"), MINI))


def test_published_models_have_pinned_resources(tmp_path):
    """A 27B configuration with the mini's tokenizer is found out by its digest."""
    config = mini_config()
    config |= {"language_model_only": False, "image_token_id": 248056, "video_token_id": 248057}
    config |= {"vision_start_token_id": 248053, "vision_end_token_id": 248054}
    kinds = ["full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(64)]
    config["text_config"] |= {
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "hidden_size": 5120,
        "intermediate_size": 17408,
        "vocab_size": 248320,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 48,
        "max_position_embeddings": 262144,
        "mamba_ssm_dtype": "float32",
        "layer_types": kinds,
    }
    config["vision_config"] |= {
        "depth": 27,
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "out_hidden_size": 5120,
        "num_heads": 16,
        "num_position_embeddings": 2304,
    }
    folder = write_checkpoint(tmp_path / "source", {}, config)
    for model in ("qwen3.6-27b", "qwen3.8-27b"):
        refused(folder, "tokenizer.json: SHA-256 is .*; expected", Identity(model, "groupwise-int"))


def test_35b_needs_its_drafter():
    with pytest.raises(ArtifactError, match="needs the DFlash checkpoint"):
        Conversion(Request(Identity("qwen3.6-35b-a3b", "groupwise-int"), MINI))
    with pytest.raises(ArtifactError, match="has no DFlash companion"):
        Conversion(Request(MINI_INT, MINI, dflash=MINI))


def tensor(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


BAD_FILES = [
    (b"", b"", "header of 0 bytes in a file of 8"),
    (b"{", b"", "invalid safetensors header"),
    (b"[]", b"", "header must be a JSON object"),
    (b'{"a":' * 2000, b"", "invalid safetensors header"),
    ({"a": 1}, b"", "tensor a needs dtype, shape and data_offsets"),
    ({"a": tensor(shape=(4.0,))}, b"1234", "tensor a needs dtype, shape and data_offsets"),
    ({"a": tensor(shape=(-1, -4))}, b"1234", "tensor a needs dtype, shape and data_offsets"),
    ({"a": tensor(offsets=(0, 4, 4))}, b"1234", "tensor a needs dtype, shape and data_offsets"),
    ({"a": tensor(dtype="F4")}, b"1234", "tensor a has unknown dtype F4"),
    ({"a": tensor(dtype=["U8"])}, b"1234", "tensor a has unknown dtype"),
    ({"a": tensor(dtype="F32")}, b"1234", r"tensor a stores 4 bytes; F32 \[4\] needs 16"),
    ({"a": tensor()}, b"123", "has 71 bytes; its header describes 72"),
    ({"a": tensor()}, b"12345", "has 73 bytes; its header describes 72"),
    ({"a": tensor(), "b": tensor(offsets=(2, 6))}, b"123456", "tensor b starts at byte"),
    ({"a": tensor(offsets=(1, 5))}, b"12345", "tensor a starts at byte"),
]


@pytest.mark.parametrize(("header", "data", "message"), BAD_FILES, ids=range(len(BAD_FILES)))
def test_malformed_safetensors_are_refused(tmp_path, header, data, message):
    write_raw(tmp_path / SINGLE, header, data)
    with pytest.raises(ArtifactError, match=message):
        Checkpoint(tmp_path)


def test_files_shorter_than_their_header_are_refused(tmp_path):
    for content in (b"", b"\x10\0\0", b"\xff" * 9):
        (tmp_path / SINGLE).write_bytes(content)
        with pytest.raises(ArtifactError, match="not a safetensors file"):
            Checkpoint(tmp_path)


def sharded(folder):
    folder.mkdir()
    for name in "ab":
        write_raw(folder / f"{name}.safetensors", {name: tensor()}, b"1234")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}))
    return folder


def test_shards_are_read_as_one_checkpoint(tmp_path):
    with Checkpoint(sharded(tmp_path / "source")) as checkpoint:
        assert sorted(checkpoint.tensors) == ["a", "b"]
        assert checkpoint.read("b", 1, 3).tobytes() == b"23"


def test_shards_and_index_must_agree(tmp_path):
    folder = sharded(tmp_path / "left_over")
    write_raw(folder / "c.safetensors", {})
    with pytest.raises(ArtifactError, match=r"shard c.safetensors is not in the index"):
        Checkpoint(folder)
    folder = sharded(tmp_path / "missing")
    (folder / "b.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"shard b.safetensors of the index is missing"):
        Checkpoint(folder)
    folder = sharded(tmp_path / "twice")
    write_raw(folder / "b.safetensors", {"a": tensor()}, b"1234")
    with pytest.raises(ArtifactError, match="tensor a is also in another shard"):
        Checkpoint(folder)
    for weight_map, message in (
        ({"a": "a.safetensors", "b": "b.safetensors", "c": "b.safetensors"}, "tensor c of the index is missing"),
        ({"a": "a.safetensors", "c": "b.safetensors"}, "tensor c of the index is missing"),
        ({"a": "b.safetensors", "b": "a.safetensors"}, "tensor a is not placed here by the index"),
        ({}, "weight_map must map tensor names to file names"),
        (["a"], "weight_map must map tensor names to file names"),
        ({"a": 1}, "weight_map must map tensor names to file names"),
    ):
        folder = tmp_path / f"case{len(list(tmp_path.iterdir()))}"
        (sharded(folder) / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(ArtifactError, match=message):
            Checkpoint(folder)


def test_folders_without_a_checkpoint_are_refused(tmp_path):
    with pytest.raises(ArtifactError, match=r"holds neither model.safetensors nor model.safetensors.index.json"):
        Checkpoint(tmp_path)
    with pytest.raises(ArtifactError, match="checkpoint folder does not exist"):
        Checkpoint(tmp_path / "nowhere")
    (tmp_path / INDEX).write_text("nonsense")
    with pytest.raises(ArtifactError, match="invalid JSON"):
        Checkpoint(tmp_path)
