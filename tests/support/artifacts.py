"""The mini model as an artifact of any profile, and runners over its weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from support.golden_cases import CHECKPOINT
from support.text_runs import Runner

from ninfer_nb.artifact.binder import bind
from ninfer_nb.artifact.codec import decode
from ninfer_nb.artifact.container import Artifact
from ninfer_nb.artifact.convert import Request, convert
from ninfer_nb.artifact.directory import Identity
from ninfer_nb.artifact.geometry import NINFER_MINI
from ninfer_nb.artifact.registry import lookup
from ninfer_nb.engine.loading import Parts, load
from ninfer_nb.model.text import TextModel
from ninfer_nb.model.weights import MtpWeights, TextWeights, bind_text
from ninfer_nb.ops.reference import ReferenceOps, ReferenceWeight

MINI_PROFILES = ("groupwise-int", "groupwise-int-w8", "nvfp4", "nvfp4-fp8", "nvfp4-split")


def mini_artifact(weights_id: str, folder: Path) -> Path:
    """The mini converted to a profile, once a folder."""
    path = folder / f"{weights_id}.ninfer"
    if not path.exists():
        convert(Request(Identity("ninfer-mini", weights_id), CHECKPOINT), path)
    return path


def artifact_runner(path: Path, ops: ReferenceOps) -> Runner:
    """Weights as the backend takes them from the file."""
    bound = bind(Artifact.open(path))

    def get(name: str) -> ReferenceWeight:
        spec = bound.spec(name)
        return ops.weight(bound.payload(name), spec.format, spec.shape)

    return Runner(TextModel(bound.geometry, bind_text(bound.geometry, bound.names, get), ops))


def dense_runner(path: Path, ops: ReferenceOps) -> Runner:
    """Weights as plain arrays of the decoded values."""
    bound = bind(Artifact.open(path))

    def get(name: str) -> ReferenceWeight:
        spec = bound.spec(name)
        return ReferenceWeight.dense(decode(bound.payload(name), spec.format, spec.shape))

    return Runner(TextModel(bound.geometry, bind_text(bound.geometry, bound.names, get), ops))


@dataclass(frozen=True)
class Models:
    """The bundled mini's weights on the reference backend."""

    text: TextWeights
    mtp: MtpWeights

    def model(self) -> TextModel:
        return TextModel(NINFER_MINI, self.text, ReferenceOps())


@cache
def bundled_models() -> Models:
    """Text and draft layer of the bundled mini, loaded once."""
    loaded = load(lookup("mini"), ReferenceOps(), Parts(mtp=True, draft_head=True))
    return Models(loaded.model.weights, loaded.mtp)
