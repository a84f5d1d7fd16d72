"""The frontend of an artifact: resources that must agree, prompts, stop tokens, decoding of real tokens."""

import json

import pytest
from support.frontends import mini_frontend, mini_resource, qwen36_frontend
from support.golden_cases import cases

from ninfer_nb.errors import ArtifactError, RequestError
from ninfer_nb.frontend.frontend import Frontend
from ninfer_nb.frontend.messages import Conversation
from ninfer_nb.frontend.output import Channel, Delta, FinishReason


def load(**replaced: bytes) -> Frontend:
    """The mini's frontend with resources replaced, names without folder and ending."""

    def resource(name: str) -> bytes:
        return replaced.get(name.removeprefix("frontend/").partition(".")[0]) or mini_resource(name)

    return Frontend.from_resources(resource, token_domain=4096, model_id="ninfer-mini")


def test_stop_tokens():
    assert mini_frontend().stop_tokens == (4065, 4063)
    assert qwen36_frontend().stop_tokens == (248046, 248044)
    assert load(generation_config=b'{"eos_token_id": 7}').stop_tokens == (7,)
    assert load(generation_config=b'{"eos_token_id": [9, 7, 9]}').stop_tokens == (9, 7)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{}", "missing required field `eos_token_id`"),
        (b'{"eos_token_id": []}', "Expected `array` of length >= 1"),
        (b'{"eos_token_id": null}', "eos_token_id"),
        (b'{"eos_token_id": "4065"}', "eos_token_id"),
        (b'{"eos_token_id": [1, true]}', "eos_token_id"),
        (b'{"eos_token_id": 4096}', r"eos_token_id 4096 is outside 0\.\.4095"),
        (b'{"eos_token_id": [-1]}', r"eos_token_id -1 is outside 0\.\.4095"),
        (b"{", "truncated"),
        (b"\xff", "malformed"),
    ],
)
def test_refused_generation_config(data, message):
    with pytest.raises(ArtifactError, match=rf"^frontend/generation_config\.json: .*{message}"):
        load(generation_config=data)


@pytest.mark.parametrize("inline", [None, "other", 5])
def test_inline_template_must_be_the_same(inline):
    config = json.loads(mini_resource("tokenizer_config.json"))
    config["chat_template"] = inline
    with pytest.raises(ArtifactError, match=r"^frontend/tokenizer_config\.json: .*chat_template"):
        load(tokenizer_config=json.dumps(config).encode())


def test_unknown_template_is_refused():
    with pytest.raises(ArtifactError, match=r"^unsupported frontend/chat_template\.jinja \(sha256 "):
        load(chat_template=b"{{ messages }}")


def test_published_prompt_length():
    """The published benchmark prompt has 19 tokens."""
    conversation = Conversation.from_prompt("Explain tensor parallelism briefly.")
    prepared = qwen36_frontend().prepare(conversation, thinking=False)
    assert len(prepared.ids) == 19
    assert not prepared.thinking
    assert prepared.text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert len(qwen36_frontend().prepare(conversation).ids) == 17


def test_media_need_vision():
    document = '[{"role": "user", "content": [{"type": "image", "image": "x.png"}, {"text": "what?"}]}]'
    conversation = Conversation.from_json(document)
    with pytest.raises(RequestError, match=r"^Vision is disabled for this Engine$"):
        mini_frontend().prepare(conversation)
    assert "<|vision_start|><|image_pad|><|vision_end|>what?" in mini_frontend().render(conversation)


def decode(frontend, tokens, **options):
    session = frontend.output_session(**options)
    deltas = []
    for count, token in enumerate(tokens):
        session.preview([token], len(tokens) - count, FinishReason.OUTPUT_LIMIT)
        deltas += session.commit_preview()
        if session.finish:
            break
    return session, deltas


@pytest.mark.parametrize("name", [name for name, case in cases().items() if case["grid"] is None])
def test_golden_outputs_decode(name):
    """Greedy text of every golden case, token by token; the end token is withheld."""
    case = cases()[name]
    ended = case["greedy_ids"][-1] in mini_frontend().stop_tokens
    session, deltas = decode(mini_frontend(), case["greedy_ids"], thinking=case["thinking"])
    assert session.finish is (FinishReason.STOP_TOKEN if ended else FinishReason.OUTPUT_LIMIT)
    assert session.tokens == case["greedy_ids"]
    text = case["greedy_text"].removesuffix("<|im_end|>")
    if case["thinking"]:
        reasoning, closed, content = text.partition("</think>")
        assert session.reasoning == reasoning and session.content == content.lstrip()
        assert session.reasoning_tokens == len(session.tokens) if not closed else session.reasoning_tokens > 0
    else:
        assert session.content == text
    assert session.content == "".join(delta.text for delta in deltas if delta.channel is Channel.CONTENT)


def test_stop_tokens_of_model_and_caller():
    frontend = mini_frontend()
    (word,), end = frontend.encode("The"), 4065
    session, deltas = decode(frontend, [word, end, word], thinking=False)
    assert (session.finish, session.tokens, deltas) == (
        FinishReason.STOP_TOKEN,
        [word, end],
        [Delta(Channel.CONTENT, "The")],
    )
    session, _ = decode(frontend, [word, end, word], thinking=False, model_stops=False)
    assert (session.finish, session.content) == (FinishReason.OUTPUT_LIMIT, "TheThe")
    session, _ = decode(frontend, [end, word, word], thinking=False, model_stops=False, stop_token_ids=(word,))
    assert (session.finish, session.tokens, session.content) == (FinishReason.STOP_TOKEN, [end, word], "")
    session, _ = decode(frontend, [word, end], thinking=True, raw=True)
    assert (session.reasoning, session.content) == ("", "The<|im_end|>")
    session, _ = decode(frontend, [4066, word], thinking=False, preserve_special=True)
    assert session.content == "<|object_ref_start|>The"
