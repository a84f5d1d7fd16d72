"""Containers that other people's code wrote: reading, inspecting, refusing, writing the same bytes again."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from ninfer_nb.artifact.container import Artifact, parse_v1_directory, read_directory
from ninfer_nb.artifact.directory import ResourceEntry
from ninfer_nb.artifact.inspect import lines
from ninfer_nb.artifact.inventory import ResourceSpec, TensorSpec
from ninfer_nb.artifact.writer import ArtifactWriter, plan
from ninfer_nb.errors import ArtifactError

GOLDEN = Path(__file__).parents[1] / "data/golden/artifact"
CONTAINERS = json.loads((GOLDEN / "containers.json").read_text())
V2 = sorted(name for name, case in CONTAINERS.items() if case["magic_version"] == 2)
MALFORMED = json.loads((GOLDEN / "malformed.json").read_text())
# our reader says the same in its own words
OURS = {
    "v1_magic": "NInfer artifact v1 is no longer supported; migrate it with: ninfer artifact migrate <artifact>",
}


@pytest.mark.parametrize("name", V2)
def test_payloads_and_directory(name):
    case = CONTAINERS[name]
    with Artifact.open(GOLDEN / name) as artifact:
        assert artifact.directory.json_bytes == case["json_bytes"]
        assert artifact.directory.file_bytes == case["bytes"]
        found = {e.name: hashlib.sha256(artifact.payload(e.name).tobytes()).hexdigest() for e in artifact.objects}
    assert found == case["object_sha256"]


@pytest.mark.parametrize("name", V2)
def test_inspect_prints_exactly(name, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    case = CONTAINERS[name]
    assert "\n".join(lines(name, as_json=True)) == case["inspect_json"]
    assert "\n".join(lines(name, objects=True)) == case["inspect_text_with_objects"].rstrip("\n")
    assert list(lines(name, objects=True))[8:] == case["inspect_objects"]


@pytest.mark.parametrize("name", ["all_formats.ninfer", "unicode_and_ranks.ninfer", "relabel_roomy_before.ninfer"])
def test_writing_again_gives_the_same_bytes(name, tmp_path):
    with Artifact.open(GOLDEN / name) as artifact:
        specs, lengths = [], {}
        for entry in artifact.objects:
            if isinstance(entry, ResourceEntry):
                specs.append(ResourceSpec(entry.name))
                lengths[entry.name] = entry.bytes
            else:
                specs.append(TensorSpec(entry.name, entry.shape, entry.format))
        with ArtifactWriter(tmp_path / name, plan(artifact.identity, specs, lengths)) as writer:
            for entry in artifact.objects:
                writer.write(entry.name, artifact.payload(entry.name))
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()


@pytest.mark.parametrize("name", ["v1.ninfer", "v1_exactfit.ninfer", "v1_nofit.ninfer"])
def test_version_1_is_read_for_migration_only(name):
    directory = parse_v1_directory(GOLDEN / name)
    assert hashlib.sha256(directory.text).hexdigest() == CONTAINERS[name]["pin"]["directory_sha256"]
    with pytest.raises(ArtifactError, match="ninfer artifact migrate"):
        read_directory(GOLDEN / name)


@pytest.mark.parametrize("name", sorted(MALFORMED))
def test_malformed(name, tmp_path):
    with np.load(GOLDEN / "malformed.npz") as images:
        (tmp_path / "x.ninfer").write_bytes(images[name].tobytes())
    expected = OURS.get(name, MALFORMED[name])
    if expected is None:
        read_directory(tmp_path / "x.ninfer")
        return
    with pytest.raises(ArtifactError) as raised:
        read_directory(tmp_path / "x.ninfer")
    assert str(raised.value) == expected
