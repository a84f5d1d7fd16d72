"""Relabelling and migration: golden results, refusals that touch nothing, and kills at every step."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ninfer_nb.artifact import metadata
from ninfer_nb.artifact.container import read_directory
from ninfer_nb.artifact.directory import Identity, encode_json, encode_prefix
from ninfer_nb.artifact.inventory import ResourceSpec, TensorSpec, inventory
from ninfer_nb.artifact.migrate import BACKUP_SUFFIX as MIGRATION_SUFFIX
from ninfer_nb.artifact.migrate import Pin, migrate
from ninfer_nb.artifact.relabel import BACKUP_SUFFIX, change_identity, recover, relabel
from ninfer_nb.artifact.writer import plan
from ninfer_nb.errors import ArtifactError

GOLDEN = Path(__file__).parents[1] / "data/golden/artifact"
CONTAINERS = json.loads((GOLDEN / "containers.json").read_text())
SPLIT = Identity("qwen3.8-27b", "nvfp4-split")


def copy(name, folder):
    return Path(shutil.copy(GOLDEN / name, folder / "x.ninfer"))


def sparse_split_file(path, weights_id="nvfp4", resource_bytes=1000):
    """A file with the whole split inventory and a payload of holes, labelled `weights_id`."""
    specs = inventory(SPLIT)
    names = [spec.name for spec in specs if isinstance(spec, ResourceSpec)]
    directory = plan(Identity("qwen3.8-27b", weights_id), specs, dict.fromkeys(names, resource_bytes))
    text = encode_json(directory.identity, directory.objects)
    with open(path, "wb") as file:
        file.write(encode_prefix(len(text)) + text)
        file.truncate(directory.file_bytes)
    return path


@pytest.mark.parametrize("name", ["roomy", "exact"])
def test_relabel_in_place_gives_the_golden_bytes(name, tmp_path):
    path = copy(f"relabel_{name}_before.ninfer", tmp_path)
    assert change_identity(path, SPLIT).changed
    assert path.read_bytes() == (GOLDEN / f"relabel_{name}_after.ninfer").read_bytes()
    assert not change_identity(path, SPLIT).changed
    assert os.listdir(tmp_path) == ["x.ninfer"]


def test_relabel_without_room_refuses_and_writes_a_new_file(tmp_path):
    path, out = copy("relabel_nofit_before.ninfer", tmp_path), tmp_path / "out.ninfer"
    before = path.read_bytes()
    with pytest.raises(ArtifactError, match=r"new directory needs 4081 bytes but only 4080 bytes are available"):
        change_identity(path, SPLIT)
    assert path.read_bytes() == before
    change_identity(path, SPLIT, out)
    assert out.read_bytes() == (GOLDEN / "relabel_nofit_after.ninfer").read_bytes()
    assert path.read_bytes() == before
    with pytest.raises(ArtifactError, match="output already exists"):
        change_identity(path, SPLIT, out)


def test_relabel_of_spelled_out_text_changes_the_value_only(tmp_path):
    path = copy("noncanonical.ninfer", tmp_path)
    before = read_directory(path)
    change_identity(path, SPLIT)
    after = read_directory(path)
    assert after.identity == SPLIT
    assert (after.objects, after.payload_offset) == (before.objects, before.payload_offset)
    assert path.read_bytes()[after.payload_offset :] == (GOLDEN / "noncanonical.ninfer").read_bytes()[4096:]


def test_relabel_of_a_whole_split_file(tmp_path):
    path = sparse_split_file(tmp_path / "x.ninfer")
    before = read_directory(path)
    assert relabel(path, "nvfp4-split").identity == SPLIT
    after = read_directory(path)
    assert (after.objects, after.payload_offset, after.file_bytes) == (
        before.objects,
        before.payload_offset,
        before.file_bytes,
    )
    assert not relabel(path, "nvfp4-split").changed


@pytest.mark.parametrize(
    ("name", "weights_id", "error"),
    [
        ("relabel_roomy_before.ninfer", "nvfp4-split", "the objects of this file are not those of"),
        ("relabel_roomy_before.ninfer", "groupwise-int", "cannot be relabelled to groupwise-int"),
        ("all_formats.ninfer", "nvfp4-split", "cannot be relabelled"),
        ("v1.ninfer", "nvfp4-split", "artifact migrate"),
    ],
)
def test_relabel_refuses_everything_else(name, weights_id, error, tmp_path):
    path = copy(name, tmp_path)
    with pytest.raises(ArtifactError, match=error):
        relabel(path, weights_id)
    assert path.read_bytes() == (GOLDEN / name).read_bytes()


KILLER = """
import os, sys
from pathlib import Path
from ninfer_nb.artifact import metadata
from test_edits_steps import edit

step, left = int(sys.argv[2]), [0]
def count(real):
    def call(*args, **kwargs):
        left[0] += 1
        if left[0] == step:
            os._exit(9)
        return real(*args, **kwargs)
    return call
os.fsync, os.rename, Path.unlink = count(os.fsync), count(os.rename), count(Path.unlink)
edit(Path(sys.argv[1]))
"""

STEPS = {
    "relabel": """
from ninfer_nb.artifact.directory import Identity
from ninfer_nb.artifact.relabel import change_identity
def edit(path):
    change_identity(path, Identity("qwen3.8-27b", "nvfp4-split"))
""",
    "migrate": """
import json, os
from ninfer_nb.artifact.container import parse_v1_directory
from ninfer_nb.artifact.directory import Identity
from ninfer_nb.artifact.migrate import Pin, migrate
pin = json.loads(os.environ["PIN"])
from test_edits_specs import specs
def edit(path):
    migrate(path, (Pin(Identity(pin["model_id"], pin["weights_id"]), pin["sha256"], pin["directory_sha256"]),), specs)
""",
}


def v1_specs(name):
    """Inventory of a golden version 1 file, read off the file itself."""
    from ninfer_nb.artifact.container import ResourceEntry, parse_v1_directory

    objects = parse_v1_directory(GOLDEN / name).objects
    return [
        ResourceSpec(e.name) if isinstance(e, ResourceEntry) else TensorSpec(e.name, e.shape, e.format) for e in objects
    ]


def run_killed(kind, path, step, folder, name):
    (folder / "test_edits_steps.py").write_text(STEPS[kind])
    (folder / "test_edits_specs.py").write_text(
        "from ninfer_nb.artifact.inventory import ResourceSpec, TensorSpec\n"
        f"ALL = {v1_specs('v1.ninfer')!r}\n\ndef specs(identity):\n    return ALL\n"
    )
    pin = json.dumps(CONTAINERS["v1.ninfer"]["pin"])
    environment = {**os.environ, "PYTHONPATH": str(folder), "PIN": pin}
    done = subprocess.run([sys.executable, "-c", KILLER, str(path), str(step)], env=environment, check=False)
    return done.returncode


@pytest.mark.parametrize(
    ("kind", "before", "after", "suffix"),
    [
        ("relabel", "relabel_roomy_before.ninfer", "relabel_roomy_after.ninfer", BACKUP_SUFFIX),
        ("migrate", "v1.ninfer", "v1_migrated.ninfer", MIGRATION_SUFFIX),
    ],
)
def test_a_kill_at_any_step_can_be_undone(kind, before, after, suffix, tmp_path):
    """After each kill the file is the old one, the new one, or has its backup; a second run ends it."""
    old, new = (GOLDEN / before).read_bytes(), (GOLDEN / after).read_bytes()
    for step in range(1, 40):
        folder = tmp_path / f"step{step}"
        folder.mkdir()
        path = copy(before, folder)
        code = run_killed(kind, path, step, folder, before)
        if code == 0:
            assert step > 6, "the edit has fewer steps than it needs"
            assert path.read_bytes() == new
            return
        assert code == 9
        backup = path.with_name(path.name + suffix)
        if path.read_bytes() not in (old, new):
            assert backup.exists(), f"step {step} left neither file nor backup"
        if kind == "relabel":
            recover(path, "nvfp4-split")
        assert run_killed(kind, path, 1000, folder, before) == 0
        assert path.read_bytes() == new
        assert not backup.exists()
    pytest.fail("the edit never finished")


def pin_of(name):
    pin = CONTAINERS[name]["pin"]
    return (Pin(Identity(pin["model_id"], pin["weights_id"]), pin["sha256"], pin["directory_sha256"]),)


@pytest.mark.parametrize(
    ("name", "after"), [("v1.ninfer", "v1_migrated.ninfer"), ("v1_exactfit.ninfer", "v1_exactfit_migrated.ninfer")]
)
def test_migration_gives_the_golden_bytes(name, after, tmp_path):
    path, specs = copy(name, tmp_path), v1_specs(name)
    assert migrate(path, pin_of(name), lambda _: specs).changed
    assert path.read_bytes() == (GOLDEN / after).read_bytes()
    assert not migrate(path, pin_of(name), lambda _: specs).changed
    assert os.listdir(tmp_path) == ["x.ninfer"]


def test_migration_without_room_refuses(tmp_path):
    path, specs = copy("v1_nofit.ninfer", tmp_path), v1_specs("v1_nofit.ninfer")
    with pytest.raises(ArtifactError, match=CONTAINERS["v1_nofit.ninfer"]["migration_error"]):
        migrate(path, pin_of("v1_nofit.ninfer"), lambda _: specs)
    assert path.read_bytes() == (GOLDEN / "v1_nofit.ninfer").read_bytes()


def test_migration_knows_a_file_by_its_inventory_where_no_digest_is_known(tmp_path):
    path, specs = copy("v1.ninfer", tmp_path), v1_specs("v1.ninfer")
    pins = (Pin(Identity("test-v1-model", "groupwise-int"), None, None),)
    assert migrate(path, pins, lambda _: specs).changed
    assert path.read_bytes() == (GOLDEN / "v1_migrated.ninfer").read_bytes()


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda data: data[:-1] + b"\x7f", "v1 artifact SHA-256 is"),
        (lambda data: data + b"\0", "v1 payload length does not match"),
        (lambda data: data[:7] + b"\x03" + data[8:], "artifact magic is not NInfer v1"),
        (lambda data: data[:10], "artifact is shorter than the v1 prefix"),
    ],
)
def test_migration_refuses_other_files(change, error, tmp_path):
    path, specs = tmp_path / "x.ninfer", v1_specs("v1.ninfer")
    data = change((GOLDEN / "v1.ninfer").read_bytes())
    path.write_bytes(data)
    with pytest.raises(ArtifactError, match=error):
        migrate(path, pin_of("v1.ninfer"), lambda _: specs)
    assert path.read_bytes() == data


def test_published_pins_refuse_foreign_models(tmp_path):
    with pytest.raises(ArtifactError, match="v1 model_id 'test-v1-model' is not one of the published artifacts"):
        migrate(copy("v1.ninfer", tmp_path))


def test_a_foreign_backup_is_not_restored(tmp_path):
    path = copy("relabel_roomy_before.ninfer", tmp_path)
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    backup.write_bytes(b"something else")
    with pytest.raises(ArtifactError, match="invalid migration recovery file"):
        metadata.restore(path, backup)
    assert path.read_bytes() == (GOLDEN / "relabel_roomy_before.ninfer").read_bytes()
