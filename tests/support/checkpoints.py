"""Source checkpoints for converter tests: the mini's files as they are, edited, split into shards, or quantised.

Tensors are (safetensors dtype, array of words) by name; files are written by the safetensors library.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

MINI = Path(__file__).parents[1] / "data" / "mini"
RESOURCES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)

Tensors = dict[str, tuple[str, np.ndarray]]

_WORDS = {"BF16": np.uint16, "F32": np.float32, "F16": np.float16, "U8": np.uint8, "F8_E4M3": np.uint8}
_TYPED = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn}


def read_tensors(file: Path) -> Tensors:
    """All tensors of a safetensors file, in words."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, stop = (8 + length + offset for offset in entry["data_offsets"])
            words = np.frombuffer(data[start:stop], _WORDS[entry["dtype"]])
            tensors[name] = (entry["dtype"], words.reshape(entry["shape"]))
    return tensors


def write_tensors(file: Path, tensors: Tensors) -> None:
    """One safetensors file; its order is the library's."""
    typed = {
        name: np.ascontiguousarray(words).view(_TYPED.get(dtype, words.dtype))
        for name, (dtype, words) in tensors.items()
    }
    save_file(typed, file)


def write_in_order(file: Path, tensors: Tensors) -> None:
    """One safetensors file whose data lie in the order of `tensors`."""
    header, pieces, offset = {}, [], 0
    for name, (dtype, words) in tensors.items():
        pieces.append(np.ascontiguousarray(words).tobytes())
        end = offset + len(pieces[-1])
        header[name] = {"dtype": dtype, "shape": list(words.shape), "data_offsets": [offset, end]}
        offset = end
    write_raw(file, header, b"".join(pieces))


def write_raw(file: Path, header: object, data: bytes = b"") -> None:
    """A safetensors file with any header at all."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write_checkpoint(folder: Path, tensors: Tensors, config: dict | None = None, shards: int = 1) -> Path:
    """A checkpoint folder with the mini's frontend files; `shards` > 1 deals the tensors out and adds an index."""
    folder.mkdir(parents=True)
    for name in RESOURCES:
        shutil.copyfile(MINI / name, folder / name)
    (folder / "config.json").write_text(json.dumps(config or mini_config()))
    if shards == 1:
        write_tensors(folder / "model.safetensors", tensors)
        return folder
    placed = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        names = list(tensors)[shard::shards]
        write_tensors(folder / file, {name: tensors[name] for name in names})
        placed |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder


def mini_config() -> dict:
    return json.loads((MINI / "config.json").read_text())


def mini_tensors() -> Tensors:
    return read_tensors(MINI / "model.safetensors")


# Linears of the mini that one quantised weight joins, below `model.language_model.layers.{l}.`
ATTENTION_IN = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
ATTENTION_OUT = ("self_attn.o_proj",)
GDN_IN = ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z")
GDN_OUT = ("linear_attn.out_proj",)
GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
DOWN = ("mlp.down_proj",)


def mini_linears(layer: int) -> tuple[tuple[str, ...], ...]:
    """The groups of linears that are fused in a layer of the mini."""
    mixer = (ATTENTION_IN, ATTENTION_OUT) if layer % 4 == 3 else (GDN_IN, GDN_OUT)
    return (*mixer, GATE_UP, DOWN)


_BF16_IN_NVFP4 = {(3, ATTENTION_IN), (3, ATTENTION_OUT), (4, GDN_OUT)}

_NVFP4_VALUES = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "symmetric": True,
    "scale_dtype": "torch.float8_e4m3fn",
    "observer": "minmax",
}
_NVFP4_GROUP = {
    "format": "nvfp4-pack-quantized",
    "weights": {**_NVFP4_VALUES, "dynamic": False},
    "input_activations": {**_NVFP4_VALUES, "dynamic": "local"},
    "targets": ["Linear"],
}
_FP8_GROUP = {
    "format": "float-quantized",
    "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": False},
    "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
    "targets": ["Linear"],
}


def nvfp4_companion(seed: int = 1) -> tuple[Tensors, dict]:
    """A made-up checkpoint with the NVFP4 linears of the mini's `nvfp4` identities, and its configuration."""
    tensors, rng = mini_tensors(), np.random.default_rng(seed)
    for layer in range(8):
        for linears in mini_linears(layer):
            if (layer, linears) not in _BF16_IN_NVFP4:
                _to_nvfp4(tensors, _names(layer, linears), rng)
    return tensors, _quantised_config({"group_0": _NVFP4_GROUP})


def mixed_companion(seed: int = 2) -> tuple[Tensors, dict]:
    """A made-up checkpoint with the FP8 and NVFP4 linears of the mini's `nvfp4-fp8` identity, and its configuration."""
    tensors, rng = mini_tensors(), np.random.default_rng(seed)
    for name in [name for name in tensors if name.startswith(("mtp.", "model.visual."))]:
        del tensors[name]
    for layer in range(8):
        for linears in mini_linears(layer):
            to_nvfp4 = linears in (GATE_UP, DOWN) and layer < 6
            (_to_nvfp4 if to_nvfp4 else _to_fp8)(tensors, _names(layer, linears), rng)
    _to_fp8(tensors, ("lm_head",), rng)
    tensors["model.language_model.layers.3.self_attn.k_scale"] = ("F32", np.ones(1, np.float32))
    tensors["model.language_model.layers.3.self_attn.v_scale"] = ("F32", np.ones(1, np.float32))
    config = _quantised_config({"group_0": _FP8_GROUP, "group_1": _NVFP4_GROUP})
    config["quantization_config"]["quantization_status"] = "compressed"
    return tensors, config


def _names(layer: int, linears: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"model.language_model.layers.{layer}.{linear}" for linear in linears)


def _to_nvfp4(tensors: Tensors, linears: Iterable[str], rng: np.random.Generator) -> None:
    """Random words for linears that are joined, with one pair of divisors."""
    weight, input = (np.float32([rng.uniform(1, 4000)]) for _ in range(2))
    for linear in linears:
        _, words = tensors.pop(linear + ".weight")
        n, k = words.shape
        tensors[linear + ".weight_packed"] = ("U8", rng.integers(0, 256, (n, k // 2), np.uint8))
        tensors[linear + ".weight_scale"] = ("F8_E4M3", rng.integers(0, 0x7F, (n, k // 16), np.uint8))
        tensors[linear + ".weight_global_scale"] = ("F32", weight)
        tensors[linear + ".input_global_scale"] = ("F32", input)


def _to_fp8(tensors: Tensors, linears: Iterable[str], rng: np.random.Generator) -> None:
    for linear in linears:
        _, words = tensors[linear + ".weight"]
        codes = rng.integers(0, 0x7F, words.shape, np.uint8) | rng.choice([0, 0x80], words.shape).astype(np.uint8)
        scales = rng.integers(0x3800, 0x3F80, (len(codes), 1), np.uint16)
        tensors[linear + ".weight"] = ("F8_E4M3", codes)
        tensors[linear + ".weight_scale"] = ("BF16", scales)


def _quantised_config(groups: dict) -> dict:
    scheme = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    return mini_config() | {"quantization_config": copy.deepcopy(scheme)}
