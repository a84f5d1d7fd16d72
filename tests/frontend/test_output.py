"""The output decoder: named cases of the contract, counters, and misuse."""

import pytest

from ninfer_nb.frontend.output import Channel, Delta, FinishReason, OutputSession, Preview, StopString

LIMIT = FinishReason.OUTPUT_LIMIT
END = 1000


class Pieces:
    """A vocabulary with one token for each piece of a script; END is the hidden stop token."""

    def __init__(self, *pieces):
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]

    def token_bytes(self, token):
        return b"<end>" if token == END else self.pieces[token]

    def is_special(self, token):
        return token == END


def play(*script, rounds=None, limit=None, **options):
    """Decode a script, END as its own piece. Returns the session and the deltas of every commit."""
    tokens = [END if piece is END else index for index, piece in enumerate(script)]
    options.setdefault("thinking", False)
    session = OutputSession(Pieces(*["" if p is END else p for p in script]), stop_tokens=[END], **options)
    commits, left = [], limit or len(script)
    for size in rounds or [1] * len(script):
        preview = session.preview(tokens[:size], left, LIMIT)
        tokens, left = tokens[size:], left - preview.accepted
        commits.append(session.commit_preview())
        if session.finish:
            break
    return session, commits


def reason(text):
    return Delta(Channel.REASONING, text)


def say(text):
    return Delta(Channel.CONTENT, text)


def test_reasoning_then_content():
    session, commits = play("let me", "see", "</think>\n\n", "Hello", END, thinking=True)
    assert commits == [[reason("let me")], [reason("see")], [], [say("Hello")], []]
    assert (session.finish, session.reasoning_tokens, session.tokens) == (FinishReason.STOP_TOKEN, 3, [0, 1, 2, 3, END])


def test_both_channels_in_one_round():
    _, commits = play("a", "b</think> c", "d", "e", rounds=[3], limit=9, thinking=True)
    assert commits == [[reason("ab"), say("cd")]]


@pytest.mark.parametrize(
    ("script", "reasoning", "content"),
    [
        (("x</thi", "nk>", "\n\n  \n y", END), "x", "y"),
        (("x</thi", END), "x</thi", ""),
        (("a</thi", "</think>b",), "a</thi", "b"),
        (("a</think>b</think>c",), "a", "b</think>c"),
        (("<think>a</think><think>b",), "<think>a", "<think>b"),
        (("a</think>\u00a0b",), "a", "\u00a0b"),
        (("a</think>",), "a", ""),
    ],
)  # fmt: skip
def test_end_of_reasoning(script, reasoning, content):
    session, _ = play(*script, thinking=True)
    assert (session.reasoning, session.content) == (reasoning, content)


def test_characters_over_token_borders():
    text = "é中🙂".encode()
    session, commits = play(*[text[i : i + 1] for i in range(len(text))])
    assert session.content == "é中🙂"
    assert [delta.text for commit in commits for delta in commit] == ["é", "中", "🙂"]


def test_an_incomplete_character_becomes_one_replacement():
    session, commits = play("a", "🙂".encode()[:3])
    assert (session.content, commits) == ("a\ufffd", [[say("a")], [say("\ufffd")]])
    session, _ = play("a", "🙂".encode()[:3], END, thinking=True)
    assert session.reasoning == "a\ufffd"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\xc0\x80", "\ufffd\ufffd"),  # overlong
        (b"\xed\xa0\x80", "\ufffd\ufffd\ufffd"),  # surrogate
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),  # above U+10FFFF
        (b"\xe4\xb8a", "\ufffda"),
    ],
)
def test_invalid_bytes_are_replaced(data, text):
    assert play(*[data[i : i + 1] for i in range(len(data))])[0].content == text
    assert play(data)[0].content == text


def test_stop_string_over_tokens():
    session, commits = play("abcE", "ND tail", END, stop_strings=[StopString("END")])
    assert (session.content, session.finish, session.tokens) == ("abc", FinishReason.STOP_STRING, [0, 1])
    assert commits == [[say("abc")], []]
    assert session.stop_string == StopString("END")


def test_a_stop_in_the_middle_of_a_round_rejects_the_rest():
    session = OutputSession(Pieces("ab", "cE", "ND", "x"), thinking=False, stop_strings=[StopString("END")])
    assert session.preview([0, 1, 2, 3], 4, LIMIT) == Preview(3, FinishReason.STOP_STRING)
    assert session.commit_preview() == [say("abc")]


def test_content_stops_do_not_act_in_reasoning():
    session, _ = play("END in thought</think>\n\nok", END, thinking=True, stop_strings=[StopString("END")])
    assert (session.reasoning, session.content) == ("END in thought", "ok")


def test_reasoning_stop():
    stops = [StopString("wait", Channel.REASONING)]
    session, _ = play("hm wa", "it</think>x", thinking=True, stop_strings=stops)
    assert (session.reasoning, session.content, session.finish) == ("hm ", "", FinishReason.STOP_STRING)
    session, _ = play("hm</think>wait", thinking=True, stop_strings=stops)
    assert (session.content, session.finish) == ("wait", LIMIT)


@pytest.mark.parametrize(
    ("stops", "content", "winner"),
    [
        (["ZZ", "END"], "ab", "END"),
        (["D!", "bEND"], "a", "bEND"),
        (["END", "EN"], "ab", "END"),
        (["EN", "END"], "ab", "EN"),
    ],
)
def test_earliest_position_then_declaration_decides(stops, content, winner):
    session, _ = play("abEND!", stop_strings=[StopString(text) for text in stops])
    assert (session.content, session.stop_string.text) == (content, winner)


def test_earlier_token_beats_earlier_position():
    session, _ = play("abEN", "D", stop_strings=[StopString("abEND"), StopString("N")])
    assert (session.content, session.stop_string.text, session.tokens) == ("abE", "N", [0])


def test_equal_stops_count_once_and_empty_ones_never():
    session, _ = play("aXb", stop_strings=[StopString("X"), StopString("X")])
    assert session.content == "a"
    with pytest.raises(ValueError, match="a stop string is empty"):
        OutputSession(Pieces(), thinking=False, stop_strings=[StopString("")])


def test_held_text_is_published_at_the_end():
    session, commits = play("abEN", stop_strings=[StopString("END")])
    assert (session.content, session.finish, commits) == ("abEN", LIMIT, [[say("abEN")]])


def test_raw_output():
    session, commits = play("a</think>", "\n b", END, thinking=True, raw=True)
    assert (session.reasoning, session.content) == ("", "a</think>\n b<end>")
    assert session.reasoning_tokens == 0
    assert commits[-1] == [say("<end>")]


def test_stop_token_text_may_be_published():
    session, _ = play("a", END, publish_stop_token=True, preserve_special=True)
    assert session.content == "a<end>"
    session, _ = play("a", END, preserve_special=True)
    assert session.content == "a"


def test_stop_string_beats_stop_token():
    session, _ = play("a<", END, preserve_special=True, stop_strings=[StopString("<<end")])
    assert (session.finish, session.content) == (FinishReason.STOP_STRING, "a")


def test_cancellation_publishes_what_was_held():
    session = OutputSession(Pieces("abEN"), thinking=False, stop_strings=[StopString("END")])
    session.preview([0], 5, LIMIT)
    assert session.commit_preview() == [say("ab")]
    assert session.preview_terminal() == Preview(0, FinishReason.CANCELLED)
    assert session.commit_preview() == [say("EN")]
    assert (session.finish, session.tokens) == (FinishReason.CANCELLED, [0])


def test_the_limit_names_its_reason():
    session = OutputSession(Pieces("a", "b"), thinking=False)
    assert session.preview([0, 1], 2, FinishReason.CONTEXT_CAPACITY) == Preview(2, FinishReason.CONTEXT_CAPACITY)


def test_misuse():
    session = OutputSession(Pieces("a"), thinking=False)
    with pytest.raises(RuntimeError, match="no preview to commit"):
        session.commit_preview()
    for tokens, remaining in (([], 3), ([0, 0], 1)):
        with pytest.raises(ValueError, match="a round must offer 1 to"):
            session.preview(tokens, remaining, LIMIT)
    session.preview([0], 1, LIMIT)
    with pytest.raises(RuntimeError, match="was not committed"):
        session.preview([0], 1, LIMIT)
    session.commit_preview()
    with pytest.raises(RuntimeError, match="already finished: output-limit"):
        session.preview([0], 1, LIMIT)
