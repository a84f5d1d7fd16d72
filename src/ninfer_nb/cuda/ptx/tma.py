"""mbarrier and the bulk copy engine (PTX ISA 9.7.13.15 and 9.7.9.25.4 to 9.7.9.25.6).

Shared addresses and barriers are u32, tensor maps a u64 address of 128 bytes in global memory (64-byte aligned),
coordinates i32 with the innermost dimension first. sm_90 and later.
"""

from __future__ import annotations

from functools import cache

from ninfer_nb.cuda.ptx.factory import i32, instruction, operands, u16, u32, u64

mbarrier_init = instruction("mbarrier_init", "mbarrier.init.shared::cta.b64 [$0], $1;", [u32, u32], memory=True)
mbarrier_inval = instruction("mbarrier_inval", "mbarrier.inval.shared::cta.b64 [$0];", [u32], memory=True)
mbarrier_arrive = instruction("mbarrier_arrive", "mbarrier.arrive.shared::cta.b64 _, [$0];", [u32], memory=True)
mbarrier_arrive_expect_tx = instruction(
    "mbarrier_arrive_expect_tx", "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", [u32, u32], memory=True
)
mbarrier_arrive_cluster = instruction(  # the address comes from mapa
    "mbarrier_arrive_cluster", "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [$0];", [u32], memory=True
)
mbarrier_test_wait_parity = instruction(
    "mbarrier_test_wait_parity",
    "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [$1], $2; selp.u32 $0, 1, 0, p; }",
    [u32, u32], u32, memory=True,
)  # fmt: skip
mbarrier_wait_parity = instruction(
    "mbarrier_wait_parity",
    "{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1; @!p bra W; }",
    [u32, u32], memory=True, doc="spins until the phase with this parity (0 or 1) has completed",
)  # fmt: skip

# cp.async.bulk (9.7.9.25.4.1): contiguous bytes, sizes and addresses multiples of 16
cp_async_bulk_load = instruction(
    "cp_async_bulk_load",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
    [u32, u64, u32, u32], memory=True, doc="(shared, global, bytes, barrier)",
)  # fmt: skip
cp_async_bulk_load_policy = instruction(
    "cp_async_bulk_load_policy",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [$0], [$1], $2, [$3], $4;",
    [u32, u64, u32, u32, u64], memory=True, doc="(shared, global, bytes, barrier, policy)",
)  # fmt: skip
cp_async_bulk_store = instruction(
    "cp_async_bulk_store", "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;", [u64, u32, u32], memory=True
)
cp_async_bulk_prefetch = instruction(
    "cp_async_bulk_prefetch", "cp.async.bulk.prefetch.L2.global [$0], $1;", [u64, u32], memory=True
)
cp_async_bulk_commit_group = instruction("cp_async_bulk_commit_group", "cp.async.bulk.commit_group;", memory=True)


@cache
def cp_async_bulk_wait_group(pending: int, *, read: bool = False):
    """All but the `pending` youngest bulk groups are complete, or (read) have read their shared memory."""
    suffix = ".read" if read else ""
    name = f"cp_async_bulk_wait_group{suffix.replace('.', '_')}_{pending}"
    return instruction(name, f"cp.async.bulk.wait_group{suffix} {pending};", memory=True)


@cache
def tensor_load(dimensions: int, *, multicast: bool = False, policy: bool = False):
    """cp.async.bulk.tensor load (9.7.9.25.5.2): (shared, map, barrier, *coordinates[, mask u16][, policy u64])."""
    extra = 3 + dimensions
    text = (
        f"cp.async.bulk.tensor.{dimensions}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        f"{'.multicast::cluster' if multicast else ''}{'.L2::cache_hint' if policy else ''} "
        f"[$0], [$1, {operands(3, dimensions)}], [$2]"
        f"{f', ${extra}' if multicast else ''}{f', ${extra + multicast}' if policy else ''};"
    )
    name = f"cp_async_bulk_tensor_{dimensions}d_load{'_multicast' * multicast}{'_policy' * policy}"
    inputs = [u32, u64, u32] + [i32] * dimensions + [u16] * multicast + [u64] * policy
    return instruction(name, text, inputs, memory=True)


@cache
def tensor_store(dimensions: int):
    """cp.async.bulk.tensor store (9.7.9.25.5.2): (map, shared, *coordinates), in a bulk group."""
    text = (
        f"cp.async.bulk.tensor.{dimensions}d.global.shared::cta.tile.bulk_group [$0, {operands(2, dimensions)}], [$1];"
    )
    inputs = [u64, u32] + [i32] * dimensions
    return instruction(f"cp_async_bulk_tensor_{dimensions}d_store", text, inputs, memory=True)


cp_async_bulk_tensor_1d_load, cp_async_bulk_tensor_1d_store = tensor_load(1), tensor_store(1)
cp_async_bulk_tensor_2d_load, cp_async_bulk_tensor_2d_store = tensor_load(2), tensor_store(2)
cp_async_bulk_tensor_3d_load, cp_async_bulk_tensor_3d_store = tensor_load(3), tensor_store(3)
cp_async_bulk_tensor_2d_load_multicast = tensor_load(2, multicast=True)
cp_async_bulk_tensor_2d_load_policy = tensor_load(2, policy=True)

prefetch_tensormap = instruction("prefetch_tensormap", "prefetch.tensormap [$0];", [u64], memory=True)
