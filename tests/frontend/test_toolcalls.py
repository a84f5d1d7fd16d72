"""Generated tool calls: the grammar, what is committed when, typed values, and calls inside open reasoning."""

import json

import pytest

from ninfer_nb.frontend.answer import Answer, ReasoningDelta
from ninfer_nb.frontend.output import Channel, Delta
from ninfer_nb.frontend.toolcalls import CallArguments, CallEnd, CallStart, ContentDelta, ParsedCall, ToolCallParser
from ninfer_nb.frontend.toolvalues import ToolSchemas, json_value


def tool(name, **properties):
    parameters = {"type": "object", "properties": properties, "$defs": {"T": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


WEATHER = tool("get_weather", city={"type": "string"}, days={"type": "integer"})
SHELL = tool("sh", command={"type": "string"}, count={"type": "number"})
TOOLS = [WEATHER, SHELL]


def call(name="get_weather", **values):
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def parse(text, tools=TOOLS, cut=None):
    """(content, calls, truncated) of a whole answer, fed in pieces of `cut` characters."""
    parser = ToolCallParser(tools)
    pieces = [text] if cut is None else [text[at : at + cut] for at in range(0, len(text), cut)]
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    assert parser.content == "".join(event.text for event in events if isinstance(event, ContentDelta))
    calls = {event.index: [event.name, ""] for event in events if isinstance(event, CallStart)}
    for event in events:
        if isinstance(event, CallArguments):
            calls[event.index][1] += event.fragment
    assert parser.calls == [ParsedCall(*call) for call in calls.values()]
    assert sum(isinstance(event, CallEnd) for event in events) == len(calls)
    for _, arguments in parser.calls:
        assert isinstance(json.loads(arguments), dict)
    return parser.content, parser.calls, parser.truncated


PARIS = ParsedCall("get_weather", '{"city":"Paris","days":2}')
LS = ParsedCall("sh", '{"command":"ls -l"}')
ONE = call(city="Paris", days=2)
TWO = call("sh", command="ls -l")
OPEN = "<tool_call>\n<function=sh>\n<parameter=command>\n"

CASES = {
    "plain": ("Hello  \n", "Hello  \n", []),
    "empty": ("", "", []),
    "text before": (f"Calling.\n{ONE}", "Calling.", [PARIS]),
    "call alone": (ONE, "", [PARIS]),
    "white space around": (f" \n{ONE}\n\n", "", [PARIS]),
    "two calls": (f"{ONE}\n{TWO}", "", [PARIS, LS]),
    "two calls without a break": (f"{ONE}{TWO}", "", [PARIS, LS]),
    "no line breaks": ("<tool_call><function=sh><parameter=command>ls -l</parameter></function></tool_call>", "", [LS]),
    "no parameters": ("<tool_call>\n<function=sh>\n</function>\n</tool_call>", "", [ParsedCall("sh", "{}")]),
    "unknown function": (call("other", a="1"), "", [ParsedCall("other", '{"a":1}')]),
    "unknown function, then text": (f"{call('other', a='1')} x", " x", [ParsedCall("other", '{"a":1}')]),
    "partial tag in text": ("a <tool_cal b <tool", "a <tool_cal b <tool", []),
    # malformed before the call is committed: everything is text
    "unclosed": ("x\n<tool_call>\n<function=get_weather>\n", "x\n<tool_call>\n<function=get_weather>\n", []),
    "name with a space": (f"{call('get weather')} ", f"{call('get weather')} ", []),
    "empty name": (call(""), call(""), []),
    "name of 64": (call("n" * 64), "", [ParsedCall("n" * 64, "{}")]),
    "name of 65": (call("n" * 65), call("n" * 65), []),
    "no function": ("<tool_call>\nls\n</tool_call>", "<tool_call>\nls\n</tool_call>", []),
    "json inside": ('<tool_call>{"name": "sh"}</tool_call>', '<tool_call>{"name": "sh"}</tool_call>', []),
    "junk before a parameter": (f"<tool_call><function=sh>x{TWO}", f"<tool_call><function=sh>x{TWO}", []),
    "parameter without a name": (
        "<tool_call>\n<function=sh>\n<parameter=\nls\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=sh>\n<parameter=\nls\n</parameter>\n</function>\n</tool_call>",
        [],
    ),
    "parameter with an empty name": (f"<tool_call><function=sh><parameter=>x {TWO}", None, []),
    "unknown function, unclosed": (f"{call('other', a='1')[:-1]}", f"{call('other', a='1')[:-1]}", []),
    "unknown function, broken value": (
        "<tool_call><function=other><parameter=a>\n1</function></tool_call>",
        "<tool_call><function=other><parameter=a>\n1</function></tool_call>",
        [],
    ),
    "unclosed before a line break": ("<tool_call><function=sh><parameter=command>ls", None, []),
    "a broken call, then a good one": (f"<tool_call>x{ONE}", f"<tool_call>x{ONE}", []),
    # after a committed call: what was sent stands
    "text after": (f"{ONE}\nextra ", "\nextra ", [PARIS]),
    "content and text after": (f"Calling.\n{ONE}\nextra{TWO}", f"Calling.\nextra{TWO}", [PARIS]),
    "a broken second call": (f"{ONE}\n<tool_call>x</tool_call>", "\n<tool_call>x</tool_call>", [PARIS]),
    "an unclosed tag after": (f"{ONE}\n<tool_ca", "\n<tool_ca", [PARIS]),
    "nameless second parameter": (
        "<tool_call><function=sh><parameter=command>\nls -l\n</parameter>\n<parameter=\nx\n</parameter>",
        "",
        [LS],
    ),
    "value closed by the function": (f"a\n{OPEN}ls -l\n</function>\n</tool_call>\nmore", "a", [LS]),
    "value closed by the call": (f"{OPEN}ls -l\n</tool_call>{ONE}", "", [LS]),
    "junk between parameters": (f"{OPEN}ls -l\n</parameter>\njunk<parameter=count>\n1\n</parameter>", "", [LS]),
    "junk after the function": (f"{OPEN}ls -l\n</parameter></function>junk</tool_call>", "", [LS]),
    "an open number is dropped": (
        "<tool_call><function=sh><parameter=count>\n12</function>",
        "",
        [ParsedCall("sh", "{}")],
    ),
}
CUT_SHORT = {
    "inside a string": (f"{OPEN}ls -l", [LS]),
    "inside a closing tag": (f"{OPEN}ls -l\n</param", [LS]),
    "before any value": (OPEN, [ParsedCall("sh", '{"command":""}')]),
    "inside a number": ("<tool_call><function=sh><parameter=count>\n12", [ParsedCall("sh", "{}")]),
    "between parameters": (f"{OPEN}ls -l\n</parameter>\n<para", [LS]),
    "behind the function": (f"{OPEN}ls -l\n</parameter>\n</function>\n", [LS]),
    "inside a second call": (f"{ONE}\n{OPEN}ls -l", [PARIS, LS]),
}


@pytest.mark.parametrize("cut", [None, 1, 2, 3, 7, 16])
@pytest.mark.parametrize("name", CASES)
def test_answers(name, cut):
    text, content, calls = CASES[name]
    assert parse(text, cut=cut) == (text if content is None else content, calls, False)


@pytest.mark.parametrize("cut", [None, 1, 5])
@pytest.mark.parametrize("name", CUT_SHORT)
def test_answers_that_end_inside_a_committed_call(name, cut):
    text, calls = CUT_SHORT[name]
    assert parse(text, cut=cut) == ("", calls, True)


def test_every_prefix_is_text_or_a_call_with_valid_json():
    text = f"Let me see.\n{ONE}\n{TWO}\n"
    committed = text.index("<parameter=city>\n") + len("<parameter=city>\n")
    for end in range(len(text) + 1):
        content, calls, _ = parse(text[:end])
        if end < committed:
            assert (content, calls) == (text[:end], [])
        else:
            assert content in ("Let me see.", "Let me see." + text[text.index(ONE) + len(ONE) : end])
            assert "Paris".startswith(json.loads(calls[0].arguments)["city"])


def test_content_is_never_sent_too_early():
    parser = ToolCallParser(TOOLS)
    assert parser.feed("Hi \n") == [ContentDelta("Hi")]
    assert parser.feed("<tool_") == []
    assert parser.feed("call") == []
    assert parser.feed("x") == [ContentDelta(" \n<tool_callx")]
    assert parser.feed("\n<tool_call>\n<function=sh>\n<parameter=command>") == []
    assert parser.feed("\n") == [CallStart(0, "sh"), CallArguments(0, '{"command":"')]


def test_string_values_are_streamed():
    parser = ToolCallParser(TOOLS)
    parser.feed(OPEN)
    assert parser.feed('say "ü"\n') == [CallArguments(0, 'say \\"ü\\"')]
    assert parser.feed("\n") == [CallArguments(0, "\\n")]
    assert parser.feed("x</para") == [CallArguments(0, "\\nx")]
    assert parser.feed("meter>") == [CallArguments(0, '"')]
    assert parser.feed("\n<parameter=count>\n12") == []
    assert parser.feed("\n</parameter>") == [CallArguments(0, ',"count":12')]
    assert parser.feed("</function></tool_call>") == [CallArguments(0, "}"), CallEnd(0)]
    assert parser.calls == [ParsedCall("sh", '{"command":"say \\"ü\\"\\n\\nx","count":12}')]


def test_a_long_string_arrives_in_many_fragments():
    parser = ToolCallParser(TOOLS)
    text = call("sh", command="x" * 4096)
    events = [event for at in range(0, len(text), 64) for event in parser.feed(text[at : at + 64])]
    assert sum(isinstance(event, CallArguments) for event in events) > 10


def test_a_repeated_parameter_is_ignored():
    twice = OPEN + "a\n</parameter>\n<parameter=command>\nb\n</parameter>\n<parameter=count>\n1\n</parameter>\n"
    twice += "<parameter=count>\n2\n</parameter>\n</function>\n</tool_call>"
    for cut in (None, 1):
        assert parse(twice, cut=cut)[1] == [ParsedCall("sh", '{"command":"a","count":1}')]


def test_a_longer_limit_on_names():
    parser = ToolCallParser([], longest_name=128)
    parser.feed(call("n" * 128))
    assert [name for name, _ in parser.calls] == ["n" * 128]


TYPED = tool(
    "t",
    s={"type": "string"},
    n={"type": "number"},
    i={"type": "integer"},
    b={"type": "boolean"},
    z={"type": "null"},
    o={"type": "object"},
    a={"type": "array"},
    u={"type": ["string", "null"]},
    m={"type": ["integer", "string"]},
    r={"$ref": "#/$defs/T"},
    e={"enum": ["x", 1, None]},
    c={"const": 5},
    any={"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/T"}]},
    all={"description": "no type"},
    odd={"type": "Text"},
    loop={"$ref": "#/properties/loop"},
    gone={"$ref": "#/nowhere"},
    far={"$ref": "http://example.org/x"},
    yes=True,
)

VALUES = [
    ("s", "12345", '"12345"'),
    ("s", "007", '"007"'),
    ("s", "true", '"true"'),
    ("s", '"x"', '"\\"x\\""'),
    ("s", '{"k":1}', '"{\\"k\\":1}"'),
    ("s", "\n  two\n\nlines \n", '"\\n  two\\n\\nlines \\n"'),
    ("i", "18446744073709551617", "18446744073709551617"),
    ("i", " 5 ", "5"),
    ("i", "2.5", "2.5"),
    ("i", "0x10", '"0x10"'),
    ("i", "007", '"007"'),
    ("n", "1e400", "1e400"),
    ("n", "-0", "-0"),
    ("n", "2.50", "2.50"),
    ("n", "abc", '"abc"'),
    ("n", " abc ", '"abc"'),
    ("n", "NaN", '"NaN"'),
    ("n", "-Infinity", '"-Infinity"'),
    ("n", "", '""'),
    ("n", "1٣", '"1٣"'),
    ("b", "True", "true"),
    ("b", "false", "false"),
    ("b", "yes", '"yes"'),
    ("z", "None", "null"),
    ("z", "nil", '"nil"'),
    ("o", '{"k": [1, 2.50]}', '{"k":[1,2.50]}'),
    ("o", "{'k': 1}", "\"{'k': 1}\""),
    ("o", '{"k": NaN}', '"{\\"k\\": NaN}"'),
    ("a", "[1,", '"[1,"'),
    ("a", "\n[1e5]\n", "[1e5]"),
    ("a", "5", '"5"'),
    ("u", "null", "null"),
    ("u", "nul", '"nul"'),
    ("u", " null", '" null"'),
    ("m", "12", "12"),
    ("m", "x1", '"x1"'),
    ("m", " x1 ", '" x1 "'),
    ("r", "5", '"5"'),
    ("e", "None", "null"),
    ("e", "1", "1"),
    ("e", "x", '"x"'),
    ("c", "5", "5"),
    ("c", "true", '"true"'),
    ("any", "True", "true"),
    ("any", "5", '"5"'),
    *[(name, "true", "true") for name in ("all", "odd", "loop", "gone", "far", "yes", "undeclared")],
    ("all", "True", '"True"'),
    ("all", '{"a":[1,2]}', '{"a":[1,2]}'),
    ("all", '""', '""'),
    ("all", "", '""'),
    ("all", " 007 ", '"007"'),
    ("all", "NaN", '"NaN"'),
    ("all", " a\n b ", '"a\\n b"'),
    ("all", "[" * 5000, '"' + "[" * 5000 + '"'),
]


@pytest.mark.parametrize(("parameter", "value", "expected"), VALUES)
def test_typed_values(parameter, value, expected):
    text = f"<tool_call>\n<function=t>\n<parameter={parameter}>\n{value}\n</parameter>\n</function>\n</tool_call>"
    for cut in (None, 1):
        assert parse(text, [TYPED], cut) == ("", [ParsedCall("t", f'{{"{parameter}":{expected}}}')], False)


def test_types_of_unknown_functions_are_open():
    schemas = ToolSchemas(
        ["tool", {"function": 5}, {"name": "flat", "parameters": {"properties": {"x": {"type": "string"}}}}]
    )
    assert schemas.types("flat", "x") == {"string"}
    assert schemas.types("other", "x") == frozenset() and "other" not in schemas
    assert json_value("1", schemas.types("other", "x")) == "1"


def test_references_that_branch_without_end_stay_cheap():
    branches = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in range(12)]}
    parameters = {"properties": {"x": {"$ref": "#/$defs/0"}}, "$defs": {str(name): branches for name in range(12)}}
    assert ToolSchemas([{"name": "f", "parameters": parameters}]).types("f", "x") == frozenset()


def answer(pieces, *, tools=TOOLS, thinking=True, parse_calls=True):
    """(reasoning, content, calls) of an answer whose `</think>` is written as its own piece."""
    result, events, reasoning = Answer(tools, parse_calls=parse_calls), [], thinking
    for piece in pieces:
        if piece == "</think>":
            reasoning = False
            events += result.feed([], in_reasoning=False)
        else:
            channel = Channel.REASONING if reasoning else Channel.CONTENT
            events += result.feed([Delta(channel, piece)], in_reasoning=reasoning)
    events += result.finish(in_reasoning=reasoning)
    assert result.reasoning == "".join(event.text for event in events if isinstance(event, ReasoningDelta))
    assert result.content == "".join(event.text for event in events if isinstance(event, ContentDelta))
    started = [event for event in events if isinstance(event, CallStart)]
    assert [event.name for event in started] == [name for name, _ in result.calls]
    return result.reasoning, result.content, result.calls


WELL = call(city="Paris")
WELL_PARSED = ParsedCall("get_weather", '{"city":"Paris"}')


@pytest.mark.parametrize("cut", [10_000, 1, 3])
@pytest.mark.parametrize(
    ("reasoning", "expected", "calls"),
    [
        (f"plan\n{WELL}", "plan", [WELL_PARSED]),
        (f"{WELL}\n{TWO}\n ", "", [WELL_PARSED, LS]),
        (f"a {WELL} b {TWO}", f"a {WELL} b", [LS]),
        (f"a {WELL}x", f"a {WELL}x", []),
        (f"a <tool_call> {TWO}", "a <tool_call>", [LS]),
        (f"plan\n{call('other')}", f"plan\n{call('other')}", []),
        (f"{WELL}{call('other')}", f"{WELL}{call('other')}", []),
        (f"{call('other')}{WELL}", call("other"), [WELL_PARSED]),
        (f"plan\n{WELL[:-1]}", f"plan\n{WELL[:-1]}", []),
        (f"{WELL}\n<tool_", f"{WELL}\n<tool_", []),
        ("plan \n", "plan \n", []),
    ],
)
def test_calls_in_reasoning_that_was_never_closed(reasoning, expected, calls, cut):
    pieces = [reasoning[at : at + cut] for at in range(0, len(reasoning), cut)]
    assert answer(pieces) == (expected, "", calls)
    assert answer([*pieces, "</think>", "ok"]) == (reasoning, "ok", [])
    assert answer([*pieces, "</think>"]) == (reasoning, "", [])
    assert answer(pieces, parse_calls=False) == (reasoning, "", [])


def test_a_call_after_closed_reasoning():
    assert answer([f"draft {WELL}", "</think>", "Now.\n", ONE]) == (f"draft {WELL}", "Now.", [PARIS])


def test_without_parsing_calls_are_text():
    assert answer([ONE], thinking=False, parse_calls=False) == ("", ONE, [])


def test_no_delta_ever_holds_a_call_that_counts():
    result = Answer(TOOLS, parse_calls=True)
    text = f"plan\n{WELL}"
    events = [event for char in text for event in result.feed([Delta(Channel.REASONING, char)], in_reasoning=True)]
    assert "".join(event.text for event in events) == "plan"
    assert [*result.finish(in_reasoning=True)] == [
        CallStart(0, "get_weather"),
        CallArguments(0, '{"city":"Paris"}'),
        CallEnd(0),
    ]
