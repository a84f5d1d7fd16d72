"""`ninfer run`: one request, content to stdout, everything else to stderr (`cli.md` 2, 3, 8 and 9)."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import NInferError, UsageError
from .engine_flags import (
    Artifact,
    Device,
    DraftTokens,
    KvCapacity,
    KvDtype,
    LmHeadDraft,
    MaxContext,
    NoPrefixReuse,
    NoProgress,
    PrefillChunk,
    Spec,
    engine_options,
)
from .flags import INT32_MAX, U64_MAX, decimal, nonempty, option, switch, unsigned, word

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..engine.generation import Generation
    from ..engine.request import Request

INTERRUPTED = 130
EFFORTS = ("low", "medium", "xhigh")


def run(
    artifact: Artifact,
    prompt: Annotated[str | None, typer.Option("--prompt", help="One user message.")] = None,
    messages: Annotated[str | None, typer.Option("--messages", help="JSON file with the conversation.")] = None,
    max_new: Annotated[int, option("--max-new", unsigned(1), "N", "Tokens to generate at most (128).")] = 128,
    max_context: MaxContext = None,
    kv_capacity: KvCapacity = None,
    kv_dtype: KvDtype = "bf16",
    prefill_chunk: PrefillChunk = 1024,
    spec: Spec = None,
    draft_tokens: DraftTokens = 0,
    lm_head_draft: LmHeadDraft = False,
    no_prefix_reuse: NoPrefixReuse = False,
    device: Device = "auto",
    no_thinking: Annotated[bool, switch("--no-thinking", "Ask for an answer without reasoning.")] = False,
    reasoning_effort: Annotated[
        str | None,
        option("--reasoning-effort", word(*EFFORTS), "|".join(EFFORTS), "If the model has it."),
    ] = None,
    temperature: Annotated[float | None, option("--temperature", decimal(0, 2), "F", "0 is greedy.")] = None,
    top_p: Annotated[float | None, option("--top-p", decimal(0, 1), "F", "Nucleus mass.")] = None,
    top_k: Annotated[
        int | None, option("--top-k", unsigned(0, INT32_MAX, "--top-k exceeds INT32_MAX"), "N", "0: no limit but 20.")
    ] = None,
    min_p: Annotated[float | None, option("--min-p", decimal(0, 1), "F", "Share of the best token.")] = None,
    presence_penalty: Annotated[float | None, option("--presence-penalty", decimal(-2, 2), "F", "Once.")] = None,
    frequency_penalty: Annotated[float | None, option("--frequency-penalty", decimal(-2, 2), "F", "Each time.")] = None,
    seed: Annotated[int | None, option("--seed", unsigned(0, U64_MAX), "N", "Seed of sampling (0).")] = None,
    greedy: Annotated[bool, switch("--greedy", "Always take the best token.")] = False,
    stop_token_id: Annotated[
        list[int] | None,
        option(
            "--stop-token-id",
            unsigned(0, INT32_MAX, "--stop-token-id exceeds the token domain"),
            "N",
            "Further stop token; repeatable.",
        ),
    ] = None,
    stop: Annotated[list[str] | None, option("--stop", nonempty, "TEXT", "Stop string; repeatable.")] = None,
    reasoning_stop: Annotated[
        list[str] | None, option("--reasoning-stop", nonempty, "TEXT", "Stop string within reasoning; repeatable.")
    ] = None,
    ignore_eos: Annotated[bool, switch("--ignore-eos", "The model's own stop tokens do not stop.")] = False,
    raw_output: Annotated[bool, switch("--raw-output", "No split, special tokens shown.")] = False,
    print_token_ids: Annotated[bool, switch("--print-token-ids", "Print the generated ids to stderr.")] = False,
    no_progress: NoProgress = False,
) -> int:
    """Answer one prompt."""
    if bool(prompt) == bool(messages):
        raise UsageError("pass exactly one of --prompt or --messages")
    if no_thinking and reasoning_effort:
        raise UsageError("--reasoning-effort cannot be combined with --no-thinking")

    from ..engine.request import Request
    from ..engine.sampling import SamplingOverrides
    from ..frontend.messages import Conversation
    from ..frontend.output import Channel, StopString

    options = engine_options(
        device=device, max_context=max_context, kv_capacity=kv_capacity, prefill_chunk=prefill_chunk,
        kv_dtype=kv_dtype, spec=spec, draft_tokens=draft_tokens, lm_head_draft=lm_head_draft,
        no_prefix_reuse=no_prefix_reuse,
    )  # fmt: skip
    sampling = SamplingOverrides(
        temperature, top_p, top_k, min_p, presence_penalty, frequency_penalty, seed, greedy
    )  # fmt: skip
    stops = [StopString(text) for text in stop or ()]
    stops += [StopString(text, Channel.REASONING) for text in reasoning_stop or ()]
    with _startup_errors():
        conversation = Conversation.from_prompt(prompt) if prompt else Conversation.from_file(messages)
        engine = _open(artifact, options, progress=not no_progress)
    with engine:
        with _startup_errors():
            ready = engine.prepare(conversation, thinking=not no_thinking, effort=reasoning_effort)
            request = Request(
                ready, max_new, sampling, tuple(stop_token_id or ()), tuple(stops), ignore_eos, raw_output
            )  # fmt: skip
            generation = engine.generate(request)
        return _generate(engine, request, generation, print_token_ids)


@contextmanager
def _startup_errors() -> Iterator[None]:
    """Whatever keeps `run` from starting is followed by the usage text."""
    try:
        yield
    except UsageError:
        raise
    except NInferError as error:
        raise UsageError(str(error)) from None


def _open(artifact: str, options: object, *, progress: bool) -> Engine:
    from ..artifact.registry import lookup
    from ..engine.engine import Engine
    from .progress import ProgressLines
    from .report import HEADER, load_lines

    path = lookup(artifact)
    print(HEADER, file=sys.stderr)
    phases = {"weights": ProgressLines("load"), "kernels": ProgressLines("load")}
    phases["text"] = ProgressLines("prefill", quiet_seconds=1.0)
    engine = Engine.open(path, options, (lambda phase, *state: phases[phase](phase, *state)) if progress else None)
    for notice in engine.notices:
        print(notice, file=sys.stderr)
    for line in load_lines(engine.load_summary()):
        print(line, file=sys.stderr)
    return engine


def _generate(engine: Engine, request: Request, generation: Generation, print_token_ids: bool) -> int:
    from ..frontend.output import FinishReason
    from .report import result_lines
    from .transcript import OutputClosed, Transcript

    transcript = Transcript()
    try:
        with _cancel_on_interrupt(generation):
            for delta in generation:
                transcript.write(delta)
            transcript.finish()
    except OutputClosed:
        generation.close()
        print("error: standard output was closed", file=sys.stderr)
        return 1
    result = generation.result
    if print_token_ids:
        print(f"{'tokens':<12}{'generated ids':<26}{' '.join(map(str, result.token_ids))}", file=sys.stderr)
    for line in result_lines(result, engine.memory_summary()):
        print(line, file=sys.stderr)
    return INTERRUPTED if result.finish_reason == FinishReason.CANCELLED else 0


@contextmanager
def _cancel_on_interrupt(generation: Generation) -> Iterator[None]:
    """Ctrl-C ends the generation at the next token, so that what was produced is still reported."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda *_: generation.cancel())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
