"""The text decoder (`model.md` sections 4 to 8 and 10), one forward for prefill chunks, decode and verify rounds."""

from __future__ import annotations

from collections.abc import Sequence

from ..artifact.geometry import Geometry
from ..ops import Buf, Columns, GdnRecord, Ops
from .blocks import Blocks
from .state import DecoderState
from .weights import TextWeights


class TextModel:
    """Token columns in, final-normalised hidden columns out; state moves on in place."""

    def __init__(self, geometry: Geometry, weights: TextWeights, ops: Ops):
        self.geometry = geometry
        self.weights = weights
        self.ops = ops
        self.blocks = Blocks(geometry, ops)

    def forward(
        self,
        ids: Buf,
        columns: Columns,
        state: DecoderState,
        hidden: Buf,
        records: Sequence[GdnRecord] | None = None,
    ) -> None:
        """Run all layers over the columns of `ids` [T] i32; hidden [T, H] bf16 is final-normalised.

        With `records`, one of each delta-net layer, recurrent state stays as it is until `fold`.
        """
        ops, weights, blocks = self.ops, self.weights, self.blocks
        kv, gdn = iter(state.kv), iter(state.gdn)
        record = iter(records or (None,) * len(state.gdn))
        with ops.scope():
            x = ops.take((columns.count, self.geometry.hidden), "bf16")
            ops.embed(ids, weights.embedding, x)
            for index, layer in enumerate(weights.layers):
                if self.geometry.is_full_attention(index):
                    blocks.attention(x, layer.input_norm, layer.mixer, columns, next(kv))
                else:
                    blocks.gated_delta_net(x, layer.input_norm, layer.mixer, columns, next(gdn), next(record))
                blocks.mlp(x, layer.post_attention_norm, layer.mlp)
            ops.rms_norm(x, weights.final_norm, hidden, self.geometry.rms_norm_eps)

    def fold(self, columns: Columns, state: DecoderState, records: Sequence[GdnRecord]) -> None:
        """Move each lane's recurrent state on by the first `columns.valid` recorded columns of its row."""
        for layer, record in zip(state.gdn, records, strict=True):
            self.ops.gdn_fold(record.first(columns.count), layer, columns)

    def logits(self, hidden: Buf, out: Buf) -> None:
        """out [n, V] bf16 of hidden [n, H]; only ids below the token domain may ever be chosen."""
        self.ops.linear(hidden, self.weights.head, out)
