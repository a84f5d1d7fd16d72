"""Published artifacts and their short names, from `artifacts.toml` (`cli.md` 1.11 and 7)."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..errors import UsageError
from .directory import Identity

PACKAGE = Path(__file__).parents[1]
SUFFIX = ".ninfer"


@dataclass(frozen=True)
class Published:
    """One published file. `bundled` is its place below the package, for files that come with it."""

    name: str
    identity: Identity
    file: str
    bytes: int
    sha256: str
    source: str
    bundled: str | None = None

    @property
    def bundled_path(self) -> Path | None:
        return PACKAGE / self.bundled if self.bundled else None


@cache
def published() -> tuple[Published, ...]:
    """All rows of `artifacts.toml`, in file order."""
    rows = tomllib.loads(_table().read_text())["artifact"]
    return tuple(
        Published(
            row["name"],
            Identity(row["model_id"], row["weights_id"]),
            row["file"],
            row["bytes"],
            row["sha256"],
            row["source"],
            row.get("bundled"),
        )
        for row in rows
    )


def _table() -> Path:
    """The table beside the package: copied into a wheel, at the top of a source tree."""
    installed = PACKAGE / "artifacts.toml"
    return installed if installed.exists() else PACKAGE.parents[1] / "artifacts.toml"


def known(identity: Identity) -> Published | None:
    """The published file of an identity."""
    return next((row for row in published() if row.identity == identity), None)


def lookup(argument: str) -> Path:
    """Path of an artifact argument: a path, or the short name of a bundled file. UsageError for anything else."""
    is_path = "/" in argument or "\\" in argument or argument.endswith(SUFFIX)
    if is_path:
        if argument.endswith(SUFFIX):
            return Path(argument)
        raise UsageError(f"NInfer accepts only .ninfer artifacts, got {argument}; {_names()}")
    row = next((row for row in published() if row.name == argument), None)
    if row is None:
        raise UsageError(f"NInfer accepts only .ninfer artifacts, got {argument!r}; {_names()}")
    if row.bundled_path is None:
        raise UsageError(
            f"artifact '{row.name}' is not bundled; get {row.file} ({row.bytes} bytes) from {row.source} "
            "and pass its path"
        )
    return row.bundled_path


def _names() -> str:
    return "short names: " + ", ".join(row.name for row in published())
