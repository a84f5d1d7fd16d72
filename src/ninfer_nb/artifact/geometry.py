"""Registered model geometries: every dimension that the code needs, and no file can change.

A `.ninfer` file carries tensor shapes but not head counts, context limits or token domains
(`inventories.md` 8.3), so each `model_id` has one frozen geometry here. Knows nothing of formats,
files or kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class VisionGeometry:
    """Vision tower dimensions (`vision.md` section 1)."""

    depth: int
    hidden: int
    intermediate: int
    heads: int
    position_rows: int
    out: int
    patch_input: int = 1536
    merge: int = 2

    patch_shape: ClassVar[tuple[int, int, int, int]] = (3, 2, 16, 16)  # channels, frames, rows, columns

    @property
    def merger_hidden(self) -> int:
        return self.merge * self.merge * self.hidden


@dataclass(frozen=True)
class MoeGeometry:
    """Sparse mixture of experts after every mixer (35B-A3B only)."""

    experts: int
    experts_per_token: int
    expert_intermediate: int
    shared_intermediate: int


@dataclass(frozen=True)
class DflashGeometry:
    """DFlash companion drafter (35B-A3B only, `model.md` section 14)."""

    layers: int
    local_layers: int
    window: int
    hidden: int
    intermediate: int
    query_heads: int
    kv_heads: int
    head_dim: int
    target_feature_layers: tuple[int, ...]
    block_size: int
    mask_token_row: int


@dataclass(frozen=True)
class Geometry:
    """Dimensions of one registered model, symbols as in `inventories.md` section 3.

    `intermediate` is 0 for a sparse model. `layers` counts text decoder layers; layer `i` is full
    attention iff `(i + 1) % full_attention_interval == 0`.
    """

    model_id: str
    target_key: str
    hidden: int  # H
    layers: int  # L
    vocab_rows: int  # V, rows of embedding and head
    token_domain: int  # T, ids 0..T-1 are tokens
    draft_rows: int  # D
    intermediate: int  # I
    query_heads: int  # nq
    kv_heads: int  # nkv
    gdn_key_heads: int  # nk
    gdn_value_heads: int  # nv
    vision: VisionGeometry
    native_context: int
    moe: MoeGeometry | None = None
    dflash: DflashGeometry | None = None
    full_attention_interval: int = 4
    head_dim: int = 256  # hd
    gdn_key_head_dim: int = 128  # dk
    gdn_value_head_dim: int = 128  # dv
    conv_taps: int = 4
    rope_dim: int = 64
    rope_theta: float = 1e7
    mrope_section: tuple[int, int, int] = (11, 11, 10)
    rms_norm_eps: float = 1e-6

    @property
    def query_width(self) -> int:  # QW
        return self.query_heads * self.head_dim

    @property
    def kv_width(self) -> int:  # KW
        return self.kv_heads * self.head_dim

    @property
    def gdn_key_width(self) -> int:  # GK
        return self.gdn_key_heads * self.gdn_key_head_dim

    @property
    def gdn_value_width(self) -> int:  # GV
        return self.gdn_value_heads * self.gdn_value_head_dim

    @property
    def conv_channels(self) -> int:  # C
        return 2 * self.gdn_key_width + self.gdn_value_width

    def is_full_attention(self, layer: int) -> bool:
        return (layer + 1) % self.full_attention_interval == 0

    @property
    def full_attention_layers(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.layers) if self.is_full_attention(i))

    @property
    def gdn_layers(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.layers) if not self.is_full_attention(i))


def _dense_27b(model_id: str, target_key: str) -> Geometry:
    return Geometry(
        model_id=model_id,
        target_key=target_key,
        hidden=5120,
        layers=64,
        vocab_rows=248320,
        token_domain=248077,
        draft_rows=131072,
        intermediate=17408,
        query_heads=24,
        kv_heads=4,
        gdn_key_heads=16,
        gdn_value_heads=48,
        vision=VisionGeometry(depth=27, hidden=1152, intermediate=4304, heads=16, position_rows=2304, out=5120),
        native_context=262144,
    )


QWEN36_27B = _dense_27b("qwen3.6-27b", "qwen3_6_27b")
QWEN38_27B = _dense_27b("qwen3.8-27b", "qwen3_8_27b")

QWEN36_35B_A3B = Geometry(
    model_id="qwen3.6-35b-a3b",
    target_key="qwen3_6_35b_a3b",
    hidden=2048,
    layers=40,
    vocab_rows=248320,
    token_domain=248077,
    draft_rows=131072,
    intermediate=0,
    query_heads=16,
    kv_heads=2,
    gdn_key_heads=16,
    gdn_value_heads=32,
    vision=VisionGeometry(depth=27, hidden=1152, intermediate=4304, heads=16, position_rows=2304, out=2048),
    native_context=262144,
    moe=MoeGeometry(experts=256, experts_per_token=8, expert_intermediate=512, shared_intermediate=512),
    dflash=DflashGeometry(
        layers=6,
        local_layers=5,
        window=4096,
        hidden=2048,
        intermediate=6144,
        query_heads=32,
        kv_heads=8,
        head_dim=128,
        target_feature_layers=(1, 6, 11, 16, 22, 27, 32, 37),
        block_size=16,
        mask_token_row=248077,
    ),
)

NINFER_MINI = Geometry(
    model_id="ninfer-mini",
    target_key="ninfer_mini",
    hidden=256,
    layers=8,
    vocab_rows=4096,
    token_domain=4096,
    draft_rows=2048,
    intermediate=768,
    query_heads=4,
    kv_heads=2,
    gdn_key_heads=2,
    gdn_value_heads=6,
    vision=VisionGeometry(depth=3, hidden=216, intermediate=512, heads=3, position_rows=256, out=256),
    native_context=4096,
)

GEOMETRIES: dict[str, Geometry] = {g.model_id: g for g in (QWEN36_27B, QWEN38_27B, QWEN36_35B_A3B, NINFER_MINI)}
