"""Generated conversations for template tests: the same seed gives the same messages documents on every machine."""

from __future__ import annotations

import json
from random import Random
from typing import Any

WORDS = (
    "Hello", "naïve", "Größe", "данные", "数据", "テスト", "한국어", "שלום", "مرحبا", "हिन्दी", "ไทย", "😀",
    "👩‍👩‍👧", "e\u0301", "\u200d", "\ufeff", "\u2028", "\x85", "\x1c", "\x00", "\u202e", "<b>&'\"</b>",
    "{{ messages }}", "{% raise %}", "\\n", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>",
    "</tool_response>", "<tool_response>", "%s", "{0.__class__}", "null", "True", "12", "3.5",
)  # fmt: skip
SPACES = (" ", "\n", "", "\t", "\n\n", "\u3000", " \r\n")
NAMES = ("get_weather", "search-web", "f", "run_2")
KEYS = ("city", "days", "größe", "a b", "x<y", "items", "name", "")


class Sampler:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def text(self, longest: int = 6) -> str:
        """Words and odd white space; often empty, sometimes blank."""
        random = self.random
        pieces = [random.choice(SPACES)]
        for _ in range(random.randrange(longest + 1)):
            pieces += [random.choice(WORDS), random.choice(SPACES)]
        return "".join(pieces)

    def query(self) -> str:
        return "Why " + self.text()

    def json_value(self, depth: int = 3) -> Any:
        random = self.random
        kind = random.randrange(8 if depth else 6)
        if kind == 6:
            return [self.json_value(depth - 1) for _ in range(random.randrange(4))]
        if kind == 7:
            return {random.choice(KEYS): self.json_value(depth - 1) for _ in range(random.randrange(4))}
        scalars = (
            self.text(2),
            random.randrange(-(10**20), 10**20),
            random.uniform(-1, 1) * 10 ** random.randrange(25),
        )
        return (*scalars, random.random() < 0.5, None, random.randrange(100))[kind]

    def content(self, media: bool = False) -> Any:
        """A string, or text parts with images and videos among them when `media`."""
        random = self.random
        if random.random() < 0.7:
            return self.text()
        parts: list[dict[str, Any]] = []
        for _ in range(random.randint(1, 4)):
            kind = random.randrange(5) if media else 4
            if kind == 0:
                parts.append({"type": "image", "image": "picture.png"})
            elif kind == 1:
                parts.append({"type": "image_url", "image_url": {"url": "https://example.org/a.png"}})
            elif kind == 2:
                parts.append({"type": "video", "video": "clip.mp4"})
            else:
                parts.append({"type": "text", "text": self.text(3)})
        return parts

    def call(self) -> dict[str, Any]:
        random = self.random
        arguments: Any = {random.choice(KEYS): self.json_value() for _ in range(random.randrange(4))}
        if random.random() < 0.5:
            arguments = json.dumps(arguments, ensure_ascii=random.random() < 0.5)
        function = {"name": random.choice(NAMES), "arguments": arguments}
        return random.choice((function, {"id": "call_1", "type": "function", "function": function}))

    def assistant(self) -> dict[str, Any]:
        random = self.random
        message: dict[str, Any] = {"role": "assistant", "content": self.content()}
        if random.random() < 0.5:
            message["reasoning_content"] = self.text()
        elif random.random() < 0.4:
            message["content"] = f"<think>\n{self.text()}\n</think>\n\n{self.text()}"
        if random.random() < 0.4:
            message["tool_calls"] = [self.call() for _ in range(random.randint(1, 3))]
            if random.random() < 0.4:
                message["content"] = None
        return message

    def document(self) -> dict[str, Any]:
        """A messages document that every template accepts: one real user query at least, system only in front."""
        random = self.random
        messages: list[dict[str, Any]] = []
        if random.random() < 0.5:
            messages.append({"role": "system", "content": self.content()})
        at = random.randrange(4)
        for turn in range(random.randint(at + 1, 7)):
            kind = random.randrange(4)
            if turn == at:
                messages.append({"role": "user", "content": self.query()})
            elif kind == 0:
                messages.append({"role": "user", "content": self.content(media=True)})
            elif kind == 1:
                messages.append({"role": "tool", "content": self.content(media=True)})
            elif kind == 2 and random.random() < 0.3:
                messages.append({"role": "user", "content": f" <tool_response>{self.text()}</tool_response>\n"})
            else:
                messages.append(self.assistant())
        document: dict[str, Any] = {"messages": messages}
        if random.random() < 0.5:
            document["tools"] = [self.tool() for _ in range(random.randint(0, 3))]
        return document

    def tool(self) -> dict[str, Any]:
        random = self.random
        properties = {random.choice(KEYS): {"type": "string", "description": self.text()} for _ in range(3)}
        function: dict[str, Any] = {"name": random.choice(NAMES), "description": self.text()}
        function["parameters"] = {
            "type": "object",
            "properties": properties,
            "required": [],
            "default": self.json_value(),
        }
        members = [("type", "function"), ("function", function)]
        random.shuffle(members)
        return dict(members)


def samples(count: int) -> list[dict[str, Any]]:
    """Documents with their template options: {document, thinking, preserve_thinking, effort}."""
    found = []
    for seed in range(count):
        sampler = Sampler(seed)
        document = sampler.document()
        options = {
            "thinking": sampler.random.random() < 0.6,
            "preserve_thinking": sampler.random.random() < 0.4,
            "effort": sampler.random.choice((None, "low", "medium", "xhigh")),
        }
        found.append({"document": document, **options})
    return found
