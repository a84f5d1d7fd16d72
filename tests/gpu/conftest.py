"""Fixtures for tests that need a GPU; without one they are skipped with the reason."""

import zlib
from pathlib import Path

import numpy as np
import pytest

from ninfer_nb.cuda.devices import open_device, probe


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(scope="session")
def device():
    problem = probe().problem
    if problem:
        pytest.skip(f"needs a GPU: {problem}")
    return open_device(0)


@pytest.fixture(scope="session")
def library(device, tmp_path_factory):
    """Kernels compiled into a directory of this run."""
    from ninfer_nb.cuda.cache import CubinCache
    from ninfer_nb.cuda.launch import KernelLibrary

    return KernelLibrary(device, CubinCache(tmp_path_factory.mktemp("kernels")))


@pytest.fixture(scope="session")
def stream(device):
    from ninfer_nb.cuda.stream import Stream

    return Stream()


@pytest.fixture
def arena(device):
    """64 MiB, poisoned."""
    from ninfer_nb.cuda.memory import Arena

    arena = Arena.allocate("test", 64 << 20)
    arena.poison()
    yield arena
    arena.close()


@pytest.fixture(scope="session")
def cuda_ops(device):
    from ninfer_nb.ops.cuda import CudaOps

    return CudaOps(device)


@pytest.fixture
def pair(cuda_ops):
    from support.pair import Pair

    return Pair(cuda_ops)


@pytest.fixture
def rng(request):
    return np.random.default_rng(zlib.crc32(request.node.name.encode()))
