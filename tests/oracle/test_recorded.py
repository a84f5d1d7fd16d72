"""The recorded fixtures against a fresh run of transformers."""

import json
import lzma

import pytest

pytestmark = pytest.mark.oracle
pytest.importorskip("transformers")

from oracle import record_templates, record_tokenizer


@pytest.mark.parametrize("recorder", [record_templates, record_tokenizer], ids=["templates", "tokenizer"])
def test_recorded_fixture_is_current(recorder):
    recorded = json.loads(lzma.decompress(recorder.TARGET.read_bytes()))
    recorded.pop("transformers")
    assert recorded == recorder.record()
