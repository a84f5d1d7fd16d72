"""Draft-head ids from token counts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ninfer_nb.artifact.convert.draft import draft_token_ids, read_counts, special_ids
from ninfer_nb.artifact.geometry import NINFER_MINI
from ninfer_nb.errors import ArtifactError


def ids(counts, forced, rows):
    return draft_token_ids(np.int64(counts), np.int64(forced), rows).tolist()


def test_frequent_ids_come_first_and_forced_ones_are_never_left_out():
    assert ids([5, 9, 0, 9, 7, 1], [2], 4) == [1, 3, 4, 2]


def test_a_forced_id_follows_free_ids_of_its_count():
    assert ids([3, 3, 3, 8], [0, 3], 4) == [3, 1, 2, 0]


def test_a_frequent_forced_id_keeps_its_rank():
    assert ids([1, 2, 3, 4, 5], [3], 3) == [4, 3, 2]


def test_too_many_forced_ids_leave_the_most_frequent():
    assert ids([1, 7, 7, 0, 9], [0, 1, 2, 3], 2) == [1, 2]
    assert ids([1, 7, 7, 0, 9], [3, 4], 2) == [4, 3]


def test_zero_counts_give_the_lowest_ids_then_the_forced():
    assert ids([0] * 10, [8, 9], 5) == [0, 1, 2, 8, 9]


def test_the_domain_may_be_too_small():
    with pytest.raises(ArtifactError, match="draft head needs 4 ids; the token domain has 3"):
        draft_token_ids(np.zeros(3, np.int64), np.int64([1]), 4)


def test_counts_are_the_first_row_of_the_ranking(tmp_path):
    file = tmp_path / "ranking"
    np.arange(3 * 4096, dtype="<i8").tofile(file)
    assert read_counts(file, NINFER_MINI).tolist() == list(range(4096))
    assert not read_counts(None, NINFER_MINI).any()


@pytest.mark.parametrize("size", [0, 8, 8 * 4096 - 1, 8 * 4096 + 8])
def test_rankings_are_whole_rows(tmp_path, size):
    file = tmp_path / "ranking"
    file.write_bytes(bytes(size))
    with pytest.raises(ArtifactError, match=f"ranking has {size} bytes; expected a positive multiple of 32768"):
        read_counts(file, NINFER_MINI)


def test_counts_are_not_negative(tmp_path):
    counts = np.zeros(4096, "<i8")
    counts[77] = -1
    counts.tofile(tmp_path / "ranking")
    with pytest.raises(ArtifactError, match="count of id 77 is negative"):
        read_counts(tmp_path / "ranking", NINFER_MINI)
    with pytest.raises(ArtifactError, match="No such file"):
        read_counts(tmp_path / "nowhere", NINFER_MINI)


def test_special_ids_are_those_of_the_domain():
    added = {
        "7": {"special": True},
        "3": {"special": True},
        "5": {"special": False},
        "6": {},
        "4096": {"special": True},
    }
    config = json.dumps({"added_tokens_decoder": added}).encode()
    assert special_ids(config, 4096).tolist() == [3, 7]
    assert special_ids(b"{}", 4096).tolist() == []
    for bad in (
        b"[]",
        b"nonsense",
        b'{"added_tokens_decoder": {"x": {"special": true}}}',
        b'{"added_tokens_decoder": [1]}',
    ):
        with pytest.raises(ArtifactError, match="added_tokens_decoder is invalid"):
            special_ids(bad, 4096)
