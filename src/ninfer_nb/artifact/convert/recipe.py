"""Which rows of which source tensors make up each stored tensor, from its name and the geometry (`inventories.md` 7.2).

One table of roles serves every identity. Knows nothing of formats, dtypes or files: whether rows are read as BF16 or as
words that are quantised already is chosen in `sources.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ...errors import ArtifactError
from ..geometry import Geometry
from ..inventory import TensorSpec

TEXT = "model.language_model."
VISION = "model.visual."
HEAD = "lm_head.weight"
DFLASH = "dflash/"  # prefix of the objects whose sources are in the drafter's own checkpoint

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Part:
    """Half-open row ranges of one source tensor, seen as a matrix whose rows are as wide as the stored tensor's."""

    tensor: str
    shape: tuple[int, ...]  # that the source must have
    ranges: Ranges


@dataclass(frozen=True)
class Join:
    """A stored tensor as parts below each other. `transposed`: the joined matrix is [K, N]."""

    spec: TensorSpec
    parts: tuple[Part, ...]
    transposed: bool = False


def join(spec: TensorSpec, g: Geometry, draft_ids: Sequence[int] = ()) -> Join:
    """The recipe of one stored tensor; `draft_ids` are the head rows of `text/draft_head`.

    Raises ArtifactError for a name without a recipe: draft ids and input divisors are not joined from rows.
    """
    name = spec.name
    if name == "text/draft_head":
        return Join(spec, (Part(HEAD, (g.vocab_rows, g.hidden), row_runs(draft_ids)),))
    if name in _GLOBAL:
        return Join(spec, (whole(_GLOBAL[name], spec.shape),))
    if name.startswith("vision/"):
        return _vision(spec, name.removeprefix("vision/"))
    if name.startswith(DFLASH):
        return _dflash(spec, name.removeprefix(DFLASH), g)
    if name.startswith("text/layers/"):
        layer, role = name.split("/", 3)[2:]
        return _decoder(spec, role, f"{TEXT}layers.{layer}.", g)
    if name.startswith("mtp/layer/"):
        return _decoder(spec, name.removeprefix("mtp/layer/"), "mtp.layers.0.", g)
    raise ArtifactError(f"no source tensors are known for {name}")


def row_runs(rows: Sequence[int]) -> Ranges:
    """Row indices as ranges, consecutive ones merged."""
    rows = np.asarray(rows, np.int64)
    if not rows.size:
        return ()
    breaks = np.flatnonzero(np.diff(rows) != 1)
    starts = rows[np.concatenate([[0], breaks + 1])]
    stops = rows[np.concatenate([breaks, [rows.size - 1]])] + 1
    return tuple(zip(starts.tolist(), stops.tolist(), strict=True))


def whole(tensor: str, shape: tuple[int, ...], rows: int | None = None) -> Part:
    """All rows of a tensor; `rows` where that is not its first dimension."""
    return Part(tensor, shape, ((0, shape[0] if rows is None else rows),))


_GLOBAL = {
    "text/token_embedding": TEXT + "embed_tokens.weight",
    "text/final_norm": TEXT + "norm.weight",
    "text/output_head": HEAD,
    "mtp/input_projection": "mtp.fc.weight",
    "mtp/embedding_norm": "mtp.pre_fc_norm_embedding.weight",
    "mtp/hidden_norm": "mtp.pre_fc_norm_hidden.weight",
    "mtp/final_norm": "mtp.norm.weight",
}


class _DecoderSources:
    """The parts of one decoder layer."""

    def __init__(self, stem: str, g: Geometry):
        self.stem = stem
        self.g = g

    def rows(self, name: str, count: int) -> Part:
        return whole(self.stem + name, (count, self.g.hidden))

    def _query_half(self, half: int) -> Part:
        """Each head of `q_proj` has its query rows, then its gate rows."""
        g, width = self.g, self.g.head_dim
        starts = [(2 * head + half) * width for head in range(g.query_heads)]
        ranges = tuple((start, start + width) for start in starts)
        return Part(self.stem + "self_attn.q_proj.weight", (2 * g.query_width, g.hidden), ranges)

    def query(self) -> Part:
        return self._query_half(0)

    def gate(self) -> Part:
        return self._query_half(1)

    def key(self) -> Part:
        return self.rows("self_attn.k_proj.weight", self.g.kv_width)

    def value(self) -> Part:
        return self.rows("self_attn.v_proj.weight", self.g.kv_width)

    def mixed(self, start: int, stop: int) -> Part:
        """Rows of the delta net's query, key, value projection."""
        shape = (self.g.conv_channels, self.g.hidden)
        return Part(self.stem + "linear_attn.in_proj_qkv.weight", shape, ((start, stop),))

    def z(self) -> Part:
        return self.rows("linear_attn.in_proj_z.weight", self.g.gdn_value_width)

    def controls(self) -> tuple[Part, Part]:
        heads = self.g.gdn_value_heads
        return self.rows("linear_attn.in_proj_a.weight", heads), self.rows("linear_attn.in_proj_b.weight", heads)

    def gate_up(self, module: str, width: int) -> tuple[Part, Part]:
        return self.rows(f"{module}.gate_proj.weight", width), self.rows(f"{module}.up_proj.weight", width)

    def experts(self, name: str, width: int, columns: int) -> Part:
        """All experts' matrices [E, width, columns] below each other."""
        count = self.g.moe.experts
        return whole(f"{self.stem}mlp.experts.{name}", (count, width, columns), count * width)


_FUSED: dict[str, Callable[[_DecoderSources], tuple[Part, ...]]] = {
    "attention/query_key": lambda s: (s.query(), s.key()),
    "attention/gate_value": lambda s: (s.gate(), s.value()),
    "attention/query_key_gate_value": lambda s: (s.query(), s.key(), s.gate(), s.value()),
    "gdn/query_key": lambda s: (s.mixed(0, 2 * s.g.gdn_key_width),),
    "gdn/value_z": lambda s: (s.mixed(2 * s.g.gdn_key_width, s.g.conv_channels), s.z()),
    "gdn/query_key_value_z": lambda s: (s.mixed(0, s.g.conv_channels), s.z()),
    "gdn/a_b_projection": lambda s: s.controls(),
    "mlp/gate_up": lambda s: s.gate_up("mlp", s.g.intermediate),
    "moe/router_shared_gate": lambda s: (
        s.rows("mlp.gate.weight", s.g.moe.experts),
        s.rows("mlp.shared_expert_gate.weight", 1),
    ),
    "moe/routed_gate_up": lambda s: (s.experts("gate_up_proj", 2 * s.g.moe.expert_intermediate, s.g.hidden),),
    "moe/routed_down": lambda s: (s.experts("down_proj", s.g.hidden, s.g.moe.expert_intermediate),),
    "moe/shared_gate_up": lambda s: s.gate_up("mlp.shared_expert", s.g.moe.shared_intermediate),
}

_SINGLE = {
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
    "moe/shared_down": "mlp.shared_expert.down_proj.weight",
}


def _decoder(spec: TensorSpec, role: str, stem: str, g: Geometry) -> Join:
    if role == "gdn/convolution":
        taps, channels = spec.shape
        return Join(spec, (whole(stem + "linear_attn.conv1d.weight", (channels, 1, taps)),), transposed=True)
    if role in _FUSED:
        return Join(spec, _FUSED[role](_DecoderSources(stem, g)))
    if role in _SINGLE:
        return Join(spec, (whole(stem + _SINGLE[role], spec.shape),))
    raise ArtifactError(f"no source tensors are known for {spec.name}")


_VISION_STEM = {
    "patch_embedding": "patch_embed.proj.weight",
    "patch_embedding_bias": "patch_embed.proj.bias",
    "position_embedding": "pos_embed.weight",
    "merger/fc1": "merger.linear_fc1.weight",
    "merger/fc1_bias": "merger.linear_fc1.bias",
    "merger/fc2": "merger.linear_fc2.weight",
    "merger/fc2_bias": "merger.linear_fc2.bias",
    "merger/norm/weight": "merger.norm.weight",
    "merger/norm/bias": "merger.norm.bias",
}
_VISION_BLOCK = {
    "attention/qkv": "attn.qkv.weight",
    "attention/qkv_bias": "attn.qkv.bias",
    "attention/output": "attn.proj.weight",
    "attention/output_bias": "attn.proj.bias",
    "mlp/fc1": "mlp.linear_fc1.weight",
    "mlp/fc1_bias": "mlp.linear_fc1.bias",
    "mlp/fc2": "mlp.linear_fc2.weight",
    "mlp/fc2_bias": "mlp.linear_fc2.bias",
    "norm1/weight": "norm1.weight",
    "norm1/bias": "norm1.bias",
    "norm2/weight": "norm2.weight",
    "norm2/bias": "norm2.bias",
}
_PATCH = (3, 2, 16, 16)  # channels, frames, rows, columns of one patch, flattened in this order


def _vision(spec: TensorSpec, role: str) -> Join:
    if role.startswith("layers/"):
        _, block, role = role.split("/", 2)
        return Join(spec, (whole(f"{VISION}blocks.{block}.{_VISION_BLOCK[role]}", spec.shape),))
    shape = (spec.shape[0], *_PATCH) if role == "patch_embedding" else spec.shape
    return Join(spec, (whole(VISION + _VISION_STEM[role], shape),))


_DFLASH_STEM = {
    "feature_projection": "fc.weight",
    "context_norm": "hidden_norm.weight",
    "final_norm": "norm.weight",
}


def _dflash(spec: TensorSpec, role: str, g: Geometry) -> Join:
    if role in _DFLASH_STEM:
        return Join(spec, (whole(_DFLASH_STEM[role], spec.shape),))
    _, layer, role = role.split("/", 2)
    stem, d = f"layers.{layer}.", g.dflash
    if role == "attention/query_key_value":
        heads = {"q_proj": d.query_heads, "k_proj": d.kv_heads, "v_proj": d.kv_heads}
        names = {f"self_attn.{name}.weight": count * d.head_dim for name, count in heads.items()}
    elif role == "mlp/gate_up":
        names = {"mlp.gate_proj.weight": d.intermediate, "mlp.up_proj.weight": d.intermediate}
    else:
        return Join(spec, (whole(stem + _SINGLE[role], spec.shape),))
    return Join(spec, tuple(whole(stem + name, (rows, d.hidden)) for name, rows in names.items()))
