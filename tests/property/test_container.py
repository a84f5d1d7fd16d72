"""Containers: whatever is planned reads back; whatever is damaged is refused or reads as a valid directory."""

import contextlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ninfer_nb.artifact.container import Artifact, read_directory
from ninfer_nb.artifact.directory import Identity, encode_json, encode_prefix, payload_offset_for
from ninfer_nb.artifact.inventory import ResourceSpec, TensorSpec
from ninfer_nb.artifact.relabel import change_identity
from ninfer_nb.artifact.writer import ArtifactWriter, plan
from ninfer_nb.errors import ArtifactError

GOLDEN = Path(__file__).parents[1] / "data/golden/artifact"
IMAGE = (GOLDEN / "all_formats.ninfer").read_bytes()

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30)
SHAPES = st.lists(st.integers(1, 9), max_size=4).map(tuple)
TENSORS = st.builds(TensorSpec, NAMES, SHAPES, st.sampled_from(["BF16", "FP32", "I32"]))
MATRICES = st.builds(
    TensorSpec, NAMES, st.tuples(st.integers(1, 5), st.integers(1, 300)),
    st.sampled_from(["Q4G64_F16S", "Q5G64_F16S", "Q6G64_F16S", "W8G32_F16S", "FP8_E4M3FN_ROW_BF16S"]),
)  # fmt: skip
SPECS = st.lists(st.one_of(TENSORS, MATRICES, st.builds(ResourceSpec, NAMES)), min_size=1, max_size=8).filter(
    lambda specs: len({spec.name for spec in specs}) == len(specs)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("containers")


@settings(deadline=None)
@given(SPECS, NAMES, NAMES, st.integers(0, 2**32 - 1))
def test_what_is_written_reads_back(folder, specs, model_id, weights_id, seed):
    rng = np.random.default_rng(seed)
    lengths = {spec.name: int(rng.integers(1, 500)) for spec in specs if isinstance(spec, ResourceSpec)}
    directory = plan(Identity(model_id, weights_id), specs, lengths)
    payloads = {entry.name: rng.integers(0, 256, entry.bytes, np.uint8) for entry in directory.objects}
    path = folder / "x.ninfer"
    with ArtifactWriter(path, directory) as writer:
        for name, payload in payloads.items():
            writer.write(name, payload)
    with Artifact.open(path) as artifact:
        assert artifact.directory == directory
        for name, payload in payloads.items():
            np.testing.assert_array_equal(artifact.payload(name), payload)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damage_is_refused_or_still_valid(folder, data):
    image = bytearray(IMAGE)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, 1700))
        image[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.none(), st.integers(0, len(image))))
    path = folder / "x.ninfer"
    path.write_bytes(bytes(image[:cut]))
    try:
        directory = read_directory(path)
    except ArtifactError as error:
        assert str(error) and "\n" not in str(error)[:20]
        return
    end = max(entry.offset + entry.bytes for entry in directory.objects)
    assert directory.payload_offset + end <= path.stat().st_size


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=200)
@given(st.sampled_from(["name", "kind", "shape", "format", "layout", "offset", "bytes", "extra"]), JSON)
def test_any_member_may_hold_anything(folder, member, value):
    root = json.loads(IMAGE[16 : 16 + int.from_bytes(IMAGE[8:16], "little")])
    root["objects"][3][member] = value
    text = json.dumps(root).encode()
    path = folder / "x.ninfer"
    path.write_bytes((encode_prefix(len(text)) + text).ljust(payload_offset_for(len(text)), b"\0") + bytes(9224))
    with contextlib.suppress(ArtifactError):
        read_directory(path)


@settings(deadline=None, max_examples=60)
@given(NAMES, NAMES, NAMES, st.booleans(), st.integers(0, 3000))
def test_a_new_identity_changes_nothing_else(folder, model_id, old, new, ascii_only, filler):
    """In place where it fits, into a new file otherwise; objects and payload stay."""
    specs = [TensorSpec("w/" + "n" * filler, (3,), "I32"), ResourceSpec("r")]
    directory = plan(Identity(model_id, old), specs, {"r": 5})
    text = json.dumps(json.loads(encode_json(directory.identity, directory.objects)), ensure_ascii=ascii_only).encode()
    path, out = folder / "a.ninfer", folder / "b.ninfer"
    out.unlink(missing_ok=True)
    payload = bytes(range(12)) + b"hello"
    path.write_bytes((encode_prefix(len(text)) + text).ljust(payload_offset_for(len(text)), b"\0") + payload)
    target = Identity(model_id, new)
    try:
        change_identity(path, target)
        changed = path
    except ArtifactError as error:
        assert "rerun with an output path" in str(error)
        assert read_directory(path).identity == directory.identity
        change_identity(path, target, out)
        changed = out
    after = read_directory(changed)
    assert (after.identity, after.objects) == (target, directory.objects)
    assert changed.read_bytes()[after.payload_offset :] == payload
