"""Reading checkpoints: no bytes give anything but tensors inside the file, or an ArtifactError."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ninfer_nb.artifact.convert.checkpoint import ITEM_BYTES, SINGLE, Checkpoint
from ninfer_nb.artifact.convert.draft import draft_token_ids
from ninfer_nb.artifact.convert.recipe import row_runs
from ninfer_nb.errors import ArtifactError

SMALL = st.integers(-2, 20) | st.sampled_from([2**63, 2**64, 1.0, True, None])
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from([*ITEM_BYTES, "F4", 3]),
        "shape": st.lists(SMALL, max_size=3),
        "data_offsets": st.lists(SMALL, max_size=3),
    },
)
PLAIN = st.builds(lambda n: {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}, st.integers(0, 9))
HEADER = st.dictionaries(st.text(max_size=3), PLAIN | ENTRY, max_size=3)


def _check(folder, content: bytes) -> None:
    (folder / SINGLE).write_bytes(content)
    try:
        checkpoint = Checkpoint(folder)
    except ArtifactError:
        return
    with checkpoint:
        for name, tensor in checkpoint.tensors.items():
            assert checkpoint.read(name).tobytes() == content[tensor.offset : tensor.offset + tensor.bytes]


@given(header=HEADER, data=st.binary(max_size=12), cut=st.integers(0, 3))
def test_any_header_is_read_or_refused(tmp_path_factory, header, data, cut):
    text = json.dumps(header).encode()
    _check(tmp_path_factory.mktemp("header"), len(text).to_bytes(8, "little") + text[: len(text) - cut] + data)


@given(content=st.binary(max_size=40))
def test_any_file_is_read_or_refused(tmp_path_factory, content):
    _check(tmp_path_factory.mktemp("bytes"), content)


@given(rows=st.lists(st.integers(0, 30), max_size=30))
def test_row_runs_give_the_rows_back_and_cannot_be_merged_further(rows):
    runs = row_runs(rows)
    assert [row for start, stop in runs for row in range(start, stop)] == rows
    assert all(stop != start for (_, stop), (start, _) in pairwise(runs))


@given(data=st.data(), domain=st.integers(1, 60))
def test_draft_ids_are_the_most_frequent_free_ids_and_all_forced_ones(data, domain):
    counts = np.array(data.draw(st.lists(st.integers(0, 5), min_size=domain, max_size=domain)), np.int64)
    forced = np.array(sorted(data.draw(st.sets(st.integers(0, domain - 1)))), np.int64)
    rows = data.draw(st.integers(1, domain))
    ids = draft_token_ids(counts, forced, rows)
    assert len(set(ids.tolist())) == rows
    assert (np.diff(counts[ids]) <= 0).all()
    left = np.setdiff1d(np.arange(domain), ids)
    if forced.size < rows:
        assert np.isin(forced, ids).all()
        free = np.setdiff1d(ids, forced)
        assert not free.size or not left.size or counts[left].max() <= counts[free].min()
    else:
        assert np.isin(ids, forced).all()
