"""`ninfer artifact …` from the command line: output, exit statuses, and bad files through every command."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ninfer_nb.artifact.registry import lookup
from ninfer_nb.cli.app import run_command

GOLDEN = Path(__file__).parents[1] / "data/golden/artifact"
CONTAINERS = json.loads((GOLDEN / "containers.json").read_text())


def artifact(capfd, *arguments):
    status = run_command(["artifact", *map(str, arguments)])
    captured = capfd.readouterr()
    return status, captured.out, captured.err


def test_inspect_text_and_json(capfd, monkeypatch):
    monkeypatch.chdir(GOLDEN)
    case = CONTAINERS["all_formats.ninfer"]
    status, out, err = artifact(capfd, "inspect", "all_formats.ninfer", "--objects")
    assert (status, out.rstrip("\n"), err) == (0, case["inspect_text_with_objects"].rstrip("\n"), "")
    assert artifact(capfd, "inspect", "--json", "all_formats.ninfer")[1].rstrip("\n") == case["inspect_json"]


def test_inspect_takes_short_names(capfd):
    status, out, _ = artifact(capfd, "inspect", "mini")
    assert status == 0
    assert out.startswith("model_id: ninfer-mini\nweights_id: groupwise-int\nobjects: 164 (158 tensors, 6 resources)\n")


def test_verify_with_digest(capfd):
    status, out, err = artifact(capfd, "verify", "mini", "--digest")
    assert (status, err) == (0, "")
    assert out.endswith("ok\n")
    report = json.loads(artifact(capfd, "verify", "mini", "--digest", "--json")[1])
    assert report["sha256"] in (Path(__file__).parents[2] / "artifacts.toml").read_text()


def changed_mini(folder, change):
    path = folder / "x.ninfer"
    data = bytearray(lookup("mini").read_bytes())
    change(data)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda d: d.__setitem__(-1, d[-1] ^ 1), "artifact SHA-256 is "),
        (lambda d: d.extend(b"\0"), "artifact has 1 bytes behind its last object"),
        (lambda d: d.__delitem__(slice(-300, None)), "extends beyond the file"),
        (lambda d: d.__setitem__(slice(4, 5), b"X"), "artifact magic is not NInfer v2"),
    ],
)
def test_verify_finds_what_was_changed(capfd, tmp_path, change, error):
    path = changed_mini(tmp_path, change)
    status, out, err = artifact(capfd, "verify", path, "--digest")
    assert (status, out) == (1, "")
    assert err.startswith("error: ") and error in err and err.count("\n") == 1


@pytest.mark.parametrize("name", ["all_formats.ninfer", "relabel_roomy_before.ninfer"])
def test_verify_refuses_unknown_identities_and_other_inventories(capfd, name):
    status, _, err = artifact(capfd, "verify", GOLDEN / name)
    assert status == 1
    assert "is not supported" in err or "required artifact object is missing" in err


def test_relabel_and_migrate_refuse_short_names(capfd):
    for command in (["relabel", "mini", "--weights-id", "nvfp4-split"], ["migrate", "mini"]):
        status, _, err = artifact(capfd, *command)
        assert status == 1
        assert err.startswith("error: NInfer accepts only .ninfer artifacts, got mini\nUsage: ninfer artifact")


def bad_files():
    with np.load(GOLDEN / "malformed.npz") as images:
        expected = json.loads((GOLDEN / "malformed.json").read_text())
        return {name: images[name].tobytes() for name in images.files if expected[name] is not None}


BAD = bad_files()


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_files_through_every_command(capfd, tmp_path, name):
    path = tmp_path / "x.ninfer"
    path.write_bytes(BAD[name])
    commands = [
        ["artifact", "inspect", str(path)],
        ["artifact", "verify", str(path), "--digest"],
        ["artifact", "relabel", str(path), "--weights-id", "nvfp4-split", "--yes"],
        ["artifact", "migrate", str(path)],
        ["run", str(path), "--prompt", "a", "--device", "cpu"],
    ]
    for command in commands:
        status = run_command(command)
        captured = capfd.readouterr()
        assert status == 1, command
        assert "error: " in captured.err and "Traceback" not in captured.err
        assert captured.out == ""
        assert path.read_bytes() == BAD[name]
        assert [file.name for file in tmp_path.iterdir()] == ["x.ninfer"]


def test_missing_folders_and_unreadable_files(capfd, tmp_path):
    folder = tmp_path / "folder.ninfer"
    folder.mkdir()
    for command in ("inspect", "verify", "migrate"):
        status, _, err = artifact(capfd, command, folder)
        assert status == 1 and err.startswith("error: ") and err.count("\n") == 1
    path = shutil.copy(GOLDEN / "relabel_nofit_before.ninfer", tmp_path / "x.ninfer")
    status, _, err = artifact(
        capfd, "relabel", path, "--weights-id", "nvfp4-split", "--out", tmp_path / "no/x.ninfer"
    )  # fmt: skip
    assert status == 1 and err.startswith("error: ")
