"""How each stored tensor gets its payload: which source tensors it needs, and what is done to their rows.

A route either keeps source words (direct formats, and NVFP4 or FP8 sources that are quantised already: only rows are
selected and joined, `inventories.md` 7.3 and 7.4) or encodes BF16 rows with one of our encoders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from ...errors import ArtifactError
from ..encoders import encode_fp8_rows, encode_grouped
from ..encoders_nvfp4 import INPUT_DIVISOR, encode_nvfp4
from ..formats import BF16, FP32, I32, NVFP4, FormatClass, numeric_format
from ..inventory import TensorSpec
from ..layouts import BLOCK
from ..packing import encode_direct, encode_fp8_words, encode_nvfp4_words
from ..words import bf16_to_f32, f32_to_bf16
from .checkpoint import Checkpoint
from .recipe import Join, Part
from .rows import JoinedRows

# Roles whose words some exports store in FP32 (`model.md` 2.7).
_FLOAT_ROLES = ("gdn/a_log", "gdn/dt_bias", "gdn/norm")


@dataclass(frozen=True)
class Need:
    """A source tensor that a route reads: any of `dtypes`, exactly this shape."""

    tensor: str
    dtypes: tuple[str, ...]
    shape: tuple[int, ...]


class Route(Protocol):
    """`payload` makes the bytes of `spec`, uint8; `encoding` names what made them, for the conversion report."""

    spec: TensorSpec
    encoding: str
    checkpoint: Checkpoint | None

    @property
    def needs(self) -> tuple[Need, ...]: ...

    def payload(self) -> np.ndarray: ...


def float_dtypes(name: str) -> tuple[str, ...]:
    """Source dtypes that a stored tensor's float words may have."""
    return ("BF16", "F32") if name.endswith(_FLOAT_ROLES) else ("BF16",)


def float_needs(join: Join) -> tuple[Need, ...]:
    """The unquantised source tensors of a join."""
    return tuple(Need(part.tensor, float_dtypes(join.spec.name), part.shape) for part in join.parts)


@dataclass(frozen=True)
class CopiedWords:
    """Source words kept as they are; FP32 is rounded to BF16 and BF16 widened to FP32 where the two differ."""

    join: Join
    checkpoint: Checkpoint
    encoding = "source words"

    @property
    def spec(self) -> TensorSpec:
        return self.join.spec

    @property
    def needs(self) -> tuple[Need, ...]:
        return float_needs(self.join)

    def payload(self) -> np.ndarray:
        words = _matrix(self.join, self.checkpoint)[:]
        words = (words.T if self.join.transposed else words).reshape(self.spec.shape)
        if self.spec.format == FP32 and words.dtype == np.uint16:
            words = bf16_to_f32(words)
        elif self.spec.format == BF16 and words.dtype == np.float32:
            words = f32_to_bf16(words)
        return encode_direct(words, self.spec.format)


@dataclass(frozen=True)
class EncodedRows:
    """BF16 rows quantised here."""

    join: Join
    checkpoint: Checkpoint

    @property
    def spec(self) -> TensorSpec:
        return self.join.spec

    @property
    def encoding(self) -> str:
        return {
            FormatClass.GROUPED: "MAXABS_F16_RECIP_RNE_V1",
            FormatClass.ROW_FLOAT: "MAXABS_BF16S_RECIP_E4M3FN_RNE_V1",
            FormatClass.BLOCK_FLOAT: "own NVFP4 encoder",
        }[numeric_format(self.spec.format).kind]

    @property
    def needs(self) -> tuple[Need, ...]:
        return float_needs(self.join)

    def payload(self) -> np.ndarray:
        rows = _matrix(self.join, self.checkpoint)
        kind = numeric_format(self.spec.format).kind
        try:
            if kind is FormatClass.GROUPED:
                return encode_grouped(rows, self.spec.format)
            if kind is FormatClass.ROW_FLOAT:
                return encode_fp8_rows(rows)
            return encode_nvfp4(rows)
        except ArtifactError as error:
            raise ArtifactError(f"{self.spec.name}: {error}") from None


@dataclass(frozen=True)
class PackedNvfp4:
    """Codes, block scales and weight divisor of NVFP4 source linears; all parts must have one divisor."""

    join: Join
    checkpoint: Checkpoint
    encoding = "source NVFP4"

    @property
    def spec(self) -> TensorSpec:
        return self.join.spec

    @property
    def needs(self) -> tuple[Need, ...]:
        return tuple(need for part in self.join.parts for need in nvfp4_needs(part))

    def payload(self) -> np.ndarray:
        columns = self.spec.shape[1]
        codes = JoinedRows(self.checkpoint, _fields(self.join.parts, "weight_packed"), columns // 2)
        scales = JoinedRows(self.checkpoint, _fields(self.join.parts, "weight_scale"), columns // BLOCK)
        divisor = common_divisor(self.checkpoint, self.join, "weight_global_scale")
        try:
            return encode_nvfp4_words(codes[:], scales[:], divisor)
        except ArtifactError as error:
            raise ArtifactError(f"{self.spec.name}: {error}") from None


@dataclass(frozen=True)
class PackedFp8:
    """Codes and row scales of FP8 source linears."""

    join: Join
    checkpoint: Checkpoint
    encoding = "source FP8"

    @property
    def spec(self) -> TensorSpec:
        return self.join.spec

    @property
    def needs(self) -> tuple[Need, ...]:
        return tuple(need for part in self.join.parts for need in fp8_needs(part))

    def payload(self) -> np.ndarray:
        codes = JoinedRows(self.checkpoint, self.join.parts, self.spec.shape[1])
        scales = JoinedRows(self.checkpoint, _fields(self.join.parts, "weight_scale"), 1)
        try:
            return encode_fp8_words(codes[:], scales[:].reshape(-1))
        except ArtifactError as error:
            raise ArtifactError(f"{self.spec.name}: {error}") from None


@dataclass(frozen=True)
class SourceDivisor:
    """The input divisor `d_x` that an NVFP4 source gives for the linears of one weight."""

    spec: TensorSpec
    weight: Join
    checkpoint: Checkpoint
    encoding = "source words"

    @property
    def needs(self) -> tuple[Need, ...]:
        return ()  # among those of the weight

    def payload(self) -> np.ndarray:
        divisor = common_divisor(self.checkpoint, self.weight, "input_global_scale")
        return encode_direct(np.array(divisor, np.float32), FP32)


@dataclass(frozen=True)
class OwnDivisor:
    """The input divisor that goes with weights quantised here."""

    spec: TensorSpec
    checkpoint = None
    needs = ()
    encoding = "own NVFP4 encoder"

    def payload(self) -> np.ndarray:
        return encode_direct(np.array(INPUT_DIVISOR), FP32)


@dataclass(frozen=True)
class DraftIds:
    """Token ids of the draft head's rows, int32 [D]."""

    spec: TensorSpec
    ids: np.ndarray
    checkpoint = None
    needs = ()
    encoding = "ranking"

    def payload(self) -> np.ndarray:
        return encode_direct(self.ids, I32)


def nvfp4_needs(part: Part) -> tuple[Need, ...]:
    """Source tensors of one NVFP4 linear [N, K]."""
    n, k = part.shape
    stem = linear_of(part)
    return (
        Need(stem + "weight_packed", ("U8",), (n, k // 2)),
        Need(stem + "weight_scale", ("F8_E4M3",), (n, k // BLOCK)),
        Need(stem + "weight_global_scale", ("F32",), (1,)),
        Need(stem + "input_global_scale", ("F32",), (1,)),
    )


def fp8_needs(part: Part) -> tuple[Need, ...]:
    """Source tensors of one row-scaled FP8 linear [N, K]."""
    return (
        Need(part.tensor, ("F8_E4M3",), part.shape),
        Need(linear_of(part) + "weight_scale", ("BF16",), (part.shape[0], 1)),
    )


def linear_of(part: Part) -> str:
    """The module of a weight, with a dot at the end: `….q_proj.`."""
    assert part.tensor.endswith(".weight")
    return part.tensor.removesuffix("weight")


def common_divisor(checkpoint: Checkpoint, join: Join, field: str) -> np.float32:
    """The FP32 divisor that all source linears of a weight share bit for bit; finite and positive."""
    words = [checkpoint.read(linear_of(part) + field) for part in join.parts]
    for word in words[1:]:
        if not np.array_equal(word, words[0]):
            raise ArtifactError(f"{join.spec.name}: fused {field} words do not match")
    divisor = words[0].view("<f4")[0]
    if not (np.isfinite(divisor) and divisor > 0):
        raise ArtifactError(f"{linear_of(join.parts[0])}{field}: divisor must be finite and positive")
    return divisor


def encodes(format: str) -> bool:
    """Whether BF16 rows are quantised to reach this format."""
    return numeric_format(format).kind is not FormatClass.DIRECT


def keeps_nvfp4(spec: TensorSpec) -> bool:
    return spec.format == NVFP4


def _matrix(join: Join, checkpoint: Checkpoint) -> JoinedRows:
    """The source words of a join, one row for each stored row (each column of a transposed one)."""
    shape = join.spec.shape
    columns = shape[0] if join.transposed else shape[1] if len(shape) == 2 else 1
    return JoinedRows(checkpoint, join.parts, columns)


def _fields(parts: Sequence[Part], field: str) -> list[Part]:
    """The same rows of another tensor of each part's linear."""
    return [replace(part, tensor=linear_of(part) + field) for part in parts]
