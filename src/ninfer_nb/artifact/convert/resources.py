"""The six frontend files that an artifact carries, byte for byte, and the digests of the published ones."""

from __future__ import annotations

import hashlib

from ...errors import ArtifactError
from ..inventory import FRONTEND_RESOURCES
from .checkpoint import Checkpoint

_COMMON = {
    "generation_config.json": "e70c136c1b78ddc1fb0905bac8e733a4dc448d4f852a5dd75143fffc70be550e",
    "preprocessor_config.json": "27225450ac9c6529872ee1924fcb0962ff5634834f817040f444118116f4e516",
    "video_preprocessor_config.json": "7768af27c1fafa9cc9011c1dc20067e03f8915e03b63504550e11d5066986d13",
}
_QWEN36 = _COMMON | {
    "tokenizer.json": "5f9e4d4901a92b997e463c1f46055088b6cca5ca61a6522d1b9f64c4bb81cb42",
    "tokenizer_config.json": "5186f0defcd7f232382c7f0aebcd2252d073bb921ab240e407b7ae8745d2b29b",
    "chat_template.jinja": "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259",
}
_QWEN38 = _COMMON | {
    "tokenizer.json": "0997f410c57a1f4e53b09e4be8f4a172d90edd9564368fb0847030937229b9f3",
    "tokenizer_config.json": "b11349aafa7cdc6a320767cf7ceb29ed82f7eda5d65e8e0819e76f0ce947bf27",
    "chat_template.jinja": "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041",
}
# model_id -> file name -> SHA-256 (`inventories.md` 4.1); the mini model may be trained again, so it has none
PINS = {"qwen3.6-27b": _QWEN36, "qwen3.6-35b-a3b": _QWEN36, "qwen3.8-27b": _QWEN38}


def read_resources(checkpoint: Checkpoint, model_id: str) -> dict[str, bytes]:
    """Object name to content. Raises ArtifactError for a file that is missing, empty, or not the published one."""
    pins = PINS.get(model_id, {})
    resources = {}
    for name in FRONTEND_RESOURCES:
        file = name.removeprefix("frontend/")
        content = checkpoint.bytes(file)
        if not content:
            raise ArtifactError(f"{checkpoint.folder / file}: is empty")
        digest = hashlib.sha256(content).hexdigest()
        if digest != pins.get(file, digest):
            raise ArtifactError(f"{checkpoint.folder / file}: SHA-256 is {digest}; expected {pins[file]}")
        resources[name] = content
    return resources
