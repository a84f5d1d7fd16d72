"""The output decoder against a plain reference, for any tokens, stops and division into rounds."""

from codecs import utf_8_decode
from dataclasses import dataclass

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer_nb.frontend.output import Channel, FinishReason, OutputSession, StopString

WHITESPACE = " \t\n\v\f\r"
LIMIT = FinishReason.OUTPUT_LIMIT
END, OTHER_END, SPECIAL = 0, 1, 2  # a hidden stop token, a stop token with visible text, a hidden ordinary token


class Vocabulary:
    """A tokenizer of the given byte strings; the first ids are fixed."""

    def __init__(self, pieces):
        self.pieces = [b"<|end|>", b"stop", b"<|special|>", *pieces]

    def token_bytes(self, token):
        return self.pieces[token]

    def is_special(self, token):
        return token in (END, SPECIAL)


@dataclass
class Script:
    """Tokens to decode and the options of the session."""

    vocabulary: Vocabulary
    tokens: list[int]
    thinking: bool = False
    stops: tuple[StopString, ...] = ()
    raw: bool = False

    def session(self):
        return OutputSession(
            self.vocabulary,
            thinking=self.thinking,
            stop_tokens=(END, OTHER_END),
            stop_strings=self.stops,
            raw=self.raw,
        )


def tail_length(text, pattern):
    """Length of the longest proper prefix of `pattern` that ends `text`."""
    return next((n for n in range(len(pattern) - 1, 0, -1) if text.endswith(pattern[:n])), 0)


def channels(script, data, final):
    """(reasoning, content) of the bytes; unless `final`, without what may still become a character or `</think>`."""
    text, used = utf_8_decode(data, "replace", False)
    if final and used < len(data):
        text += "\ufffd"
    if not script.thinking or script.raw:
        return {Channel.REASONING: "", Channel.CONTENT: text}
    reasoning, closed, content = text.partition("</think>")
    if not closed and not final:
        reasoning = reasoning[: len(reasoning) - tail_length(reasoning, "</think>")]
    return {Channel.REASONING: reasoning, Channel.CONTENT: content.lstrip(WHITESPACE) if closed else ""}


def reference(script):
    """(accepted tokens, finish, reasoning, content) by looking at whole prefixes."""
    data = b""
    for count, token in enumerate(script.tokens, 1):
        before = data
        if script.raw or not script.vocabulary.is_special(token):
            data += script.vocabulary.token_bytes(token)
        texts = channels(script, data, final=False)
        for channel, text in texts.items():
            found = [(text.find(stop.text), i, stop) for i, stop in enumerate(script.stops) if stop.channel is channel]
            found = [match for match in found if match[0] >= 0]
            if found:
                at, _, stop = min(found, key=lambda match: match[:2])
                texts[channel] = text[: at + len(stop.text)] if stop.include_in_output else text[:at]
                if channel is Channel.REASONING:
                    texts[Channel.CONTENT] = ""
                return count, FinishReason.STOP_STRING, *texts.values()
        if token in (END, OTHER_END):
            texts = channels(script, data if script.raw else before, final=True)
            return count, FinishReason.STOP_TOKEN, *texts.values()
    return len(script.tokens), LIMIT, *channels(script, data, final=True).values()


def decode(script, rounds):
    """Run the session, `rounds` tokens at a time; every offer is previewed twice, the first time for nothing."""
    session, texts, at = script.session(), dict.fromkeys(Channel, ""), 0
    for size in rounds:
        offered = script.tokens[at : at + size]
        remaining = len(script.tokens) - at
        trial = session.preview(offered, remaining, LIMIT)
        session.discard_preview()
        preview = session.preview(offered, remaining, LIMIT)
        assert preview == trial
        assert preview.accepted == len(offered) or preview.finish is not None
        deltas = session.commit_preview()
        assert [delta.channel for delta in deltas] == sorted({delta.channel for delta in deltas}, key=[*Channel].index)
        for channel, text in deltas:
            assert text and "\udc80" not in text
            texts[channel] += text
        at += preview.accepted
        if preview.finish is not None:
            break
    assert session.tokens == script.tokens[:at]
    assert (session.reasoning, session.content) == tuple(texts.values())
    return at, session.finish, session.reasoning, session.content


def divisions(count):
    """Sizes of rounds that cover `count` tokens."""
    cuts = st.sets(st.integers(1, count - 1), max_size=count) if count > 1 else st.just(set())
    return cuts.map(lambda places: [b - a for a, b in zip([0, *sorted(places)], [*sorted(places), count], strict=True)])


ALPHABET = [
    b"a", b"b", b"ab", b"ba", b" ", b"\n", b"<", b"</", b"think>", b"</think>", b"</thi", b"nk>", b"k>\n\n x",
    b"<think>", "é".encode(), b"\xc3", b"\xa9", "中".encode()[:2], "中".encode()[2:], "🙂".encode()[:1],
    "🙂".encode()[1:],
    b"\xff", b"\x80", b"stop", b"", b"aab",
]  # fmt: skip
VOCABULARY = Vocabulary(ALPHABET)

stop_texts = st.one_of(
    st.text("ab<", min_size=1, max_size=4), st.sampled_from(["é", "</think>", "stop", " ", "\ufffd", "b x"])
)
stop_strings = st.builds(StopString, stop_texts, st.sampled_from(Channel), st.booleans())
scripts = st.builds(
    Script,
    st.just(VOCABULARY),
    st.lists(st.integers(0, len(VOCABULARY.pieces) - 1).map(lambda n: n if n > 1 else n + 3), min_size=1, max_size=24),
    st.booleans(),
    st.lists(stop_strings, max_size=3).map(tuple),
    st.sampled_from([False, False, False, True]),
)


@settings(max_examples=1500, deadline=None)
@given(scripts, st.data())
def test_any_tokens_in_any_rounds(script, data):
    if data.draw(st.booleans()):
        script.tokens[data.draw(st.integers(0, len(script.tokens) - 1))] = data.draw(st.sampled_from([END, OTHER_END]))
    expected = reference(script)
    count = len(script.tokens)
    for rounds in ([count], [1] * count, data.draw(divisions(count))):
        assert decode(script, rounds) == expected


def script_of(*pieces, **options):
    """A script whose tokens are exactly `pieces` (text, bytes or the id of a fixed token)."""
    texts = [piece.encode() if isinstance(piece, str) else piece for piece in pieces if not isinstance(piece, int)]
    ids = iter(range(3, 3 + len(texts)))
    return Script(Vocabulary(texts), [piece if isinstance(piece, int) else next(ids) for piece in pieces], **options)


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), st.booleans(), st.data())
@example("x</think>\n\n  \n y", True, None)
def test_every_cut_of_a_text_into_bytes_gives_the_text(text, thinking, data):
    encoded = text.encode() or b"-"
    if data is None:
        cuts = [[encoded[i : i + 1] for i in range(len(encoded))]]
        cuts += [[encoded[:i], encoded[i:]] for i in range(1, len(encoded))]
    else:
        sizes = data.draw(divisions(len(encoded)))
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        cuts = [[encoded[start : start + size] for start, size in zip(starts, sizes, strict=True)]]
    reasoning, closed, content = encoded.decode().partition("</think>")
    expected = (reasoning, content.lstrip(WHITESPACE) if closed else "") if thinking else ("", encoded.decode())
    for pieces in cuts:
        script = script_of(*pieces, thinking=thinking)
        assert decode(script, [1] * len(pieces)) == (len(pieces), LIMIT, *expected)


@settings(max_examples=300, deadline=None)
@given(st.text("abEND", max_size=12), st.sampled_from(["END", "ab", "NDE", "aaa"]), st.booleans(), st.data())
def test_a_stop_string_ends_with_the_token_that_completes_it(text, stop, include, data):
    """Cut anywhere: the text up to the first occurrence, and no token beyond the one that completes it."""
    if not text:
        return
    sizes = data.draw(divisions(len(text)))
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    pieces = [text[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    script = script_of(*pieces, stops=(StopString(stop, include_in_output=include),))
    accepted, finish, _, content = decode(script, [len(pieces)])
    at = text.find(stop)
    if at < 0:
        assert (accepted, finish, content) == (len(pieces), LIMIT, text)
    else:
        assert finish is FinishReason.STOP_STRING
        assert content == (text[: at + len(stop)] if include else text[:at])
        assert accepted == 1 + sum(end < at + len(stop) for end in ends)
