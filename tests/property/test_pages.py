"""Paged KV accounting: invariants 1 to 5 of the runtime specification, by random operations."""

import copy

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ninfer_nb.engine.pages import AccountingError, PagePool, reserve_bundle, resize_bundle

PAGES, ROW_PAGES, ROWS = (17, 9), 6, 3


class Pools(RuleBasedStateMachine):
    """Two pools as an engine has them; every allocation is a pair, or a lone one in the first pool."""

    def __init__(self):
        super().__init__()
        self.tables = [[[None] * ROW_PAGES for _ in range(ROWS)] for _ in PAGES]
        self.pools = [PagePool(f"pool {i}", n, ROW_PAGES, ROWS, self.publisher(i)) for i, n in enumerate(PAGES)]
        self.bundles = []

    def publisher(self, pool):
        def publish(row, first, ids):
            self.tables[pool][row][first : first + len(ids)] = ids

        return publish

    def books(self):
        """Everything that a failed operation must not touch."""
        owned = [[(list(a.page_ids), a.entitlement, a.row) for a in bundle] for bundle in self.bundles]
        return copy.deepcopy(([(p.free, p.entitled) for p in self.pools], owned))

    def some(self, data):
        return data.draw(st.sampled_from(self.bundles))

    @rule(first=st.integers(0, 8), second=st.integers(0, 8))
    def reserve(self, first, second):
        before = self.books()
        made = reserve_bundle([(self.pools[0], first), (self.pools[1], second)])
        if made is None:
            assert self.books() == before, "invariant 4: a failed bundle leaves every pool as it was"
        else:
            self.bundles.append(made)

    @precondition(lambda self: self.bundles)
    @rule(data=st.data())
    def materialize(self, data):
        for allocation in self.some(data):
            target = data.draw(st.integers(len(allocation.page_ids), allocation.entitlement))
            allocation.materialize(target)  # invariant 3: never fails within the entitlement
            assert len(allocation.page_ids) == target

    @precondition(lambda self: self.bundles)
    @rule(data=st.data(), excess=st.integers(1, 3))
    def materialize_too_much(self, data, excess):
        allocation, before = self.some(data)[0], self.books()
        with pytest.raises(AccountingError):
            allocation.materialize(allocation.entitlement + excess)
        assert self.books() == before

    @precondition(lambda self: self.bundles)
    @rule(data=st.data(), kept=st.integers(0, 7), entitlement=st.integers(0, 8))
    def resize(self, data, kept, entitlement):
        bundle, before = self.some(data), self.books()
        if not resize_bundle([(a, min(kept, len(a.page_ids)), entitlement) for a in bundle]):
            assert self.books() == before, "invariant 4"

    @precondition(lambda self: self.bundles)
    @rule(data=st.data(), row=st.integers(0, ROWS - 1))
    def bind(self, data, row):
        for allocation in self.some(data):
            if allocation.row is None and allocation.pool.rows[row] is None:
                allocation.bind(row)
            else:
                with pytest.raises(AccountingError):
                    allocation.bind(row)

    @precondition(lambda self: self.bundles)
    @rule(data=st.data())
    def retain(self, data):
        for allocation in self.some(data):
            if allocation.page_ids:
                allocation.cancel_unmapped()
            allocation.unbind()

    @precondition(lambda self: self.bundles)
    @rule(data=st.data())
    def release(self, data):
        bundle = self.some(data)
        self.bundles.remove(bundle)
        for allocation in bundle:
            allocation.release()

    @invariant()
    def books_balance(self):
        for index, pool in enumerate(self.pools):
            pool.check_integrity()  # invariants 1, 2 and 5, as the engine checks them
            mine = [bundle[index] for bundle in self.bundles]
            owned = sorted(page for a in mine for page in a.page_ids)
            assert sorted(owned + pool.free) == list(range(pool.pages))
            assert pool.mapped == len(owned) <= pool.entitled == sum(a.entitlement for a in mine) <= pool.pages
            rows = [a.row for a in mine if a.row is not None]
            assert len(rows) == len(set(rows))
            for a in mine:
                if a.row is not None:
                    assert self.tables[index][a.row][: len(a.page_ids)] == a.page_ids


TestPools = Pools.TestCase


def test_pages_come_in_runs_where_they_can():
    pool = PagePool("pool", 12, 12, 1, lambda *_: None)
    a, b = pool.reserve(4), pool.reserve(8)
    a.materialize(2)
    b.materialize(1)
    a.materialize(3)
    assert (a.page_ids, b.page_ids) == ([0, 1, 3], [2])
    a.materialize(4)
    assert a.page_ids == [0, 1, 3, 4], "right after its last page"
    a.trim(1)
    b.materialize(4)
    assert b.page_ids == [2, 3, 4, 5]
    b.materialize(8)
    assert b.page_ids[4:] == [6, 7, 8, 9]


def test_a_broken_pool_is_noticed():
    pool = PagePool("pool", 4, 4, 1, lambda *_: None)
    allocation = pool.reserve(2)
    allocation.materialize(2)
    allocation.page_ids[1] = 3
    with pytest.raises(AccountingError, match="partition"):
        pool.check_integrity()
    allocation.page_ids[1] = 1
    pool.entitled = 3
    with pytest.raises(AccountingError, match="entitlements"):
        pool.check_integrity()
