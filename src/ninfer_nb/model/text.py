"""The text decoder (`model.md` sections 4 to 8 and 10), one forward for prefill chunks and decode rounds."""

from __future__ import annotations

from ..artifact.geometry import Geometry
from ..ops import Buf, Columns, GdnLayer, KvLayer, Ops
from .rope import native_rope
from .state import DecoderState
from .weights import AttentionWeights, GdnWeights, MlpWeights, TextWeights


class TextModel:
    """Token columns in, final-normalised hidden columns out; state moves on in place."""

    def __init__(self, geometry: Geometry, weights: TextWeights, ops: Ops):
        self.geometry = geometry
        self.weights = weights
        self.ops = ops
        self.rope = native_rope(geometry)
        self.attention_scale = geometry.head_dim**-0.5

    def forward(self, ids: Buf, columns: Columns, state: DecoderState, hidden: Buf) -> None:
        """Run all layers over the columns of `ids` [T] i32; hidden [T, H] bf16 is final-normalised."""
        ops, weights, geometry = self.ops, self.weights, self.geometry
        kv, gdn = iter(state.kv), iter(state.gdn)
        with ops.scope():
            x = ops.take((columns.count, geometry.hidden), "bf16")
            h = ops.take((columns.count, geometry.hidden), "bf16")
            ops.embed(ids, weights.embedding, x)
            for index, layer in enumerate(weights.layers):
                ops.rms_norm(x, layer.input_norm, h, geometry.rms_norm_eps)
                if geometry.is_full_attention(index):
                    self._attention(h, layer.mixer, columns, next(kv), x)
                else:
                    self._gated_delta_net(h, layer.mixer, columns, next(gdn), x)
                ops.rms_norm(x, layer.post_attention_norm, h, geometry.rms_norm_eps)
                self._mlp(h, layer.mlp, x)
            ops.rms_norm(x, weights.final_norm, hidden, geometry.rms_norm_eps)

    def logits(self, hidden: Buf, out: Buf) -> None:
        """out [n, V] bf16 of hidden [n, H]; only ids below the token domain may ever be chosen."""
        self.ops.linear(hidden, (self.weights.head,), out)

    def _attention(self, h: Buf, w: AttentionWeights, columns: Columns, cache: KvLayer, x: Buf) -> None:
        """x += o_proj(sigmoid(gate) * softmax(q k^T) v) (`model.md` 5)."""
        ops, geometry = self.ops, self.geometry
        qw, kw = geometry.query_width, geometry.kv_width
        with ops.scope():
            joint = ops.take((columns.count, 2 * (qw + kw)), "bf16")
            mixed = ops.take((columns.count, qw), "bf16")
            ops.linear(h, w.projections, joint)
            q, k = joint[:, :qw], joint[:, qw : qw + kw]
            gate, v = joint[:, qw + kw : 2 * qw + kw], joint[:, 2 * qw + kw :]
            ops.qk_norm_rope(q, k, w.query_norm, w.key_norm, columns, self.rope, geometry.rms_norm_eps)
            ops.kv_append(k, v, cache, columns)
            ops.attention(q, cache, columns, mixed, self.attention_scale)
            ops.sigmoid_gate(mixed, gate)
            ops.linear_add(mixed, w.output, x)

    def _gated_delta_net(self, h: Buf, w: GdnWeights, columns: Columns, layer: GdnLayer, x: Buf) -> None:
        """x += out_proj(gated_norm(delta_rule(conv(qkv)), z)) (`model.md` 8)."""
        ops, geometry = self.ops, self.geometry
        channels, value_width, heads = geometry.conv_channels, geometry.gdn_value_width, geometry.gdn_value_heads
        with ops.scope():
            joint = ops.take((columns.count, channels + value_width), "bf16")
            convolved = ops.take((columns.count, channels), "bf16")
            g = ops.take((columns.count, heads), "f32")
            beta = ops.take((columns.count, heads), "f32")
            mixed = ops.take((columns.count, value_width), "bf16")
            ops.linear(h, w.projections, joint)
            ops.gdn_controls(h, w.controls, w.a_log, w.dt_bias, g, beta)
            ops.causal_conv(joint[:, :channels], w.convolution, layer, columns, convolved)
            ops.gated_delta(convolved, g, beta, layer, columns, mixed)
            ops.gated_rms_norm(mixed, joint[:, channels:], w.norm, mixed, geometry.rms_norm_eps)
            ops.linear_add(mixed, w.output, x)

    def _mlp(self, h: Buf, w: MlpWeights, x: Buf) -> None:
        """x += down(SiLU(gate h) * up h)."""
        ops, geometry = self.ops, self.geometry
        with ops.scope():
            inner = ops.take((h.shape[0], geometry.intermediate), "bf16")
            ops.linear_swiglu(h, w.gate_up, inner)
            ops.linear_add(inner, w.down, x)
