"""`ninfer artifact convert` and `verify --model` as a user calls them."""

from __future__ import annotations

import json

import pytest
from support.checkpoints import MINI, mini_tensors, nvfp4_companion, write_checkpoint

from ninfer_nb.cli.app import run_command


@pytest.fixture
def ninfer(capsys):
    """`ninfer(*arguments)` gives exit status, stdout and stderr."""

    def run(*arguments) -> tuple[int, str, str]:
        status = run_command([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def companion(tmp_path_factory):
    tensors, config = nvfp4_companion()
    return write_checkpoint(tmp_path_factory.mktemp("sources") / "companion", tensors, config)


def test_convert_and_verify(ninfer, tmp_path):
    out = tmp_path / "mini.ninfer"
    status, stdout, stderr = ninfer("artifact", "convert", "ninfer-mini/nvfp4", "--model", MINI, "--out", out)
    lines = stdout.splitlines()
    assert (status, stderr) == (0, "")
    assert lines[0].startswith(f"converted: ninfer-mini/nvfp4 ({out}, 15316912 bytes, ")
    assert "NVFP4: own NVFP4 encoder: 29" in lines
    assert lines[-1] == f"report: {out}.conversion.json"
    assert ninfer("artifact", "verify", out, "--digest")[0] == 0

    status, stdout, _ = ninfer("artifact", "verify", out, "--model", MINI)
    summary = json.loads(stdout)
    assert status == 0
    assert list(summary) == sorted(summary)
    assert (summary["compared_objects"], summary["objects"], summary["tensors"]) == (185, 185, 179)


def test_convert_with_a_companion(ninfer, companion, tmp_path):
    out = tmp_path / "mini.ninfer"
    sources = ("--model", MINI, "--nvfp4-model", companion)
    status, stdout, _ = ninfer("artifact", "convert", "ninfer-mini/nvfp4", *sources, "--out", out, "--json")
    assert status == 0
    assert json.loads(stdout)["made_by"]["NVFP4: source NVFP4"] == 29
    assert ninfer("artifact", "verify", out, *sources)[0] == 0
    status, _, stderr = ninfer("artifact", "verify", out, "--model", MINI)
    assert status == 1
    assert stderr.startswith("error: object text/layers/0/gdn/query_key_value_z differs")


def test_a_changed_source_is_found_by_verify(ninfer, tmp_path):
    tensors = mini_tensors()
    words = tensors["mtp.norm.weight"][1].copy()
    words[255] ^= 0x0100
    tensors["mtp.norm.weight"] = ("BF16", words)
    changed = write_checkpoint(tmp_path / "changed", tensors)
    status, stdout, stderr = ninfer("artifact", "verify", "mini", "--model", changed)
    assert (status, stdout) == (1, "")
    assert "object mtp/final_norm differs from the conversion of its sources at byte 511" in stderr


WRONG = [
    (
        ("ninfer-mini", "--model", "x", "--out", "o.ninfer"),
        "invalid TARGET: ninfer-mini; registered: qwen3.6-27b/group",
    ),
    (("a/b/c", "--model", "x", "--out", "o.ninfer"), "invalid TARGET: a/b/c; registered: "),
    (("ninfer-mini/nvfp4", "--out", "o.ninfer"), "missing --model"),
    (("ninfer-mini/nvfp4", "--model", "x"), "missing --out"),
    (("ninfer-mini/nvfp4", "--model", "", "--out", "o.ninfer"), "--model must not be empty"),
    (("ninfer-mini/nvfp4", "--model", "x", "--out", "o.bin"), "NInfer accepts only .ninfer artifacts, got o.bin"),
    (
        ("ninfer-mini/nvfp4", "--model", "x", "--out", "o.ninfer", "--quantized-model", "y"),
        "--quantized-model does not go with ninfer-mini/nvfp4",
    ),
    (
        ("qwen3.8-27b/nvfp4", "--model", "x", "--out", "o.ninfer", "--nvfp4-model", "y"),
        "--nvfp4-model does not go with qwen3.8-27b/nvfp4",
    ),
    (
        ("ninfer-mini/groupwise-int", "--model", "x", "--out", "o.ninfer", "--nvfp4-model", "y"),
        "--nvfp4-model does not go with ninfer-mini/groupwise-int",
    ),
    (("ninfer-mini/nvfp4", "--model", "x", "--out", "o.ninfer", "--device", "tpu"), "invalid device: tpu"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=[message[:30] for _, message in WRONG])
def test_wrong_command_lines_end_with_the_usage(ninfer, arguments, message):
    status, stdout, stderr = ninfer("artifact", "convert", *arguments)
    assert (status, stdout) == (1, "")
    assert stderr.startswith(f"error: {message}")
    assert "Usage: ninfer artifact convert" in stderr


def test_failures_of_the_work_are_one_line(ninfer, tmp_path):
    arguments = ("ninfer-mini/nvfp4", "--model", tmp_path / "nowhere", "--out", tmp_path / "out.ninfer")
    status, stdout, stderr = ninfer("artifact", "convert", *arguments)
    assert (status, stdout) == (1, "")
    assert stderr == f"error: checkpoint folder does not exist: {tmp_path / 'nowhere'}\n"


def test_verify_needs_the_base_for_its_companions(ninfer, companion):
    status, _, stderr = ninfer("artifact", "verify", "mini", "--nvfp4-model", companion)
    assert (status, stderr.splitlines()[0]) == (1, "error: the other checkpoints and --ranking need --model")
    status, _, stderr = ninfer("artifact", "verify", "mini", "--model", MINI, "--nvfp4-model", companion)
    assert stderr.splitlines()[0] == "error: --nvfp4-model does not go with ninfer-mini/groupwise-int"
