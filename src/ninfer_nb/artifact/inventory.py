"""Which objects each identity stores, in file order, from its geometry and a short profile (`inventories.md` 4).

A profile names the format of each role, and the layers where it differs; the walk over layers and blocks is the same
for all. Knows nothing of bytes: `writer.plan` lays the objects out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..errors import ArtifactError
from .directory import Identity
from .formats import (
    BF16,
    FP8_E4M3FN_ROW_BF16S,
    FP32,
    I32,
    NVFP4,
    Q4G64_F16S,
    Q5G64_F16S,
    Q6G64_F16S,
    W8G32_F16S,
)
from .geometry import GEOMETRIES, Geometry

FRONTEND_RESOURCES = (
    "frontend/tokenizer.json",
    "frontend/tokenizer_config.json",
    "frontend/chat_template.jinja",
    "frontend/generation_config.json",
    "frontend/preprocessor_config.json",
    "frontend/video_preprocessor_config.json",
)


@dataclass(frozen=True)
class TensorSpec:
    """One tensor that an identity stores: logical shape and numeric format."""

    name: str
    shape: tuple[int, ...]
    format: str


@dataclass(frozen=True)
class ResourceSpec:
    """One raw file that an identity carries."""

    name: str


ObjectSpec = TensorSpec | ResourceSpec
ByLayer = Callable[[int], str]  # layer -> format


def _always(format: str) -> ByLayer:
    return lambda layer: format


def _except(format: str, layers: frozenset[int], other: str = BF16) -> ByLayer:
    return lambda layer: other if layer in layers else format


def _below(cutoff: int, format: str, other: str) -> ByLayer:
    return lambda layer: format if layer < cutoff else other


_Q5_ALWAYS = _always(Q5G64_F16S)


@dataclass(frozen=True)
class Profile:
    """Formats of one weights_id. `split_inputs` stores two parents (Q4 and Q5) where others store one fused parent."""

    embedding: str
    head: str
    attention_input: ByLayer
    attention_output: ByLayer
    gdn_input: ByLayer
    gdn_output: ByLayer
    mlp_gate_up: ByLayer
    mlp_down: ByLayer
    split_inputs: bool = False
    fused_controls: bool = False
    moe_down: ByLayer = _Q5_ALWAYS


def _groupwise(vocabulary: str) -> Profile:
    q4, q5 = _always(Q4G64_F16S), _always(Q5G64_F16S)
    return Profile(vocabulary, vocabulary, q4, q5, q4, q5, q4, q5, split_inputs=True)


def _nvfp4(bf16_attention_inputs: set[int], bf16_attention_outputs: set[int], bf16_gdn_outputs: set[int]) -> Profile:
    return Profile(
        embedding=W8G32_F16S,
        head=W8G32_F16S,
        attention_input=_except(NVFP4, frozenset(bf16_attention_inputs)),
        attention_output=_except(NVFP4, frozenset(bf16_attention_outputs)),
        gdn_input=_always(NVFP4),
        gdn_output=_except(NVFP4, frozenset(bf16_gdn_outputs)),
        mlp_gate_up=_always(NVFP4),
        mlp_down=_always(NVFP4),
    )


def _nvfp4_fp8(nvfp4_mlp_layers: int) -> Profile:
    fp8 = _always(FP8_E4M3FN_ROW_BF16S)
    mlp = _below(nvfp4_mlp_layers, NVFP4, FP8_E4M3FN_ROW_BF16S)
    vocabulary = FP8_E4M3FN_ROW_BF16S
    return Profile(vocabulary, vocabulary, fp8, fp8, fp8, fp8, mlp, mlp, fused_controls=True)


def _moe(q6_down_layers: set[int]) -> Profile:
    w8 = _always(W8G32_F16S)
    down = _except(Q5G64_F16S, frozenset(q6_down_layers), Q6G64_F16S)
    return Profile(W8G32_F16S, Q6G64_F16S, w8, w8, w8, w8, w8, w8, fused_controls=True, moe_down=down)


_NVFP4_27B = _nvfp4({3, 7, 11, 15, 19, 23}, {3, 7}, {4})
_NVFP4_MINI = _nvfp4({3}, {3}, {4})

PROFILES: dict[Identity, Profile] = {
    Identity("qwen3.6-27b", "groupwise-int"): _groupwise(Q6G64_F16S),
    Identity("qwen3.6-27b", "nvfp4"): _NVFP4_27B,
    Identity("qwen3.8-27b", "groupwise-int"): _groupwise(W8G32_F16S),
    Identity("qwen3.8-27b", "nvfp4"): _nvfp4_fp8(56),
    Identity("qwen3.8-27b", "nvfp4-split"): _NVFP4_27B,
    Identity("qwen3.6-35b-a3b", "groupwise-int"): _moe({34, 38, 39}),
    Identity("ninfer-mini", "groupwise-int"): _groupwise(Q6G64_F16S),
    Identity("ninfer-mini", "groupwise-int-w8"): _groupwise(W8G32_F16S),
    Identity("ninfer-mini", "nvfp4"): _NVFP4_MINI,
    Identity("ninfer-mini", "nvfp4-fp8"): _nvfp4_fp8(6),
    Identity("ninfer-mini", "nvfp4-split"): _NVFP4_MINI,
}

# weight -> the object that holds its input divisor, both below the layer's prefix (`inventories.md` 4.2)
DIVISORS = {
    "attention/query_key_gate_value": "attention/input_projection/input_scale_divisor",
    "attention/output": "attention/output_projection/input_scale_divisor",
    "gdn/query_key_value_z": "gdn/input_projection/input_scale_divisor",
    "gdn/output": "gdn/output_projection/input_scale_divisor",
    "mlp/gate_up": "mlp/gate_up_projection/input_scale_divisor",
    "mlp/down": "mlp/down_projection/input_scale_divisor",
}


def divisor_of(weight: str) -> str:
    """Name of the input divisor that belongs to an NVFP4 weight, `text/layers/{l}/<role>`."""
    layer, role = weight.split("/", 3)[:3], weight.split("/", 3)[3]
    return "/".join((*layer, DIVISORS[role]))


def inventory(identity: Identity, geometry: Geometry | None = None) -> tuple[ObjectSpec, ...]:
    """All objects of a registered identity in file order; `geometry` replaces the registered one (tests).

    Raises ArtifactError for a pair that is not registered.
    """
    profile = PROFILES.get(identity)
    if profile is None:
        raise ArtifactError(f"artifact identity '{identity}' has no registered inventory")
    return tuple(_objects(profile, geometry or GEOMETRIES[identity.model_id]))


def _objects(profile: Profile, g: Geometry) -> Iterator[ObjectSpec]:
    yield from map(ResourceSpec, FRONTEND_RESOURCES)
    yield TensorSpec("text/token_embedding", (g.vocab_rows, g.hidden), profile.embedding)
    for layer in range(g.layers):
        yield from _text_layer(profile, g, layer)
    yield TensorSpec("text/final_norm", (g.hidden,), BF16)
    yield TensorSpec("text/output_head", (g.vocab_rows, g.hidden), profile.head)
    yield TensorSpec("text/draft_head", (g.draft_rows, g.hidden), Q4G64_F16S)
    yield TensorSpec("text/draft_head_token_ids", (g.draft_rows,), I32)
    yield from _mtp(g)
    yield from _vision(g)
    if g.dflash is not None:
        yield from _dflash(g)


def _text_layer(profile: Profile, g: Geometry, layer: int) -> Iterator[TensorSpec]:
    prefix = f"text/layers/{layer}/"
    yield TensorSpec(prefix + "input_norm", (g.hidden,), BF16)
    mixer = _attention if g.is_full_attention(layer) else _gdn
    for role, shape, format in (
        *mixer(profile, g, layer),
        ("post_attention_norm", (g.hidden,), BF16),
        *_post_mixer(profile, g, layer),
    ):
        yield TensorSpec(prefix + role, shape, format)
        if format == NVFP4:
            yield TensorSpec(prefix + DIVISORS[role], (), FP32)


Role = tuple[str, tuple[int, ...], str]  # name below the layer, shape, format


def _attention(profile: Profile, g: Geometry, layer: int) -> Iterator[Role]:
    rows = g.query_width + g.kv_width
    if profile.split_inputs:
        yield "attention/query_key", (rows, g.hidden), Q4G64_F16S
        yield "attention/gate_value", (rows, g.hidden), Q5G64_F16S
    else:
        yield "attention/query_key_gate_value", (2 * rows, g.hidden), profile.attention_input(layer)
    yield "attention/query_norm", (g.head_dim,), BF16
    yield "attention/key_norm", (g.head_dim,), BF16
    yield "attention/output", (g.hidden, g.query_width), profile.attention_output(layer)


def _gdn(profile: Profile, g: Geometry, layer: int) -> Iterator[Role]:
    heads, keys, values = g.gdn_value_heads, g.gdn_key_width, g.gdn_value_width
    yield "gdn/a_log", (heads,), FP32
    yield "gdn/dt_bias", (heads,), FP32
    yield "gdn/convolution", (g.conv_taps, g.conv_channels), BF16
    if profile.fused_controls:
        yield "gdn/a_b_projection", (2 * heads, g.hidden), BF16
    else:
        yield "gdn/a_projection", (heads, g.hidden), BF16
        yield "gdn/b_projection", (heads, g.hidden), BF16
    if profile.split_inputs:
        yield "gdn/query_key", (2 * keys, g.hidden), Q4G64_F16S
        yield "gdn/value_z", (2 * values, g.hidden), Q5G64_F16S
    else:
        yield "gdn/query_key_value_z", (2 * keys + 2 * values, g.hidden), profile.gdn_input(layer)
    yield "gdn/norm", (g.gdn_value_head_dim,), BF16
    yield "gdn/output", (g.hidden, values), profile.gdn_output(layer)


def _post_mixer(profile: Profile, g: Geometry, layer: int) -> Iterator[Role]:
    if g.moe is not None:
        yield from _moe_bank(g, Q4G64_F16S, profile.moe_down(layer))
    else:
        yield "mlp/gate_up", (2 * g.intermediate, g.hidden), profile.mlp_gate_up(layer)
        yield "mlp/down", (g.hidden, g.intermediate), profile.mlp_down(layer)


def _moe_bank(g: Geometry, gate_up: str, down: str) -> Iterator[Role]:
    moe = g.moe
    yield "moe/router_shared_gate", (moe.experts + 1, g.hidden), BF16
    yield "moe/routed_gate_up", (moe.experts * 2 * moe.expert_intermediate, g.hidden), gate_up
    yield "moe/routed_down", (moe.experts * g.hidden, moe.expert_intermediate), down
    yield "moe/shared_gate_up", (2 * moe.shared_intermediate, g.hidden), W8G32_F16S
    yield "moe/shared_down", (g.hidden, moe.shared_intermediate), W8G32_F16S


def _mtp(g: Geometry) -> Iterator[TensorSpec]:
    """The same in every profile of a geometry."""
    yield TensorSpec("mtp/input_projection", (g.hidden, 2 * g.hidden), W8G32_F16S)
    yield TensorSpec("mtp/embedding_norm", (g.hidden,), BF16)
    yield TensorSpec("mtp/hidden_norm", (g.hidden,), BF16)
    prefix = "mtp/layer/"
    rows = 2 * (g.query_width + g.kv_width)
    yield TensorSpec(prefix + "input_norm", (g.hidden,), BF16)
    yield TensorSpec(prefix + "attention/query_key_gate_value", (rows, g.hidden), W8G32_F16S)
    yield TensorSpec(prefix + "attention/query_norm", (g.head_dim,), BF16)
    yield TensorSpec(prefix + "attention/key_norm", (g.head_dim,), BF16)
    yield TensorSpec(prefix + "attention/output", (g.hidden, g.query_width), W8G32_F16S)
    yield TensorSpec(prefix + "post_attention_norm", (g.hidden,), BF16)
    if g.moe is not None:
        for role, shape, format in _moe_bank(g, W8G32_F16S, W8G32_F16S):
            yield TensorSpec(prefix + role, shape, format)
    else:
        yield TensorSpec(prefix + "mlp/gate_up", (2 * g.intermediate, g.hidden), W8G32_F16S)
        yield TensorSpec(prefix + "mlp/down", (g.hidden, g.intermediate), W8G32_F16S)
    yield TensorSpec("mtp/final_norm", (g.hidden,), BF16)


def _vision(g: Geometry) -> Iterator[TensorSpec]:
    v = g.vision
    width, inner, merged = v.hidden, v.intermediate, v.merger_hidden
    yield TensorSpec("vision/patch_embedding", (width, v.patch_input), Q6G64_F16S)
    yield TensorSpec("vision/patch_embedding_bias", (width,), BF16)
    yield TensorSpec("vision/position_embedding", (v.position_rows, width), BF16)
    for block in range(v.depth):
        for role, shape, format in (
            ("attention/qkv", (3 * width, width), Q4G64_F16S),
            ("attention/qkv_bias", (3 * width,), BF16),
            ("attention/output", (width, width), Q5G64_F16S),
            ("attention/output_bias", (width,), BF16),
            ("mlp/fc1", (inner, width), Q4G64_F16S),
            ("mlp/fc1_bias", (inner,), BF16),
            ("mlp/fc2", (width, inner), Q5G64_F16S),
            ("mlp/fc2_bias", (width,), BF16),
            ("norm1/weight", (width,), BF16),
            ("norm1/bias", (width,), BF16),
            ("norm2/weight", (width,), BF16),
            ("norm2/bias", (width,), BF16),
        ):
            yield TensorSpec(f"vision/layers/{block}/{role}", shape, format)
    yield TensorSpec("vision/merger/fc1", (merged, merged), W8G32_F16S)
    yield TensorSpec("vision/merger/fc1_bias", (merged,), BF16)
    yield TensorSpec("vision/merger/fc2", (v.out, merged), W8G32_F16S)
    yield TensorSpec("vision/merger/fc2_bias", (v.out,), BF16)
    yield TensorSpec("vision/merger/norm/weight", (width,), BF16)
    yield TensorSpec("vision/merger/norm/bias", (width,), BF16)


def _dflash(g: Geometry) -> Iterator[TensorSpec]:
    d = g.dflash
    width, queries, keys = d.hidden, d.query_heads * d.head_dim, d.kv_heads * d.head_dim
    yield TensorSpec("dflash/feature_projection", (width, len(d.target_feature_layers) * g.hidden), W8G32_F16S)
    yield TensorSpec("dflash/context_norm", (width,), BF16)
    for layer in range(d.layers):
        for role, shape, format in (
            ("input_norm", (width,), BF16),
            ("attention/query_key_value", (queries + 2 * keys, width), W8G32_F16S),
            ("attention/query_norm", (d.head_dim,), BF16),
            ("attention/key_norm", (d.head_dim,), BF16),
            ("attention/output", (width, queries), W8G32_F16S),
            ("post_attention_norm", (width,), BF16),
            ("mlp/gate_up", (2 * d.intermediate, width), W8G32_F16S),
            ("mlp/down", (width, d.intermediate), W8G32_F16S),
        ):
            yield TensorSpec(f"dflash/layers/{layer}/{role}", shape, format)
    yield TensorSpec("dflash/final_norm", (width,), BF16)
