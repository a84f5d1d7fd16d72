"""Image and video processor resources: the limits of both models, and files that say something else."""

import json

import pytest
from support.frontends import mini_frontend, mini_resource, qwen36_frontend

from ninfer_nb.errors import ArtifactError
from ninfer_nb.frontend.processor import MediaLimits, PixelLimits

IMAGE, VIDEO = (
    json.loads(mini_resource(name)) for name in ("preprocessor_config.json", "video_preprocessor_config.json")
)


def test_limits():
    mini = PixelLimits(4096, 262144)
    assert mini_frontend().media_limits == MediaLimits(mini, mini, 64)
    assert qwen36_frontend().media_limits == MediaLimits(PixelLimits(65536, 16777216), PixelLimits(4096, 25165824), 768)


def load(image=(), video=(), model_id="ninfer-mini"):
    """The mini's resources with members replaced; None removes one."""
    files = [{**IMAGE, **dict(image)}, {**VIDEO, **dict(video)}]
    data = [json.dumps({k: v for k, v in file.items() if v is not None}).encode() for file in files]
    return MediaLimits.from_resources(*data, model_id)


def test_optional_members():
    load({"rescale_factor": None}, {"rescale_factor": None, "fps": None, "min_frames": None, "max_frames": None})
    load({"rescale_factor": 1 / 255}, {"fps": 2, "min_frames": 4, "max_frames": 64})
    assert load(video={"max_frames": 768}, model_id="qwen3.6-27b").max_frames == 768


@pytest.mark.parametrize("video", [False, True])
@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"patch_size": 14}, "14"),
        ({"temporal_patch_size": 1}, "1"),
        ({"merge_size": None}, "missing required field `merge_size`"),
        ({"image_mean": [0.5, 0.5]}, "length >= 3"),
        ({"image_mean": [0.5, 0.5, 0.4]}, "image_mean must be three times 0.5"),
        ({"image_std": [0.5, 0.5, 1]}, "image_std must be three times 0.5"),
        ({"rescale_factor": 0.004}, "rescale_factor must be absent or 1/255"),
        ({"size": {"shortest_edge": 0, "longest_edge": 5}}, "shortest_edge"),
        ({"size": {"shortest_edge": 64}}, "missing required field `longest_edge`"),
        ({"size": {"shortest_edge": 1.5, "longest_edge": 5}}, "shortest_edge"),
        ({"size": {"shortest_edge": 6, "longest_edge": 5}}, "longest_edge must be at least size.shortest_edge"),
    ],
)
def test_refusals(members, message, video):
    with pytest.raises(ArtifactError) as caught:
        load(video=members) if video else load(members)
    assert str(caught.value).startswith(f"frontend/{'video_' if video else ''}preprocessor_config.json: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"fps": 1}, "fps must be absent or 2.0"),
        ({"min_frames": 8}, "min_frames must be absent or 4"),
        ({"max_frames": 768}, "max_frames must be absent or 64"),
    ],
)
def test_sampling_is_fixed(members, message):
    with pytest.raises(ArtifactError, match=message):
        load(video=members)


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff"])
def test_malformed_files(data):
    with pytest.raises(ArtifactError, match=r"^frontend/preprocessor_config\.json: "):
        MediaLimits.from_resources(data, data, "ninfer-mini")
