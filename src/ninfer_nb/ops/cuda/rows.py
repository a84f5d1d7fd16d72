"""Row-wise ops on CUDA: embedding, norm, row copies, argmax and sampling."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...cuda.kernels import acceptance, norm, sampling
from ...cuda.kernels import embed as embed_kernels
from ...cuda.memory import DeviceArray
from ...cuda.spec import KernelSpec
from .. import Drafts, SamplingRows, Verdict
from ..rng import SPECULATIVE_DRAWS
from .weights import CudaWeight

if TYPE_CHECKING:
    from . import CudaOps

MAX_ROWS = 16  # rows of an argmax


def embed(ops: CudaOps, ids: DeviceArray, table: CudaWeight, out: DeviceArray) -> None:
    count, width = out.shape
    grid = (count, -(-width // (embed_kernels.THREADS * embed_kernels.VECTOR)), 1)
    spec = embed_kernels.embed_spec(table.format, width)
    ops.launch(spec, grid, embed_kernels.THREADS, ids.ptr, table.codes, table.high, table.scales, out.ptr)


def rms_norm(ops: CudaOps, x: DeviceArray, gain: CudaWeight, out: DeviceArray, eps: float) -> None:
    count, width = x.shape
    spec = norm.norm_spec(width)
    ops.launch(
        spec, (count, 1, 1), norm.norm_threads(width), x.ptr, x.row_stride, gain.codes, eps, out.ptr, out.row_stride
    )


def copy(ops: CudaOps, x: DeviceArray, index: DeviceArray, out: DeviceArray, *, gather: bool) -> None:
    spec = KernelSpec.of(embed_kernels.copy_rows, gather=gather)
    vectors = x.shape[1] * x.itemsize // 16
    strides = x.row_stride * x.itemsize, out.row_stride * out.itemsize
    grid = (index.shape[0], 1, 1)
    ops.launch(spec, grid, embed_kernels.THREADS, x.ptr, strides[0], index.ptr, out.ptr, strides[1], vectors)


def lookup(ops: CudaOps, table: CudaWeight, index: DeviceArray) -> None:
    count = index.shape[0]
    grid = (-(-count // embed_kernels.THREADS), 1, 1)
    ops.launch(KernelSpec.of(embed_kernels.lookup_rows), grid, embed_kernels.THREADS, table.codes, index.ptr, count)


def argmax(ops: CudaOps, logits: DeviceArray, domain: int, out: DeviceArray) -> None:
    nothing = ops.constant("argmax rows", lambda: np.zeros(MAX_ROWS, np.uint64), "u64")
    settings = SamplingRows(*[nothing] * 9, counts=DeviceArray.at(0, (0, 0), "i32"))
    sample(ops, logits, domain, settings, 0, out)


def sample(ops: CudaOps, logits: DeviceArray, domain: int, which: SamplingRows, purpose: int, out: DeviceArray) -> None:
    select, draw = sampling.sampling_specs(domain)
    count = out.shape[0]
    with ops.scope():
        found = ops.take((sampling.candidate_words(domain, count),), "u32")
        lanes, counts = which.lanes.ptr, which.counts.ptr
        ops.launch(
            select, (sampling.select_blocks(domain), count, 1), sampling.THREADS,
            logits.ptr, logits.row_stride, 0, which.temperature.ptr, which.presence.ptr, which.frequency.ptr,
            lanes, counts, found.ptr,
        )  # fmt: skip
        ops.launch(
            draw, (count, 1, 1), sampling.THREADS,
            found.ptr, which.temperature.ptr, which.top_k.ptr, which.top_p.ptr, which.min_p.ptr, which.presence.ptr,
            which.frequency.ptr, which.seed.ptr, which.position.ptr, purpose, lanes, counts, out.ptr,
        )  # fmt: skip


def accept(
    ops: CudaOps, logits: DeviceArray, domain: int, drafts: Drafts, which: SamplingRows, verdict: Verdict
) -> None:
    """See `Ops.accept`: candidates of every column, then one block a row decides."""
    select, judge = acceptance.acceptance_specs(domain, drafts.width, SPECULATIVE_DRAWS)
    lines, rows = logits.shape[0], drafts.extents.shape[0]
    with ops.scope():
        found = ops.take((sampling.candidate_words(domain, lines),), "u32")
        lanes, counts = which.lanes.ptr, which.counts.ptr
        ops.launch(
            select, (sampling.select_blocks(domain), lines, 1), sampling.THREADS,
            logits.ptr, logits.row_stride, drafts.ids.ptr, which.temperature.ptr, which.presence.ptr,
            which.frequency.ptr, lanes, counts, found.ptr,
        )  # fmt: skip
        ops.launch(
            judge, (rows, 1, 1), sampling.THREADS,
            found.ptr, drafts.ids.ptr, drafts.extents.ptr, drafts.remaining.ptr, drafts.rope_delta.ptr,
            drafts.capacity, which.temperature.ptr, which.top_k.ptr, which.top_p.ptr, which.min_p.ptr,
            which.presence.ptr, which.frequency.ptr, which.seed.ptr, which.position.ptr, lanes, counts,
            verdict.tokens.ptr, verdict.counts.ptr, verdict.aligned.ptr, verdict.picks.ptr,
            verdict.draft_positions.ptr, verdict.draft_rope.ptr, verdict.draft_live.ptr,
            verdict.draft_positions.row_stride,
        )  # fmt: skip
