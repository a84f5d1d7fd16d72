"""The parts of a decoder layer (`model.md` sections 5, 7 and 8), shared by the text decoder and the MTP layer."""

from __future__ import annotations

from ..artifact.geometry import Geometry
from ..ops import Buf, Columns, GdnLayer, GdnRecord, KvLayer, Ops, Weight
from .rope import native_rope
from .weights import AttentionWeights, GdnWeights, MlpWeights


class Blocks:
    """Mixers and MLP over the columns of a residual stream x [T, H]."""

    def __init__(self, geometry: Geometry, ops: Ops):
        self.geometry = geometry
        self.ops = ops
        self.eps = geometry.rms_norm_eps
        self.rope = native_rope(geometry)
        self.attention_scale = geometry.head_dim**-0.5

    def attention(self, x: Buf, norm: Weight, w: AttentionWeights, columns: Columns, cache: KvLayer) -> None:
        """x += o_proj(softmax(q k^T) v * sigmoid(gate)) (`model.md` 5)."""
        ops, geometry = self.ops, self.geometry
        qw, kw = geometry.query_width, geometry.kv_width
        with ops.scope():
            joint = self.append(x, norm, w, columns, cache)
            mixed = ops.take((columns.count, qw), "bf16")
            q, gate = joint[:, :qw], joint[:, qw + kw : 2 * qw + kw]
            ops.attention(q, gate, cache, columns, self.attention_scale, mixed)
            ops.linear_add(mixed, w.output, x)

    def append(self, x: Buf, norm: Weight, w: AttentionWeights, columns: Columns, cache: KvLayer) -> Buf:
        """Keys and values of all columns to the cache; returns the projections [T, q | k | gate | v], q rotated."""
        ops, geometry = self.ops, self.geometry
        qw, kw = geometry.query_width, geometry.kv_width
        joint = ops.take((columns.count, 2 * (qw + kw)), "bf16")
        ops.norm_linear(x, norm, self.eps, w.projections, joint)
        q, k, v = joint[:, :qw], joint[:, qw : qw + kw], joint[:, 2 * qw + kw :]
        ops.rope_append(q, k, v, w.query_norm, w.key_norm, self.eps, self.rope, cache, columns)
        return joint

    def gated_delta_net(
        self,
        x: Buf,
        norm: Weight,
        w: GdnWeights,
        columns: Columns,
        layer: GdnLayer,
        record: GdnRecord | None = None,
    ) -> None:
        """x += out_proj(gated_norm(delta_rule(conv(qkv)), z)) (`model.md` 8).

        With a record the lanes' state stays as it is, and the record holds what a fold needs to move it on.
        """
        ops, geometry = self.ops, self.geometry
        heads, width = geometry.gdn_value_heads, geometry.conv_channels + geometry.gdn_value_width
        with ops.scope():
            if record is None:
                joint = ops.take((columns.count, width), "bf16")
                g, beta = ops.take((columns.count, heads), "f32"), ops.take((columns.count, heads), "f32")
            else:
                record = record.first(columns.count)
                joint, g, beta = record.joint, record.g, record.beta
            mixed = ops.take((columns.count, geometry.gdn_value_width), "bf16")
            ops.gdn_project(x, norm, self.eps, w.projections, w.controls, w.a_log, w.dt_bias, joint, g, beta)
            convolved = None if record is None else record.convolved
            ops.gdn_mix(joint, w.convolution, g, beta, w.norm, self.eps, layer, columns, mixed, convolved)
            ops.linear_add(mixed, w.output, x)

    def mlp(self, x: Buf, norm: Weight, w: MlpWeights) -> None:
        """x += down(SiLU(gate h) * up h), h the normalised x."""
        ops = self.ops
        with ops.scope():
            inner = ops.take((x.shape[0], self.geometry.intermediate), "bf16")
            ops.norm_swiglu(x, norm, self.eps, w.gate_up, inner)
            ops.linear_add(inner, w.down, x)
