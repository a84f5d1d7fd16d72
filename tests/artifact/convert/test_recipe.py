"""Recipes at the real geometries: every tensor of the published checkpoints is used, under its name and shape."""

from __future__ import annotations

import numpy as np
import pytest

from ninfer_nb.artifact.convert.recipe import row_runs
from ninfer_nb.artifact.convert.sources import DRAFT_HEAD, joins
from ninfer_nb.artifact.directory import Identity
from ninfer_nb.artifact.geometry import NINFER_MINI, QWEN36_27B, QWEN36_35B_A3B, QWEN38_27B, Geometry
from ninfer_nb.artifact.inventory import PROFILES

DENSE = [
    (identity, geometry)
    for identity in PROFILES
    for geometry in (QWEN36_27B, QWEN38_27B, NINFER_MINI)
    if identity.model_id == geometry.model_id
]
MOE = Identity("qwen3.6-35b-a3b", "groupwise-int")


def attention(g: Geometry) -> dict[str, tuple[int, ...]]:
    """`self_attn.*` as transformers names it."""
    return {
        "q_proj.weight": (g.query_heads * 2 * g.head_dim, g.hidden),
        "k_proj.weight": (g.kv_heads * g.head_dim, g.hidden),
        "v_proj.weight": (g.kv_heads * g.head_dim, g.hidden),
        "o_proj.weight": (g.hidden, g.query_heads * g.head_dim),
        "q_norm.weight": (g.head_dim,),
        "k_norm.weight": (g.head_dim,),
    }


def linear_attention(g: Geometry) -> dict[str, tuple[int, ...]]:
    """`linear_attn.*` as transformers names it."""
    keys, values = g.gdn_key_heads * g.gdn_key_head_dim, g.gdn_value_heads * g.gdn_value_head_dim
    return {
        "in_proj_qkv.weight": (2 * keys + values, g.hidden),
        "in_proj_z.weight": (values, g.hidden),
        "in_proj_a.weight": (g.gdn_value_heads, g.hidden),
        "in_proj_b.weight": (g.gdn_value_heads, g.hidden),
        "conv1d.weight": (2 * keys + values, 1, 4),
        "A_log": (g.gdn_value_heads,),
        "dt_bias": (g.gdn_value_heads,),
        "norm.weight": (g.gdn_value_head_dim,),
        "out_proj.weight": (g.hidden, values),
    }


def mlp(g: Geometry) -> dict[str, tuple[int, ...]]:
    """`mlp.*` as transformers names it."""
    if g.moe is None:
        up = (g.intermediate, g.hidden)
        return {"gate_proj.weight": up, "up_proj.weight": up, "down_proj.weight": up[::-1]}
    m = g.moe
    return {
        "gate.weight": (m.experts, g.hidden),
        "experts.gate_up_proj": (m.experts, 2 * m.expert_intermediate, g.hidden),
        "experts.down_proj": (m.experts, g.hidden, m.expert_intermediate),
        "shared_expert.gate_proj.weight": (m.shared_intermediate, g.hidden),
        "shared_expert.up_proj.weight": (m.shared_intermediate, g.hidden),
        "shared_expert.down_proj.weight": (g.hidden, m.shared_intermediate),
        "shared_expert_gate.weight": (1, g.hidden),
    }


def vision(g: Geometry) -> dict[str, tuple[int, ...]]:
    """`model.visual.*` as transformers names it."""
    v = g.vision
    h, merged = v.hidden, 4 * v.hidden
    block = {
        "norm1.weight": (h,),
        "norm1.bias": (h,),
        "norm2.weight": (h,),
        "norm2.bias": (h,),
        "attn.qkv.weight": (3 * h, h),
        "attn.qkv.bias": (3 * h,),
        "attn.proj.weight": (h, h),
        "attn.proj.bias": (h,),
        "mlp.linear_fc1.weight": (v.intermediate, h),
        "mlp.linear_fc1.bias": (v.intermediate,),
        "mlp.linear_fc2.weight": (h, v.intermediate),
        "mlp.linear_fc2.bias": (h,),
    }
    return {
        "patch_embed.proj.weight": (h, 3, 2, 16, 16),
        "patch_embed.proj.bias": (h,),
        "pos_embed.weight": (v.position_rows, h),
        **{f"blocks.{b}.{name}": shape for b in range(v.depth) for name, shape in block.items()},
        "merger.norm.weight": (h,),
        "merger.norm.bias": (h,),
        "merger.linear_fc1.weight": (merged, merged),
        "merger.linear_fc1.bias": (merged,),
        "merger.linear_fc2.weight": (v.out, merged),
        "merger.linear_fc2.bias": (v.out,),
    }


def published(g: Geometry) -> dict[str, tuple[int, ...]]:
    """Every tensor of a published checkpoint: transformers' names and shapes, and those of the MTP module."""
    tensors = {
        "model.language_model.embed_tokens.weight": (g.vocab_rows, g.hidden),
        "model.language_model.norm.weight": (g.hidden,),
        "lm_head.weight": (g.vocab_rows, g.hidden),
        "mtp.fc.weight": (g.hidden, 2 * g.hidden),
        "mtp.pre_fc_norm_embedding.weight": (g.hidden,),
        "mtp.pre_fc_norm_hidden.weight": (g.hidden,),
        "mtp.norm.weight": (g.hidden,),
    }
    layers = [(f"model.language_model.layers.{layer}.", layer % 4 == 3) for layer in range(g.layers)]
    for prefix, is_attention in [*layers, ("mtp.layers.0.", True)]:
        mixer = ("self_attn.", attention(g)) if is_attention else ("linear_attn.", linear_attention(g))
        for module, members in (mixer, ("mlp.", mlp(g))):
            tensors |= {prefix + module + name: shape for name, shape in members.items()}
        tensors |= {prefix + f"{norm}_layernorm.weight": (g.hidden,) for norm in ("input", "post_attention")}
    return tensors | {f"model.visual.{name}": shape for name, shape in vision(g).items()}


def used_rows(identity: Identity, g: Geometry, *, drafter: bool = False) -> tuple[dict, dict]:
    """Shape of each source tensor that the recipes name, and how often each of its rows is stored."""
    shapes, uses = {}, {}
    for join in joins(identity, g, np.arange(g.draft_rows)):
        if join.spec.name == DRAFT_HEAD or join.spec.name.startswith("dflash/") != drafter:
            continue
        for part in join.parts:
            assert shapes.setdefault(part.tensor, part.shape) == part.shape
            columns = join.spec.shape[0] if join.transposed else (*join.spec.shape, 1)[1]
            count = uses.setdefault(part.tensor, np.zeros(int(np.prod(part.shape)) // columns, int))
            for start, stop in part.ranges:
                count[start:stop] += 1
    return shapes, uses


@pytest.mark.parametrize(("identity", "geometry"), DENSE, ids=lambda value: str(value)[:40])
def test_dense_recipes_use_every_row_of_the_checkpoint_once(identity, geometry):
    shapes, uses = used_rows(identity, geometry)
    assert shapes == published(geometry)
    assert all((count == 1).all() for count in uses.values())


def test_published_counts():
    """Tensor counts of the checkpoints that the published artifacts were made from."""
    assert len(published(QWEN36_27B)) == 1199
    assert len(published(QWEN36_35B_A3B)) == 1045


def test_moe_recipe_uses_every_row_of_both_checkpoints_once():
    shapes, uses = used_rows(MOE, QWEN36_35B_A3B)
    assert shapes == published(QWEN36_35B_A3B)
    drafter, drafter_uses = used_rows(MOE, QWEN36_35B_A3B, drafter=True)
    assert len(drafter) == 69
    assert drafter["fc.weight"] == (2048, 16384)
    assert drafter["layers.5.self_attn.q_proj.weight"] == (4096, 2048)
    assert drafter["layers.0.self_attn.v_proj.weight"] == (1024, 2048)
    assert drafter["layers.0.mlp.down_proj.weight"] == (2048, 6144)
    assert all((count == 1).all() for count in [*uses.values(), *drafter_uses.values()])


@pytest.mark.parametrize(("identity", "geometry"), DENSE, ids=lambda value: str(value)[:40])
def test_parts_fill_the_stored_tensor(identity, geometry):
    for join in joins(identity, geometry, np.arange(geometry.draft_rows)):
        rows = sum(stop - start for part in join.parts for start, stop in part.ranges)
        assert rows == (join.spec.shape[1] if join.transposed else join.spec.shape[0]), join.spec.name


def test_query_and_gate_rows_leave_their_heads():
    (join,) = [
        each
        for each in joins(Identity("qwen3.6-27b", "nvfp4"), QWEN36_27B, np.arange(131072))
        if each.spec.name == "text/layers/3/attention/query_key_gate_value"
    ]
    query, key, gate, value = join.parts
    assert query.tensor == gate.tensor == "model.language_model.layers.3.self_attn.q_proj.weight"
    assert query.ranges[:2] == ((0, 256), (512, 768))
    assert query.ranges[-1] == (23 * 512, 23 * 512 + 256)
    assert gate.ranges[:2] == ((256, 512), (768, 1024))
    assert (key.tensor[-13:], value.tensor[-13:]) == ("k_proj.weight", "v_proj.weight")


def test_row_runs_merge_consecutive_rows():
    assert row_runs([5, 6, 7, 0, 9, 8]) == ((5, 8), (0, 1), (9, 10), (8, 9))
    assert row_runs([]) == ()
    assert row_runs(np.arange(131072)) == ((0, 131072),)
