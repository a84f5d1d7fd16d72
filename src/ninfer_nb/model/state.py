"""What a sequence leaves behind: paged KV planes and delta-net slots of every layer (`runtime.md` 5 and 7)."""

from __future__ import annotations

from dataclasses import dataclass

from ..artifact.geometry import Geometry
from ..ops import PAGE, Buf, Frame, GdnLayer, GdnRecord, KvLayer, Ops


def pages_for(tokens: int) -> int:
    """KV pages that hold `tokens` positions."""
    return -(-tokens // PAGE)


@dataclass(frozen=True)
class StateShape:
    """Sizes of all lanes' state. `draft_pages` 0: no draft layer. `window`: drafts of a round at most."""

    lanes: int
    pages: int  # of the main pool
    row_pages: int  # of one sequence at most
    kv_dtype: str  # "bf16" or "int8"
    draft_pages: int = 0
    window: int = 0


@dataclass(frozen=True)
class DecoderState:
    """State of all lanes. `kv[i]` belongs to the i-th full-attention layer, `gdn[i]` to the i-th delta-net layer.

    Delta-net slots 0..lanes-1 are the lanes' own, slots lanes..2*lanes-1 their checkpoints. `tables` are the block
    tables of the main and the draft pool, [lanes, row_pages] i32 named "table".
    """

    kv: tuple[KvLayer, ...]
    gdn: tuple[GdnLayer, ...]
    tables: tuple[Frame, ...]
    draft: KvLayer | None = None
    records: tuple[GdnRecord, ...] = ()

    @property
    def kv_bytes(self) -> int:
        """Planes of all pools."""
        layers = (*self.kv, *([self.draft] if self.draft else []))
        return sum(plane.nbytes for layer in layers for plane in _planes(layer))

    @property
    def slot_bytes(self) -> int:
        return sum(layer.history.nbytes + layer.state.nbytes for layer in self.gdn)

    @property
    def bytes(self) -> int:
        records = sum(buf.nbytes for r in self.records for buf in (r.joint, r.convolved, r.g, r.beta))
        return self.kv_bytes + self.slot_bytes + records + sum(t.host["table"].nbytes for t in self.tables)


def allocate_state(ops: Ops, geometry: Geometry, shape: StateShape) -> DecoderState:
    """Zeroed state for `shape.lanes` lanes."""
    pools = 2 if shape.draft_pages else 1
    tables = tuple(ops.frame({"table": ((shape.lanes, shape.row_pages), "i32")}) for _ in range(pools))
    main = tables[0].device["table"]
    columns = shape.lanes * (shape.window + 1)
    draft = None
    if shape.draft_pages:
        draft = _kv_layer(ops, geometry, shape.draft_pages, shape.kv_dtype, tables[1].device["table"])
    return DecoderState(
        kv=tuple(_kv_layer(ops, geometry, shape.pages, shape.kv_dtype, main) for _ in geometry.full_attention_layers),
        gdn=tuple(_gdn_layer(ops, geometry, 2 * shape.lanes) for _ in geometry.gdn_layers),
        tables=tables,
        draft=draft,
        records=tuple(_record(ops, geometry, columns) for _ in geometry.gdn_layers if shape.window),
    )


def _planes(layer: KvLayer) -> list[Buf]:
    planes = (layer.keys, layer.values, layer.key_scales, layer.value_scales)
    return [plane for plane in planes if plane is not None]


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


def _record(ops: Ops, geometry: Geometry, columns: int) -> GdnRecord:
    heads, channels = geometry.gdn_value_heads, geometry.conv_channels
    return GdnRecord(
        joint=ops.empty((columns, channels + geometry.gdn_value_width), "bf16"),
        convolved=ops.empty((columns, channels), "bf16"),
        g=ops.empty((columns, heads), "f32"),
        beta=ops.empty((columns, heads), "f32"),
    )


def reset_slot(ops: Ops, state: DecoderState, slot: int) -> None:
    """Zero a delta-net slot. KV pages need no reset: nothing beyond the frontier is ever read."""
    for layer in state.gdn:
        ops.clear(layer.history[slot : slot + 1])
        ops.clear(layer.state[slot : slot + 1])


def copy_slot(ops: Ops, state: DecoderState, source: int, target: int) -> None:
    """Copy a delta-net slot over another."""
    for layer in state.gdn:
        ops.copy(layer.history[source : source + 1], layer.history[target : target + 1])
        ops.copy(layer.state[source : source + 1], layer.state[target : target + 1])
