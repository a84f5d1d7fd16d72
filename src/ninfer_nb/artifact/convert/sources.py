"""The checkpoints of one conversion and the route of every object from them (`inventories.md` 7).

Knows the two kinds of quantised companion: one that replaces NVFP4 linears only, and one that replaces all of the text
but its embedding. Checking the checkpoints is `checks.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..directory import Identity
from ..formats import FP8_E4M3FN_ROW_BF16S, NVFP4, FormatClass, numeric_format
from ..geometry import Geometry
from ..inventory import DIVISORS, PROFILES, TensorSpec, inventory
from .checkpoint import Checkpoint
from .recipe import DFLASH, Join, join
from .routes import CopiedWords, DraftIds, EncodedRows, OwnDivisor, PackedFp8, PackedNvfp4, Route, SourceDivisor

DRAFT_HEAD = "text/draft_head"
DRAFT_IDS = "text/draft_head_token_ids"
_FROM_BASE = ("text/token_embedding", DRAFT_HEAD)
_DIVISOR_WEIGHTS = {divisor: weight for weight, divisor in DIVISORS.items()}


class Companion(Enum):
    """What a quantised checkpoint beside the base one holds."""

    NVFP4 = "NVFP4 linears"
    MIXED = "FP8 and NVFP4 linears, and all other text tensors"


def companion_kind(identity: Identity) -> Companion | None:
    """The kind of quantised checkpoint that an identity can be made from."""
    profile = PROFILES[identity]
    if profile.head == FP8_E4M3FN_ROW_BF16S:
        return Companion.MIXED
    return Companion.NVFP4 if profile.mlp_down(0) == NVFP4 else None


@dataclass(frozen=True)
class Sources:
    """Open checkpoints: the BF16 base, and where there are any, its quantised companion and the DFlash drafter."""

    base: Checkpoint
    quantized: Checkpoint | None = None
    dflash: Checkpoint | None = None

    def each(self) -> Iterator[tuple[str, Checkpoint]]:
        """Checkpoints by role."""
        for role, checkpoint in (("base", self.base), ("quantized", self.quantized), ("dflash", self.dflash)):
            if checkpoint is not None:
                yield role, checkpoint


def joins(identity: Identity, g: Geometry, draft_ids: np.ndarray) -> tuple[Join, ...]:
    """The recipes of all tensors that are joined from rows, in file order."""
    joined = (spec for spec in inventory(identity, g) if isinstance(spec, TensorSpec) and not _is_scalar(spec))
    return tuple(join(spec, g, draft_ids) for spec in joined if spec.name != DRAFT_IDS)


def routes(identity: Identity, g: Geometry, sources: Sources, draft_ids: np.ndarray) -> tuple[Route, ...]:
    """The route of every tensor, in file order."""
    kind = companion_kind(identity)
    by_name = {each.spec.name: each for each in joins(identity, g, draft_ids)}
    found: list[Route] = []
    for spec in inventory(identity, g):
        if not isinstance(spec, TensorSpec):
            continue
        if spec.name == DRAFT_IDS:
            found.append(DraftIds(spec, draft_ids))
        elif _is_scalar(spec):
            found.append(_divisor_route(spec, by_name[weight_of(spec.name)], sources))
        else:
            found.append(_route(by_name[spec.name], kind, sources))
    return tuple(found)


def weight_of(divisor: str) -> str:
    """Name of the NVFP4 weight that an input divisor belongs to."""
    text, layers, layer, role = divisor.split("/", 3)
    return "/".join((text, layers, layer, _DIVISOR_WEIGHTS[role]))


def _is_scalar(spec: TensorSpec) -> bool:
    return spec.shape == ()


def _divisor_route(spec: TensorSpec, weight: Join, sources: Sources) -> Route:
    return SourceDivisor(spec, weight, sources.quantized) if sources.quantized else OwnDivisor(spec)


def _route(join: Join, kind: Companion | None, sources: Sources) -> Route:
    spec = join.spec
    numbers = numeric_format(spec.format).kind
    if spec.name.startswith(DFLASH):
        checkpoint = sources.dflash
    elif sources.quantized is not None and spec.format == NVFP4:
        return PackedNvfp4(join, sources.quantized)
    elif sources.quantized is not None and kind is Companion.MIXED and is_companion_text(spec.name):
        if numbers is FormatClass.ROW_FLOAT:
            return PackedFp8(join, sources.quantized)
        checkpoint = sources.quantized
    else:
        checkpoint = sources.base
    return CopiedWords(join, checkpoint) if numbers is FormatClass.DIRECT else EncodedRows(join, checkpoint)


def is_companion_text(name: str) -> bool:
    """Whether a mixed companion holds this text object; embedding and draft head stay with the base."""
    return name.startswith("text/") and name not in _FROM_BASE
