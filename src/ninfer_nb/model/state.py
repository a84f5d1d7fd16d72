"""What a sequence leaves behind: paged KV planes and delta-net slots of every layer (`runtime.md` 5 and 7)."""

from __future__ import annotations

from dataclasses import dataclass

from ..artifact.geometry import Geometry
from ..ops import PAGE, Buf, GdnLayer, KvLayer, Ops


def pages_for(tokens: int) -> int:
    """KV pages that hold `tokens` positions."""
    return -(-tokens // PAGE)


@dataclass(frozen=True)
class DecoderState:
    """State of all lanes. `kv[i]` belongs to the i-th full-attention layer, `gdn[i]` to the i-th delta-net layer."""

    kv: tuple[KvLayer, ...]
    gdn: tuple[GdnLayer, ...]
    table: Buf  # [lanes, pages per lane] i32, shared by all KV layers

    @property
    def kv_bytes(self) -> int:
        return sum(
            plane.nbytes
            for layer in self.kv
            for plane in (layer.keys, layer.values, layer.key_scales, layer.value_scales)
            if plane is not None
        )

    @property
    def bytes(self) -> int:
        return self.kv_bytes + self.table.nbytes + sum(layer.history.nbytes + layer.state.nbytes for layer in self.gdn)


def allocate_state(ops: Ops, geometry: Geometry, lanes: int, pages: int, row_pages: int, kv_dtype: str) -> DecoderState:
    """State for `lanes` lanes over a pool of `pages` KV pages; a lane's table row holds `row_pages` ids."""
    table = ops.empty((lanes, row_pages), "i32")
    return DecoderState(
        kv=tuple(_kv_layer(ops, geometry, pages, kv_dtype, table) for _ in geometry.full_attention_layers),
        gdn=tuple(_gdn_layer(ops, geometry, lanes) for _ in geometry.gdn_layers),
        table=table,
    )


def _kv_layer(ops: Ops, geometry: Geometry, pages: int, kv_dtype: str, table: Buf) -> KvLayer:
    plane = (pages, geometry.kv_heads, PAGE, geometry.head_dim)
    if kv_dtype == "bf16":
        return KvLayer(ops.empty(plane, "bf16"), ops.empty(plane, "bf16"), None, None, table)
    scales = (*plane[:3], geometry.head_dim // 64)
    return KvLayer(
        ops.empty(plane, "i8"), ops.empty(plane, "i8"), ops.empty(scales, "f16"), ops.empty(scales, "f16"), table
    )


def _gdn_layer(ops: Ops, geometry: Geometry, slots: int) -> GdnLayer:
    heads, dv, dk = geometry.gdn_value_heads, geometry.gdn_value_head_dim, geometry.gdn_key_head_dim
    return GdnLayer(
        history=ops.empty((slots, geometry.conv_taps - 1, geometry.conv_channels), "bf16"),
        state=ops.empty((slots, heads, dv, dk), "f32"),
    )


def reset_lane(ops: Ops, state: DecoderState, lane: int) -> None:
    """Zero a lane's delta-net slot. KV pages need no reset: nothing beyond the frontier is ever read."""
    for layer in state.gdn:
        ops.clear(layer.history[lane : lane + 1])
        ops.clear(layer.state[lane : lane + 1])
