"""Complete check of the source checkpoints before anything is written (`inventories.md` 7.6).

Names, dtypes, shapes and divisors; legality of the words of quantised linears is checked as they are joined.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ...errors import ArtifactError
from .checkpoint import Checkpoint
from .recipe import DFLASH, Join, Part
from .routes import (
    CopiedWords,
    EncodedRows,
    Need,
    PackedFp8,
    PackedNvfp4,
    Route,
    common_divisor,
    float_needs,
    linear_of,
)
from .sources import Companion, Sources

_QUANTIZED_FIELDS = ("weight_packed", "weight_scale", "weight_global_scale", "input_global_scale")
_QUANTIZED_DTYPES = ("F8_E4M3", "F32", "U8")
_IGNORED_SCALES = (".k_scale", ".v_scale")  # of a quantised KV cache
_BLOCK_BYTES = 1 << 22


def check_tensors(sources: Sources, kind: Companion | None, joins: Iterable[Join], routes: Iterable[Route]) -> None:
    """Every checkpoint holds what the recipe reads, and the base and drafter nothing else.

    Raises ArtifactError naming the tensor.
    """
    joins, routes = tuple(joins), tuple(routes)
    check_exact(sources.base, _needs(joins, drafter=False))
    if sources.dflash is not None:
        check_exact(sources.dflash, _needs(joins, drafter=True))
    if sources.quantized is not None:
        _check_companion(sources, kind, routes)


def check_exact(checkpoint: Checkpoint, needs: dict[str, Need]) -> None:
    """The checkpoint has exactly these tensors."""
    check_present(checkpoint, needs.values())
    for name in checkpoint.tensors:
        if name not in needs:
            raise ArtifactError(f"{checkpoint.folder}: tensor {name} is not part of the model")


def check_present(checkpoint: Checkpoint, needs: Iterable[Need]) -> None:
    """The checkpoint has these tensors, with the right dtype and shape."""
    for need in needs:
        tensor = checkpoint.tensors.get(need.tensor)
        if tensor is None:
            raise ArtifactError(f"{checkpoint.folder}: tensor {need.tensor} is missing")
        if tensor.dtype not in need.dtypes:
            expected = " or ".join(need.dtypes)
            raise ArtifactError(f"{tensor.file}: tensor {need.tensor} is {tensor.dtype}; expected {expected}")
        if tensor.shape != need.shape:
            raise ArtifactError(
                f"{tensor.file}: tensor {need.tensor} has shape {list(tensor.shape)}; expected {list(need.shape)}"
            )


def _needs(joins: Iterable[Join], drafter: bool) -> dict[str, Need]:
    wanted = (each for each in joins if each.spec.name.startswith(DFLASH) == drafter)
    return {need.tensor: need for each in wanted for need in float_needs(each)}


def _check_companion(sources: Sources, kind: Companion | None, routes: tuple[Route, ...]) -> None:
    quantized = sources.quantized
    needs = {need.tensor: need for route in routes if route.checkpoint is quantized for need in route.needs}
    check_present(quantized, needs.values())
    for route in routes:
        if isinstance(route, PackedNvfp4):
            _check_nvfp4_linears(quantized, route)
        elif isinstance(route, PackedFp8):
            _check_absent(quantized, route.join.parts, ("weight_packed", "weight_global_scale", "input_global_scale"))
        elif _is_text_linear(route):
            _check_absent(quantized, route.join.parts, _QUANTIZED_FIELDS)
            if kind is Companion.NVFP4:
                _check_equal(sources, route)
    if kind is Companion.MIXED:
        for tensor in quantized.tensors.values():
            is_quantized = tensor.dtype in _QUANTIZED_DTYPES and not tensor.name.endswith(_IGNORED_SCALES)
            if is_quantized and tensor.name not in needs:
                raise ArtifactError(f"{tensor.file}: quantized tensor {tensor.name} is not part of the recipe")


def _is_text_linear(route: Route) -> bool:
    """A matrix of a text layer that keeps its BF16 words."""
    if not isinstance(route, CopiedWords | EncodedRows) or route.join.transposed:
        return False
    return route.spec.name.startswith("text/layers/") and len(route.spec.shape) == 2


def _check_nvfp4_linears(checkpoint: Checkpoint, route: PackedNvfp4) -> None:
    _check_absent(checkpoint, route.join.parts, ("weight",))
    common_divisor(checkpoint, route.join, "weight_global_scale")
    common_divisor(checkpoint, route.join, "input_global_scale")


def _check_absent(checkpoint: Checkpoint, parts: tuple[Part, ...], fields: tuple[str, ...]) -> None:
    for part in parts:
        for field in fields:
            name = linear_of(part) + field
            if name in checkpoint.tensors:
                raise ArtifactError(f"{checkpoint.folder}: tensor {name} does not belong to this linear's format")


def _check_equal(sources: Sources, route: Route) -> None:
    """Linears that stay BF16 have the same words in the base and in its companion."""
    base, quantized = sources.base, sources.quantized
    check_present(quantized, route.needs)
    for need in route.needs:
        if quantized.tensors[need.tensor].dtype != base.tensors[need.tensor].dtype:
            raise ArtifactError(f"{quantized.folder}: tensor {need.tensor} differs in dtype from the base")
        size = base.tensors[need.tensor].bytes
        for start in range(0, size, _BLOCK_BYTES):
            span = (start, min(start + _BLOCK_BYTES, size))
            if not np.array_equal(base.read(need.tensor, *span), quantized.read(need.tensor, *span)):
                raise ArtifactError(f"{quantized.folder}: tensor {need.tensor} differs from the base checkpoint's")
