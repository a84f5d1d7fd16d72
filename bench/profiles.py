"""What each weight profile of the mini costs in accuracy: distance to the float32 checkpoint, and answers kept.

python bench/profiles.py
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from support.artifacts import MINI_PROFILES, artifact_runner, dense_runner, mini_artifact
from support.golden_cases import CHECKPOINT, cases, logits, stops, text_names
from support.hf_weights import hf_text_model
from support.text_runs import Runner, relative_l2

from ninfer_nb.artifact.geometry import NINFER_MINI
from ninfer_nb.ops.reference import ReferenceOps


def measure(runner: Runner, wanted: dict[str, np.ndarray]) -> dict[str, float | int]:
    """Errors of the logits after the prompt against `wanted`, and how many greedy answers are the expected text."""
    errors, same, expected = [], 0, 0
    for name in text_names():
        case = cases()[name]
        errors.append(relative_l2(runner.prefill(case["prompt_ids"]), wanted[name]))
        got = runner.greedy(case["prompt_ids"], 96, stops())[0]
        same += got == case["greedy_ids"]
        answer = ANSWERS.get(tuple(got))
        expected += answer == case["expected"]
    return {"median": float(np.median(errors)), "max": max(errors), "same_text": same, "expected": expected}


class _Answers(dict):
    """Greedy ids to the text that they stand for, through the mini's tokenizer."""

    def __init__(self) -> None:
        from ninfer_nb.frontend.tokenizer import Tokenizer

        read = lambda name: (CHECKPOINT / name).read_bytes()  # noqa: E731
        self._tokenizer = Tokenizer.from_resources(read("tokenizer.json"), read("tokenizer_config.json"))

    def get(self, ids: tuple[int, ...]) -> str:
        text = b"".join(map(self._tokenizer.token_bytes, ids)).decode("utf-8", "replace")
        return text.removesuffix("<|im_end|>").rpartition("</think>")[2].strip()


ANSWERS = _Answers()


def main() -> None:
    recorded = {name: logits(name) for name in text_names()}
    rows = {
        "checkpoint, BF16 boundaries": measure(Runner(hf_text_model(CHECKPOINT, NINFER_MINI, ReferenceOps())), recorded)
    }
    with tempfile.TemporaryDirectory() as folder:
        for weights_id in MINI_PROFILES:
            path = mini_artifact(weights_id, Path(folder))
            dense = dense_runner(path, ReferenceOps(round_bf16=False))
            decoded = {name: dense.prefill(cases()[name]["prompt_ids"]) for name in text_names()}
            row = measure(artifact_runner(path, ReferenceOps()), decoded)
            row["quantisation"] = float(
                np.median([relative_l2(decoded[name], recorded[name]) for name in text_names()])
            )
            rows[weights_id] = row
    total = len(text_names())
    print(f"{'weights':<28}{'BF16 median':>12}{'BF16 max':>10}{'weights off by':>16}{'same text':>11}{'expected':>10}")
    for name, row in rows.items():
        off = f"{row['quantisation']:.3f}" if "quantisation" in row else "-"
        print(
            f"{name:<28}{row['median']:>12.1e}{row['max']:>10.1e}{off:>16}"
            f"{row['same_text']:>8}/{total}{row['expected']:>7}/{total}"
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
