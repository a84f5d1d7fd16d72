"""The text decoder (`model.md` sections 4 to 8 and 10), one forward for prefill chunks and decode rounds."""

from __future__ import annotations

from ..artifact.geometry import Geometry
from ..ops import Buf, Columns, GdnLayer, KvLayer, Ops, Weight
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
        ops, weights, eps = self.ops, self.weights, self.geometry.rms_norm_eps
        kv, gdn = iter(state.kv), iter(state.gdn)
        with ops.scope():
            x = ops.take((columns.count, self.geometry.hidden), "bf16")
            ops.embed(ids, weights.embedding, x)
            for index, layer in enumerate(weights.layers):
                if self.geometry.is_full_attention(index):
                    self._attention(x, layer.input_norm, layer.mixer, columns, next(kv))
                else:
                    self._gated_delta_net(x, layer.input_norm, layer.mixer, columns, next(gdn))
                self._mlp(x, layer.post_attention_norm, layer.mlp)
            ops.rms_norm(x, weights.final_norm, hidden, eps)

    def logits(self, hidden: Buf, out: Buf) -> None:
        """out [n, V] bf16 of hidden [n, H]; only ids below the token domain may ever be chosen."""
        self.ops.linear(hidden, self.weights.head, out)

    def _attention(self, x: Buf, norm: Weight, w: AttentionWeights, columns: Columns, cache: KvLayer) -> None:
        """x += o_proj(softmax(q k^T) v * sigmoid(gate)) (`model.md` 5)."""
        ops, geometry, eps = self.ops, self.geometry, self.geometry.rms_norm_eps
        qw, kw = geometry.query_width, geometry.kv_width
        with ops.scope():
            joint = ops.take((columns.count, 2 * (qw + kw)), "bf16")
            mixed = ops.take((columns.count, qw), "bf16")
            ops.norm_linear(x, norm, eps, w.projections, joint)
            q, k = joint[:, :qw], joint[:, qw : qw + kw]
            gate, v = joint[:, qw + kw : 2 * qw + kw], joint[:, 2 * qw + kw :]
            ops.rope_append(q, k, v, w.query_norm, w.key_norm, eps, self.rope, cache, columns)
            ops.attention(q, gate, cache, columns, self.attention_scale, mixed)
            ops.linear_add(mixed, w.output, x)

    def _gated_delta_net(self, x: Buf, norm: Weight, w: GdnWeights, columns: Columns, layer: GdnLayer) -> None:
        """x += out_proj(gated_norm(delta_rule(conv(qkv)), z)) (`model.md` 8)."""
        ops, geometry, eps = self.ops, self.geometry, self.geometry.rms_norm_eps
        with ops.scope():
            joint = ops.take((columns.count, geometry.conv_channels + geometry.gdn_value_width), "bf16")
            g = ops.take((columns.count, geometry.gdn_value_heads), "f32")
            beta = ops.take((columns.count, geometry.gdn_value_heads), "f32")
            mixed = ops.take((columns.count, geometry.gdn_value_width), "bf16")
            ops.gdn_project(x, norm, eps, w.projections, w.controls, w.a_log, w.dt_bias, joint, g, beta)
            ops.gdn_mix(joint, w.convolution, g, beta, w.norm, eps, layer, columns, mixed)
            ops.linear_add(mixed, w.output, x)

    def _mlp(self, x: Buf, norm: Weight, w: MlpWeights) -> None:
        """x += down(SiLU(gate h) * up h), h the normalised x."""
        ops, geometry = self.ops, self.geometry
        with ops.scope():
            inner = ops.take((x.shape[0], geometry.intermediate), "bf16")
            ops.norm_swiglu(x, norm, geometry.rms_norm_eps, w.gate_up, inner)
            ops.linear_add(inner, w.down, x)
