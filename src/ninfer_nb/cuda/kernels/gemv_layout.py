"""Geometry of the few-row product: what a step, an item, a chunk and a tile are, and where they lie in shared memory.

step: 32 bytes of codes of one row. item: two steps, what a warp multiplies at once. chunk: the `items` of 16 rows that
one stage of the ring holds. tile: 16 rows, the height of a matrix instruction. Plain arithmetic: knows no instruction.
"""

from __future__ import annotations

from dataclasses import dataclass

TILE = 16  # weight rows
AUXILIARY_WARPS = 2  # the one that fills the ring and the one that writes results
RED_BUFFERS = 2
BARRIERS = 512  # bytes for all barriers
SCRATCH = 2304  # bytes for row factors and what warps tell each other about rows
FACTORS = 0  # within SCRATCH: [16] f32
PARTIALS = 128  # within SCRATCH: [16 rows, 16 warps] bits of the largest magnitude
SQUARES = PARTIALS + 1024  # within SCRATCH: [16 rows, 16 warps] f32
RESERVED = 1024  # bytes that the driver takes from every block
FLAG_BYTES = 4096  # of the workspace, before the partial tiles


@dataclass(frozen=True)
class Packing:
    """How one format's codes become operands."""

    step: int  # columns of a step
    scales: str  # "group": f16 a step and row; "block": e4m3 a 16; "row": bf16 a row; "none"
    high: int = 0  # bytes of the high plane a step and row
    interleaved: bool = False  # order of decoded pairs
    half: bool = True  # float16 operands, rows of x normalised by a power of two; otherwise bfloat16

    @property
    def item(self) -> int:
        return 2 * self.step

    @property
    def products(self) -> int:
        """Matrix instructions of a step (and 8 columns of x)."""
        return self.step // 16


PACKINGS = {
    "BF16": Packing(16, "none", half=False),
    "Q4G64_F16S": Packing(64, "group", interleaved=True),
    "Q5G64_F16S": Packing(64, "group", high=8, interleaved=True),
    "Q6G64_F16S": Packing(64, "group", high=16, interleaved=True),
    "W8G32_F16S": Packing(32, "group"),
    "NVFP4": Packing(64, "block", interleaved=True),
    "FP8_E4M3FN_ROW_BF16S": Packing(32, "row"),
}

# bytes that a row of operands of x is longer than its columns, so that a warp's loads touch each bank once
_X_PAD = {64: 16, 32: 64, 16: 32}


def align(value: int, unit: int) -> int:
    return -(-value // unit) * unit


@dataclass(frozen=True)
class Layout:
    """Shared memory of one specialisation, as byte offsets. `width`: K; `rows`: rows of x at most (1, 2, 4, 8, 16)."""

    packing: Packing
    rows: int
    width: int
    norm: bool
    warps: int
    items: int  # of a chunk
    stages: int = 0

    @property
    def padded(self) -> int:
        """Columns of a stored row."""
        return align(self.width, 128) if self.packing.scales == "group" else self.width

    @property
    def row_items(self) -> int:
        return self.padded // self.packing.item

    @property
    def chunks(self) -> int:
        return -(-self.row_items // self.items)

    @property
    def blocks_of_columns(self) -> int:
        """Eights of x columns that share a weight operand."""
        return 2 if self.rows > 8 else 1

    @property
    def x_pitch(self) -> int:
        return self.padded * 2 + _X_PAD[self.packing.step]

    @property
    def corrections(self) -> int:
        """Floats of a step's correction row: one for each row of x, at least a pair."""
        return max(2, self.rows)

    @property
    def x_offset(self) -> int:
        return BARRIERS + SCRATCH

    @property
    def gain_offset(self) -> int:
        return align(self.x_offset + self.rows * self.x_pitch, 128)

    @property
    def correction_offset(self) -> int:
        return align(self.gain_offset + (self.width * 2 if self.norm else 0), 128)

    @property
    def red_offset(self) -> int:
        steps = 2 * self.row_items if self.packing.scales == "group" else 0
        return align(self.correction_offset + steps * self.corrections * 4, 128)

    @property
    def red_bytes(self) -> int:
        """One buffer of partial sums: four floats a lane and eight columns, for each warp."""
        return self.warps * 512 * self.blocks_of_columns

    @property
    def ring_offset(self) -> int:
        return self.red_offset + RED_BUFFERS * self.red_bytes

    @property
    def code_pitch(self) -> int:
        return align(64 * self.items, 128) + 32

    @property
    def high_offset(self) -> int:
        """Within a stage."""
        return TILE * self.code_pitch

    @property
    def high_pitch(self) -> int:
        return align(2 * self.packing.high * self.items, 128) + 16 if self.packing.high else 0

    @property
    def scale_offset(self) -> int:
        return self.high_offset + TILE * self.high_pitch

    @property
    def scale_pitch(self) -> int:
        """Bytes between rows of group scales: an odd number of words."""
        return 4 * (self.items + 1 - self.items % 2)

    @property
    def stage_bytes(self) -> int:
        scales = {"group": TILE * self.scale_pitch, "block": 128 * self.items}.get(self.packing.scales, 0)
        return align(self.scale_offset + scales, 128)

    @property
    def shared_bytes(self) -> int:
        return self.ring_offset + self.stages * self.stage_bytes

    def with_stages(self, budget: int) -> Layout | None:
        """As many stages as fit into `budget` bytes of shared memory; None when there is no room for two."""
        room = (budget - RESERVED - self.ring_offset) // self.stage_bytes
        stages = min(room, 16)
        if stages < 2:
            return None
        return Layout(self.packing, self.rows, self.width, self.norm, self.warps, self.items, stages)

    # barriers, eight bytes each
    @property
    def full(self) -> int:
        return 0

    @property
    def empty(self) -> int:
        return 8 * self.stages

    @property
    def red_full(self) -> int:
        return 16 * self.stages

    @property
    def red_empty(self) -> int:
        return self.red_full + 8 * RED_BUFFERS

    @property
    def x_full(self) -> int:
        return self.red_empty + 8 * RED_BUFFERS
