"""Host accounting of paged KV pools (`runtime.md` 5): who owns which page, and who may still take how many.

An allocation holds page ids in order and an entitlement, the pages that it may ever have. Materialising within an
entitlement cannot fail. Block-table rows on the device only mirror the allocations that are bound to them; `publish`
is called with what changed. Knows nothing of devices or tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from ..errors import NInferError

Publish = Callable[[int, int, Sequence[int]], None]  # row, first table entry, page ids


class AccountingError(NInferError):
    """A pool's books do not balance: a fault of the engine, which cannot go on."""


class Allocation:
    """The pages of one sequence in one pool."""

    def __init__(self, pool: PagePool, entitlement: int):
        self.pool = pool
        self.entitlement = entitlement
        self.page_ids: list[int] = []
        self.row: int | None = None

    def materialize(self, pages: int) -> None:
        """Own `pages` pages, at most the entitlement."""
        if not len(self.page_ids) <= pages <= self.entitlement:
            raise AccountingError(f"materialize {pages} pages of {len(self.page_ids)}..{self.entitlement}")
        first = len(self.page_ids)
        fresh = self.pool.take(pages - first, self.page_ids[-1] if self.page_ids else None)
        self.page_ids += fresh
        if self.row is not None and fresh:
            self.pool.publish(self.row, first, fresh)

    def trim(self, pages: int) -> None:
        """Give back what lies after the first `pages` pages; the entitlement stays."""
        if pages > len(self.page_ids):
            raise AccountingError(f"trim to {pages} pages of {len(self.page_ids)}")
        self.pool.give_back(self.page_ids[pages:])
        del self.page_ids[pages:]

    def set_entitlement(self, pages: int) -> None:
        if pages < len(self.page_ids) or not self.pool.can_hold(pages, self.entitlement):
            raise AccountingError(f"entitlement {self.entitlement} to {pages} pages, {len(self.page_ids)} in use")
        self.pool.entitled += pages - self.entitlement
        self.entitlement = pages

    def cancel_unmapped(self) -> None:
        """Keep what is there, give up the right to grow."""
        self.set_entitlement(len(self.page_ids))

    def bind(self, row: int) -> None:
        """Mirror the pages in a block-table row."""
        if self.row is not None or self.pool.rows[row] is not None:
            raise AccountingError(f"block-table row {row} is in use, or the allocation has one")
        self.row, self.pool.rows[row] = row, self
        if self.page_ids:
            self.pool.publish(row, 0, self.page_ids)

    def unbind(self) -> None:
        if self.row is not None:
            self.pool.rows[self.row] = None
            self.row = None

    def release(self) -> None:
        """Return everything; the allocation is dead afterwards."""
        self.unbind()
        self.trim(0)
        self.pool.entitled -= self.entitlement
        self.entitlement = 0
        self.pool.allocations.discard(self)


class PagePool:
    """`pages` page groups for at most `rows` bound sequences of up to `row_pages` pages each."""

    def __init__(self, name: str, pages: int, row_pages: int, rows: int, publish: Publish):
        self.name, self.pages, self.row_pages = name, pages, row_pages
        self.free = list(range(pages))  # ascending
        self.entitled = 0
        self.rows: list[Allocation | None] = [None] * rows
        self.allocations: set[Allocation] = set()
        self.publish = publish

    @property
    def mapped(self) -> int:
        return self.pages - len(self.free)

    def can_hold(self, entitlement: int, instead_of: int = 0) -> bool:
        """Whether an allocation's entitlement could be this, where it is `instead_of` now."""
        return 0 < entitlement <= self.row_pages and entitlement <= self.pages - (self.entitled - instead_of)

    def reserve(self, pages: int) -> Allocation:
        """Raises AccountingError where `can_hold` is false."""
        if not self.can_hold(pages):
            raise AccountingError(f"{self.name}: no room for {pages} pages, {self.entitled} of {self.pages} entitled")
        allocation = Allocation(self, pages)
        self.allocations.add(allocation)
        self.entitled += pages
        return allocation

    def take(self, count: int, after: int | None) -> list[int]:
        """`count` free pages, in one run where possible: right after page `after`, else the lowest that fits.

        Locality only: nothing may depend on it.
        """
        if count == 0:
            return []
        if count > len(self.free):
            raise AccountingError(f"{self.name}: {count} pages asked for, {len(self.free)} free")
        start = self._run_at(after + 1, count) if after is not None else None
        if start is None:
            start = self._lowest_run(count)
        taken = self.free[start : start + count]
        del self.free[start : start + count]
        return taken

    def _run_at(self, page: int, count: int) -> int | None:
        """Index in `free` where `count` consecutive pages from `page` on lie."""
        start = bisect_left(self.free, page)
        run = self.free[start : start + count]
        return start if len(run) == count and run[0] == page and run[-1] == page + count - 1 else None

    def _lowest_run(self, count: int) -> int:
        for start in range(len(self.free) - count + 1):
            if self.free[start + count - 1] - self.free[start] == count - 1:
                return start
        return 0  # no run is long enough: the lowest pages

    def give_back(self, page_ids: Sequence[int]) -> None:
        self.free = sorted([*self.free, *page_ids])

    def check_integrity(self) -> None:
        """Raises AccountingError unless invariants 1, 2 and 5 of `runtime.md` 15 hold."""
        owned = [page for allocation in self.allocations for page in allocation.page_ids]
        if sorted([*owned, *self.free]) != list(range(self.pages)) or any(a >= b for a, b in pairwise(self.free)):
            raise AccountingError(f"{self.name}: owned and free pages are not a partition of the pool")
        if self.entitled != sum(a.entitlement for a in self.allocations) or self.entitled > self.pages:
            raise AccountingError(f"{self.name}: entitlements sum to {self.entitled}")
        if any(not len(a.page_ids) <= a.entitlement <= self.row_pages for a in self.allocations):
            raise AccountingError(f"{self.name}: an allocation exceeds its entitlement")
        bound = {a: a.row for a in self.allocations if a.row is not None}
        if bound != {a: row for row, a in enumerate(self.rows) if a is not None}:
            raise AccountingError(f"{self.name}: block-table rows and allocations disagree")


def reserve_bundle(wanted: Iterable[tuple[PagePool, int]]) -> list[Allocation] | None:
    """One allocation in each pool, or none at all (None) when one does not fit."""
    wanted = list(wanted)
    if not all(pool.can_hold(pages) for pool, pages in wanted):
        return None
    return [pool.reserve(pages) for pool, pages in wanted]


def resize_bundle(changes: Iterable[tuple[Allocation, int, int]]) -> bool:
    """Trim each allocation to its first number of pages and entitle it to its second; all, or nothing (False)."""
    changes = list(changes)
    for allocation, kept, entitlement in changes:
        if kept > len(allocation.page_ids) or entitlement < kept:
            return False
        if not allocation.pool.can_hold(entitlement, allocation.entitlement):
            return False
    for allocation, kept, entitlement in changes:
        allocation.trim(kept)
        allocation.set_entitlement(entitlement)
    return True
