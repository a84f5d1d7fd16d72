"""`ninfer plan`: sums, capacity, and its errors."""

import json

import pytest

from ninfer_nb.cli.app import run_command

MTP = ["--spec", "mtp", "--draft-tokens", "3"]


def plan(capsys, *arguments) -> dict:
    assert run_command(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("what", [["mini"], ["--synthetic", "qwen3.6-27b/nvfp4"]])
def test_the_parts_sum_up(capsys, what):
    found = plan(capsys, *what, "--device", "cpu", *MTP, "--free-bytes", str(60 << 30))
    workspace = max(found["workspace"].values())
    reservation = sum(found["state"].values()) + workspace + found["graph_allowance"]
    assert found["capacity"]["bytes"] == reservation
    assert found["total"] == reservation + sum(found["weights"].values())
    assert found["capacity"]["free_bytes"] == (60 << 30) - sum(found["weights"].values())
    assert set(found["weights"]) == {"text", "mtp"}


def test_published_sizes_of_the_27b_state(capsys):
    """Bytes per token and slot as the runtime specification lists them."""
    found = plan(capsys, "--synthetic", "qwen3.6-27b/groupwise-int", "--device", "cpu", *MTP)
    assert found["kv_bytes_per_token"] == 65536 + 4096
    assert found["state"]["GDN state"] == 2 * (144 * 2**20 + 2.8125 * 2**20)
    int8 = plan(capsys, "--synthetic", "qwen3.6-27b/groupwise-int", "--device", "cpu", "--kv-dtype", "int8", *MTP)
    assert int8["kv_bytes_per_token"] == 33792 + 2112


def test_auto_fills_what_is_free(capsys):
    wide = ["--synthetic", "qwen3.6-27b/nvfp4", "--device", "cpu", "--max-concurrency", "8", "--max-context", "262144"]
    found = plan(capsys, *wide, "--kv-capacity", "auto", "--free-bytes", str(80 << 30))
    slack = found["capacity"]["free_bytes"] - found["capacity"]["bytes"]
    assert 1 << 30 <= slack < (1 << 30) + found["capacity"]["step_bytes"]
    assert found["capacity"]["pages"] < found["capacity"]["max_pages"]
    assert found["largest_max_concurrency"] == 8 and found["largest_max_context"] == 262144


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([], "pass exactly one of ARTIFACT or --synthetic"),
        (["mini", "--synthetic", "ninfer-mini/nvfp4"], "pass exactly one of ARTIFACT or --synthetic"),
        (["--synthetic", "a/b"], "unknown synthetic identity: a/b; known are qwen3.6-27b/groupwise-int,"),
        (["mini", "--max-concurrency", "9"], "--max-concurrency must be in [1,8]"),
        (["mini", "--free-bytes", "1000"], "exceed the 1000 bytes free"),
        (["--synthetic", "qwen3.6-27b/nvfp4", "--free-bytes", "20000000000", "--max-context", "99999"], "exceeds the"),
        (["mini", "--draft-tokens", "2"], "--draft-tokens and --lm-head-draft require --spec mtp|dflash"),
        (["missing.ninfer"], "missing.ninfer"),
    ],
)
def test_errors(capsys, arguments, error):
    assert run_command(["plan", *arguments]) == 1
    captured = capsys.readouterr()
    assert error in captured.err and captured.out == ""
