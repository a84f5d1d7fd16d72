"""Generated inventories against the published lists, object by object, and the published file sizes."""

import json
import lzma
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from ninfer_nb.artifact.directory import Identity
from ninfer_nb.artifact.geometry import GEOMETRIES
from ninfer_nb.artifact.inventory import (
    FRONTEND_RESOURCES,
    PROFILES,
    ResourceSpec,
    TensorSpec,
    divisor_of,
    inventory,
)
from ninfer_nb.artifact.writer import plan
from ninfer_nb.errors import ArtifactError

PUBLISHED = json.loads(
    lzma.decompress((Path(__file__).parents[1] / "data/inventories/inventories.json.xz").read_bytes())
)


def identity_of(key: str) -> Identity:
    return Identity(*key.split("/"))


def resource_bytes(total: int) -> dict[str, int]:
    """Six lengths with the published sum; only the sum enters a file's size."""
    small = dict.fromkeys(FRONTEND_RESOURCES[1:], 5000)
    return {FRONTEND_RESOURCES[0]: total - sum(small.values()), **small}


def planned(key: str):
    total = PUBLISHED[key]["published"]["resource_bytes_total"]
    return plan(identity_of(key), inventory(identity_of(key)), resource_bytes(total))


@pytest.mark.parametrize("key", sorted(PUBLISHED))
class TestPublished:
    def test_objects(self, key):
        got = [vars(spec) for spec in inventory(identity_of(key))]
        want = [
            {"name": o["name"], "shape": tuple(o["shape"]), "format": o["format"]}
            if o["kind"] == "tensor"
            else {"name": o["name"]}
            for o in PUBLISHED[key]["objects"]
        ]
        assert got == want

    def test_plan(self, key):
        directory, published = planned(key), PUBLISHED[key]["published"]
        assert directory.file_bytes == published["bytes"]
        assert directory.payload_offset == published["payload_offset"]
        for entry, o in zip(directory.objects, PUBLISHED[key]["objects"], strict=True):
            if o["kind"] == "tensor":
                assert (entry.offset, entry.bytes, entry.layout) == (o["offset"], o["bytes"], o["layout"])

    def test_counts(self, key):
        counts = PUBLISHED[key]["counts"]
        tensors = [s for s in inventory(identity_of(key)) if isinstance(s, TensorSpec)]
        assert Counter(s.format for s in tensors) == counts["formats"]
        assert len(tensors) == counts["tensors"]
        assert sum(s.name.endswith("/input_scale_divisor") for s in tensors) == counts["input_scale_divisors"]

    def test_component_bytes(self, key):
        sums = Counter()
        for entry in planned(key).objects:
            if entry.kind == "tensor":
                draft = entry.name.startswith("text/draft_head")
                sums["draft" if draft else entry.name.partition("/")[0]] += entry.bytes
        assert sums == PUBLISHED[key]["component_tensor_bytes"]

    def test_dims(self, key):
        geometry, dims = GEOMETRIES[identity_of(key).model_id], PUBLISHED[key]["dims"]
        assert geometry.target_key == PUBLISHED[key]["target_key"]
        renamed = {"gdn_key_head_dim", "gdn_value_head_dim", "conv_taps", "full_attention_interval"}
        for name, value in dims.items():
            if name == "vision":
                got = vars(geometry.vision) | {"merger_hidden": geometry.vision.merger_hidden}
                assert value == got
            elif name == "dflash":
                got = vars(geometry.dflash)
                assert {k: tuple(v) if isinstance(v, list) else v for k, v in value.items()} == got
            elif hasattr(geometry, name) or name in renamed:
                assert getattr(geometry, name) == value, name
            else:
                assert getattr(geometry.moe, {"experts": "experts"}.get(name, name)) == value, name


@pytest.mark.parametrize("identity", sorted(PROFILES, key=str), ids=str)
def test_every_nvfp4_weight_is_followed_by_its_divisor(identity):
    specs = inventory(identity)
    for spec, following in pairwise(specs):
        if isinstance(spec, TensorSpec) and spec.format == "NVFP4":
            assert following == TensorSpec(divisor_of(spec.name), (), "FP32")


def test_mini_profiles_use_every_format():
    formats = {
        spec.format
        for identity in PROFILES
        if identity.model_id == "ninfer-mini"
        for spec in inventory(identity)
        if isinstance(spec, TensorSpec)
    }
    assert len(formats) == 9


def test_tensor_counts_follow_the_parametric_formula():
    """`inventories.md` 8.1: 5 + F*f + G*g + 12 + (9 + 12*Dv) + divisors."""
    g = GEOMETRIES["ninfer-mini"]
    full, gdn = len(g.full_attention_layers), len(g.gdn_layers)
    for weights_id, f, d in (("groupwise-int", 9, 13), ("nvfp4", 8, 12), ("nvfp4-fp8", 8, 11)):
        specs = [s for s in inventory(Identity("ninfer-mini", weights_id)) if isinstance(s, TensorSpec)]
        divisors = sum(s.format == "NVFP4" for s in specs)
        assert len(specs) == 5 + full * f + gdn * d + 12 + 9 + 12 * g.vision.depth + divisors


def test_unknown_identity():
    with pytest.raises(ArtifactError, match=r"qwen3\.6-27b/w3"):
        inventory(Identity("qwen3.6-27b", "w3"))


def test_resources_come_first():
    assert inventory(Identity("ninfer-mini", "nvfp4"))[:6] == tuple(map(ResourceSpec, FRONTEND_RESOURCES))
