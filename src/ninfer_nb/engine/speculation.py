"""Rounds that verify MTP drafts (`runtime.md` 10): a target pass over W columns a row, acceptance, the next drafts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..model.mtp import MtpModel
from ..ops import Buf, Columns, Drafts, Verdict
from .program import Chunk, Commit, Outcome, Row

if TYPE_CHECKING:
    from .execution import ModelProgram


class Speculation:
    """The draft layer's share of a `ModelProgram`."""

    FIELDS = ("valid", "extents", "remaining", "delta")  # of the ingress frame, one i32 a row

    def __init__(self, program: ModelProgram, mtp: MtpModel):
        self.program, self.mtp, self.ops = program, mtp, program.ops
        ops, lanes, window = program.ops, program.lanes, program.window
        self.window, self.width = window, window + 1
        columns, hidden = lanes * self.width, program.model.geometry.hidden
        self.out = ops.empty((columns, hidden), "bf16")  # the draft layer's hidden columns
        self.previous = [ops.empty((lanes, hidden), "bf16") for _ in range(2)]
        self.aligned, self.picks = ops.empty((columns,), "i32"), ops.empty((lanes,), "i32")
        steps = (max(window - 1, 1), lanes)
        self.positions, self.rope, self.live = (ops.empty(steps, "i32") for _ in range(3))
        self.egress = ops.frame(
            {"tokens": ((columns,), "i32"), "counts": ((lanes,), "i32"), "drafts": ((window, lanes), "i32")}
        )
        self.folding = ops.frame({"valid": ((lanes,), "i32"), "last": ((lanes,), "i32")})
        self.first = ops.frame({"positions": ((window,), "i32"), "token": ((1,), "i32"), "lanes": ((1,), "i32")})
        self._fold: dict[int, Callable[[], None]] = {}

    @property
    def buffers(self) -> list[Buf]:
        """Persistent buffers, for the memory report."""
        return [self.out, *self.previous, self.aligned, self.picks, self.positions, self.rope, self.live]

    def phases(self, chunks: Sequence[int]) -> dict[str, list[Callable[[], None]]]:
        """What the draft layer adds to `ModelProgram.phases`."""
        context, rows = self.program.max_context, range(1, self.program.lanes + 1)
        prefill = [partial(self.append, n, self.program.hidden[:n], context) for n in chunks]
        prefill.append(partial(self._first_body, self.program.tail[:1], self.window))
        rounds = [partial(body, n) for n in rows for body in (self.verify_body, self._fold_body)]
        return {"mtp prefill": prefill, "mtp round": rounds}

    def capture(self) -> None:
        """One graph of the fold for every number of rows."""
        self._fold = {n: self.ops.graph(partial(self._fold_body, n)) for n in range(1, self.program.lanes + 1)}

    # -- prefill -----------------------------------------------------------------------------------

    def append(self, n: int, hidden: Buf, visible: int) -> None:
        """Draft-layer keys and values of the first `n` prompt columns of the prompt frame."""
        device = self.program.prompt.device
        where = device["positions"][:n]
        columns = Columns(1, n, where, where, device["lanes"], None, visible)
        self.mtp.append(device["next"][:n], hidden, columns, self.program.state.draft)

    def first_drafts(self, chunk: Chunk, hidden: Buf, token: int) -> tuple[int, ...]:
        """Drafts after the first token; the column at the prompt's end is written even when none is wanted."""
        host = self.first.host
        host["token"][0], host["lanes"][0] = token, chunk.lane
        for step in range(self.window):
            host["positions"][step] = min(chunk.prompt_tokens - 1 + step, self.program.max_context - 1)
        self._first_body(hidden, max(chunk.drafts, 1))
        self.ops.synchronize()
        return _usable(self.egress.host["drafts"][: chunk.drafts, 0].tolist())

    def _first_body(self, hidden: Buf, steps: int) -> None:
        self.first.upload()
        device, drafts = self.first.device, self.egress.device["drafts"]
        ids = device["token"]
        for step in range(steps):
            where = device["positions"][step : step + 1]
            columns = Columns(1, 1, where, where, device["lanes"], None, self.program.max_context)
            out = self.previous[step % 2][:1]
            self.mtp.step(ids, hidden, columns, self.program.state.draft, out)
            self.mtp.propose(out, drafts[step][:1])
            ids, hidden = drafts[step][:1], out
        self.egress.download()

    # -- rounds ------------------------------------------------------------------------------------

    def fill(self, rows: Sequence[Row]) -> None:
        """Anchors and drafts into the ingress frame."""
        host, width = self.program.ingress.host, self.width
        for b, row in enumerate(rows):
            extent = len(row.drafts)
            host["valid"][b], host["extents"][b] = extent + 1, extent
            host["remaining"][b], host["delta"][b] = row.remaining, row.rope_delta
            for j in range(width):
                at = b * width + j
                host["ids"][at] = row.drafts[j - 1] if 0 < j <= extent else row.token
                host["positions"][at] = row.position + min(j, extent)
                host["rope"][at] = host["positions"][at] + row.rope_delta

    def verify_body(self, n: int) -> None:
        """A whole round of `n` rows, from ingress to egress."""
        program, device, count = self.program, self.program.ingress.device, n * self.width
        program.ingress.upload()
        where, rope, lanes = device["positions"][:count], device["rope"][:count], device["lanes"][:n]
        columns = Columns(n, self.width, where, rope, lanes, device["valid"][:n], program.max_context)
        hidden, logits = program.hidden[:count], program.logits[:count]
        program.model.forward(device["ids"][:count], columns, program.state, hidden, program.state.records)
        program.model.logits(hidden, logits)
        verdict = self._verdict(n)
        drafts = Drafts(
            self.width, program.max_context, device["ids"][:count], device["extents"][:n], device["base"][:n],
            device["remaining"][:n], device["delta"][:n],
        )  # fmt: skip
        self.ops.accept(logits, program.domain, drafts, program.sampling_rows(n), verdict)
        previous = self.previous[0][:n]
        self.ops.gather_rows(hidden, verdict.picks, previous)
        self.ops.scatter_rows(previous, lanes, program.tail)
        self._draft(n, columns, verdict, hidden)
        self.egress.download()

    def _verdict(self, n: int) -> Verdict:
        device = self.egress.device
        return Verdict(
            device["tokens"][: n * self.width], device["counts"][:n], self.aligned[: n * self.width], self.picks[:n],
            self.positions, self.rope, self.live,
        )  # fmt: skip

    def _draft(self, n: int, columns: Columns, verdict: Verdict, hidden: Buf) -> None:
        """Align the draft layer with what was accepted, then guess step by step."""
        cache, drafts, out = self.program.state.draft, self.egress.device["drafts"], self.out[: columns.count]
        aligned = Columns(
            n, self.width, columns.cache_positions, columns.rope_positions, columns.lanes, verdict.counts,
            columns.max_visible,
        )  # fmt: skip
        self.mtp.step(verdict.aligned, hidden, aligned, cache, out)
        previous = self.previous[0][:n]
        self.ops.gather_rows(out, verdict.picks, previous)
        self.mtp.propose(previous, drafts[0][:n])
        for step in range(self.window - 1):
            where, rope, live = (buf[step][:n] for buf in (self.positions, self.rope, self.live))
            one = Columns(n, 1, where, rope, columns.lanes, live, columns.max_visible)
            following = self.previous[(step + 1) % 2][:n]
            self.mtp.step(drafts[step][:n], previous, one, cache, following)
            self.mtp.propose(following, drafts[step + 1][:n])
            previous = following

    def outcomes(self, rows: Sequence[Row]) -> list[Outcome]:
        """What the egress frame says of each row."""
        host, found = self.egress.host, []
        for b, row in enumerate(rows):
            count = int(host["counts"][b])
            if not 0 <= count <= len(row.drafts) + 1:
                raise RuntimeError(f"lane {row.lane}: {count} tokens of {len(row.drafts)} drafts")
            tokens = host["tokens"][b * self.width : b * self.width + count].tolist()
            room = self.program.max_context - row.position - count - 1
            extent = max(0, min(self.window, row.remaining - count - 1, room))
            found.append(Outcome(tuple(tokens), _usable(host["drafts"][:extent, b].tolist())))
        return found

    def fold(self, commits: Sequence[Commit]) -> None:
        """Move recurrent state on by what counts; a row's tail is the hidden column of its last token that counts."""
        host, n = self.folding.host, len(commits)
        if not any(commit.tokens for commit in commits):
            return
        for b, commit in enumerate(commits):
            host["valid"][b] = commit.tokens
            host["last"][b] = b * self.width + max(commit.tokens - 1, 0)
        self._fold[n]()

    def _fold_body(self, n: int) -> None:
        program, device, count = self.program, self.program.ingress.device, n * self.width
        self.folding.upload()
        lanes = device["lanes"][:n]
        columns = Columns(
            n, self.width, device["positions"][:count], device["rope"][:count], lanes,
            self.folding.device["valid"][:n], program.max_context,
        )  # fmt: skip
        program.model.fold(columns, program.state, program.state.records)
        previous = self.previous[0][:n]
        self.ops.gather_rows(program.hidden[:count], self.folding.device["last"][:n], previous)
        self.ops.scatter_rows(previous, lanes, program.tail)


def _usable(drafts: list[int]) -> tuple[int, ...]:
    """Drafts up to the first that is no token (the draft layer's logits were not finite)."""
    for i, token in enumerate(drafts):
        if token < 0:
            return tuple(drafts[:i])
    return tuple(drafts)
