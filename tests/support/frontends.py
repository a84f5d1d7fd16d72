"""Frontend resources for tests: the mini's own, the real Qwen3.6 ones, and a stand-in for the effort template."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

from ninfer_nb.frontend.frontend import Frontend
from ninfer_nb.frontend.template import EFFORT, ChatTemplate

DATA = Path(__file__).parents[1] / "data"

# Added tokens that the published tokenizer.json leaves to tokenizer_config.json, in id order from 248070 (model.md 16).
CONFIG_ONLY = [
    "<|audio_start|>", "<|audio_end|>", "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<tts_text_bos_single>",
    "<|audio_pad|>",
]  # fmt: skip

LOW = (
    "Reasoning effort is set to low. Keep your thinking brief and focused, moving directly to the conclusion "
    "without unnecessary elaboration."
)
XHIGH = (
    "Reasoning effort is set to xhigh. Please think carefully through the task, validate key assumptions, consider "
    "plausible alternatives, and prioritize correctness, consistency, and clarity in the final answer."
)


def mini_resource(name: str) -> bytes:
    """A `frontend/` resource of the mini model."""
    return (DATA / "mini" / name.removeprefix("frontend/")).read_bytes()


def qwen36_resource(name: str) -> bytes:
    """A `frontend/` resource of Qwen3.6, with the seven config-only tokens where the published files have them."""
    name = name.removeprefix("frontend/")
    if name == "tokenizer.json":
        return _qwen36_tokenizer()
    if name == "tokenizer_config.json":
        return _qwen36_tokenizer_config()
    return (DATA / "qwen36" / name).read_bytes()


@cache
def _qwen36_tokenizer() -> bytes:
    data = lzma.decompress((DATA / "qwen36" / "tokenizer.json.xz").read_bytes())
    start = data.index(b'"added_tokens"')
    end = data.index(b"]", start) + 1
    listed = json.loads(b"{" + data[start:end] + b"}")["added_tokens"]
    kept = [token for token in listed if token["content"] not in CONFIG_ONLY]
    return data[:start] + b'"added_tokens": ' + json.dumps(kept).encode() + data[end:]


def _qwen36_tokenizer_config() -> bytes:
    decoder = {
        str(248070 + index): {
            "content": content,
            "lstrip": False,
            "normalized": False,
            "rstrip": False,
            "single_word": False,
            "special": True,
        }
        for index, content in enumerate(CONFIG_ONLY)
    }
    config = {
        "add_bos_token": False,
        "add_prefix_space": False,
        "added_tokens_decoder": decoder,
        "chat_template": (DATA / "qwen36" / "chat_template.jinja").read_text(),
        "pad_token": "<|endoftext|>",
    }
    return json.dumps(config).encode()


@cache
def mini_frontend() -> Frontend:
    return Frontend.from_resources(mini_resource, token_domain=4096, model_id="ninfer-mini")


@cache
def qwen36_frontend() -> Frontend:
    return Frontend.from_resources(qwen36_resource, token_domain=248077, model_id="qwen3.6-27b")


def effort_source() -> str:
    """A template with the behaviour that `serving.md` 9 gives the Qwen3.8 one, made from the Qwen3.6 template.

    Not the published text, whose digest the product demands: tests build `ChatTemplate` from it directly.
    """
    source = (DATA / "qwen36" / "chat_template.jinja").read_text()
    sentences = f"""{{%- set sentences = {{'low': {LOW!r}, 'medium': '', 'xhigh': {XHIGH!r}}} %}}
{{%- set lead = namespace(text='') %}}
{{%- if enable_thinking is not defined or enable_thinking %}}
    {{%- set lead.text = sentences[reasoning_effort | default('xhigh')] %}}
{{%- endif %}}
"""
    lead_line = "{{- lead.text + ('\\n\\n' if lead.text and content else '') + content }}"
    edits = [
        ("{%- if tools and", sentences + "{%- if tools and"),
        ('{{- "# Tools', "{{- lead.text + ('\\n\\n' if lead.text else '') }}\n    {{- \"# Tools"),
        (
            "{{- '<|im_start|>system\\n' + content + '<|im_end|>\\n' }}\n    {%- endif %}",
            "{%- if lead.text or content %}{{- '<|im_start|>system\\n' }}" + lead_line + "{{- '<|im_end|>\\n' }}"
            "{%- endif %}\n    {%- elif lead.text %}{{- '<|im_start|>system\\n' + lead.text + '<|im_end|>\\n' }}"
            "\n    {%- endif %}",
        ),
        ("{%- if '</think>' in content %}", "{%- if false %}"),
        ("preserve_thinking is defined and preserve_thinking is true", "preserve_thinking | default(true)"),
    ]
    for old, new in edits:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    return source


@cache
def effort_template() -> ChatTemplate:
    return ChatTemplate(effort_source(), EFFORT)
