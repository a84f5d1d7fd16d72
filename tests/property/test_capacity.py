"""KV capacity and budgets: invariants 12 to 16 and 40 of the runtime specification."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_nb.artifact.geometry import NINFER_MINI
from ninfer_nb.engine.capacity import resolve_capacity
from ninfer_nb.engine.job import Budget
from ninfer_nb.engine.options import EngineOptions
from ninfer_nb.engine.plan import FREE_FLOOR, Planner, build_program, check_graph_memory, draft_pool
from ninfer_nb.errors import CapacityError, ContextLengthExceeded
from ninfer_nb.frontend.output import FinishReason
from ninfer_nb.model.state import StateShape, pages_for

sizes = st.integers(1, 10_000)


def affine(base, step, low):
    return lambda pages: base + (pages - low) * step


@given(st.integers(1, 5000), st.integers(1, 8), sizes, sizes, st.integers(0, 10**9), st.integers(0, 10**7))
def test_invariant_12_auto_takes_the_largest_pool_that_fits(context, lanes, base, step, free, headroom):
    low, high = max(pages_for(context), lanes), lanes * pages_for(context)
    size = affine(base, step, low)
    try:
        found = resolve_capacity("auto", context, lanes, size, free, headroom)
    except CapacityError:
        assert free < headroom or size(low) > free - headroom
        return
    assert low <= found.pages <= high
    assert size(found.pages) <= free - headroom
    assert found.pages == high or size(found.pages + 1) > free - headroom


@given(st.integers(1, 5000), st.integers(1, 8), sizes, sizes, st.integers(0, 10**8), sizes, sizes)
def test_invariant_13_auto_is_monotone(context, lanes, base, step, free, more, headroom):
    size = affine(base, step, max(pages_for(context), lanes))

    def pages(free, headroom):
        try:
            return resolve_capacity("auto", context, lanes, size, free, headroom).pages
        except CapacityError:
            return 0

    assert pages(free, headroom) <= pages(free + more, headroom)
    assert pages(free, headroom) >= pages(free, headroom + more)


@given(st.integers(1, 5000), st.integers(1, 8), st.integers(0, 50_000), st.integers(0, 10**7))
def test_invariant_13_explicit_resolves_to_its_pages_or_raises(context, lanes, tokens, free):
    size = affine(1000, 100, max(pages_for(context), lanes))
    try:
        assert resolve_capacity(tokens, context, lanes, size, free).pages == pages_for(tokens)
    except CapacityError:
        in_range = max(pages_for(context), lanes) <= pages_for(tokens) <= lanes * pages_for(context)
        assert tokens < context or not in_range or size(pages_for(tokens)) > free


def test_a_plan_that_is_not_affine_is_refused():
    with pytest.raises(CapacityError, match="not affine"):
        resolve_capacity("auto", 640, 2, lambda pages: 1000 + pages**2, 10**6, 0)


@pytest.fixture(scope="module")
def mini():
    from support.artifacts import bundled_models

    return bundled_models()


@settings(max_examples=15, deadline=None)
@given(
    lanes=st.integers(1, 8),
    context=st.integers(1, 4096),
    kv_dtype=st.sampled_from(["bf16", "int8"]),
    window=st.integers(0, 5),
    free=st.integers(10**6, 10**9),
)
def test_invariant_14_the_layout_builder_is_affine_in_pages(mini, lanes, context, kv_dtype, window, free):
    """`resolve` builds the whole plan for the pool it finds and raises if that is not on the line."""
    spec = {"spec": "mtp", "draft_tokens": window} if window else {}
    options = EngineOptions(max_context=context, kv_capacity="auto", kv_dtype=kv_dtype, max_concurrency=lanes, **spec)
    try:
        found = Planner(NINFER_MINI, mini.text, mini.mtp, options, device=False).resolve(free, headroom=0)
    except CapacityError as error:
        assert "affine" not in str(error)
        return
    assert found.capacity.bytes <= free
    assert found.shape.draft_pages == draft_pool(found.shape.pages, lanes, window)


@pytest.mark.parametrize("window", [0, 3])
def test_invariant_15_real_units_stay_inside_the_planned_workspace(mini, window):
    """The reference backend holds BF16 in four bytes, so it may take twice what is planned, and no more."""
    spec = {"spec": "mtp", "draft_tokens": window} if window else {}
    options = EngineOptions(max_context=300, max_concurrency=3, **spec)
    planned = Planner(NINFER_MINI, mini.text, mini.mtp, options, device=False).resolve(None)
    program = build_program(mini.model(), mini.mtp, planned.shape, planned.prefill_chunk, planned.max_context)
    program.state.tables[0].host["table"][...] = np.arange(3 * planned.shape.row_pages).reshape(3, -1) % 5
    for n in (1, 17, planned.prefill_chunk):
        program._prefill_body(n, n)
    for rows in (1, 2, 3):
        program._decode[rows]() if program._decode else None
    assert 0 < program.ops.workspace_peak <= 2 * planned.workspace_bytes


@given(st.integers(1, 300), st.integers(0, 400), st.integers(1, 300), st.integers(0, 5))
def test_invariant_16_budgets_end_at_the_limit_or_the_context(prompt, requested, context, window):
    if prompt > context:
        with pytest.raises(ContextLengthExceeded, match=f"{prompt} tokens, exceeding Engine max_context {context}"):
            Budget.of(prompt, requested, context, window)
        return
    budget = Budget.of(prompt, requested, context, window)
    assert budget.tokens == min(requested, context - prompt + 1)
    assert (budget.limit_reason is FinishReason.CONTEXT_CAPACITY) == (requested > context - prompt + 1)
    positions = prompt + budget.tokens - 1
    assert budget.vector.main_pages == pages_for(positions)
    assert budget.vector.draft_pages == (pages_for(min(context, positions + window - 1)) if window else 0)
    shape = StateShape(1, pages_for(context), pages_for(context), "bf16")
    assert budget.vector.main_pages <= shape.row_pages


@given(*[st.integers(0, 2**31)] * 3)
def test_invariant_40_graphs_fail_a_start_only_below_the_floor(observed, allowance, free_after):
    if observed > allowance and free_after < FREE_FLOOR:
        with pytest.raises(CapacityError, match=f"device 0.*{observed}.*{allowance}.*{free_after}"):
            check_graph_memory(observed, allowance, free_after, "0")
    else:
        assert (check_graph_memory(observed, allowance, free_after, "0") is None) == (observed <= allowance)
