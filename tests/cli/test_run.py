"""`ninfer run`: streams, report, exit statuses, and every wrong command line in the one form of an error."""

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from ninfer_nb.cli.app import run_command

ASK = ["run", "mini", "--device", "cpu", "--prompt", "What is prefill?", "--no-thinking", "--greedy"]
ANSWER = "Prefill reads the whole prompt at once"


def ninfer(capfd, *arguments):
    """(status, stdout, stderr) of a command line."""
    status = run_command(list(arguments))
    captured = capfd.readouterr()
    return status, captured.out, captured.err


def test_answer_on_stdout_everything_else_on_stderr(capfd):
    status, out, err = ninfer(capfd, *ASK, "--print-token-ids")
    assert status == 0
    assert out.startswith(ANSWER) and out.endswith("\n") and out.count("\n") == 1
    lines = err.splitlines()
    assert lines[0] == "phase       detail                      elapsed/progress"
    assert "summary     finish reason             stop-token" in lines
    assert re.search(r"^tokens      generated ids             (\d+ )+\d+$", err, re.M)
    assert re.search(r"^summary     decode speed              \d+\.\d\d tok/s$", err, re.M)
    assert "summary     device                    cpu" in lines
    assert "notice" not in err


def test_reasoning_goes_to_stderr(capfd):
    status, out, err = ninfer(capfd, "run", "mini", "--device", "cpu", "--prompt", "What is prefill?", "--greedy")
    assert status == 0
    assert "</think>" not in out + err
    assert out.strip()


def test_messages_file_with_tools(capfd, tmp_path):
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}  # fmt: skip
    file = tmp_path / "m.json"
    file.write_text(
        json.dumps({"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "tools": [tool]})
    )
    arguments = ["--messages", str(file), "--no-thinking", "--greedy", "--device", "cpu"]
    status, out, _ = ninfer(capfd, "run", "mini", *arguments)
    assert status == 0
    assert "get_weather" in out and "Rome" in out


def test_auto_device_says_why_it_uses_the_cpu(capfd, monkeypatch):
    from ninfer_nb.cuda.devices import Probe
    from ninfer_nb.engine import backend

    monkeypatch.setattr(backend, "probe", lambda: Probe(None, (), "no NVIDIA driver was found"))
    status, out, err = ninfer(capfd, *[a for a in ASK if a not in ("--device", "cpu")])
    assert status == 0 and out.startswith(ANSWER)
    notice = "notice: no usable CUDA device (no NVIDIA driver was found); using the CPU reference backend"
    assert err.count(notice) == 1


def test_auto_device_leaves_an_unproven_gpu_backend_alone(capfd, monkeypatch):
    from ninfer_nb.cuda.devices import DeviceInfo, Probe
    from ninfer_nb.engine import backend

    gpu = DeviceInfo(0, "GPU", (9, 0), 1 << 37, 132, 60 << 20, 227 << 10, 65536, 1_980_000, 3_201_000, "0")
    monkeypatch.setattr(backend, "probe", lambda: Probe((13, 0), (gpu,), None))
    status, out, err = ninfer(capfd, *[a for a in ASK if a not in ("--device", "cpu")])
    assert status == 0 and out.startswith(ANSWER)
    assert "--device 0 selects it" in err


def test_no_progress(capfd):
    _, _, err = ninfer(capfd, *ASK, "--no-progress")
    assert not re.search(r"^load        weights", err, re.M)


def test_stop_string_and_last_flag_wins(capfd):
    status, out, _ = ninfer(capfd, *ASK, "--max-new", "1", "--max-new", "50", "--stop", "whole", "--stop", "never")
    assert (status, out) == (0, "Prefill reads the \n")


USAGE = [
    ([], "missing COMMAND"),
    (["nonsense"], "unknown command: nonsense"),
    (["run"], "missing ARTIFACT"),
    (["run", "mini"], "pass exactly one of --prompt or --messages"),
    (["run", "mini", "--prompt", ""], "pass exactly one of --prompt or --messages"),
    (["run", "mini", "--prompt", "a", "--messages", "b"], "pass exactly one of --prompt or --messages"),
    (["run", "mini", "--frobnicate"], "unknown argument: --frobnicate"),
    (["run", "mini", "--promt", "a"], "unknown argument: --promt"),
    (["run", "mini", "extra", "--prompt", "a"], "unknown argument: extra"),
    (["run", "mini", "--prompt"], "--prompt needs a value"),
    (["run", "mini", "--greedy=1", "--prompt", "a"], "--greedy takes no value"),
    (["run", "mini", "--prompt", "a", "--max-new", "0"], "invalid max-new: 0"),
    (["run", "mini", "--prompt", "a", "--max-new", "1e3"], "invalid max-new: 1e3"),
    (["run", "mini", "--prompt", "a", "--max-new", "-5"], "invalid max-new: -5"),
    (["run", "mini", "--prompt", "a", "--max-new", " 5"], "invalid max-new:  5"),
    (["run", "mini", "--prompt", "a", "--max-new", "٣"], "invalid max-new: ٣"),
    (["run", "mini", "--prompt", "a", "--max-new", "4294967296"], "invalid max-new: 4294967296"),
    (["run", "mini", "--prompt", "a", "--max-new", "9" * 5000], "invalid max-new: " + "9" * 5000),
    (["run", "mini", "--prompt", "a", "--max-context", "0"], "invalid max-context: 0"),
    (["run", "mini", "--prompt", "a", "--seed", "18446744073709551616"], "invalid seed: 18446744073709551616"),
    (["run", "mini", "--prompt", "a", "--temperature", "nan"], "invalid temperature: nan"),
    (["run", "mini", "--prompt", "a", "--temperature", "2.1"], "invalid temperature: 2.1"),
    (["run", "mini", "--prompt", "a", "--top-p", "1_0"], "invalid top-p: 1_0"),
    (["run", "mini", "--prompt", "a", "--top-k", "2147483648"], "--top-k exceeds INT32_MAX"),
    (["run", "mini", "--prompt", "a", "--min-p", "-0.1"], "invalid min-p: -0.1"),
    (["run", "mini", "--prompt", "a", "--presence-penalty", "3"], "invalid presence-penalty: 3"),
    (["run", "mini", "--prompt", "a", "--stop", ""], "--stop must not be empty"),
    (["run", "mini", "--prompt", "a", "--reasoning-stop", ""], "--reasoning-stop must not be empty"),
    (["run", "mini", "--prompt", "a", "--stop-token-id", "2147483648"], "--stop-token-id exceeds the token domain"),
    (["run", "mini", "--prompt", "a", "--kv-dtype", "fp8"], "invalid kv-dtype: fp8"),
    (["run", "mini", "--prompt", "a", "--device", "gpu"], "invalid device: gpu"),
    (["run", "mini", "--prompt", "a", "--prefill-chunk", "100"], "--prefill-chunk must be a multiple of 128"),
    (["run", "mini", "--prompt", "a", "--reasoning-effort", "max"], "invalid reasoning-effort: max"),
    (
        ["run", "mini", "--prompt", "a", "--reasoning-effort", "low", "--no-thinking"],
        "--reasoning-effort cannot be combined with --no-thinking",
    ),
    (
        ["run", "mini", "--device", "cpu", "--prompt", "a", "--reasoning-effort", "low"],
        "loaded chat template does not support reasoning effort",
    ),
    (
        ["run", "mini", "--device", "cpu", "--prompt", "a", "--stop-token-id", "4096"],
        "stop token id is outside the checkpoint vocabulary: 4096",
    ),
    (
        ["run", "mini", "--device", "cpu", "--prompt", "a", "--max-context", "5000"],
        "max_context exceeds the variant native context capacity: 5000 > 4096",
    ),
    (["run", "mini", "--messages", "/nowhere.json"], "failed to open messages JSON: /nowhere.json: No such file"),
    (["run", "model.gguf", "--prompt", "a"], "NInfer accepts only .ninfer artifacts, got 'model.gguf'; short names: "),
    (["run", "dir/model", "--prompt", "a"], "NInfer accepts only .ninfer artifacts, got dir/model"),
    (["run", "/nowhere/x.ninfer", "--prompt", "a", "--device", "cpu"], "artifact does not exist: /nowhere/x.ninfer"),
    (["run", "qwen3.6-27b", "--prompt", "a"], "artifact 'qwen3.6-27b' is not bundled; get qwen3_6_27b.ninfer"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), USAGE, ids=lambda value: value[:60] if isinstance(value, str) else ""
)
def test_what_keeps_run_from_starting(capfd, arguments, message):
    status, out, err = ninfer(capfd, *arguments)
    assert (status, out) == (1, "")
    error = err[err.index("error: ") :]
    assert error.startswith(f"error: {message}")
    assert "\nUsage: ninfer" in error and "Traceback" not in err


@pytest.mark.parametrize(
    "arguments", [["-h"], ["--help"], ["run", "--help"], ["run", "mini", "-h"], ["artifact", "-h"]]
)
def test_help_goes_to_stdout(capfd, arguments):
    status, out, err = ninfer(capfd, *arguments)
    assert (status, err) == (0, "")
    assert out.lstrip().startswith("Usage: ninfer")


def test_prompt_longer_than_the_context(capfd):
    status, out, err = ninfer(capfd, *ASK[:4], "--max-context", "8", "--prompt", "one two three four five six")
    assert (status, out) == (1, "")
    assert re.search(r"error: prepared prompt has \d+ tokens, exceeding Engine max_context 8", err)


def start(*arguments, **options):
    code = "import sys; from ninfer_nb.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stderr=subprocess.PIPE, **options)


LONG = ["run", "mini", "--device", "cpu", "--prompt", "Tell me a story.", "--max-new", "1500", "--ignore-eos"]


def test_interrupt_reports_what_was_generated():
    process = start(*LONG, stdout=subprocess.PIPE)
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert out.endswith(b"\n")
    assert b"finish reason             cancelled" in err and b"Traceback" not in err


def test_interrupt_while_starting():
    process = start(*LONG, stdout=subprocess.PIPE)
    assert process.stderr.read(5) == b"phase"  # before that, it is Python that starts
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode in (130, -signal.SIGINT)


def test_closed_stdout_is_one_error():
    read, write = os.pipe()
    process = start(*LONG, stdout=write)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert b"error: standard output was closed" in err and b"Traceback" not in err


@pytest.mark.parametrize("closed", ["stdout", "stderr", "both"])
def test_streams_closed_by_the_caller(closed):
    """A shell's `>&-` leaves Python with None for a stream."""
    redirect = {"stdout": ">&-", "stderr": "2>&-", "both": ">&- 2>&-"}[closed]
    main = "from ninfer_nb.cli import main; main()"
    command = f'exec "$@" {redirect}'
    found = subprocess.run(
        ["sh", "-c", command, "sh", sys.executable, "-c", main, *ASK], capture_output=True, text=True
    )
    assert found.returncode == 0
    assert "Traceback" not in found.stdout + found.stderr
    assert found.stdout.startswith(ANSWER) if closed == "stderr" else found.stdout == ""


def test_version(capfd):
    status, out, _ = ninfer(capfd, "--version")
    assert status == 0 and re.fullmatch(r"ninfer \d+\.\d+\.\d+\n", out)
