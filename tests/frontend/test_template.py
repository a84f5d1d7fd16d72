"""Prompt text against transformers: recorded goldens, 300 generated conversations, and templates that misbehave."""

import json
import lzma

import pytest
from support.conversation_samples import samples
from support.frontends import DATA, LOW, XHIGH, effort_template, mini_frontend, mini_resource, qwen36_frontend
from support.golden_cases import cases

from ninfer_nb.errors import ArtifactError, RequestError
from ninfer_nb.frontend import prompt
from ninfer_nb.frontend.messages import Conversation
from ninfer_nb.frontend.template import EFFORT, TOGGLE, TOGGLE_WITHOUT_PRESERVE, ChatTemplate

RECORDED = json.loads(lzma.decompress((DATA / "prompts" / "templates.json.xz").read_bytes()))["texts"]
SAMPLES = samples(300)
TEMPLATES = {
    "mini": lambda: mini_frontend().template,
    "qwen36": lambda: qwen36_frontend().template,
    "effort": effort_template,
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_generated_conversations_render_as_transformers_renders_them(name):
    template = TEMPLATES[name]()
    assert len(RECORDED[name]) == len(SAMPLES) == 300
    for index, (sample, expected) in enumerate(zip(SAMPLES, RECORDED[name], strict=True)):
        conversation = Conversation.from_json(json.dumps(sample["document"]))
        text = prompt.render(
            template,
            conversation,
            thinking=sample["thinking"],
            preserve_thinking=sample["preserve_thinking"],
            effort=sample["effort"] if name == "effort" else None,
        )
        assert text == expected, f"conversation {index}"


def with_sources(messages):
    """The goldens name no files; the messages file format wants a source for each picture."""
    for message in messages:
        if isinstance(message["content"], list):
            parts = [part | {part["type"]: "x"} if part["type"] != "text" else part for part in message["content"]]
            message = message | {"content": parts}
        yield message


@pytest.mark.parametrize("name", cases())
def test_golden_prompts(name):
    case = cases()[name]
    document = {"messages": list(with_sources(case["messages"])), "tools": case["tools"] or []}
    conversation = Conversation.from_json(json.dumps(document))
    frontend = mini_frontend()
    text = frontend.render(conversation, thinking=case["thinking"])
    assert text == case["prompt_text"]
    if case["grid"] is None:
        prepared = frontend.prepare(conversation, thinking=case["thinking"])
        assert (prepared.text, prepared.ids, prepared.thinking) == (text, case["prompt_ids"], case["thinking"])
    elif "video" not in name:
        for frames, rows, columns in case["grid"]:
            text = text.replace("<|image_pad|>", "<picture>" * (frames * rows * columns // 4), 1)
        assert frontend.encode(text.replace("<picture>", "<|image_pad|>")) == case["prompt_ids"]
    else:
        ids = case["prompt_ids"]  # expanded by another rule than ours, see the README there
        assert frontend.encode(b"".join(map(frontend.tokenizer.token_bytes, ids)).decode()) == ids


def test_kinds():
    assert mini_frontend().template.kind is TOGGLE_WITHOUT_PRESERVE
    assert qwen36_frontend().template.kind is TOGGLE
    assert mini_frontend().efforts == qwen36_frontend().efforts == ()


USER = {"role": "user", "content": "hi"}


@pytest.mark.parametrize(
    ("effort", "lead"),
    [
        (None, f"<|im_start|>system\n{XHIGH}<|im_end|>\n"),
        ("xhigh", f"<|im_start|>system\n{XHIGH}<|im_end|>\n"),
        ("medium", ""),
        ("low", f"<|im_start|>system\n{LOW}<|im_end|>\n"),
    ],
)
def test_effort_leads_the_prompt(effort, lead):
    text = effort_template().render([USER], effort=effort)
    assert text == f"{lead}<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n"


def test_effort_shows_only_when_thinking():
    expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    assert effort_template().render([USER], thinking=False) == expected


def test_effort_refusals():
    with pytest.raises(RequestError, match=r"^loaded chat template does not support reasoning effort$"):
        qwen36_frontend().render(Conversation.from_prompt("hi"), effort="low")
    with pytest.raises(RequestError, match=r"reasoning effort high \(it offers low, medium, xhigh\)$"):
        effort_template().render([USER], effort="high")


def test_history_keeps_thinking_only_when_asked_or_after_the_last_query():
    document = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "old"},
        {"role": "user", "content": "c"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "new",
            "tool_calls": [{"name": "f", "arguments": {}}],
        },
        {"role": "tool", "content": "r"},
    ]
    conversation = Conversation.from_json(json.dumps(document))
    text = qwen36_frontend().render(conversation)
    assert "old" not in text
    assert "<|im_start|>assistant\n<think>\nnew\n</think>\n\n<tool_call>\n<function=f>\n</function>" in text
    kept = qwen36_frontend().render(conversation, preserve_thinking=True)
    assert "<think>\nold\n</think>\n\nb<|im_end|>" in kept
    assert "old" not in mini_frontend().render(conversation, preserve_thinking=True)


def test_number_literals_and_argument_order_survive():
    call = {"name": "f", "arguments": '{"b": 2.50, "a": [1e5, -0, "ü"], "n": 123456789012345678901234567890}'}
    document = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    text = qwen36_frontend().render(Conversation.from_json(json.dumps(document)))
    assert (
        "<parameter=b>\n2.50\n</parameter>\n"
        '<parameter=a>\n[1e5, -0, "ü"]\n</parameter>\n'
        "<parameter=n>\n123456789012345678901234567890\n</parameter>\n</function>"
    ) in text


def system(content):
    return f"<|im_start|>system\n{content}<|im_end|>\n"


def user(content):
    return f"<|im_start|>user\n{content}<|im_end|>\n"


PROLOGUE = "<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ("system user system user", system("0") + user("1") + system("2") + user("3")),
        ("developer user", system("0") + user("1")),
        ("user developer", user("0") + system("1")),
        ("user system developer", user("0") + system("1") + system("2")),
        ("developer developer user", system("0") + system("1") + user("2")),
        (
            "user tool system tool",
            user("0")
            + user("\n<tool_response>\n1\n</tool_response>").replace("user\n\n", "user\n")
            + system("2")
            + user("\n<tool_response>\n3\n</tool_response>").replace("user\n\n", "user\n"),
        ),
    ],
)
def test_instructions_keep_their_place(roles, expected):
    document = [{"role": role, "content": f" {index}\n"} for index, role in enumerate(roles.split())]
    assert qwen36_frontend().render(Conversation.from_json(json.dumps(document))) == expected + PROLOGUE


def test_a_later_instruction_is_no_query_and_not_empty_by_accident():
    document = [{"role": "assistant", "content": "x"}, {"role": "system", "content": "y"}]
    with pytest.raises(RequestError, match=r"^no user query found in chat messages$"):
        qwen36_frontend().render(Conversation.from_json(json.dumps(document)))
    text = qwen36_frontend().render(Conversation.from_json(json.dumps([USER, {"role": "system", "content": ""}])))
    assert text == user("hi") + system("") + PROLOGUE


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("position", [0, 1])
def test_instructions_hold_text_only(role, position):
    document = [USER, USER]
    document[position] = {"role": role, "content": [{"type": "image", "image": "x.png"}]}
    with pytest.raises(RequestError, match=r"^system and developer messages can hold text only$"):
        mini_frontend().render(Conversation.from_json(json.dumps(document)))


HOSTILE = {
    "attributes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "attribute filter": "{{ ''|attr('__class__') }}{{ (''|attr('__class__')).mro() }}",
    "globals": "{{ raise_exception.__globals__['datetime'] }}",
    "cycler": "{{ cycler.__init__.__globals__.os.system('true') }}",
    "format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format map": "{{ '{x.__class__.__init__.__globals__}'.format_map({'x': raise_exception}) }}",
    "huge range": "{% for i in range(10**9) %}{% endfor %}",
    "endless recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "mutation": "{{ messages.append(1) }}",
    "include": "{% include '/etc/passwd' %}",
    "wrong types": "{{ 1 + 'x' }}",
    "raised": "{{ raise_exception('no') }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_never_run_and_would_not_get_out(name):
    """Loading refuses them by digest; the sandbox refuses them too if they were compiled."""
    with pytest.raises(ArtifactError, match=r"^unsupported frontend/chat_template\.jinja \(sha256 [0-9a-f]{64}\)$"):
        ChatTemplate.from_resource(HOSTILE[name].encode())
    with pytest.raises(RequestError, match=r"^(chat template failed: |chat messages are nested too deeply)"):
        ChatTemplate(HOSTILE[name], TOGGLE).render([USER])


@pytest.mark.parametrize("kind", ["{% if %}", "{% for %}", "{{ x | nosuchfilter }}", "{% import 'os' %"])
def test_templates_that_do_not_compile(kind):
    with pytest.raises(ArtifactError, match=r"^frontend/chat_template\.jinja: line 1: "):
        ChatTemplate(kind, TOGGLE)


def test_one_changed_byte_is_another_template():
    with pytest.raises(ArtifactError, match="unsupported"):
        ChatTemplate.from_resource(mini_resource("chat_template.jinja") + b"\n")


def test_text_of_messages_is_never_a_template():
    text = "{{ 7 * 7 }}{% raw %}{0.__class__}%(x)s<&>"
    assert user(text) in mini_frontend().render(Conversation.from_prompt(text))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% if i == 3 %}{% break %}{% endif %}"
         "{% endfor %}", "013"),
        ("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c", "abhic"),
        ("{{ strftime_now('%%') }}", "%"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
        ("{{ {'<': 'ü\\u2028', 'n': [1, 2.5, none, true]} | tojson }}", '{"<": "ü\u2028", "n": [1, 2.5, null, true]}'),
        ("{{ tools }}{{ tools is none }}{{ reasoning_effort is defined }}", "NoneTrueFalse"),
    ],
)  # fmt: skip
def test_environment_is_that_of_transformers(source, expected):
    assert ChatTemplate(source, EFFORT).render([USER]) == expected
