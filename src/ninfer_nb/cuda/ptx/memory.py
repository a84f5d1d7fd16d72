"""Loads, stores, atomics and cp.async (PTX ISA 9.7.9 and 9.7.13).

Global addresses are u64 (or a `types.CPointer` argument), shared ones u32 from `smem_addr`. Names follow the
instruction: `ld_global_nc_v4_u32` is `ld.global.nc.v4.u32`. 8- and 16-bit loads widen into a u32.

`.nc` loads are pure: the compiler may hoist or merge them. Use them only for data that no kernel in flight writes, that
is weights and constants; under programmatic dependent launch the previous kernel's output is not such data.
"""

from __future__ import annotations

from functools import cache

from ninfer_nb.cuda.ptx.factory import f32, i32, instruction, operands, u32, u64

_TYPES = {"u8": u32, "u16": u32, "u32": u32, "s32": i32, "f32": f32, "u64": u64}
_ADDRESS = {"global": u64, "shared": u32}
_SPACE = {"global": "global", "shared": "shared::cta"}


@cache
def load(type_: str, vector: int = 1, *, space: str = "global", modifiers: str = "", policy: bool = False):
    """ld (9.7.9.8): `ld.<space><modifiers>.v<vector>.<type>`; `policy` adds a u64 cache-policy operand.

    With ".nc" among the modifiers the load is pure, otherwise it keeps its place among memory accesses.
    """
    vec, target = ("", "$0") if vector == 1 else (f".v{vector}", operands(0, vector))
    hint = ".L2::cache_hint" if policy else ""
    text = f"ld.{_SPACE[space]}{modifiers}{hint}{vec}.{type_} {target}, [${vector}]"
    text += f", ${vector + 1};" if policy else ";"
    name = f"ld_{space}{modifiers}{hint}{vec}_{type_}".replace("::", "_").replace(".", "_")
    inputs = [_ADDRESS[space], u64] if policy else [_ADDRESS[space]]
    return instruction(name, text, inputs, _TYPES[type_], vector, memory=".nc" not in modifiers)


@cache
def store(type_: str, vector: int = 1, *, space: str = "global", modifiers: str = ""):
    """st (9.7.9.12): `store(address, *values)`."""
    vec, source = ("", "$1") if vector == 1 else (f".v{vector}", operands(1, vector))
    text = f"st.{_SPACE[space]}{modifiers}{vec}.{type_} [$0], {source};"
    name = f"st_{space}{modifiers}{vec}_{type_}".replace("::", "_").replace(".", "_")
    return instruction(name, text, [_ADDRESS[space]] + [_TYPES[type_]] * vector, memory=True)


# read-only path, kept in L1: activations' constant tables, scales that neighbours share
ld_global_nc_u8 = load("u8", modifiers=".nc")
ld_global_nc_u16 = load("u16", modifiers=".nc")
ld_global_nc_u32 = load("u32", modifiers=".nc")
ld_global_nc_s32 = load("s32", modifiers=".nc")
ld_global_nc_f32 = load("f32", modifiers=".nc")
ld_global_nc_u64 = load("u64", modifiers=".nc")
ld_global_nc_v2_u32 = load("u32", 2, modifiers=".nc")
ld_global_nc_v4_u32 = load("u32", 4, modifiers=".nc")
ld_global_nc_v4_f32 = load("f32", 4, modifiers=".nc")

# read once: weights
ld_global_nc_no_allocate_u32 = load("u32", modifiers=".nc.L1::no_allocate")
ld_global_nc_no_allocate_v2_u32 = load("u32", 2, modifiers=".nc.L1::no_allocate")
ld_global_nc_no_allocate_v4_u32 = load("u32", 4, modifiers=".nc.L1::no_allocate")
ld_global_nc_no_allocate_256b_v4_u32 = load("u32", 4, modifiers=".nc.L1::no_allocate.L2::256B")
ld_global_nc_no_allocate_policy_v4_u32 = load("u32", 4, modifiers=".nc.L1::no_allocate", policy=True)

# coherent: anything a kernel writes
ld_global_u8, ld_global_u16, ld_global_u32 = load("u8"), load("u16"), load("u32")
ld_global_s32, ld_global_f32, ld_global_u64 = load("s32"), load("f32"), load("u64")
ld_global_v2_u32, ld_global_v4_u32 = load("u32", 2), load("u32", 4)
ld_global_v2_f32, ld_global_v4_f32 = load("f32", 2), load("f32", 4)
st_global_u8, st_global_u16, st_global_u32 = store("u8"), store("u16"), store("u32")
st_global_s32, st_global_f32, st_global_u64 = store("s32"), store("f32"), store("u64")
st_global_v2_u32, st_global_v4_u32 = store("u32", 2), store("u32", 4)
st_global_v2_f32, st_global_v4_f32 = store("f32", 2), store("f32", 4)

ld_shared_u8, ld_shared_u16 = load("u8", space="shared"), load("u16", space="shared")
ld_shared_u32, ld_shared_f32 = load("u32", space="shared"), load("f32", space="shared")
ld_shared_v2_u32, ld_shared_v4_u32 = load("u32", 2, space="shared"), load("u32", 4, space="shared")
ld_shared_v2_f32, ld_shared_v4_f32 = load("f32", 2, space="shared"), load("f32", 4, space="shared")
st_shared_u8, st_shared_u16 = store("u8", space="shared"), store("u16", space="shared")
st_shared_u32, st_shared_f32 = store("u32", space="shared"), store("f32", space="shared")
st_shared_v2_u32, st_shared_v4_u32 = store("u32", 2, space="shared"), store("u32", 4, space="shared")
st_shared_v2_f32, st_shared_v4_f32 = store("f32", 2, space="shared"), store("f32", 4, space="shared")

# between blocks (memory consistency model, 8): flags and tickets
ld_acquire_gpu_u32 = instruction("ld_acquire_gpu_u32", "ld.acquire.gpu.global.u32 $0, [$1];", [u64], u32, memory=True)
ld_acquire_sys_u32 = instruction("ld_acquire_sys_u32", "ld.acquire.sys.global.u32 $0, [$1];", [u64], u32, memory=True)
st_release_gpu_u32 = instruction("st_release_gpu_u32", "st.release.gpu.global.u32 [$0], $1;", [u64, u32], memory=True)
st_release_sys_u32 = instruction("st_release_sys_u32", "st.release.sys.global.u32 [$0], $1;", [u64, u32], memory=True)
atom_add_acq_rel_gpu_u32 = instruction(
    "atom_add_acq_rel_gpu_u32", "atom.acq_rel.gpu.global.add.u32 $0, [$1], $2;", [u64, u32], u32, memory=True
)
red_add_gpu_f32 = instruction("red_add_gpu_f32", "red.relaxed.gpu.global.add.f32 [$0], $1;", [u64, f32], memory=True)

# createpolicy (9.7.9.19): the operand of `.L2::cache_hint`
createpolicy_evict_first = instruction(
    "createpolicy_evict_first", "createpolicy.fractional.L2::evict_first.b64 $0, 1.0;", [], u64
)
createpolicy_evict_last = instruction(
    "createpolicy_evict_last", "createpolicy.fractional.L2::evict_last.b64 $0, 1.0;", [], u64
)
# prefetch (9.7.9.15)
prefetch_global_l2 = instruction("prefetch_global_l2", "prefetch.global.L2 [$0];", [u64], memory=True)

# cp.async (9.7.9.25.3): 4, 8 or 16 bytes from global to shared; the zfill form reads `size` bytes and zeroes the rest
cp_async_4 = instruction("cp_async_4", "cp.async.ca.shared.global [$0], [$1], 4;", [u32, u64], memory=True)
cp_async_8 = instruction("cp_async_8", "cp.async.ca.shared.global [$0], [$1], 8;", [u32, u64], memory=True)
cp_async_16 = instruction("cp_async_16", "cp.async.cg.shared.global [$0], [$1], 16;", [u32, u64], memory=True)
cp_async_16_zfill = instruction(
    "cp_async_16_zfill", "cp.async.cg.shared.global [$0], [$1], 16, $2;", [u32, u64, u32], memory=True
)
cp_async_commit_group = instruction("cp_async_commit_group", "cp.async.commit_group;", memory=True)
cp_async_wait_all = instruction("cp_async_wait_all", "cp.async.wait_all;", memory=True)
cp_async_mbarrier_arrive_noinc = instruction(
    "cp_async_mbarrier_arrive_noinc", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", [u32], memory=True
)


@cache
def cp_async_wait_group(pending: int):
    """cp.async.wait_group: all but the `pending` youngest groups are complete."""
    return instruction(f"cp_async_wait_group_{pending}", f"cp.async.wait_group {pending};", memory=True)
