"""`ninfer artifact …`: look at, check and edit `.ninfer` files (`cli.md` 10)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..errors import UsageError
from .convert import DflashModel, Nvfp4Model, QuantizedModel, Ranking, convert, source_request
from .flags import nonempty, option

app = typer.Typer(
    help="Look at, check, edit and make .ninfer files.",
    no_args_is_help=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

File = Annotated[str, typer.Argument(metavar="FILE", help="A .ninfer file or a short name.", show_default=False)]
FilePath = Annotated[str, typer.Argument(metavar="FILE", help="A .ninfer file.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


@app.command("inspect")
def inspect(
    file: File,
    objects: Annotated[bool, typer.Option("--objects", help="Add one line per object.")] = False,
    as_json: Json = False,
) -> None:
    """Print identity and contents; reads the directory only."""
    from ..artifact.inspect import lines
    from ..artifact.registry import lookup

    for line in lines(lookup(file), objects=objects, as_json=as_json):
        print(line)


@app.command("verify")
def verify(
    file: File,
    digest: Annotated[bool, typer.Option("--digest", help="Compare the SHA-256 with the published one.")] = False,
    model: Annotated[
        str | None, option("--model", nonempty, "DIR", "Convert this BF16 checkpoint again and compare every byte.")
    ] = None,
    nvfp4_model: Nvfp4Model = None,
    quantized_model: QuantizedModel = None,
    dflash_model: DflashModel = None,
    ranking: Ranking = None,
    as_json: Json = False,
) -> None:
    """Check structure, exact inventory, size and, if asked, the digest, or the payload against its sources."""
    from ..artifact.registry import lookup
    from ..artifact.verify import verify as check
    from .progress import bar

    if model is None and (nvfp4_model or quantized_model or dflash_model or ranking):
        raise UsageError("the other checkpoints and --ranking need --model")
    path = lookup(file)
    with bar("sha256") as progress:
        found = check(path, digest=digest, progress=progress)
    if model is not None:
        from ..artifact.convert import compare

        sources = (model, nvfp4_model, quantized_model, dflash_model, ranking)
        with bar("compare") as progress:
            compared = compare(path, source_request(found.directory.identity, *sources), progress)
        print(json.dumps(found.summary() | compared, indent=2, sort_keys=True, ensure_ascii=False))
        return
    if as_json:
        print(json.dumps(found.summary(), indent=2, ensure_ascii=False))
        return
    summary = found.summary()
    print(f"identity: {found.directory.identity}")
    print(f"objects: {summary['objects']} ({summary['tensors']} tensors, {summary['resources']} resources)")
    print(f"file_bytes: {summary['file_bytes']}")
    print(f"sha256: {found.sha256 or 'not computed (--digest)'}")
    print("ok")


@app.command("relabel")
def relabel(
    file: FilePath,
    weights_id: Annotated[str, option("--weights-id", nonempty, "ID", "The new weights_id.")],
    out: Annotated[str | None, option("--out", nonempty, "FILE", "Write a new file instead.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Correct the weights_id of a split-storage Qwen3.8 file; the payload stays as it is."""
    from ..artifact.relabel import relabel as change
    from .progress import bar

    path = _path(file)
    if out is None and not yes and sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(f"Change the identity of {path} in place?", abort=True, err=True)
    with bar("copy") as progress:
        done = change(path, weights_id, _path(out) if out else None, progress)
    verb = "relabelled" if done.changed else "already"
    print(f"{verb}: {done.identity} ({done.path})")


app.command("convert")(convert)
app.command("relabel-identity", hidden=True)(relabel)


@app.command("migrate")
def migrate(file: FilePath) -> None:
    """Bring a published version 1 file to version 2 in place; the payload stays as it is."""
    from ..artifact.migrate import migrate as change
    from .progress import bar

    path = _path(file)
    with bar("sha256") as progress:
        done = change(path, progress=progress)
    print(f"migrated in place: {done.identity} ({path})" if done.changed else f"already v2: {done.identity}")


def _path(argument: str) -> Path:
    """A path and never a short name: bundled files are read-only."""
    if not argument.endswith(".ninfer"):
        raise UsageError(f"NInfer accepts only .ninfer artifacts, got {argument}")
    return Path(argument)
