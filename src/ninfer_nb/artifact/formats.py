"""The nine persistent numeric formats and which storage layout each one has (`artifact-format.md` 4 and 5).

Names are opaque identities: nothing parses `Q4G64_F16S`, everything looks it up. Knows nothing of bytes in a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ..errors import ArtifactError

BF16 = "BF16"
FP32 = "FP32"
I32 = "I32"
Q4G64_F16S = "Q4G64_F16S"
Q5G64_F16S = "Q5G64_F16S"
Q6G64_F16S = "Q6G64_F16S"
W8G32_F16S = "W8G32_F16S"
NVFP4 = "NVFP4"
FP8_E4M3FN_ROW_BF16S = "FP8_E4M3FN_ROW_BF16S"

CONTIGUOUS = "contiguous-le-v1"
ROW_SPLIT = "row-split-k128-v1"
BLOCK_SCALE = "blockscale-k16-m128x4-v1"
ROW_SCALE = "row-scale-v1"
RAW_BYTES = "raw-bytes-v1"


class FormatClass(Enum):
    """How a stored word becomes a value."""

    DIRECT = "direct"
    GROUPED = "grouped integer"
    BLOCK_FLOAT = "block float"
    ROW_FLOAT = "row float"


@dataclass(frozen=True)
class NumericFormat:
    """One row of the format table.

    `code_bits` is the width of one weight's code, `group` the number of weights along K that share a scale
    (0: the format has no groups). Codes of a grouped format lie in `[qmin, qmax]`.
    """

    name: str
    kind: FormatClass
    layout: str
    code_bits: int
    group: int = 0
    qmin: int = 0
    qmax: int = 0

    @property
    def is_grouped(self) -> bool:
        return self.kind is FormatClass.GROUPED

    @property
    def word_bytes(self) -> int:
        """Bytes of one word of a direct format."""
        return self.code_bits // 8

    @property
    def base_group_bytes(self) -> int:
        """Bytes of one group in the base plane of a grouped format: low nibbles, or whole bytes for 8 bits."""
        return self.group * (8 if self.code_bits == 8 else 4) // 8

    @property
    def high_group_bytes(self) -> int:
        """Bytes of one group in the high plane of a grouped format: the bits above the nibble, 0 if there are none."""
        return self.group * self.code_bits // 8 - self.base_group_bytes


FORMATS: dict[str, NumericFormat] = {
    row.name: row
    for row in (
        NumericFormat(BF16, FormatClass.DIRECT, CONTIGUOUS, 16),
        NumericFormat(FP32, FormatClass.DIRECT, CONTIGUOUS, 32),
        NumericFormat(I32, FormatClass.DIRECT, CONTIGUOUS, 32),
        NumericFormat(Q4G64_F16S, FormatClass.GROUPED, ROW_SPLIT, 4, group=64, qmin=-8, qmax=7),
        NumericFormat(Q5G64_F16S, FormatClass.GROUPED, ROW_SPLIT, 5, group=64, qmin=-16, qmax=15),
        NumericFormat(Q6G64_F16S, FormatClass.GROUPED, ROW_SPLIT, 6, group=64, qmin=-32, qmax=31),
        NumericFormat(W8G32_F16S, FormatClass.GROUPED, ROW_SPLIT, 8, group=32, qmin=-127, qmax=127),
        NumericFormat(NVFP4, FormatClass.BLOCK_FLOAT, BLOCK_SCALE, 4, group=16),
        NumericFormat(FP8_E4M3FN_ROW_BF16S, FormatClass.ROW_FLOAT, ROW_SCALE, 8),
    )
}

LAYOUT_OF: dict[str, str] = {name: row.layout for name, row in FORMATS.items()}
LAYOUTS: frozenset[str] = frozenset(LAYOUT_OF.values())


def numeric_format(name: str) -> NumericFormat:
    """The table row of `name`; ArtifactError for a name that is not one of the nine."""
    row = FORMATS.get(name)
    if row is None:
        raise ArtifactError(f"unknown numeric format: {name!r}")
    return row


def check_layout(layout: str, format: str) -> NumericFormat:
    """The row of `format`, after checking that `layout` exists and stores it (in that order)."""
    if layout not in LAYOUTS:
        raise ArtifactError(f"unknown tensor layout: {layout!r}")
    row = numeric_format(format)
    if row.layout != layout:
        raise ArtifactError(f"layout {layout!r} does not accept format {format!r}")
    return row
