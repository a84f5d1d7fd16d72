"""The image and video processor resources: fixed constants, and the size limits of media (`vision.md` 1.1).

Knows nothing of pixels: it checks that the files say what the vision code assumes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

import msgspec

from ..errors import ArtifactError

IMAGE_PROCESSOR = "frontend/preprocessor_config.json"
VIDEO_PROCESSOR = "frontend/video_preprocessor_config.json"

DEFAULT_MAX_FRAMES = 768
MAX_FRAMES = {"ninfer-mini": 64}

_Pixels = Annotated[int, msgspec.Meta(ge=1)]
_Channels = Annotated[list[float], msgspec.Meta(min_length=3, max_length=3)]


class _Size(msgspec.Struct):
    """Named after edges, but both count pixels (of all frames together in a video)."""

    shortest_edge: _Pixels
    longest_edge: _Pixels


class _Image(msgspec.Struct):
    size: _Size
    patch_size: Literal[16]
    temporal_patch_size: Literal[2]
    merge_size: Literal[2]
    image_mean: _Channels
    image_std: _Channels
    rescale_factor: float | None = None


class _Video(_Image):
    fps: float | None = None
    min_frames: int | None = None
    max_frames: int | None = None


Config = TypeVar("Config", bound=_Image)


@dataclass(frozen=True)
class PixelLimits:
    """Bounds of the pixel count after resizing; for a video, of all its sampled frames together."""

    smallest: int
    largest: int


@dataclass(frozen=True)
class MediaLimits:
    image: PixelLimits
    video: PixelLimits
    max_frames: int  # sampled frames of one video

    @classmethod
    def from_resources(cls, image: bytes, video: bytes, model_id: str) -> MediaLimits:
        """Check both resources. Raises ArtifactError naming the field and what it must be."""
        max_frames = MAX_FRAMES.get(model_id, DEFAULT_MAX_FRAMES)
        image_config = _decode(image, _Image, IMAGE_PROCESSOR)
        video_config = _decode(video, _Video, VIDEO_PROCESSOR)
        for field, expected in (("fps", 2.0), ("min_frames", 4), ("max_frames", max_frames)):
            if getattr(video_config, field) not in (None, expected):
                raise ArtifactError(f"{VIDEO_PROCESSOR}: {field} must be absent or {expected}")
        return cls(_limits(image_config), _limits(video_config), max_frames)


def _decode(data: bytes, kind: type[Config], resource: str) -> Config:
    try:
        config = msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{resource}: {error}") from None
    for field in ("image_mean", "image_std"):
        if getattr(config, field) != [0.5] * 3:
            raise ArtifactError(f"{resource}: {field} must be three times 0.5")
    if config.rescale_factor not in (None, 1 / 255):
        raise ArtifactError(f"{resource}: rescale_factor must be absent or 1/255")
    if config.size.longest_edge < config.size.shortest_edge:
        raise ArtifactError(f"{resource}: size.longest_edge must be at least size.shortest_edge")
    return config


def _limits(config: _Image) -> PixelLimits:
    return PixelLimits(config.size.shortest_edge, config.size.longest_edge)
