"""The command tree, and the one form of every error (`cli.md` 1).

To add a command, write its module with a plain function of Typer parameters that imports what is heavy inside, and
register it in `build`. A function returns its exit status, or None for 0; expected failures are NInferError.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import typer

from ..errors import NInferError, UsageError
from .flags import BadValue

INTERRUPTED = 130


def build() -> typer.Typer:
    """All commands."""
    from . import artifact, plan, run, serve

    app = typer.Typer(
        name="ninfer",
        no_args_is_help=False,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    app.command("run", help="Answer one prompt.")(run.run)
    app.command("serve", help="Serve the OpenAI and Anthropic protocols over HTTP.")(serve.serve)
    app.command("plan", help="Show the memory that an engine would take.")(plan.plan)
    app.add_typer(artifact.app, name="artifact")
    return app


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"ninfer {version('ninfer-nb')}")
        raise typer.Exit()


def _options(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_version, help="Print the version."),
) -> None:
    """Run Qwen3.x models from .ninfer artifacts."""


def run_command(arguments: list[str]) -> int:
    """Run `ninfer ARGUMENTS`; returns the exit status and never raises for what a user can cause."""
    open_streams()
    command = typer.main.get_command(build())
    try:
        return command.main(arguments, prog_name="ninfer", standalone_mode=False) or 0
    except (UsageError, BadValue) as error:
        return _fail(str(error), usage(command, arguments))
    except NInferError as error:
        return _fail(str(error))
    except _command_line_errors() as error:
        return _fail(describe(error), usage(command, arguments))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:
        return _fail(_system_error(error))


def open_streams() -> None:
    """Give the process the standard streams its caller closed: what is written to them is lost, not an error.

    The descriptors themselves are taken first, or a file opened later would become one of them.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115 - lives as long as the process


def _fail(message: str, more: str | None = None) -> int:
    print(f"error: {message}", file=sys.stderr)
    if more:
        print(more, file=sys.stderr)
    return 1


def _command_line_errors() -> type[Exception]:
    """Click's base exception: Typer brings its own copy of Click in some versions and the real one in others."""
    return next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def usage(command: Any, arguments: list[str]) -> str:
    """Usage of the (sub-)command that `arguments` name."""
    context = command.make_context("ninfer", [], resilient_parsing=True)
    for word in arguments:
        child = command.get_command(context, word) if hasattr(command, "get_command") else None
        if child is None:
            break
        command, context = child, child.make_context(word, [], parent=context, resilient_parsing=True)
    return f"{context.get_usage()}\nTry '{context.command_path} --help' for all flags."


def describe(error: Any) -> str:
    """A command-line error in this program's words."""
    kind = type(error).__name__
    if kind == "NoSuchOption":
        return f"unknown argument: {error.option_name}"
    if kind == "BadOptionUsage":
        takes_none = "does not take a value" in error.message
        return f"{error.option_name} {'takes no value' if takes_none else 'needs a value'}"
    if kind == "MissingParameter" and error.param is not None:
        is_argument = error.param.param_type_name == "argument"
        return f"missing {error.param.name.upper() if is_argument else error.param.opts[0]}"
    message = error.message.rstrip(".")
    if "unexpected extra argument" in message:
        return "unknown argument: " + message[message.rindex("(") + 1 :].rstrip(")").split(" ")[0]
    if message.startswith("No such command"):
        return "unknown command: " + message.partition("'")[2].partition("'")[0]
    return "missing COMMAND" if message.startswith("Missing command") else message


def _system_error(error: OSError) -> str:
    where = f" {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{':' if where else ''}{where}"
