"""Every weight profile of the mini: the artifact's model against the same model with the artifact's decoded values."""

import numpy as np
import pytest
from support.artifacts import MINI_PROFILES, artifact_runner, dense_runner, mini_artifact
from support.golden_cases import cases, stops, text_names
from support.text_runs import relative_l2

from ninfer_nb.ops.reference import ReferenceOps

NAMES = text_names()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("profiles")


@pytest.mark.parametrize("weights_id", MINI_PROFILES)
def test_artifact_model(folder, weights_id):
    path = mini_artifact(weights_id, folder)
    dense = dense_runner(path, ReferenceOps(round_bf16=False))
    exact = artifact_runner(path, ReferenceOps(round_bf16=False))
    rounded = artifact_runner(path, ReferenceOps())
    errors, answers = [], 0
    for name in NAMES:
        case = cases()[name]
        want = dense.prefill(case["prompt_ids"])
        assert relative_l2(exact.prefill(case["prompt_ids"]), want) <= 1e-5
        errors.append(relative_l2(rounded.prefill(case["prompt_ids"]), want))
        expected, got = case["greedy_ids"], rounded.greedy(case["prompt_ids"], len(case["greedy_ids"]), stops())[0]
        answers += got == expected
    assert np.median(errors) <= 5e-3
    assert max(errors) <= 4e-2
    assert answers >= len(NAMES) // 2, "quantised weights should keep most greedy answers"
