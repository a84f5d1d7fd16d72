"""The messages file: what it may hold, and the sentence for everything that it may not."""

import json

import pytest

from ninfer_nb.errors import RequestError
from ninfer_nb.frontend.jsontext import NumberLiteral
from ninfer_nb.frontend.messages import (
    Conversation,
    MediaKind,
    MediaPart,
    Message,
    Role,
    SourceKind,
    TextPart,
    ToolCall,
)


def parse(document) -> Conversation:
    return Conversation.from_json(document if isinstance(document, str) else json.dumps(document))


def one(message: dict) -> Message:
    (parsed,) = parse([message]).messages
    return parsed


USER = {"role": "user", "content": "hi"}
CALL = {"name": "f", "arguments": {}}


def assistant(**members):
    return {"role": "assistant", "content": "x", **members}


def part(**members):
    return {"role": "user", "content": [members]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "failed to parse messages JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[{]", "failed to parse messages JSON: "),
        ('[{"role": NaN}]', "failed to parse messages JSON: NaN is not JSON"),
        ("[" * 300 + "]" * 300, "failed to parse messages JSON: JSON is nested too deeply"),
        ("[" * 100_000, "failed to parse messages JSON: JSON is nested too deeply"),
        ([], "messages JSON must be a non-empty array"),
        ("null", "messages JSON must be a non-empty array"),
        ('"hi"', "messages JSON must be a non-empty array"),
        ({"messages": []}, "messages JSON must be a non-empty array"),
        ({"messages": {"role": "user"}}, "messages JSON must be a non-empty array"),
        ({}, "messages JSON object must contain messages"),
        ({"tools": []}, "messages JSON object must contain messages"),
        ({"messages": [USER], "tools": {}}, "messages JSON tools must be an array"),
        ({"messages": [USER], "tools": None}, "messages JSON tools must be an array"),
        (["hi"], "message 0 must be an object"),
        ([USER, {"role": "user", "content": "x", "name": "n"}], "message 1 contains unsupported field: name"),
        ([{"content": "x"}], "message 0 must contain role"),
        ([{"role": "user"}], "message 0 must contain content"),
        ([{"role": 1, "content": "x"}], "message 0 role must be a string"),
        ([{"role": "function", "content": "x"}], "unsupported chat role: function"),
        ([{"role": "User", "content": "x"}], "unsupported chat role: User"),
        ([{"role": "user", "content": None}], "message 0 has empty content"),
        ([{"role": "user", "content": []}], "message 0 has empty content"),
        ([assistant(content=None)], "message 0 has empty content"),
        ([{"role": "user", "content": 5}], "message 0 content must be a string, null or a non-empty array"),
        ([{"role": "user", "content": {"text": "x"}}], "message 0 content must be a string, null or a non-empty array"),
        ([{"role": "user", "content": ["x"]}], "message 0 content part 0 must be an object"),
        ([part(type="text")], "message 0 content part 0 text must be a string"),
        ([part(text=3)], "message 0 content part 0 text must be a string"),
        ([part(type="audio")], "message 0 content part 0 must be text, image or video, not type audio"),
        ([part()], "message 0 content part 0 must be text, image or video, not type None"),
        ([part(type="image")], "message 0 content part 0 has no media source"),
        ([part(image="")], "message 0 content part 0 has no media source"),
        ([part(image_url={"uri": "x"})], "message 0 content part 0 has no media source"),
        ([part(video_url=7)], "message 0 content part 0 has no media source"),
        ([part(image="x", media_type=1)], "message 0 content part 0 media_type must be a string"),
        ([assistant(reasoning_content=None)], "message 0 reasoning_content must be a string"),
        ([{**USER, "tool_calls": [CALL]}], "message 0 tool_calls is only allowed in assistant messages"),
        ([assistant(tool_calls=[])], "message 0 tool_calls must be a non-empty array"),
        ([assistant(tool_calls={})], "message 0 tool_calls must be a non-empty array"),
        ([assistant(tool_calls=["f"])], "message 0 tool call 0 must be an object"),
        ([assistant(tool_calls=[CALL, {"function": "f"}])], "message 0 tool call 1 function must be an object"),
        ([assistant(tool_calls=[{"arguments": {}}])], "message 0 tool call 0 name must be a non-empty string"),
        ([assistant(tool_calls=[{"name": "f"}])], "message 0 tool call 0 must contain arguments"),
        (
            [assistant(tool_calls=[{**CALL, "arguments": "[1]"}])],
            "message 0 tool call 0 arguments must be a JSON object",
        ),
        (
            [assistant(tool_calls=[{**CALL, "arguments": None}])],
            "message 0 tool call 0 arguments must be a JSON object",
        ),
        ([assistant(tool_calls=[{**CALL, "arguments": "{"}])], "message 0 tool call 0 arguments are not JSON: "),
        ([assistant(tool_calls=[{**CALL, "id": 5}])], "message 0 tool call 0 id must be a string"),
        ([{**USER, "tool_call_id": "c"}], "message 0 tool_call_id is only allowed in tool messages"),
        ([{"role": "tool", "content": "x", "tool_call_id": 1}], "message 0 tool_call_id must be a string"),
    ],
)
def test_refusals(document, message):
    with pytest.raises(RequestError) as caught:
        parse(document)
    text = str(caught.value)
    assert text.startswith(message) if message.endswith(": ") else text == message


def test_from_file(tmp_path):
    path = tmp_path / "m.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps([{"role": "user", "content": "ü"}], ensure_ascii=False).encode())
    assert Conversation.from_file(path) == Conversation.from_prompt("ü")
    path.write_bytes(b'["\xff"]')
    with pytest.raises(RequestError, match=r"^failed to parse messages JSON: byte 2 is not UTF-8$"):
        Conversation.from_file(path)
    with pytest.raises(RequestError, match=r"^failed to open messages JSON: .*none\.json: No such file or directory$"):
        Conversation.from_file(tmp_path / "none.json")
    with pytest.raises(RequestError, match=r"^failed to open messages JSON: .*: Is a directory$"):
        Conversation.from_file(tmp_path)
    with pytest.raises(RequestError, match=r"^failed to open messages JSON: 'a\\x00b' is not a path$"):
        Conversation.from_file("a\0b")


def test_text_parts_follow_without_separator():
    message = one(
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"text": "b"}, {"type": "text", "text": ""}]}
    )
    assert message.parts == (TextPart("a"), TextPart("b"), TextPart(""))
    assert message.text == "ab"


def test_an_empty_string_is_content():
    assert one({"role": "user", "content": ""}).parts == (TextPart(""),)


def test_content_may_be_null_beside_tool_calls():
    message = one({"role": "assistant", "content": None, "tool_calls": [CALL]})
    assert message.parts == () and message.text == ""


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"type": "image", "image": "a/b.png"}, ("image", "path", "a/b.png", None)),
        ({"image": "file:///a.png"}, ("image", "path", "/a.png", None)),
        ({"type": "image_url", "image_url": "https://x/y"}, ("image", "url", "https://x/y", None)),
        ({"image_url": {"url": "http://x", "detail": "low"}}, ("image", "url", "http://x", None)),
        ({"type": "image", "image": 3, "image_url": {"url": "q"}}, ("image", "path", "q", None)),
        ({"type": "video", "video": "c.mp4", "media_type": "video/mp4"}, ("video", "path", "c.mp4", "video/mp4")),
        ({"type": "video_url", "video_url": {"url": "c"}}, ("video", "path", "c", None)),
        ({"image": "data:image/png;base64,AA=="}, ("image", "data", "data:image/png;base64,AA==", "image/png")),
        ({"image": "data:image/gif,AA"}, ("image", "data", "data:image/gif,AA", "image/gif")),
        ({"image": "data:image/gif,AA", "media_type": "x/y"}, ("image", "data", "data:image/gif,AA", "x/y")),
        ({"image": "HTTP://x"}, ("image", "path", "HTTP://x", None)),
    ],
)
def test_media_sources(members, expected):
    kind, source, location, media_type = expected
    conversation = parse([part(**members)])
    assert conversation.messages[0].parts == (MediaPart(MediaKind(kind), SourceKind(source), location, media_type),)
    assert conversation.has_media


def test_tool_calls_and_results():
    calls = [
        {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2.50}'}},
        {"name": "g", "arguments": {"z": None, "y": []}},
        {"name": "h", "arguments": ""},
    ]
    conversation = parse(
        [
            assistant(tool_calls=calls, reasoning_content="because"),
            {"role": "tool", "content": "r", "tool_call_id": "c1"},
        ]
    )
    first, second = conversation.messages
    assert first.reasoning == "because"
    assert [(call.name, call.id) for call in first.tool_calls] == [("f", "c1"), ("g", None), ("h", None)]
    assert list(first.tool_calls[0].arguments) == ["b", "a"]
    literal = first.tool_calls[0].arguments["a"]
    assert isinstance(literal, NumberLiteral) and str(literal) == "2.50"
    assert first.tool_calls[1] == ToolCall("g", {"z": None, "y": []})
    assert first.tool_calls[2].arguments == {}
    assert (second.role, second.tool_call_id, second.text) == (Role.TOOL, "c1", "r")


def test_object_root_with_tools_and_other_keys():
    tool = {"function": {"name": "f"}, "type": "function", "x": 1}
    conversation = parse({"model": "m", "messages": [USER], "tools": [tool], "temperature": 2})
    assert conversation.tools == (tool,)
    assert list(conversation.tools[0]) == ["function", "type", "x"]


@pytest.mark.parametrize(
    ("document", "capable"),
    [
        ([USER], False),
        ({"messages": [USER], "tools": []}, False),
        ({"messages": [USER], "tools": [{}]}, True),
        ([USER, assistant(tool_calls=[CALL])], True),
        ([USER, {"role": "tool", "content": "x"}], True),
    ],
)
def test_tool_capable(document, capable):
    assert parse(document).tool_capable is capable
