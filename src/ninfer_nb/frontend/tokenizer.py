"""Byte-level BPE tokenizer over the two tokenizer resources of an artifact.

Encoding is done by Hugging Face `tokenizers` on the artifact's own `tokenizer.json`; this module merges in the added
tokens of `tokenizer_config.json`, checks both (`inventories.md` 4.1, `model.md` 16) and turns single ids into bytes.
It knows nothing of prompts, templates or models.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from tokenizers import AddedToken
from tokenizers import Tokenizer as HFTokenizer

from ..errors import ArtifactError, RequestError

TOKENIZER_JSON = "frontend/tokenizer.json"
TOKENIZER_CONFIG = "frontend/tokenizer_config.json"

# The added tokens that close every Qwen3.x token domain, in id order: the last one is `token_domain - 1`.
SPECIAL_TOKENS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]


class _AddedToken(msgspec.Struct, frozen=True):
    """One added token as both files spell it. The four matching flags must be false."""

    content: str
    special: bool
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class _NumberedToken(_AddedToken, frozen=True, kw_only=True):
    id: Annotated[int, msgspec.Meta(ge=0)]

    def unnumbered(self) -> _AddedToken:
        return _AddedToken(self.content, self.special, self.single_word, self.lstrip, self.rstrip, self.normalized)


class _Model(msgspec.Struct):
    type: str


class _TokenizerFile(msgspec.Struct):
    """The parts of `tokenizer.json` that are checked here; `tokenizers` reads the rest."""

    model: _Model
    added_tokens: list[_NumberedToken]


class TokenizerConfig(msgspec.Struct):
    """The parts of `tokenizer_config.json` that the product reads."""

    added_tokens_decoder: dict[str, _AddedToken]
    add_bos_token: bool
    add_prefix_space: bool
    pad_token: str | None
    chat_template: str | None = None

    @classmethod
    def parse(cls, data: bytes) -> TokenizerConfig:
        """Decode and check the prefix policy and the pad token. Raises ArtifactError naming the field."""
        config = _decode(data, cls, TOKENIZER_CONFIG)
        for field in ("add_bos_token", "add_prefix_space"):
            if getattr(config, field):
                raise ArtifactError(f"{TOKENIZER_CONFIG}: {field} must be false")
        if config.pad_token != SPECIAL_TOKENS[0]:
            raise ArtifactError(f"{TOKENIZER_CONFIG}: pad_token must be {SPECIAL_TOKENS[0]}, not {config.pad_token}")
        return config


def _decode(data: bytes, kind: type, resource: str):
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{resource}: {error}") from None


def _byte_alphabet() -> dict[str, int]:
    """The GPT-2 table: character -> byte. Printable bytes stand for themselves, the others for U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    hidden = (byte for byte in range(256) if byte not in set(printable))
    table.update({chr(256 + index): byte for index, byte in enumerate(hidden)})
    return table


_BYTE_OF = _byte_alphabet()


class Tokenizer:
    """Text to ids and single ids to bytes. Immutable after construction and safe to share between threads."""

    def __init__(self, backend: HFTokenizer, added: dict[int, _AddedToken]) -> None:
        self._backend = backend
        self._added = added
        self._bytes: dict[int, bytes] = {}  # filled as ids are met: most of the vocabulary never is
        self.size: int = backend.get_vocab_size(with_added_tokens=True)

    @classmethod
    def from_resources(
        cls, tokenizer_json: bytes, tokenizer_config: bytes, token_domain: int | None = None
    ) -> Tokenizer:
        """Merge and check the two resources. `token_domain` is the exact number of ids the model's head covers.

        Raises ArtifactError: not a BPE model, conflicting or missing added tokens, a gap in the ids, a special token at
        another id than the Qwen3.x order demands, another size than `token_domain`.
        """
        config = TokenizerConfig.parse(tokenizer_config)
        header = _decode(tokenizer_json, _TokenizerFile, TOKENIZER_JSON)
        if header.model.type != "BPE":
            raise ArtifactError(f"{TOKENIZER_JSON}: model.type must be BPE, not {header.model.type}")
        added = _merge_added_tokens(header, config)
        try:
            backend = HFTokenizer.from_buffer(tokenizer_json)
        except Exception as error:  # tokenizers raises bare Exception
            raise ArtifactError(f"{TOKENIZER_JSON}: {error}") from None
        _add_missing(backend, added)
        _check_domain(backend, added, token_domain)
        return cls(backend, added)

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; added tokens are recognised anywhere in it, nothing is put in front. Raises RequestError."""
        try:
            return self._backend.encode(text, add_special_tokens=False).ids
        except (UnicodeEncodeError, TypeError):
            raise RequestError("text contains a lone surrogate and is not valid Unicode") from None

    def token_bytes(self, token: int) -> bytes:
        """The bytes that one id stands for: an added token's literal content, else through the byte-level table.

        A token may be a fragment of a UTF-8 sequence. Raises RequestError outside the token domain.
        """
        data = self._bytes.get(token)
        if data is None:
            data = self._bytes[token] = self._decode_token(token)
        return data

    def _decode_token(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].content.encode()
        if not 0 <= token < self.size:
            raise RequestError(f"token id {token} is outside the token domain 0..{self.size - 1}")
        return bytes(map(_BYTE_OF.__getitem__, self._backend.id_to_token(token)))

    def is_special(self, token: int) -> bool:
        """Whether `token` is an added token that decoded text leaves out (control tokens, not `<think>` and such)."""
        added = self._added.get(token)
        return added is not None and added.special

    def id_of(self, content: str) -> int:
        """Id of the token whose vocabulary entry is exactly `content`. Raises KeyError."""
        token = self._backend.token_to_id(content)
        if token is None:
            raise KeyError(content)
        return token


def _merge_added_tokens(header: _TokenizerFile, config: TokenizerConfig) -> dict[int, _AddedToken]:
    """Added tokens of both files by id. A token that both define must agree in every field."""
    merged: dict[int, _AddedToken] = {}
    id_of: dict[str, int] = {}
    listed = [(TOKENIZER_JSON, token.id, token.unnumbered()) for token in header.added_tokens]
    for key, token in config.added_tokens_decoder.items():
        if not (key.isascii() and key.isdigit()):
            raise ArtifactError(f"{TOKENIZER_CONFIG}: added_tokens_decoder key {key!r} is not a token id")
        listed.append((TOKENIZER_CONFIG, int(key), token))
    for resource, number, token in listed:
        if merged.setdefault(number, token) != token or id_of.setdefault(token.content, number) != number:
            raise ArtifactError(f"{resource}: added token {number} {token.content!r} has conflicting definitions")
        if token.single_word or token.lstrip or token.rstrip or token.normalized:
            raise ArtifactError(
                f"{resource}: added token {token.content!r} must have single_word, lstrip, rstrip and normalized false"
            )
    return merged


def _add_missing(backend: HFTokenizer, added: dict[int, _AddedToken]) -> None:
    """Give `backend` the added tokens that only the config file lists, in id order."""
    for number in sorted(added):
        token = added[number]
        if backend.token_to_id(token.content) is None:
            backend.add_tokens([AddedToken(token.content, special=token.special, normalized=False)])
        if (found := backend.token_to_id(token.content)) != number:
            raise ArtifactError(f"{TOKENIZER_CONFIG}: added token {token.content!r} must have id {number}, not {found}")


def _check_domain(backend: HFTokenizer, added: dict[int, _AddedToken], token_domain: int | None) -> None:
    size = backend.get_vocab_size(with_added_tokens=True)
    if token_domain is not None and size != token_domain:
        raise ArtifactError(f"{TOKENIZER_JSON}: token domain has {size} ids, the model expects {token_domain}")
    tokens = [backend.id_to_token(number) for number in range(size)]
    if None in tokens:
        raise ArtifactError(f"{TOKENIZER_JSON}: token id {tokens.index(None)} is missing; ids must be 0..{size - 1}")
    for number in added:
        tokens[number] = ""
    foreign = set("".join(tokens)) - _BYTE_OF.keys()
    if foreign:
        raise ArtifactError(f"{TOKENIZER_JSON}: vocabulary uses {min(foreign)!r}, which is no byte-level character")
    for number, content in enumerate(SPECIAL_TOKENS, size - len(SPECIAL_TOKENS)):
        if number not in added or added[number].content != content:
            raise ArtifactError(f"{TOKENIZER_JSON}: {content} must be added token {number}")
