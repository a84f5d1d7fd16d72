"""Record the ids that transformers' Qwen3.5 tokenizer gives to sample strings. Needs the oracle extra.

    PYTHONPATH=tests python tests/oracle/record_tokenizer.py

Writes tests/data/prompts/tokenizer.json.xz: {"transformers": version, "ids": [...], "decoded": [...]}.
"""

from __future__ import annotations

import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

from support.frontends import DATA
from support.text_samples import samples

TARGET = DATA / "prompts" / "tokenizer.json.xz"
COUNT = 500


def record() -> dict[str, Any]:
    """Ids of every sample and the text they decode to, as the fixture holds them."""
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        packed = (DATA / "qwen36" / "tokenizer.json.xz").read_bytes()
        (Path(folder) / "tokenizer.json").write_bytes(lzma.decompress(packed))
        config = {"tokenizer_class": "Qwen3_5Tokenizer", "add_bos_token": False, "pad_token": "<|endoftext|>"}
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps(config))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in samples(COUNT)]
    decoded = [tokenizer.decode(row, clean_up_tokenization_spaces=False) for row in ids]
    return {"ids": ids, "decoded": decoded}


def main() -> None:
    import transformers

    TARGET.parent.mkdir(parents=True, exist_ok=True)
    fixture = {"transformers": transformers.__version__, **record()}
    TARGET.write_bytes(lzma.compress(json.dumps(fixture, ensure_ascii=False).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{TARGET.name}: {COUNT} strings, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
