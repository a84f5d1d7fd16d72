"""Record what transformers renders for the generated conversations. Needs the oracle extra.

    PYTHONPATH=tests python tests/oracle/record_templates.py

Writes tests/data/prompts/templates.json.xz: {"transformers": version, "texts": {template: [text of sample i]}}.
"""

from __future__ import annotations

import copy
import json
import lzma
import tempfile
from pathlib import Path
from typing import Any

from support.conversation_samples import samples
from support.frontends import DATA, effort_source, mini_resource

TARGET = DATA / "prompts" / "templates.json.xz"
COUNT = 300


def sources() -> dict[str, str]:
    """Template texts by name."""
    return {
        "mini": (DATA / "mini" / "chat_template.jinja").read_text(),
        "qwen36": (DATA / "qwen36" / "chat_template.jinja").read_text(),
        "effort": effort_source(),
    }


def normalised(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The input rules of `serving.md` 9.2: arguments parsed, an empty reasoning_content left out."""
    messages = copy.deepcopy(document["messages"])
    for message in messages:
        if not message.get("reasoning_content"):
            message.pop("reasoning_content", None)
        for call in message.get("tool_calls", []):
            function = call.get("function", call)
            if isinstance(function["arguments"], str):
                function["arguments"] = json.loads(function["arguments"])
    return messages


def record() -> dict[str, Any]:
    """Prompt texts of all samples by template, as the fixture holds them."""
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_bytes(mini_resource("tokenizer.json"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
    texts: dict[str, list[str]] = {}
    for name, source in sources().items():
        for sample in samples(COUNT):
            effort = {"reasoning_effort": sample["effort"]} if name == "effort" and sample["effort"] else {}
            text = tokenizer.apply_chat_template(
                normalised(sample["document"]),
                tools=sample["document"].get("tools") or None,
                chat_template=source,
                tokenize=False,
                add_generation_prompt=True,
                enable_thinking=sample["thinking"],
                preserve_thinking=sample["preserve_thinking"],
                **effort,
            )
            texts.setdefault(name, []).append(text)
    return {"texts": texts}


def main() -> None:
    import transformers

    TARGET.parent.mkdir(parents=True, exist_ok=True)
    fixture = {"transformers": transformers.__version__, **record()}
    TARGET.write_bytes(lzma.compress(json.dumps(fixture, ensure_ascii=False).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{TARGET.name}: {COUNT} conversations, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
