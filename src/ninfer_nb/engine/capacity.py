"""How many KV pages an engine has (`runtime.md` 3). Plain arithmetic over a complete plan's size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import CapacityError
from ..model.state import pages_for
from ..ops import PAGE

HEADROOM = 1 << 30  # bytes that `auto` leaves free

U32_MAX = 2**32 - 1


@dataclass(frozen=True)
class Capacity:
    """A resolved pool. Byte figures are None where the backend does not know its free memory."""

    policy: str  # "auto" or "explicit"
    pages: int
    row_pages: int  # pages of one sequence at most
    max_pages: int  # pages that could ever be used
    minimum_bytes: int
    step_bytes: int
    bytes: int
    free_bytes: int | None
    headroom: int | None

    @property
    def tokens(self) -> int:
        return self.pages * PAGE

    @property
    def slack(self) -> int | None:
        return None if self.free_bytes is None else self.free_bytes - self.bytes


def resolve_capacity(
    wanted: int | str,
    max_context: int,
    lanes: int,
    size: Callable[[int], int],
    free: int | None,
    headroom: int = HEADROOM,
) -> Capacity:
    """Pages for `wanted` tokens, or "auto": as many as fit. `size(pages)` is the whole reservation in bytes.

    `free` bytes after the weights; None when unknown, where auto takes all that could ever be used. Raises
    CapacityError naming both numbers.
    """
    row_pages = pages_for(max_context)
    low, high = max(row_pages, lanes), lanes * row_pages
    minimum = size(low)
    step = size(low + 1) - minimum
    if step <= 0:
        raise CapacityError(f"the memory plan does not grow with pages: {minimum} bytes at {low}, {step} for one more")
    if wanted == "auto":
        pages = _largest(low, high, minimum, step, free, headroom)
    else:
        pages = _explicit(int(wanted), max_context, low, high)
    total = size(pages)
    if total != minimum + (pages - low) * step:
        raise CapacityError(f"the memory plan is not affine in pages: {total} bytes at {pages}")
    if free is not None and total > free:
        raise CapacityError(f"the reservation of {total} bytes for {pages} KV pages exceeds the {free} bytes free")
    policy = "auto" if wanted == "auto" else "explicit"
    return Capacity(
        policy, pages, row_pages, high, minimum, step, total, free, headroom if policy == "auto" else None
    )  # fmt: skip


def _largest(low: int, high: int, minimum: int, step: int, free: int | None, headroom: int) -> int:
    if free is None or low == high:
        if free is not None and free - headroom < minimum:
            raise CapacityError(_no_room(minimum, headroom, free))
        return high
    if free < headroom:
        raise CapacityError(f"the headroom of {headroom} bytes exceeds the {free} bytes free")
    if free - headroom < minimum:
        raise CapacityError(_no_room(minimum, headroom, free))
    return min(high, low + (free - headroom - minimum) // step)


def _no_room(minimum: int, headroom: int, free: int) -> str:
    return f"the smallest reservation of {minimum} bytes does not fit beside {headroom} bytes headroom into {free} free"


def _explicit(tokens: int, max_context: int, low: int, high: int) -> int:
    if tokens > U32_MAX:
        raise CapacityError(f"kv_capacity of {tokens} tokens exceeds {U32_MAX}")
    if tokens < max_context:
        raise CapacityError(f"kv_capacity must be at least max_context: {tokens} < {max_context}")
    pages = pages_for(tokens)
    if not low <= pages <= high:
        raise CapacityError(
            "kv_capacity is outside the usable range for max_context and max_concurrency: "
            f"{tokens} tokens, usable {max(max_context, (low - 1) * PAGE + 1)}..{high * PAGE}"
        )
    return pages
