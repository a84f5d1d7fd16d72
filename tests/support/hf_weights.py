"""The text decoder bound straight to Hugging Face parameters, without any artifact: an oracle for the converter too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import safe_open

from ninfer_nb.artifact.geometry import Geometry
from ninfer_nb.artifact.words import bf16_to_f32
from ninfer_nb.model.text import TextModel
from ninfer_nb.model.weights import bind_text
from ninfer_nb.ops.reference import ReferenceOps, ReferenceWeight

STEM = "model.language_model."


class HFText:
    """`array(name)` gives the float32 value of a text object, joined from its Hugging Face parts."""

    def __init__(self, checkpoint: Path, geometry: Geometry):
        import ml_dtypes  # noqa: F401 - safetensors needs it to hand out bfloat16 arrays

        self.geometry = geometry
        self._file = safe_open(checkpoint / "model.safetensors", "np")

    def _read(self, name: str) -> np.ndarray:
        values = self._file.get_tensor(name)
        return bf16_to_f32(values.view(np.uint16)) if values.dtype.name == "bfloat16" else values.astype(np.float32)

    def array(self, name: str) -> np.ndarray:
        top = {
            "text/token_embedding": STEM + "embed_tokens.weight",
            "text/final_norm": STEM + "norm.weight",
            "text/output_head": "lm_head.weight",
        }
        if name in top:
            return self._read(top[name])
        _, _, layer, role = name.split("/", 3)
        stem = f"{STEM}layers.{layer}."
        return self._joined(stem, role) if role in JOINED else self._read(stem + PLAIN[role])

    def _joined(self, stem: str, role: str) -> np.ndarray:
        read = self._read
        if role == "attention/query_key_gate_value":
            g = self.geometry
            query, gate = (
                read(stem + "self_attn.q_proj.weight").reshape(g.query_heads, 2, g.head_dim, -1).swapaxes(0, 1)
            )
            parts = [query.reshape(g.query_width, -1), read(stem + "self_attn.k_proj.weight")]
            return np.concatenate([*parts, gate.reshape(g.query_width, -1), read(stem + "self_attn.v_proj.weight")])
        if role == "gdn/convolution":
            return np.ascontiguousarray(read(stem + "linear_attn.conv1d.weight")[:, 0].T)
        return np.concatenate([read(stem + part) for part in JOINED[role]])


JOINED = {
    "attention/query_key_gate_value": (),
    "gdn/convolution": (),
    "gdn/query_key_value_z": ("linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight"),
    "gdn/a_b_projection": ("linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight"),
    "mlp/gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
}
PLAIN = {
    "input_norm": "input_layernorm.weight",
    "post_attention_norm": "post_attention_layernorm.weight",
    "attention/query_norm": "self_attn.q_norm.weight",
    "attention/key_norm": "self_attn.k_norm.weight",
    "attention/output": "self_attn.o_proj.weight",
    "gdn/a_log": "linear_attn.A_log",
    "gdn/dt_bias": "linear_attn.dt_bias",
    "gdn/norm": "linear_attn.norm.weight",
    "gdn/output": "linear_attn.out_proj.weight",
    "mlp/down": "mlp.down_proj.weight",
}


class _Fused:
    """Names of a profile that stores every joined matrix whole."""

    def __contains__(self, name: str) -> bool:
        return name.split("/", 3)[3] in JOINED


def hf_text_model(checkpoint: Path, geometry: Geometry, ops: ReferenceOps) -> TextModel:
    text = HFText(checkpoint, geometry)
    weights = bind_text(geometry, _Fused(), lambda name: ReferenceWeight.dense(text.array(name)))
    return TextModel(geometry, weights, ops)
