"""Launches, graphs, memory and the meaning of single instructions, on a GPU."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda", reason="needs the cuda extra (numba-cuda)")
ml_dtypes = pytest.importorskip("ml_dtypes", reason="needs the test extra (ml-dtypes)")

from support import probe_kernels, sample_kernels

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.errors import CudaError, KernelError, OutOfDeviceMemory
from ninfer_nb.cuda.graphs import capture
from ninfer_nb.cuda.memory import WORDS, Arena, PinnedBuffer, copy_to_device, copy_to_host, download, fill, upload
from ninfer_nb.cuda.spec import KernelSpec
from ninfer_nb.cuda.stream import Event
from ninfer_nb.cuda.tensormap import encode_tensor_map

rng = np.random.default_rng(5)
DTYPES = {np.dtype(n): d for d, n in WORDS.items() if d not in ("e4m3", "bf16")}


@pytest.fixture
def put(arena, stream):
    """Host words -> device array."""

    def put(values):
        words = np.ascontiguousarray(values)
        array = arena.take("input", words.shape, DTYPES[words.dtype])
        upload(array, words, stream)
        return array

    return put


@pytest.fixture
def run_elementwise(library, arena, stream, put):
    """The instruction `name` over arrays; its outputs as NumPy arrays."""

    def run(name, *inputs, table=-1):
        made = ptx.lop3(table) if name == "lop3" else getattr(ptx, name)
        outputs = [np.dtype(str(t)) for t in made.operand_types[1]]
        n = len(inputs[0])
        with arena.scope():
            xs = [put(x) for x in inputs]
            ys = [arena.take("output", (n,), DTYPES[t]) for t in outputs]
            kernel = library.get(KernelSpec.of(probe_kernels.elementwise, name=name, table=table))
            kernel.launch((-(-n // 256), 1, 1), (256, 1, 1), stream, n, *[a.ptr for a in xs + ys])
            results = [download(y, stream) for y in ys]
        return results[0] if len(results) == 1 else results

    return run


@pytest.mark.parametrize("n", [1, 255, 1000])
def test_launch_writes_exactly_the_elements_asked_for(library, stream, arena, put, n):
    x, y = rng.standard_normal(1024).astype(np.float32), rng.standard_normal(1024).astype(np.float32)
    dx, dy = put(x), put(y)
    kernel = library.get(KernelSpec.of(sample_kernels.saxpy, unroll=2))
    kernel.launch((-(-n // 512), 1, 1), (256, 1, 1), stream, dx.ptr, dy.ptr, 2.0, n)
    expected = y.copy()
    expected[:n] += 2 * x[:n]
    np.testing.assert_allclose(download(dy, stream), expected, rtol=1e-6)
    assert kernel.attribute("NUM_REGS") == kernel.binary.resources.registers
    assert kernel.blocks_per_multiprocessor(256) >= 2


def test_launch_errors_name_the_kernel(library, stream):
    kernel = library.get(KernelSpec.of(sample_kernels.chained_add))
    with pytest.raises(CudaError, match=r"chained_add\(\): arguments do not fit 'Qi'"):
        kernel.launch((1, 1, 1), (32, 1, 1), stream, 0)
    with pytest.raises(CudaError, match=r"launch of chained_add.*INVALID_VALUE"):
        kernel.launch((1, 1, 1), (2048, 1, 1), stream, 0, 0)


def test_frozen_library_refuses_what_was_not_warmed_up(library):
    spec = KernelSpec.of(sample_kernels.saxpy, unroll=7)
    seen = []
    assert library.warm_up([spec, spec], lambda *state: seen.append(state)).compiled == 1
    assert seen == [(1, 1, "saxpy(unroll=7)")]
    library.frozen = True
    try:
        library.get(spec)
        with pytest.raises(KernelError, match=r"saxpy\(unroll=9\) was not loaded"):
            library.get(KernelSpec.of(sample_kernels.saxpy, unroll=9))
    finally:
        library.frozen = False


@pytest.mark.parametrize("pdl", [False, True])
def test_graph_of_dependent_launches_runs_in_order(library, stream, arena, pdl):
    n, links = 100_000, 50
    y = arena.take("y", (n,), "f32")
    fill(y, 0, stream)
    kernel = library.get(KernelSpec.of(sample_kernels.chained_add))
    with capture(stream) as graph:
        for _ in range(links):
            kernel.launch((-(-n // 256), 1, 1), (256, 1, 1), stream, y.ptr, n, pdl=pdl)
    assert graph.node_count == links
    executable = graph.instantiate()
    executable.upload(stream)
    start, end = Event(timing=True), Event(timing=True)
    stream.record(start)
    for _ in range(3):
        executable.replay(stream)
    stream.record(end)
    np.testing.assert_array_equal(download(y, stream), np.full(n, 3 * links, np.float32))
    assert end.done()
    assert 0 < start.elapsed_ms(end) < 1000
    assert executable.memory_bytes >= 0
    with capture(stream) as other:
        for _ in range(links):
            kernel.launch((-(-n // 256), 1, 1), (256, 1, 1), stream, y.ptr, 10, pdl=pdl)
    assert executable.update(other)
    executable.replay(stream)
    counted = download(y, stream)
    assert (counted[:10] == 4 * links).all()
    assert (counted[10:] == 3 * links).all()
    with capture(stream) as shorter:
        kernel.launch((1, 1, 1), (32, 1, 1), stream, y.ptr, 1)
    assert not executable.update(shorter)
    executable.close()


def test_failed_capture_leaves_the_stream_usable(library, stream, arena):
    with pytest.raises(ZeroDivisionError), capture(stream):
        raise ZeroDivisionError
    y = arena.take("y", (4,), "f32")
    fill(y, 0, stream)
    assert (download(y, stream) == 0).all()


def test_cluster_launch(library, stream, arena):
    out = arena.take("out", (8,), "u32")
    kernel = library.get(KernelSpec.of(probe_kernels.cluster_ranks))
    kernel.launch((8, 1, 1), (32, 1, 1), stream, out.ptr, cluster=(4, 1, 1))
    assert download(out, stream).tolist() == [0, 1, 2, 3] * 2


def test_dynamic_shared_memory_beyond_48_kib(library, stream, arena, device):
    out = arena.take("out", (1,), "u32")
    kernel = library.get(KernelSpec.of(probe_kernels.dynamic_shared, nbytes=device.info.shared_bytes))
    kernel.launch((1, 1, 1), (32, 1, 1), stream, out.ptr)
    assert download(out, stream)[0] == 7
    with pytest.raises(KernelError, match="bytes of shared memory"):
        library.get(KernelSpec.of(probe_kernels.dynamic_shared, nbytes=device.info.shared_bytes + 1024))


def test_pinned_copies_and_strided_views(stream, arena):
    pinned = PinnedBuffer(4096)
    values = rng.integers(0, 1 << 32, (8, 16), dtype=np.uint32)
    pinned.array((8, 16), "u32")[:] = values
    array = arena.take("matrix", (8, 16), "u32")
    copy_to_device(array.ptr, pinned.ptr, array.nbytes, stream)
    np.testing.assert_array_equal(download(array.columns(3, 9), stream), values[:, 3:9])
    fill(array.columns(0, 4)[2:4], 0, stream)
    values[2:4, :4] = 0
    upload(array.columns(12, 16), np.ones((8, 4), np.uint32), stream)
    values[:, 12:] = 1
    copy_to_host(pinned.ptr + 2048, array.ptr, array.nbytes, stream)
    stream.synchronize()
    np.testing.assert_array_equal(pinned.array((8, 16), "u32", 2048), values)
    pinned.close()


def test_fresh_arena_memory_is_poisoned_and_exhaustion_is_reported(stream, arena, device):
    assert np.isnan(download(arena.take("unwritten", (100,), "f32"), stream)).all()
    with pytest.raises(OutOfDeviceMemory, match=r"arena 'huge' needs .* bytes; the device has .* bytes free"):
        Arena.allocate("huge", device.info.total_bytes * 2)


def test_bf16_and_f16_conversions_match_ml_dtypes(run_elementwise):
    x = np.concatenate([rng.standard_normal(4000) * 10.0 ** rng.integers(-8, 5, 4000), [0.0, -0.0, np.inf, -np.inf]])
    x = x.astype(np.float32)
    for short, narrow, widen in (
        (ml_dtypes.bfloat16, "cvt_rn_bf16_f32", "f32_of_bf16"),
        (np.float16, "cvt_rn_f16_f32", "cvt_f32_f16"),
    ):
        with np.errstate(over="ignore"):
            words = x.astype(short).view(np.uint16)
        np.testing.assert_array_equal(run_elementwise(narrow, x), words)
        np.testing.assert_array_equal(run_elementwise(widen, words), words.view(short).astype(np.float32))
    a, b = x[:2000], x[2000:4000]
    pair = b.astype(ml_dtypes.bfloat16).view(np.uint16).astype(np.uint32) << 16
    pair |= a.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(run_elementwise("cvt_rn_bf16x2_f32", a, b), pair)
    np.testing.assert_array_equal(run_elementwise("f32_of_bf16_low", pair), (pair << 16).view(np.float32))
    np.testing.assert_array_equal(run_elementwise("f32_of_bf16_high", pair), (pair & 0xFFFF0000).view(np.float32))
    np.testing.assert_array_equal(run_elementwise("round_bf16", x), x.astype(ml_dtypes.bfloat16).astype(np.float32))


def test_e4m3_conversions_match_ml_dtypes(run_elementwise):
    e4m3 = ml_dtypes.float8_e4m3fn
    a, b = (np.clip(rng.standard_normal(3000) * 100, -448, 448).astype(np.float32) for _ in range(2))
    words = a.astype(e4m3).view(np.uint8) | b.astype(e4m3).view(np.uint8).astype(np.uint16) << 8
    np.testing.assert_array_equal(run_elementwise("cvt_rn_satfinite_e4m3x2_f32", a, b), words)
    low, high = run_elementwise("cvt_f32x2_e4m3x2", words.astype(np.uint16))
    np.testing.assert_array_equal(low, a.astype(e4m3).astype(np.float32))
    np.testing.assert_array_equal(high, b.astype(e4m3).astype(np.float32))
    big = np.full(2, 1e9, np.float32)
    assert (run_elementwise("cvt_rn_satfinite_e4m3x2_f32", big, -big) == 0xFE7E).all()


def test_bit_and_integer_instructions(run_elementwise):
    a, b, c = rng.integers(0, 1 << 32, (3, 1000), dtype=np.uint32)
    table = np.concatenate([a.view(np.uint8).reshape(-1, 4), b.view(np.uint8).reshape(-1, 4)], axis=1)
    selector = c & 0x7777
    expected = sum(
        table[np.arange(1000), selector >> (4 * i) & 7].astype(np.uint32) << np.uint32(8 * i) for i in range(4)
    )
    np.testing.assert_array_equal(run_elementwise("prmt", a, b, selector), expected)
    np.testing.assert_array_equal(run_elementwise("lop3", a, b, c, table=0x6A), a & b ^ c)
    bytes_a, bytes_b = (v.view(np.int8).reshape(-1, 4).astype(np.int32) for v in (a, b))
    start = c.view(np.int32) >> 8
    np.testing.assert_array_equal(run_elementwise("dp4a_s32", a, b, start), (bytes_a * bytes_b).sum(1) + start)
    wide = [rng.integers(-300, 300, 1000, dtype=np.int32) for _ in range(4)]
    packed = np.stack([np.clip(w, -128, 127) for w in wide], 1).astype(np.int8).view(np.uint32)[:, 0]
    np.testing.assert_array_equal(run_elementwise("cvt_pack_sat_s8_s32", *wide), packed)
    address, offset = np.array([1 << 40, 5], np.uint64), np.array([-16, 3], np.int64)
    assert run_elementwise("at", address, offset).tolist() == [(1 << 40) - 16, 8]
    x = rng.uniform(-20, 20, 1000).astype(np.float32)
    np.testing.assert_allclose(run_elementwise("ex2_approx", x), np.exp2(x), rtol=1e-6)


def fragments(matrix: np.ndarray) -> np.ndarray:
    """[rows, 32 bytes] of elements -> words [32 lanes, rows / 8 x 2]: row blocks inner, k blocks outer."""
    words = np.ascontiguousarray(matrix).view(np.uint32)
    lanes = np.arange(32)
    blocks = [words[lanes // 4 + 8 * r, lanes % 4 + 4 * k] for k in range(2) for r in range(len(words) // 8)]
    return np.stack(blocks, 1)


@pytest.mark.parametrize(
    ("name", "kind", "k"),
    [
        ("mma_m16n8k16_f32_bf16", ml_dtypes.bfloat16, 16),
        ("mma_m16n8k16_f32_f16", np.float16, 16),
        ("mma_m16n8k32_f32_e4m3", ml_dtypes.float8_e4m3fn, 32),
        ("mma_m16n8k32_s32_s8_s8", np.int8, 32),
        ("mma_m16n8k32_s32_u8_s8", np.int8, 32),
    ],
)
def test_mma_multiplies_fragments(library, stream, put, name, kind, k):
    integer = kind is np.int8
    a, b = (rng.integers(-8, 8, (rows, k)).astype(kind) for rows in (16, 8))
    if "u8" in name:
        a = rng.integers(0, 255, (16, k)).astype(np.uint8)
    start = np.ones((32, 4), np.int32 if integer else np.float32)
    d = put(start)
    kernel = library.get(KernelSpec.of(probe_kernels.warp_mma, name=name))
    kernel.launch((1, 1, 1), (32, 1, 1), stream, put(fragments(a)).ptr, put(fragments(b)).ptr, 0, d.ptr)
    product = a.astype(np.float64) @ b.astype(np.float64).T + 1
    lanes = np.arange(32)
    expected = [product[lanes // 4 + 8 * (i // 2), lanes % 4 * 2 + i % 2] for i in range(4)]
    np.testing.assert_array_equal(download(d, stream), np.stack(expected, 1))


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix_distributes_rows(library, stream, arena, put, transposed):
    rows = np.arange(256, dtype=np.uint16).reshape(4, 8, 8)
    out = arena.take("out", (32, 4), "u32")
    kernel = library.get(KernelSpec.of(probe_kernels.matrix_load, transposed=transposed))
    kernel.launch((1, 1, 1), (32, 1, 1), stream, put(rows).ptr, out.ptr)
    lanes = np.arange(32)
    matrices = rows.swapaxes(1, 2) if transposed else rows
    low, high = (matrices[:, lanes // 4, lanes % 4 * 2 + i].astype(np.uint32) for i in range(2))
    np.testing.assert_array_equal(download(out, stream), (low | high << 16).T)


@pytest.mark.parametrize("bulk", [False, True])
def test_asynchronous_copies_through_shared_memory(library, stream, arena, put, bulk):
    words = rng.integers(0, 1 << 32, 1024, dtype=np.uint32)
    target = arena.take("target", (1024,), "u32")
    kernel = library.get(KernelSpec.of(probe_kernels.copy_async, bulk=bulk))
    kernel.launch((1, 1, 1), (128, 1, 1), stream, put(words).ptr, target.ptr)
    np.testing.assert_array_equal(download(target, stream), words)


@pytest.mark.parametrize(
    ("kind", "n", "options"),
    [
        ("BF16", 64, {}),
        ("BF16", 256, {}),
        ("BF16", 64, {"trans_b": True}),
        ("BF16", 64, {"a_registers": True}),
        ("F16", 128, {}),
        ("E4M3", 64, {}),
        ("E4M3", 128, {"a_registers": True}),
    ],
)
def test_wgmma_stage_multiplies_tiles_that_tma_loaded(library, device, stream, arena, put, kind, n, options):
    if device.arch != "sm_90a":
        pytest.skip("wgmma exists on sm_90a only")
    element = {"BF16": ml_dtypes.bfloat16, "F16": np.float16, "E4M3": ml_dtypes.float8_e4m3fn}[kind]
    words, dtype = (np.uint8, "u8") if kind == "E4M3" else (np.uint16, "u16")
    k = 128 // np.dtype(words).itemsize
    a, b = (rng.integers(-8, 8, (rows, k)).astype(element) for rows in (64, n))
    stored_b = np.ascontiguousarray(b.T) if options.get("trans_b") else b
    da, db = put(a.view(words)), put(stored_b.view(words))
    maps = [put(encode_tensor_map(x.view(dtype), x.shape)) for x in (da, db)]
    d = arena.take("d", (64, n), "f32")
    kernel = library.get(KernelSpec.of(probe_kernels.wgmma_tile, kind=kind, n=n, **options))
    kernel.launch((1, 1, 1), (128, 1, 1), stream, maps[0].ptr, maps[1].ptr, da.ptr, d.ptr)
    np.testing.assert_array_equal(download(d, stream), a.astype(np.float32) @ b.astype(np.float32).T)
