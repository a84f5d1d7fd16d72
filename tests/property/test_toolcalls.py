"""Tool calls: the same answer for every way of cutting its text, and for complete calls what a plain parser finds."""

import json
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ninfer_nb.frontend.answer import Answer, ReasoningDelta
from ninfer_nb.frontend.output import Channel, Delta
from ninfer_nb.frontend.toolcalls import CallArguments, CallStart, ContentDelta, ToolCallParser

TOOLS = [
    {
        "type": "function",
        "function": {"name": "sh", "parameters": {"properties": {"s": {"type": "string"}, "n": {"type": "number"}}}},
    }
]

PIECES = [
    "<tool_call>", "</tool_call>", "<function=sh>", "<function=other>", "</function>", "<parameter=s>", "<parameter=n>",
    "<parameter=x>", "</parameter>", "\n", " ", "a", "12", "\u00fc\"\\", "<", "</", ">", "null", "<tool", "=",
]  # fmt: skip

WHOLE = (
    "<tool_call>\n<function=sh>\n<parameter=s>\na\n</parameter>\n"
    "<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>"
)

texts = st.lists(st.one_of(st.sampled_from(PIECES), st.just(WHOLE)), max_size=30).map("".join)


@st.composite
def cut_texts(draw):
    """A text near the grammar, whole and cut at random places."""
    text = draw(
        st.one_of(texts, st.tuples(texts, st.integers(0, len(WHOLE))).map(lambda pair: pair[0] + WHOLE[: pair[1]]))
    )
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return text, [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def run(pieces):
    parser, events = ToolCallParser(TOOLS), []
    for piece in pieces:
        events += parser.feed(piece)
    events += parser.finish()
    return parser, events


@settings(max_examples=600, deadline=None)
@given(cut_texts())
@example((WHOLE, list(WHOLE)))
def test_no_result_depends_on_the_cuts(cut):
    text, pieces = cut
    whole, _ = run([text])
    for parts in (pieces, list(text)):
        parser, events = run(parts)
        assert (parser.content, parser.calls, parser.truncated) == (whole.content, whole.calls, whole.truncated)
        streamed = "".join(event.text for event in events if isinstance(event, ContentDelta))
        assert streamed == whole.content
        assert [event.index for event in events if isinstance(event, CallStart)] == list(range(len(whole.calls)))
        for index, call in enumerate(whole.calls):
            fragments = [e.fragment for e in events if isinstance(e, CallArguments) and e.index == index]
            assert all(fragments) and "".join(fragments) == call.arguments


@settings(max_examples=400, deadline=None)
@given(texts)
def test_arguments_are_always_json_and_text_without_calls_is_untouched(text):
    parser, _ = run([text])
    for call in parser.calls:
        assert isinstance(json.loads(call.arguments), dict)
    if not parser.calls:
        assert parser.content == text


@settings(max_examples=300, deadline=None)
@given(texts)
def test_what_was_sent_for_a_prefix_is_never_taken_back(text):
    """Events of a longer text begin with those of the shorter one, fragments joined."""
    parser, sent = ToolCallParser(TOOLS), ""
    final, _ = run([text])
    for char in text:
        for event in parser.feed(char):
            sent += event.text if isinstance(event, ContentDelta) else ""
        assert final.content.startswith(sent)
        for call, whole in zip(parser.calls, final.calls, strict=False):
            assert call.name == whole.name and whole.arguments.startswith(call.arguments)
    assert len(parser.calls) <= len(final.calls)


values = st.text(st.characters(exclude_characters="<", exclude_categories=["Cs"]), max_size=20)
calls = st.lists(st.dictionaries(st.sampled_from(["s", "t", "u"]), values, max_size=3), max_size=3)
STRINGS = [{"function": {"name": "f", "parameters": {"properties": {key: {"type": "string"} for key in "stu"}}}}]


@settings(max_examples=300, deadline=None)
@given(st.text("ab \n", max_size=8), calls)
def test_string_arguments_come_back_as_they_were_written(before, wanted):
    text = before
    for arguments in wanted:
        body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        text += f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>\n"
    parser = ToolCallParser(STRINGS)
    for char in text:
        parser.feed(char)
    parser.finish()
    assert [json.loads(call.arguments) for call in parser.calls] == wanted
    assert [list(json.loads(call.arguments)) for call in parser.calls] == [list(arguments) for arguments in wanted]
    assert parser.content == (before.rstrip() if wanted else before)


ONE_CALL = re.compile(
    r"\s*<tool_call>\s*<function=sh>"
    r"(?:\s*<parameter=[^>\n]+>(?:(?!</parameter>|</function>|</tool_call>).)*</parameter>)*"
    r"\s*</function>\s*</tool_call>",
    re.DOTALL | re.ASCII,
)


def tail_of(reasoning):
    """(text, number of calls) by regular expressions: the longest tail of complete calls and white space."""
    for start in (match.start() for match in re.finditer("<tool_call>", reasoning)):
        at, count = start, 0
        while match := ONE_CALL.match(reasoning, at):
            at, count = match.end(), count + 1
        if count and not reasoning[at:].strip():
            return reasoning[:start].rstrip(), count
    return reasoning, 0


@settings(max_examples=600, deadline=None)
@given(cut_texts())
def test_open_reasoning_ends_in_its_longest_tail_of_calls(cut):
    text, pieces = cut
    expected, count = tail_of(text)
    for parts in ([text], pieces, list(text)):
        answer, events = Answer(TOOLS, parse_calls=True), []
        for part in filter(None, parts):
            events += answer.feed([Delta(Channel.REASONING, part)], in_reasoning=True)
        events += answer.finish(in_reasoning=True)
        assert (answer.reasoning, len(answer.calls), answer.content) == (expected, count, "")
        assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == expected


@settings(max_examples=200, deadline=None)
@given(cut_texts())
def test_closed_reasoning_is_never_scanned(cut):
    text, pieces = cut
    answer = Answer(TOOLS, parse_calls=True)
    for part in filter(None, pieces):
        answer.feed([Delta(Channel.REASONING, part)], in_reasoning=True)
    answer.feed([Delta(Channel.CONTENT, "ok")], in_reasoning=False)
    answer.finish(in_reasoning=False)
    assert (answer.reasoning, answer.content, answer.calls) == (text, "ok", [])
