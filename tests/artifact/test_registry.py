"""Short names, the published table, the binder's checks and strict verification."""

from pathlib import Path

import pytest

from ninfer_nb.artifact.binder import bind, check_inventory
from ninfer_nb.artifact.container import Artifact
from ninfer_nb.artifact.directory import Identity
from ninfer_nb.artifact.inventory import PROFILES, TensorSpec, inventory
from ninfer_nb.artifact.registry import known, lookup, published
from ninfer_nb.artifact.verify import verify
from ninfer_nb.artifact.writer import ArtifactWriter, plan
from ninfer_nb.errors import ArtifactError, UsageError

MINI = Identity("ninfer-mini", "groupwise-int")


def test_every_registered_identity_is_published_once():
    assert {row.identity for row in published()} == set(PROFILES)
    names = [row.name for row in published()]
    assert len(names) == len(set(names))
    assert all(len(row.sha256) == 64 and row.bytes > 0 for row in published())


def test_bundled_file_has_the_published_size_and_digest():
    assert lookup("mini") == known(MINI).bundled_path
    assert verify(lookup("mini"), digest=True).sha256 == known(MINI).sha256


@pytest.mark.parametrize("argument", ["x.ninfer", "./x.ninfer", "/a/b.ninfer", "mini.ninfer"])
def test_paths_stay_paths(argument):
    assert lookup(argument) == Path(argument)


@pytest.mark.parametrize("argument", ["minni", "model.gguf", "a/mini", "Mini", ""])
def test_everything_else_lists_the_short_names(argument):
    with pytest.raises(UsageError, match=r"NInfer accepts only \.ninfer artifacts.*short names: .*mini"):
        lookup(argument)


@pytest.fixture(scope="module")
def mini():
    return Artifact.open(lookup("mini"))


def test_binding_the_mini(mini):
    bound = bind(mini)
    assert bound.identity == MINI
    assert set(bound.names) == {spec.name for spec in inventory(MINI) if isinstance(spec, TensorSpec)}
    assert bound.spec("text/final_norm") == TensorSpec("text/final_norm", (256,), "BF16")
    assert bound.payload("text/final_norm").nbytes == 512
    assert bound.resource("frontend/generation_config.json").startswith(b"{")


def without(objects, name):
    return [entry for entry in objects if entry.name != name]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda o: without(o, "text/final_norm"), "required artifact object is missing: text/final_norm"),
        (
            lambda o: without(o, "frontend/tokenizer.json"),
            "required artifact object is missing: frontend/tokenizer.json",
        ),
    ],
)
def test_missing_objects(mini, change, error):
    with pytest.raises(ArtifactError, match=error):
        check_inventory(change(mini.objects), inventory(MINI))


def test_left_over_objects(mini):
    specs = [spec for spec in inventory(MINI) if spec.name != "mtp/final_norm"]
    with pytest.raises(ArtifactError, match="was not consumed by the selected target: mtp/final_norm"):
        check_inventory(mini.objects, specs)


def test_other_descriptors(mini):
    specs = [
        TensorSpec("text/final_norm", (128,), "BF16") if spec.name == "text/final_norm" else spec
        for spec in inventory(MINI)
    ]
    with pytest.raises(ArtifactError, match=r"does not match target contract: text/final_norm \(found BF16 .*\[256\]"):
        check_inventory(mini.objects, specs)


def rewritten(mini, folder, changes, order=lambda specs: specs):
    """The mini file with other payloads (by name) or another order of objects."""
    specs = order(list(inventory(MINI)))
    lengths = {entry.name: entry.bytes for entry in mini.objects if entry.kind == "resource"}
    with ArtifactWriter(folder / "x.ninfer", plan(MINI, specs, lengths)) as writer:
        for spec in specs:
            payload = mini.payload(spec.name).copy()
            if spec.name in changes:
                changes[spec.name](payload)
            writer.write(spec.name, payload)
    return folder / "x.ninfer"


def test_draft_ids_are_checked(mini, tmp_path):
    name = "text/draft_head_token_ids"
    path = rewritten(mini, tmp_path, {name: lambda p: p.view("<i4").__setitem__(0, p.view("<i4")[1])})
    with pytest.raises(ArtifactError, match="ids must be distinct"):
        bind(Artifact.open(path))
    path = rewritten(mini, tmp_path, {name: lambda p: p.view("<i4").__setitem__(0, 4096)})
    with pytest.raises(ArtifactError, match=r"ids must be in 0\.\.4095"):
        bind(Artifact.open(path))


def test_verify_wants_the_planned_order(mini, tmp_path):
    path = rewritten(mini, tmp_path, {}, order=lambda specs: [*specs[:6], *reversed(specs[6:])])
    bind(Artifact.open(path))
    with pytest.raises(ArtifactError, match="object 6 is vision/merger/norm/bias; expected text/token_embedding"):
        verify(path)
