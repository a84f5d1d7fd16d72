"""The artifact's chat template, rendered the way transformers renders one (`serving.md` 9).

Only templates whose SHA-256 is registered here are ever compiled, so no unknown template code runs; the sandbox is a
second line. Knows nothing of conversations: it takes the plain message dicts that a template reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import ArtifactError, RequestError
from .jsontext import dumps

TEMPLATE_RESOURCE = "frontend/chat_template.jinja"

_NO_QUERY = "No user query found in messages."


@dataclass(frozen=True)
class TemplateKind:
    """What a registered template can do. `efforts` lists the reasoning efforts it offers, weakest first."""

    efforts: tuple[str, ...] = ()
    preserves_thinking: bool = True  # whether `preserve_thinking` has an effect


TOGGLE = TemplateKind()
EFFORT = TemplateKind(efforts=("low", "medium", "xhigh"))
TOGGLE_WITHOUT_PRESERVE = TemplateKind(preserves_thinking=False)

REGISTERED = {
    "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259": TOGGLE,  # Qwen3.6
    "c3cf9e34abf4f9e36c2d72165aa9c132d3e2a725b6c2586aaa3a8af9d7a81041": EFFORT,  # Qwen3.8
    "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715": TOGGLE_WITHOUT_PRESERVE,  # Qwen3.5, mini
}


class _GenerationTag(Extension):
    """`{% generation %}` marks assistant text for training masks; rendering passes its body through."""

    tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as a plain class attribute)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = lambda value: dumps(value)  # jinja2's own escapes HTML and non-ASCII
    helpers: dict[str, Callable[..., Any]] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    environment.globals.update(helpers)
    return environment


class ChatTemplate:
    """A compiled template. Immutable and safe to share between threads."""

    def __init__(self, source: str, kind: TemplateKind) -> None:
        """Raises ArtifactError for a template that does not compile."""
        self.kind = kind
        try:
            self._template = _environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ArtifactError(f"{TEMPLATE_RESOURCE}: line {error.lineno}: {error.message}") from None

    @classmethod
    def from_resource(cls, data: bytes) -> ChatTemplate:
        """`data` is the `frontend/chat_template.jinja` resource. Raises ArtifactError unless it is registered."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in REGISTERED:
            raise ArtifactError(f"unsupported {TEMPLATE_RESOURCE} (sha256 {digest})")
        return cls(data.decode(), REGISTERED[digest])

    def check_effort(self, effort: str | None) -> None:
        """Raises RequestError for a reasoning effort that this template does not offer."""
        if effort is None or effort in self.kind.efforts:
            return
        if not self.kind.efforts:
            raise RequestError("loaded chat template does not support reasoning effort")
        offered = ", ".join(self.kind.efforts)
        raise RequestError(f"loaded chat template does not support reasoning effort {effort} (it offers {offered})")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Any] = (),
        *,
        thinking: bool = True,
        effort: str | None = None,
        preserve_thinking: bool = False,
    ) -> str:
        """Prompt text of `messages` (dicts with role, content, reasoning_content, tool_calls) and tool objects.

        Raises RequestError for an effort that is not offered and for what the template refuses.
        """
        self.check_effort(effort)
        options = {} if effort is None else {"reasoning_effort": effort}
        try:
            return self._template.render(
                messages=list(messages),
                tools=list(tools) or None,
                add_generation_prompt=True,
                enable_thinking=thinking,
                preserve_thinking=preserve_thinking,
                **options,
            )
        except RecursionError:
            raise RequestError("chat messages are nested too deeply") from None
        except Exception as error:  # whatever template code raises, TypeError and OverflowError included
            text = str(error)
            message = "no user query found in chat messages" if text == _NO_QUERY else f"chat template failed: {text}"
            raise RequestError(message) from None
