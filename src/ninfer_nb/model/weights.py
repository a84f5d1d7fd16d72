"""Roles of the stored tensors, bound by name (`inventories.md` 4 and 5).

Profiles cut the same matrices differently (one parent or two); here they all become tuples of row-wise parents, so
that the decoder never asks for a profile. Knows nothing of files: a `get(name)` gives the backend's weight handles.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from ..artifact.geometry import Geometry
from ..ops import Weight

Getter = Callable[[str], Weight]


@dataclass(frozen=True)
class AttentionWeights:
    projections: tuple[Weight, ...]  # rows in order query, key, gate, value; [2*QW + 2*KW, H] in all
    query_norm: Weight  # [D]
    key_norm: Weight  # [D]
    output: Weight  # [H, QW]


@dataclass(frozen=True)
class GdnWeights:
    projections: tuple[Weight, ...]  # rows in order query, key, value, z; [2*GK + 2*GV, H] in all
    controls: tuple[Weight, ...]  # a rows, then b rows; [2*Hv, H] in all
    a_log: Weight  # [Hv]
    dt_bias: Weight  # [Hv]
    convolution: Weight  # [taps, 2*GK + GV], oldest tap first
    norm: Weight  # [Dv], plain gain
    output: Weight  # [H, GV]


@dataclass(frozen=True)
class MlpWeights:
    gate_up: Weight  # [2*I, H], gate rows first
    down: Weight  # [H, I]


@dataclass(frozen=True)
class LayerWeights:
    input_norm: Weight
    mixer: AttentionWeights | GdnWeights
    post_attention_norm: Weight
    mlp: MlpWeights


@dataclass(frozen=True)
class TextWeights:
    embedding: Weight  # [V, H]
    layers: tuple[LayerWeights, ...]
    final_norm: Weight  # [H]
    head: Weight  # [V, H]


@dataclass(frozen=True)
class MtpWeights:
    """The draft layer; `draft_head` is a smaller head of `draft_ids`' tokens, if it was asked for."""

    input_projection: Weight  # [H, 2*H], embedding columns first
    embedding_norm: Weight  # [H]
    hidden_norm: Weight  # [H]
    layer: LayerWeights
    final_norm: Weight  # [H]
    draft_head: Weight | None = None  # [n, H]
    draft_ids: Weight | None = None  # [n] i32


def bind_mtp(names: Container[str], get: Getter, *, draft_head: bool) -> MtpWeights:
    """Bind the draft layer; with `draft_head` also the optimised proposal head."""
    prefix = "mtp/layer/"
    return MtpWeights(
        input_projection=get("mtp/input_projection"),
        embedding_norm=get("mtp/embedding_norm"),
        hidden_norm=get("mtp/hidden_norm"),
        layer=LayerWeights(
            input_norm=get(prefix + "input_norm"),
            mixer=_attention(prefix, names, get),
            post_attention_norm=get(prefix + "post_attention_norm"),
            mlp=MlpWeights(gate_up=get(prefix + "mlp/gate_up"), down=get(prefix + "mlp/down")),
        ),
        final_norm=get("mtp/final_norm"),
        draft_head=get("text/draft_head") if draft_head else None,
        draft_ids=get("text/draft_head_token_ids") if draft_head else None,
    )


def bind_text(geometry: Geometry, names: Container[str], get: Getter) -> TextWeights:
    """Bind the text decoder; `names` are the stored objects, `get` places one and returns its handle."""
    return TextWeights(
        embedding=get("text/token_embedding"),
        layers=tuple(_layer(geometry, names, get, i) for i in range(geometry.layers)),
        final_norm=get("text/final_norm"),
        head=get("text/output_head"),
    )


def _layer(geometry: Geometry, names: Container[str], get: Getter, index: int) -> LayerWeights:
    prefix = f"text/layers/{index}/"
    mixer = _attention if geometry.is_full_attention(index) else _gdn
    return LayerWeights(
        input_norm=get(prefix + "input_norm"),
        mixer=mixer(prefix, names, get),
        post_attention_norm=get(prefix + "post_attention_norm"),
        mlp=MlpWeights(gate_up=get(prefix + "mlp/gate_up"), down=get(prefix + "mlp/down")),
    )


def _parents(prefix: str, names: Container[str], get: Getter, fused: str, split: tuple[str, ...]) -> tuple[Weight, ...]:
    return (get(prefix + fused),) if prefix + fused in names else tuple(get(prefix + part) for part in split)


def _attention(prefix: str, names: Container[str], get: Getter) -> AttentionWeights:
    at = prefix + "attention/"
    return AttentionWeights(
        projections=_parents(at, names, get, "query_key_gate_value", ("query_key", "gate_value")),
        query_norm=get(at + "query_norm"),
        key_norm=get(at + "key_norm"),
        output=get(at + "output"),
    )


def _gdn(prefix: str, names: Container[str], get: Getter) -> GdnWeights:
    at = prefix + "gdn/"
    return GdnWeights(
        projections=_parents(at, names, get, "query_key_value_z", ("query_key", "value_z")),
        controls=_parents(at, names, get, "a_b_projection", ("a_projection", "b_projection")),
        a_log=get(at + "a_log"),
        dt_bias=get(at + "dt_bias"),
        convolution=get(at + "convolution"),
        norm=get(at + "norm"),
        output=get(at + "output"),
    )
