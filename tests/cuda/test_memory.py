"""Array views, arenas and device queries: what needs no GPU."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ninfer_nb.cuda import devices
from ninfer_nb.cuda.errors import CudaError, CudaUnavailable, OutOfDeviceMemory
from ninfer_nb.cuda.memory import ALIGNMENT, WORDS, Arena, DeviceArray

BASE = 1 << 20


def numpy_of(view: DeviceArray, memory: np.ndarray) -> np.ndarray:
    """The view over host bytes that stand for device memory at BASE."""
    inner = [math.prod(view.shape[i + 1 :]) for i in range(len(view.shape))]
    strides = [s * view.itemsize for s in ([view.row_stride, *inner[1:]] if view.shape else [])]
    return np.ndarray(view.shape, WORDS[view.dtype], memory.data, view.ptr - BASE, strides)


def test_views_address_what_numpy_addresses():
    memory = np.arange(24 * 4, dtype=np.uint8)
    host = memory.view(np.uint32).reshape(4, 6)
    array = DeviceArray.at(BASE, (4, 6), "u32")
    for view, expected in [
        (array, host),
        (array[2], host[2]),
        (array[-1], host[-1]),
        (array[1:3], host[1:3]),
        (array.columns(2, 5), host[:, 2:5]),
        (array.columns(2, 6).reshape(4, 2, 2), host[:, 2:6].reshape(4, 2, 2)),
        (array.columns(2, 6)[1:3], host[1:3, 2:6]),
        (array.columns(2, 6).reshape(4, 2, 2)[3], host[3, 2:6].reshape(2, 2)),
        (array.reshape(2, 3, 4)[1], host.reshape(2, 3, 4)[1]),
        (array.reshape(24)[5:9], host.reshape(24)[5:9]),
        (array.view("f32"), host.view(np.float32)),
    ]:
        assert view.shape == expected.shape
        np.testing.assert_array_equal(numpy_of(view, memory), expected)


def test_contiguity_decides_what_can_be_reshaped():
    array = DeviceArray.at(BASE, (4, 6), "bf16")
    part = array.columns(0, 4)
    assert array.contiguous
    assert not part.contiguous
    assert part[0:1].contiguous
    assert (array.nbytes, part.nbytes) == (48, 32)
    with pytest.raises(ValueError, match="keeps its leading axis"):
        part.reshape(16)
    with pytest.raises(ValueError, match="cannot reshape"):
        array.reshape(5, 5)
    with pytest.raises(ValueError, match="widths differ"):
        array.view("f32")
    with pytest.raises(IndexError, match="columns"):
        array.columns(0, 7)
    with pytest.raises(IndexError, match="row 4"):
        array[4]
    with pytest.raises(IndexError, match="step 1"):
        array[::2]


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_arena_pieces_are_aligned_and_disjoint(sizes):
    arena = Arena("test", BASE, 1 << 16)
    taken = [arena.take(str(i), (n,), "u8") for i, n in enumerate(sizes)]
    assert all(piece.ptr % ALIGNMENT == 0 for piece in taken)
    assert all(a.ptr + a.nbytes <= b.ptr for a, b in pairwise(taken))
    assert arena.used + arena.free == arena.capacity


def test_arena_scope_gives_back_and_remembers_the_high_water_mark():
    arena = Arena("scratch", BASE, 4096)
    kept = arena.take("kept", (3,), "f32")
    with arena.scope():
        first = arena.take("inner", (100,), "f32")
        assert arena.used == 256 + 512
    assert (arena.used, arena.high_water, len(arena.pieces)) == (256, 768, 1)
    assert arena.take("again", (1,), "u8").ptr == first.ptr == kept.ptr + 256


def test_arena_out_of_memory_names_arena_piece_and_bytes():
    arena = Arena("weights", BASE, 1024)
    arena.take("a", (512,), "u8")
    with pytest.raises(OutOfDeviceMemory, match=r"'weights': 'b' needs 768 bytes, 512 of 1,024 are free"):
        arena.take("b", (513,), "u8")
    assert arena.take("c", (512,), "u8").ptr == BASE + 512


def test_probe_says_what_is_missing_instead_of_failing():
    found = devices.probe()
    assert (found.problem is None) == any(d.target for d in found.devices)


def test_unusable_gpus_and_drivers_are_named():
    info = devices.DeviceInfo(1, "Old GPU", (8, 6), 1, 1, 1, 1, 1, 1, 1, "0")
    assert info.target is None
    with pytest.raises(CudaUnavailable, match=r"GPU 1 \(Old GPU\) has compute capability 8.6.*sm_90a.*sm_120a"):
        info.require_target()
    with pytest.raises(CudaUnavailable, match=r"CUDA 12.4.*13.0"):
        devices.require_driver((12, 4))
    assert issubclass(CudaUnavailable, CudaError)
