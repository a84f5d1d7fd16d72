"""The real Qwen3.6 vocabulary against transformers, and tokenizer resources that must be refused."""

import json
import lzma

import pytest
from support.frontends import CONFIG_ONLY, DATA, mini_frontend, mini_resource, qwen36_frontend, qwen36_resource
from support.text_samples import samples

from ninfer_nb.errors import ArtifactError, RequestError
from ninfer_nb.frontend.tokenizer import SPECIAL_TOKENS, Tokenizer

RECORDED = json.loads(lzma.decompress((DATA / "prompts" / "tokenizer.json.xz").read_bytes()))
TEXTS = samples(500)


def test_ids_are_those_of_transformers():
    tokenizer = qwen36_frontend().tokenizer
    assert len(RECORDED["ids"]) == 500
    for text, ids in zip(TEXTS, RECORDED["ids"], strict=True):
        assert tokenizer.encode(text) == ids, repr(text)


def test_bytes_of_single_ids_join_to_the_decoded_text():
    tokenizer = qwen36_frontend().tokenizer
    for ids, text in zip(RECORDED["ids"], RECORDED["decoded"], strict=True):
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()


def test_known_prompt_ids():
    encode = qwen36_frontend().encode
    assert encode("Hello world") == [9419, 1814]
    turn = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    assert encode(turn) == [248045, 846, 198, 12675, 248046, 198, 248045, 74455, 198, 248068, 198]


def test_special_tokens():
    tokenizer = qwen36_frontend().tokenizer
    assert tokenizer.size == 248077
    for number, content in enumerate(SPECIAL_TOKENS, 248044):
        assert tokenizer.id_of(content) == number
        assert tokenizer.encode(content) == [number]
        assert tokenizer.token_bytes(number) == content.encode()
        assert tokenizer.is_special(number) is not (248058 <= number <= 248069)
    assert not tokenizer.is_special(0)
    with pytest.raises(KeyError):
        tokenizer.id_of("<|nosuch|>")


def test_every_byte_has_a_token():
    tokenizer = qwen36_frontend().tokenizer
    single = {tokenizer.token_bytes(number) for number in range(256)}
    assert single == {bytes([value]) for value in range(256)}


@pytest.mark.parametrize("token", [-1, 248077, 248319, 2**40])
def test_ids_outside_the_domain(token):
    with pytest.raises(RequestError, match=rf"^token id {token} is outside the token domain 0\.\.248076$"):
        qwen36_frontend().tokenizer.token_bytes(token)


def test_lone_surrogates_are_no_text():
    with pytest.raises(RequestError, match="lone surrogate"):
        mini_frontend().encode("a\ud800")


def build(edit_file=None, edit_config=None, domain=4096):
    """The mini's tokenizer with its two resources edited as objects."""
    file, config = (json.loads(mini_resource(name)) for name in ("tokenizer.json", "tokenizer_config.json"))
    if edit_file:
        edit_file(file)
    if edit_config:
        edit_config(config)
    return Tokenizer.from_resources(json.dumps(file).encode(), json.dumps(config).encode(), domain)


def test_mini_loads():
    assert build().size == 4096


def change(*path, to):
    """An edit that sets the member at `path`."""

    def edit(document):
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = to

    return edit


def drop(*path):
    def edit(document):
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return edit


LAST = 4095 - 3616  # index of <|audio_pad|> among the mini's added tokens


@pytest.mark.parametrize(
    ("edit_file", "edit_config", "message"),
    [
        (change("model", "type", to="WordPiece"), None, r"model\.type must be BPE, not WordPiece"),
        (None, change("add_bos_token", to=True), "add_bos_token must be false"),
        (None, change("add_prefix_space", to=True), "add_prefix_space must be false"),
        (None, drop("add_bos_token"), "missing required field `add_bos_token`"),
        (None, change("pad_token", to="<|im_end|>"), r"pad_token must be <\|endoftext\|>, not <\|im_end\|>"),
        (
            None,
            change("added_tokens_decoder", "4095", "content", to="<|other|>"),
            r"4095 '<\|other\|>' has conflicting",
        ),
        (None, change("added_tokens_decoder", "4095", "special", to=False), "4095 .* has conflicting definitions"),
        (None, change("added_tokens_decoder", "x1", to={"content": "y", "special": True}), "'x1' is not a token id"),
        (
            change("added_tokens", LAST, "lstrip", to=True),
            drop("added_tokens_decoder", "4095"),
            "lstrip, rstrip and normalized false",
        ),
        (drop("model", "merges"), None, r"tokenizer\.json: "),
        (change("model", "vocab", "\u4e2d\u4e2d", to=4096), None, r"'<\|unused_0\|>' must have id 3616, not 3617"),
    ],
)
def test_refused_resources(edit_file, edit_config, message):
    with pytest.raises(ArtifactError, match=message):
        build(edit_file, edit_config)


def test_another_domain_is_refused():
    with pytest.raises(ArtifactError, match="token domain has 4096 ids, the model expects 248077"):
        build(domain=248077)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"model": {"type": "BPE"}}'])
def test_malformed_tokenizer_json(data):
    with pytest.raises(ArtifactError, match=r"^frontend/tokenizer\.json: "):
        Tokenizer.from_resources(data, mini_resource("tokenizer_config.json"), 4096)


def test_config_only_tokens_are_merged_and_needed():
    """The published files leave seven tokens to the config; without them the domain is short."""
    file = qwen36_resource("tokenizer.json")
    assert b"audio_start" not in file
    config = json.loads(qwen36_resource("tokenizer_config.json"))
    assert [token["content"] for token in config["added_tokens_decoder"].values()] == CONFIG_ONLY
    config["added_tokens_decoder"].popitem()
    with pytest.raises(ArtifactError, match="token domain has 248076 ids, the model expects 248077"):
        Tokenizer.from_resources(file, json.dumps(config).encode(), 248077)
