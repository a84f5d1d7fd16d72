"""`ninfer artifact convert`, and the flags of source checkpoints that `verify` shares with it (`cli.md` 10)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from .flags import nonempty, option, word

if TYPE_CHECKING:
    from ..artifact.convert import Request
    from ..artifact.directory import Identity

Nvfp4Model = Annotated[
    str | None, option("--nvfp4-model", nonempty, "DIR", "Checkpoint with the NVFP4 linears (nvfp4, nvfp4-split).")
]
QuantizedModel = Annotated[
    str | None, option("--quantized-model", nonempty, "DIR", "Checkpoint with FP8 and NVFP4 linears (Qwen3.8 nvfp4).")
]
DflashModel = Annotated[
    str | None, option("--dflash-model", nonempty, "DIR", "Checkpoint of the DFlash drafter (35B-A3B).")
]
Ranking = Annotated[
    str | None, option("--ranking", nonempty, "FILE", "Token counts that choose the draft head's rows (int64).")
]


def convert(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="MODEL_ID/WEIGHTS_ID.", show_default=False)],
    model: Annotated[str, option("--model", nonempty, "DIR", "The BF16 checkpoint.")],
    out: Annotated[str, option("--out", nonempty, "FILE", "The .ninfer file to write; it must not exist.")],
    nvfp4_model: Nvfp4Model = None,
    quantized_model: QuantizedModel = None,
    dflash_model: DflashModel = None,
    ranking: Ranking = None,
    device: Annotated[str, option("--device", word("cpu", "cuda"), "NAME", "cpu; cuda falls back to it.")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print the conversion report as JSON.")] = False,
) -> None:
    """Make a .ninfer file. Without a quantised checkpoint NVFP4 and FP8 weights are encoded from the BF16 ones."""
    from ..artifact.convert import convert as run
    from ..artifact.convert import report_path
    from .progress import bar

    if not out.endswith(".ninfer"):
        raise UsageError(f"NInfer accepts only .ninfer artifacts, got {out}")
    request = source_request(parse_target(target), model, nvfp4_model, quantized_model, dflash_model, ranking)
    if device == "cuda":
        print("the encoders run on the CPU", file=sys.stderr)
    with bar("convert") as progress:
        report = run(request, Path(out), progress)
    if as_json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
        return
    print(f"converted: {target} ({out}, {report['file_bytes']} bytes, {report['elapsed_seconds']} s)")
    for source, count in report["made_by"].items():
        print(f"{source}: {count}")
    print(f"report: {report_path(Path(out))}")


def parse_target(target: str) -> Identity:
    """`MODEL_ID/WEIGHTS_ID`, which must be registered."""
    from ..artifact.directory import Identity
    from ..artifact.inventory import PROFILES

    identity = Identity(*target.split("/")) if target.count("/") == 1 else None
    if identity not in PROFILES:
        known = ", ".join(str(each) for each in PROFILES)
        raise UsageError(f"invalid TARGET: {target}; registered: {known}")
    return identity


def source_request(
    identity: Identity,
    model: str,
    nvfp4_model: str | None = None,
    quantized_model: str | None = None,
    dflash_model: str | None = None,
    ranking: str | None = None,
) -> Request:
    """The sources of a conversion; UsageError for a second checkpoint that the identity is not made from."""
    from ..artifact.convert import Companion, Request, companion_kind

    kind = companion_kind(identity)
    for flag, value, wanted in (
        ("--nvfp4-model", nvfp4_model, Companion.NVFP4),
        ("--quantized-model", quantized_model, Companion.MIXED),
    ):
        if value and kind is not wanted:
            raise UsageError(f"{flag} does not go with {identity}")
    paths = (model, nvfp4_model or quantized_model, dflash_model, ranking)
    return Request(identity, *(Path(path) if path else None for path in paths))
