"""Made-up payloads: legal words, reproducible, of useful size."""

import numpy as np
import pytest

from ninfer_nb.artifact.codec import check_words, decode
from ninfer_nb.artifact.geometry import GEOMETRIES, NINFER_MINI
from ninfer_nb.artifact.inventory import PROFILES, TensorSpec, inventory
from ninfer_nb.artifact.layouts import encoded_bytes
from ninfer_nb.artifact.synthetic import payload, segments

MINI = sorted((i for i in PROFILES if i.model_id == "ninfer-mini"), key=str)


@pytest.mark.parametrize("identity", MINI, ids=str)
def test_every_object_is_legal_and_has_the_right_size(identity):
    for index, spec in enumerate(inventory(identity, NINFER_MINI)):
        if not isinstance(spec, TensorSpec):
            continue
        data = payload(spec, 7, index)
        check_words(data, spec.format, spec.shape)
        values = decode(data, spec.format, spec.shape)
        assert np.isfinite(values).all()
        if len(spec.shape) == 2 and spec.format != "I32":
            rms = np.sqrt(np.mean(np.square(values, dtype=np.float64)))
            assert 0.5 <= rms * np.sqrt(spec.shape[1]) <= 2, spec


def test_seed_and_object_index_decide_the_bytes():
    spec = TensorSpec("x", (128, 256), "Q4G64_F16S")
    same, again = payload(spec, 1, 2), payload(spec, 1, 2)
    np.testing.assert_array_equal(same, again)
    assert (payload(spec, 1, 3) != same).any()
    assert (payload(spec, 2, 2) != same).any()


def test_draft_ids_are_distinct():
    spec = TensorSpec("text/draft_head_token_ids", (2049,), "I32")
    values = decode(payload(spec, 0, 0), "I32", spec.shape)
    assert len(set(values.tolist())) == 2049


@pytest.mark.parametrize("identity", sorted(PROFILES, key=str), ids=str)
def test_every_registered_object_has_segments_inside_its_payload(identity):
    for spec in inventory(identity, GEOMETRIES[identity.model_id]):
        if isinstance(spec, TensorSpec):
            for part in segments(spec):
                assert part.offset + (part.rows - 1) * part.stride + part.bytes <= encoded_bytes(
                    spec.format, spec.shape
                )
