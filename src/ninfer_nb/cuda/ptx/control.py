"""Synchronisation, launch control and clocks (PTX ISA 9.7.13, 9.7.15, 9.7.19, 10)."""

from __future__ import annotations

from functools import cache

from ninfer_nb.cuda.ptx.factory import instruction, u32, u64

# griddepcontrol (9.7.13.13): programmatic dependent launch. `wait` returns when the grids before are complete and
# their writes visible; `launch_dependents` lets the next grid start once every block has called it or ended.
griddepcontrol_wait = instruction("griddepcontrol_wait", "griddepcontrol.wait;", memory=True)
griddepcontrol_launch_dependents = instruction(
    "griddepcontrol_launch_dependents", "griddepcontrol.launch_dependents;", memory=True
)


@cache
def setmaxnreg_inc(registers: int):
    """setmaxnreg.inc (9.7.19.5): this warpgroup takes up to `registers` (a multiple of 8); sm_90a, sm_120a."""
    return instruction(f"setmaxnreg_inc_{registers}", f"setmaxnreg.inc.sync.aligned.u32 {registers};", memory=True)


@cache
def setmaxnreg_dec(registers: int):
    """setmaxnreg.dec (9.7.19.5): this warpgroup keeps `registers`."""
    return instruction(f"setmaxnreg_dec_{registers}", f"setmaxnreg.dec.sync.aligned.u32 {registers};", memory=True)


# bar (9.7.13.1): named barriers, ids 1 to 15 (0 is syncthreads); `threads` is a multiple of 32
bar_sync = instruction("bar_sync", "bar.sync $0, $1;", [u32, u32], memory=True)
bar_arrive = instruction("bar_arrive", "bar.arrive $0, $1;", [u32, u32], memory=True)

# barrier.cluster (9.7.13.4) and cluster addresses: mapa (9.7.9.24)
barrier_cluster_arrive = instruction("barrier_cluster_arrive", "barrier.cluster.arrive.release.aligned;", memory=True)
barrier_cluster_wait = instruction("barrier_cluster_wait", "barrier.cluster.wait.acquire.aligned;", memory=True)
cluster_ctarank = instruction("cluster_ctarank", "mov.u32 $0, %cluster_ctarank;", [], u32)
mapa = instruction("mapa", "mapa.shared::cluster.u32 $0, $1, $2;", [u32, u32], u32, doc="peer's shared address")

# elect.sync (9.7.13.14): 1 in one lane of the full warp
elect_sync = instruction(
    "elect_sync", "{ .reg .pred p; elect.sync _|p, 0xFFFFFFFF; selp.u32 $0, 1, 0, p; }", [], u32, volatile=True
)

# membar / fence (9.7.13.5)
fence_acq_rel_gpu = instruction("fence_acq_rel_gpu", "fence.acq_rel.gpu;", memory=True)
fence_acq_rel_sys = instruction("fence_acq_rel_sys", "fence.acq_rel.sys;", memory=True)
fence_acq_rel_cluster = instruction("fence_acq_rel_cluster", "fence.acq_rel.cluster;", memory=True)
fence_proxy_async_shared = instruction("fence_proxy_async_shared", "fence.proxy.async.shared::cta;", memory=True)
fence_mbarrier_init = instruction("fence_mbarrier_init", "fence.mbarrier_init.release.cluster;", memory=True)

# special registers (10) and nanosleep (9.7.19.3)
globaltimer = instruction("globaltimer", "mov.u64 $0, %globaltimer;", [], u64, volatile=True)
clock = instruction("clock", "mov.u32 $0, %clock;", [], u32, volatile=True)
smid = instruction("smid", "mov.u32 $0, %smid;", [], u32, volatile=True)
nanosleep = instruction("nanosleep", "nanosleep.u32 $0;", [u32], volatile=True)
