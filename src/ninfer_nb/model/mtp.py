"""Multi-token prediction (`model.md` section 11): one layer that guesses the token after the next."""

from __future__ import annotations

from ..ops import Buf, Columns, KvLayer
from .blocks import Blocks
from .text import TextModel
from .weights import MtpWeights


class MtpModel:
    """Drafts from hidden columns of the text decoder, which lends its embedding and head."""

    def __init__(self, text: TextModel, weights: MtpWeights):
        self.text = text
        self.weights = weights
        self.ops = text.ops
        self.blocks: Blocks = text.blocks
        self.geometry = text.geometry

    def append(self, ids: Buf, hidden: Buf, columns: Columns, cache: KvLayer) -> None:
        """Only the keys and values of the columns: column t takes hidden [t] of position p and the id of p + 1."""
        with self.ops.scope():
            x = self._joined(ids, hidden)
            layer = self.weights.layer
            self.blocks.append(x, layer.input_norm, layer.mixer, columns, cache)

    def step(self, ids: Buf, hidden: Buf, columns: Columns, cache: KvLayer, out: Buf) -> None:
        """The whole layer: out [T, H], from which `propose` guesses and which the next step takes for its hidden."""
        ops, layer = self.ops, self.weights.layer
        with ops.scope():
            x = self._joined(ids, hidden)
            self.blocks.attention(x, layer.input_norm, layer.mixer, columns, cache)
            self.blocks.mlp(x, layer.post_attention_norm, layer.mlp)
            ops.rms_norm(x, self.weights.final_norm, out, self.blocks.eps)

    def propose(self, out: Buf, tokens: Buf) -> None:
        """tokens [n] i32, the likeliest id of each column of out [n, H]; always greedy."""
        ops, weights, rows = self.ops, self.weights, out.shape[0]
        with ops.scope():
            if weights.draft_head is None:
                head = self.text.weights.head
                logits = ops.take((rows, head.shape[0]), "bf16")
                ops.linear(out, head, logits)
                ops.argmax(logits, self.geometry.token_domain, tokens)
            else:
                height = weights.draft_head.shape[0]
                logits = ops.take((rows, height), "bf16")
                ops.linear(out, weights.draft_head, logits)
                ops.argmax(logits, height, tokens)
                ops.lookup(weights.draft_ids, tokens)

    def _joined(self, ids: Buf, hidden: Buf) -> Buf:
        """x = fc(concat(norm(embed(ids)), norm(hidden))), the embedding half first."""
        ops, weights, width = self.ops, self.weights, self.geometry.hidden
        x = ops.take((ids.shape[0], width), "bf16")
        with ops.scope():
            both = ops.take((ids.shape[0], 2 * width), "bf16")
            ops.embed(ids, self.text.weights.embedding, x)
            ops.rms_norm(x, weights.embedding_norm, both[:, :width], self.blocks.eps)
            ops.rms_norm(hidden, weights.hidden_norm, both[:, width:], self.blocks.eps)
            ops.linear(both, weights.input_projection, x)
        return x
