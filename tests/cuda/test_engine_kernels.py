"""Every kernel that an engine asks for, found without a GPU by going through all its phases, assembles for Hopper."""

import pytest

pytest.importorskip("numba_cuda", reason="needs the cuda extra (numba-cuda)")

from support.assemble import assemble

from ninfer_nb.artifact.directory import Identity
from ninfer_nb.artifact.geometry import GEOMETRIES
from ninfer_nb.artifact.inventory import TensorSpec, inventory
from ninfer_nb.engine.options import EngineOptions
from ninfer_nb.engine.plan import Planner
from ninfer_nb.model.weights import bind_mtp, bind_text
from ninfer_nb.ops.cuda.planning import FIXED_BYTES, H200, PlanningOps
from ninfer_nb.ops.cuda.weights import CudaWeight


def planner(identity: str, ops: list, **options) -> Planner:
    """A plan by shapes alone; each backend that it makes goes to `ops`."""
    model_id, weights_id = identity.split("/")
    specs = {s.name: s for s in inventory(Identity(model_id, weights_id)) if isinstance(s, TensorSpec)}

    def get(name):
        return CudaWeight(specs[name].format, specs[name].shape, 0)

    def scratch():
        ops.append(PlanningOps(H200))
        return ops[-1]

    geometry = GEOMETRIES[model_id]
    text, mtp = bind_text(geometry, specs, get), bind_mtp(specs, get, draft_head=False)
    options = EngineOptions(max_context=2048, **options)
    return Planner(geometry, text, mtp, options, device=True, scratch=scratch, fixed=FIXED_BYTES)


def kernels(identity: str, **options) -> list:
    ops = []
    planner(identity, ops, **options).workspace()
    return list(ops[-1]._rehearsed)


MTP = {"spec": "mtp", "draft_tokens": 3}
WANTED = dict.fromkeys([*kernels("qwen3.6-27b/nvfp4", **MTP), *kernels("ninfer-mini/groupwise-int", kv_dtype="int8")])


@pytest.mark.parametrize("spec", WANTED, ids=str)
def test_the_engine_s_kernels_assemble_without_spills(spec):
    assemble(spec, "sm_90a")


def test_a_real_model_is_planned_without_a_gpu():
    """Eight lanes over 262,144 tokens beside 30 GB of weights on an H200: the pool takes what is left."""
    plan = planner("qwen3.6-27b/nvfp4", [], max_concurrency=8, kv_capacity="auto", **MTP)
    found = plan.resolve(110 << 30)
    assert found.capacity.pages == found.capacity.max_pages == 8 * 32
    assert found.shape.draft_pages == 8 * 32 + 8
    assert found.workspace_bytes < 200 << 20
