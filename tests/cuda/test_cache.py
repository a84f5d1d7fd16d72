"""Cubin cache: what is in the key, hit, miss, damage, parallel compilation."""

import importlib
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

pytest.importorskip("numba_cuda", reason="needs the cuda extra (numba-cuda)")

from support import sample_kernels
from support.assemble import assemble

from ninfer_nb.cuda import cache as cache_module
from ninfer_nb.cuda import compiler, launch
from ninfer_nb.cuda.cache import CubinCache, cache_key, source_digest
from ninfer_nb.cuda.errors import KernelError
from ninfer_nb.cuda.spec import KernelSpec

SPEC = KernelSpec.of(sample_kernels.saxpy, unroll=2)


def test_compiled_kernel_has_an_entry_and_plain_arguments():
    binary = compiler.compile_spec(SPEC, "sm_90a")
    assert "saxpy" in binary.entry
    assert binary.arguments == "QQfi"
    assert binary.options.max_threads == 256
    assert binary.cubin[:4] == b"\x7fELF"
    assert binary.entry.encode() in binary.cubin


def test_two_processes_make_the_same_cubin():
    with ProcessPoolExecutor(2, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        first, second = pool.map(compiler.compile_spec, [SPEC, SPEC], ["sm_90a", "sm_90a"])
    assert first == second


def test_cached_binary_equals_the_compiled_one(tmp_path):
    cache = CubinCache(tmp_path)
    assert cache.load(SPEC, "sm_90a") is None
    binary = launch.compile_and_store(SPEC, "sm_90a", cache)
    assert cache.load(SPEC, "sm_90a") == binary
    assert cache.load(SPEC, "sm_120a") is None
    assert [p.name for p in tmp_path.iterdir()] == [cache.path(SPEC, "sm_90a").name]


@pytest.mark.parametrize("position", [0, 20, 60, -1])
def test_damaged_entry_counts_as_missing(tmp_path, position):
    cache = CubinCache(tmp_path)
    launch.compile_and_store(SPEC, "sm_90a", cache)
    path = cache.path(SPEC, "sm_90a")
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    assert cache.load(SPEC, "sm_90a") is None
    path.write_bytes(data[:30])
    assert cache.load(SPEC, "sm_90a") is None


def test_unwritable_directory_only_costs_a_compilation(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    cache = CubinCache(blocker / "kernels")
    assert "saxpy" in launch.compile_and_store(SPEC, "sm_90a", cache).entry
    assert cache.load(SPEC, "sm_90a") is None


def test_key_depends_on_statics_their_types_arch_and_versions(monkeypatch):
    keys = {
        cache_key(SPEC, "sm_90a"),
        cache_key(SPEC, "sm_120a"),
        cache_key(KernelSpec.of(sample_kernels.saxpy, unroll=1), "sm_90a"),
        cache_key(KernelSpec.of(sample_kernels.saxpy, unroll=True), "sm_90a"),
        cache_key(KernelSpec.of(sample_kernels.chained_add), "sm_90a"),
    }
    assert len(keys) == 5
    monkeypatch.setattr(cache_module, "_tool_versions", lambda: ("numba-cuda 99",))
    assert cache_key(SPEC, "sm_90a") not in keys


def test_key_depends_on_the_source_of_imported_modules(tmp_path, monkeypatch):
    package = tmp_path / "probe_kernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "shared.py").write_text("VALUE = 1\n")
    (package / "family.py").write_text("from probe_kernels.shared import VALUE\nimport math\n")
    (package / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)

    def digest() -> str:
        source_digest.cache_clear()
        importlib.invalidate_caches()
        return source_digest("probe_kernels.family")

    first = digest()
    (package / "other.py").write_text("UNRELATED = 1\n")
    assert digest() == first
    (package / "shared.py").write_text("VALUE = 2\n")
    assert digest() != first
    sys.modules.pop("probe_kernels", None)


def test_ptx_modules_are_part_of_a_kernel_source():
    sources = cache_module._sources("support.sample_kernels")
    assert {"support.sample_kernels", "ninfer_nb.cuda.ptx.factory", "ninfer_nb.cuda.ptx.control"} <= set(sources)
    assert "ninfer_nb.cuda.launch" not in sources


def test_cache_directory_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("NINFER_CACHE_DIR", str(tmp_path))
    assert CubinCache().directory == tmp_path / "kernels"


def test_compile_many_fills_the_cache_in_processes(tmp_path):
    cache = CubinCache(tmp_path)
    specs = [KernelSpec.of(sample_kernels.saxpy, unroll=n) for n in range(1, 9)]
    done = dict(launch.compile_many(specs, "sm_90a", cache, workers=2))
    assert set(done) == set(specs)
    assert all(cache.load(s, "sm_90a") == b for s, b in done.items())


def test_compile_errors_name_the_kernel_and_the_reason():
    with pytest.raises(KernelError, match=r"mistyped\(\).*does not compile"):
        compiler.compile_spec(KernelSpec.of(sample_kernels.mistyped), "sm_90a")
    with pytest.raises(KernelError, match="sm_80"):
        compiler.compile_spec(SPEC, "sm_80")
    with pytest.raises(KernelError, match="argument 0 has type"):
        compiler.compile_spec(KernelSpec.of(sample_kernels.array_argument), "sm_90a")
    with pytest.raises(KernelError, match="no factory 'absent'"):
        KernelSpec("support.sample_kernels:absent").build()


@pytest.mark.parametrize("arch", compiler.ARCHITECTURES)
def test_assemble_reports_resources_and_refuses_spills(arch):
    assert 0 < assemble(SPEC, arch).resources.registers < 64
    spilling = KernelSpec.of(sample_kernels.spilling)
    with pytest.raises(AssertionError, match="spills"):
        assemble(spilling, arch)
    assert assemble(spilling, arch, allow="made to spill").resources.spill_bytes > 0
