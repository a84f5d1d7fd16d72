"""`config.json` of a source checkpoint against the registered geometry (`inventories.md` 7.6).

Members that are not listed do not matter. Exports of the mini model lack a few of those that the published ones have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import ArtifactError
from ..geometry import NINFER_MINI, Geometry
from .checkpoint import Checkpoint

Expected = dict[str, Any]  # dotted path -> value

PUBLISHED_TOKEN_DOMAIN = 248_077  # special ids of other vocabularies are those of this one, shifted to its end
_SPECIAL = {
    "vision_start_token_id": 248_053,
    "vision_end_token_id": 248_054,
    "image_token_id": 248_056,
    "video_token_id": 248_057,
}
_ABSENT = object()

_NVFP4 = {
    "num_bits": 4,
    "type": "float",
    "strategy": "tensor_group",
    "group_size": 16,
    "symmetric": True,
    "scale_dtype": "torch.float8_e4m3fn",
}
_NVFP4_GROUP = {
    "format": "nvfp4-pack-quantized",
    "weights": {**_NVFP4, "dynamic": False},
    "input_activations": {**_NVFP4, "dynamic": "local"},
}
_FP8_GROUP = {
    "format": "float-quantized",
    "weights": {"num_bits": 8, "strategy": "channel"},
    "input_activations": {"num_bits": 8, "strategy": "token", "dynamic": True},
}
_COMPRESSED = {"quant_method": "compressed-tensors", "format": "mixed-precision"}


def check_base(checkpoint: Checkpoint, g: Geometry) -> None:
    """The base model's configuration; it must not be quantised. Raises ArtifactError naming the member."""
    config = checkpoint.json("config.json")
    check_members(checkpoint, config, _model_members(g) | _dimensions(g))
    if "quantization_config" in config:
        raise ArtifactError(f"{checkpoint.folder / 'config.json'}: the base checkpoint must not be quantized")


def check_companion(checkpoint: Checkpoint, g: Geometry, mixed: bool) -> None:
    """Dimensions and quantisation scheme of a quantised companion; `mixed` has FP8 linears beside NVFP4 ones."""
    config = checkpoint.json("config.json")
    groups = {"group_0": _FP8_GROUP, "group_1": _NVFP4_GROUP} if mixed else {"group_0": _NVFP4_GROUP}
    scheme = {**_COMPRESSED, "config_groups": groups}
    if mixed:
        scheme["quantization_status"] = "compressed"
    check_members(checkpoint, config, _dimensions(g) | dict(_flatten(scheme, "quantization_config.")))
    for name in _lookup(config, "quantization_config.config_groups"):
        if name not in groups:
            raise ArtifactError(
                f"{checkpoint.folder / 'config.json'}: quantization_config.config_groups.{name} is not expected"
            )


def check_dflash(checkpoint: Checkpoint, g: Geometry) -> None:
    """The drafter's configuration."""
    d = g.dflash
    kinds = ["sliding_attention"] * d.local_layers + ["full_attention"] * (d.layers - d.local_layers)
    check_members(
        checkpoint,
        checkpoint.json("config.json"),
        {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "dtype": "bfloat16",
            "num_hidden_layers": d.layers,
            "layer_types": kinds,
            "sliding_window": d.window,
            "use_sliding_window": True,
            "num_target_layers": g.layers,
            "hidden_size": d.hidden,
            "intermediate_size": d.intermediate,
            "head_dim": d.head_dim,
            "num_attention_heads": d.query_heads,
            "num_key_value_heads": d.kv_heads,
            "vocab_size": g.vocab_rows,
            "rms_norm_eps": g.rms_norm_eps,
            "max_position_embeddings": g.native_context,
            "tie_word_embeddings": False,
            "rope_theta": g.rope_theta,
            "dflash_config.block_size": d.block_size,
            "dflash_config.mask_token_id": d.mask_token_row,
            "dflash_config.target_layer_ids": list(d.target_feature_layers),
        },
    )


def check_members(checkpoint: Checkpoint, config: dict, expected: Expected) -> None:
    """Every listed member has its value; 1 and 1.0 are the same number, but true is not 1."""
    for path, value in expected.items():
        found = _lookup(config, path)
        if found is _ABSENT:
            raise ArtifactError(f"{checkpoint.folder / 'config.json'}: {path} is missing; expected {value!r}")
        if found != value or isinstance(found, bool) != isinstance(value, bool):
            raise ArtifactError(f"{checkpoint.folder / 'config.json'}: {path} is {found!r}; expected {value!r}")


def _lookup(config: object, path: str) -> Any:
    for member in path.split("."):
        if not isinstance(config, Mapping) or member not in config:
            return _ABSENT
        config = config[member]
    return config


def _flatten(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _model_members(g: Geometry) -> Expected:
    """What names the architecture and its special tokens."""
    shift = PUBLISHED_TOKEN_DOMAIN - g.token_domain
    members = {
        "architectures": ["Qwen3_5MoeForConditionalGeneration" if g.moe else "Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5_moe" if g.moe else "qwen3_5",
        "tie_word_embeddings": False,
        **{name: id - shift for name, id in _SPECIAL.items()},
    }
    return members if g.model_id == NINFER_MINI.model_id else {**members, "language_model_only": False}


def _dimensions(g: Geometry) -> Expected:
    text = {
        "num_hidden_layers": g.layers,
        "hidden_size": g.hidden,
        "vocab_size": g.vocab_rows,
        "num_attention_heads": g.query_heads,
        "num_key_value_heads": g.kv_heads,
        "head_dim": g.head_dim,
        "linear_num_key_heads": g.gdn_key_heads,
        "linear_num_value_heads": g.gdn_value_heads,
        "linear_key_head_dim": g.gdn_key_head_dim,
        "linear_value_head_dim": g.gdn_value_head_dim,
        "linear_conv_kernel_dim": g.conv_taps,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "tie_word_embeddings": False,
        "max_position_embeddings": g.native_context,
        "rms_norm_eps": g.rms_norm_eps,
        "layer_types": [
            "full_attention" if g.is_full_attention(layer) else "linear_attention" for layer in range(g.layers)
        ],
        "rope_parameters.rope_theta": g.rope_theta,
        "rope_parameters.mrope_section": list(g.mrope_section),
        **_mixer_members(g),
    }
    if g.model_id != NINFER_MINI.model_id:
        text |= {"full_attention_interval": g.full_attention_interval, "mamba_ssm_dtype": "float32"}
    v = g.vision
    vision = {
        "depth": v.depth,
        "hidden_size": v.hidden,
        "intermediate_size": v.intermediate,
        "out_hidden_size": v.out,
        "num_heads": v.heads,
        "in_channels": 3,
        "patch_size": 16,
        "temporal_patch_size": 2,
        "spatial_merge_size": v.merge,
        "num_position_embeddings": v.position_rows,
    }
    if g.moe:
        vision |= {"hidden_act": "gelu_pytorch_tanh", "deepstack_visual_indexes": []}
    prefixed = {f"text_config.{name}": value for name, value in text.items()}
    return prefixed | {f"vision_config.{name}": value for name, value in vision.items()}


def _mixer_members(g: Geometry) -> Expected:
    """Members that only one of the dense and the sparse model has, or that only the sparse one is checked for."""
    if g.moe is None:
        return {"intermediate_size": g.intermediate}
    return {
        "attn_output_gate": True,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "num_experts": g.moe.experts,
        "num_experts_per_tok": g.moe.experts_per_token,
        "moe_intermediate_size": g.moe.expert_intermediate,
        "shared_expert_intermediate_size": g.moe.shared_intermediate,
        "rope_parameters.mrope_interleaved": True,
        "rope_parameters.partial_rotary_factor": g.rope_dim / g.head_dim,
    }
