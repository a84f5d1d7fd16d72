"""Writing: nothing under the final name until all is there, nothing replaced, a bounded number of payloads ahead."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from support.checkpoints import MINI

from ninfer_nb.artifact.container import Artifact
from ninfer_nb.artifact.convert import Request, convert
from ninfer_nb.artifact.convert import conversion as module
from ninfer_nb.artifact.directory import Identity
from ninfer_nb.artifact.formats import BF16
from ninfer_nb.artifact.inventory import TensorSpec
from ninfer_nb.errors import ArtifactError

MINI_INT = Identity("ninfer-mini", "groupwise-int")

SLOW_CONVERSION = """
import sys, time
from pathlib import Path
from ninfer_nb.artifact.convert import Request, convert
from ninfer_nb.artifact.directory import Identity

def wait(done, total):
    if done > total // 2:
        print("half", flush=True)
        time.sleep(60)

convert(Request(Identity("ninfer-mini", "groupwise-int"), Path(sys.argv[1])), Path(sys.argv[2]), wait)
"""


@pytest.mark.parametrize("kill", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_kill_in_the_middle_leaves_nothing_under_the_final_name(tmp_path, kill):
    out = tmp_path / "out.ninfer"
    arguments = [sys.executable, "-c", SLOW_CONVERSION, str(MINI), str(out)]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"half\n"
        process.send_signal(kill)
        assert process.wait(30) != 0
    left = [path.name for path in tmp_path.iterdir()]
    assert left == ([] if kill == signal.SIGINT else ["out.ninfer.partial"])
    report = convert(Request(MINI_INT, MINI), out)  # what was left is in nobody's way
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.ninfer", "out.ninfer.conversion.json"]
    assert out.stat().st_size == report["file_bytes"]


def test_a_failure_in_the_middle_leaves_nothing(tmp_path):
    def fail(done, total):
        if done > total // 2:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        convert(Request(MINI_INT, MINI), tmp_path / "out.ninfer", fail)
    assert not list(tmp_path.iterdir())


def test_existing_files_are_not_replaced(tmp_path):
    for name in ("out.ninfer", "out.ninfer.conversion.json"):
        existing = tmp_path / name
        existing.write_text("mine")
        with pytest.raises(ArtifactError, match=re.escape(f"output exists already: {existing}")):
            convert(Request(MINI_INT, MINI), tmp_path / "out.ninfer")
        assert existing.read_text() == "mine"
        existing.unlink()


def test_the_output_folder_must_exist(tmp_path):
    with pytest.raises(ArtifactError, match="output folder does not exist"):
        convert(Request(MINI_INT, MINI), tmp_path / "nowhere" / "out.ninfer")


def test_a_full_disk_is_an_error_of_the_output(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", refuse)
    with pytest.raises(ArtifactError, match=r"out.ninfer: No space left on device"):
        convert(Request(MINI_INT, MINI), tmp_path / "out.ninfer")
    assert not list(tmp_path.iterdir())


def test_the_report_describes_the_file(tmp_path):
    out = tmp_path / "out.ninfer"
    steps = []
    report = convert(Request(MINI_INT, MINI), out, lambda done, total: steps.append((done, total)))
    assert report == json.loads((tmp_path / "out.ninfer.conversion.json").read_text())
    assert (report["model_id"], report["weights_id"]) == ("ninfer-mini", "groupwise-int")
    assert (report["target_key"], report["recipe_id"]) == ("ninfer_mini", None)
    assert report["arguments"]["model"] == str(MINI)
    assert report["sources"] == {"base": {"folder": str(MINI), "files": 1, "tensors": 169}}
    objects = report["objects"]
    assert (objects["count"], objects["tensors"], objects["resources"]) == (164, 158, 6)
    assert objects["tensor_bytes"] + objects["resource_bytes"] == objects["object_bytes"]
    assert objects["object_bytes"] + objects["alignment_bytes"] == objects["payload_span_bytes"]
    assert report["file_bytes"] == out.stat().st_size
    assert len(steps) == 164
    assert steps[-1] == (objects["object_bytes"], objects["object_bytes"])
    assert report["made_by"]["Q6G64_F16S: MAXABS_F16_RECIP_RNE_V1"] == 3


def test_a_ranking_chooses_the_draft_rows(tmp_path):
    counts = np.zeros(4096, "<i8")
    counts[[3000, 17, 4070]] = 9, 8, 7
    counts.tofile(tmp_path / "ranking")
    convert(Request(MINI_INT, MINI, ranking=tmp_path / "ranking"), tmp_path / "out.ninfer")
    with Artifact.open(tmp_path / "out.ninfer") as artifact:
        ids = artifact.payload("text/draft_head_token_ids").view("<i4").tolist()
    assert ids[:5] == [3000, 17, 4070, 0, 1]


class FakeRoute:
    """A route that counts the bytes that exist at one time."""

    def __init__(self, size: int, held: list[int]):
        self.spec = TensorSpec("x", (size // 2,), BF16)
        self.size, self.held = size, held

    def payload(self):
        self.held[0] += self.size
        self.held[1] = max(self.held)
        return self


def test_payloads_are_made_a_bounded_number_of_bytes_ahead(monkeypatch):
    monkeypatch.setattr(module, "AHEAD_BYTES", 1000)
    held = [0, 0]
    sizes = [10, 400, 400, 400, 2000, 10, 990, 10] * 20
    for route, made in module._made_ahead(FakeRoute(size, held) for size in sizes):
        assert made is route
        time.sleep(0.001)
        held[0] -= made.size
    assert held[0] == 0
    assert held[1] == 2000


def test_an_encoder_error_stops_the_others(monkeypatch):
    made = []

    class Failing(FakeRoute):
        def payload(self):
            made.append(self)
            if len(made) == 3:
                raise ArtifactError("no")
            return self

    monkeypatch.setattr(module, "AHEAD_BYTES", 100)
    with pytest.raises(ArtifactError, match="no"):
        for _ in module._made_ahead(Failing(10, [0, 0]) for _ in range(1000)):
            pass
    assert len(made) < 30
