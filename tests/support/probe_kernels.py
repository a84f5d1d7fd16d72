"""Kernels that each show one instruction's or one launch feature's behaviour on the device."""

import numpy as np
from numba import cuda, types

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.ptx import wgmma
from ninfer_nb.cuda.spec import KernelOptions, KernelSource

u32p, f32p = types.CPointer(types.uint32), types.CPointer(types.float32)


def elementwise(*, name: str, table: int = -1) -> KernelSource:
    """y = instruction(*x) for each of n elements; `table` makes a lop3. Arguments: n, inputs, outputs."""
    instruction = ptx.lop3(table) if name == "lop3" else getattr(ptx, name)
    inputs, outputs, _ = instruction.operand_types
    xs, ys = [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(len(outputs))]
    lines = [f"def kernel(n, {', '.join(xs + ys)}):", "    i = cuda.grid(1)", "    if i < n:"]
    lines += [f"        r = instruction({', '.join(f'{x}[i]' for x in xs)})"]
    lines += [f"        {y}[i] = r{f'[{i}]' if len(ys) > 1 else ''}" for i, y in enumerate(ys)]
    namespace = {"instruction": instruction, "cuda": cuda}
    exec("\n".join(lines), namespace)
    pointers = [types.CPointer(t) for t in (*inputs, *outputs)]
    return KernelSource(namespace["kernel"], (types.int32, *pointers), KernelOptions(max_threads=256))


def warp_mma(*, name: str) -> KernelSource:
    """One warp: D += A B on fragments a [32, na], b [32, nb] of words, d [32, 4]."""
    mma = getattr(ptx, name)
    inputs, outputs, _ = mma.operand_types
    operands = [f"a[lane * 4 + {i}]" for i in range(4)] + [f"b[lane * 2 + {i}]" for i in range(2)]
    operands += [f"s[lane * 2 + {i}]" for i in range(len(inputs) - 6)]
    accumulators = ", ".join(f"d[lane * 4 + {i}]" for i in range(4))
    lines = ["def kernel(a, b, s, d):", "    lane = cuda.threadIdx.x"]
    lines += [f"    r = mma(({accumulators}), {', '.join(operands)})"]
    lines += [f"    d[lane * 4 + {i}] = r[{i}]" for i in range(4)]
    namespace = {"mma": mma, "cuda": cuda}
    exec("\n".join(lines), namespace)
    pointers = (u32p, u32p, u32p, types.CPointer(outputs[0]))
    return KernelSource(namespace["kernel"], pointers, KernelOptions(max_threads=32))


def matrix_load(*, transposed: bool) -> KernelSource:
    """ldmatrix x4 of 32 rows of 16 bytes; out [32 lanes, 4 registers]."""
    ldmatrix = ptx.ldmatrix_x4_trans if transposed else ptx.ldmatrix_x4

    def kernel(rows, out):
        tile = cuda.shared.array(128, types.uint32)
        lane = cuda.threadIdx.x
        for i in range(4):
            tile[lane * 4 + i] = rows[lane * 4 + i]
        cuda.syncwarp()
        r = ldmatrix(ptx.smem_addr(tile) + types.uint32(lane * 16))
        for i in range(4):
            out[lane * 4 + i] = r[i]

    return KernelSource(kernel, (u32p, u32p), KernelOptions(max_threads=32))


def copy_async(*, bulk: bool) -> KernelSource:
    """4096 bytes global -> shared -> global through cp.async or the bulk engine, 128 threads."""

    def kernel(source, target):
        tile = cuda.shared.array(1024, types.uint32)
        barrier = cuda.shared.array(1, types.uint64)
        thread = cuda.threadIdx.x
        base = ptx.smem_addr(tile)
        gate = ptx.smem_addr(barrier)
        if bulk:
            if thread == 0:
                ptx.mbarrier_init(gate, 1)
                ptx.fence_mbarrier_init()
                ptx.mbarrier_arrive_expect_tx(gate, 4096)
                ptx.cp_async_bulk_load(base, source, 4096, gate)
            cuda.syncthreads()
            ptx.mbarrier_wait_parity(gate, 0)
            if thread == 0:
                ptx.cp_async_bulk_store(target, base, 4096)
                ptx.cp_async_bulk_commit_group()
                bulk_wait()
        else:
            for i in range(2):
                offset = thread * 16 + i * 2048
                ptx.cp_async_16(base + types.uint32(offset), ptx.at(source, offset))
            ptx.cp_async_commit_group()
            wait_group()
            cuda.syncthreads()
            for i in range(8):
                ptx.st_global_u32(ptx.at(target, (thread + i * 128) * 4), tile[thread + i * 128])

    bulk_wait, wait_group = ptx.cp_async_bulk_wait_group(0), ptx.cp_async_wait_group(0)
    return KernelSource(kernel, (types.uint64, types.uint64), KernelOptions(max_threads=128))


def cluster_ranks() -> KernelSource:
    """out[block] = rank in its cluster, after a cluster barrier."""

    def kernel(out):
        rank = ptx.cluster_ctarank()
        ptx.barrier_cluster_arrive()
        ptx.barrier_cluster_wait()
        if cuda.threadIdx.x == 0:
            out[cuda.blockIdx.x] = rank

    return KernelSource(kernel, (u32p,), KernelOptions(max_threads=32))


def dynamic_shared(*, nbytes: int) -> KernelSource:
    """Writes and reads the last word of `nbytes` of dynamic shared memory."""

    def kernel(out):
        words = cuda.shared.array(0, types.uint32)
        words[nbytes // 4 - 1] = 7
        out[0] = words[nbytes // 4 - 1]

    return KernelSource(kernel, (u32p,), KernelOptions(max_threads=32, shared_bytes=nbytes))


def wgmma_tile(*, kind: str, n: int, a_registers: bool = False, trans_b: bool = False) -> KernelSource:
    """D[64, n] = A[64, k] B[n, k]^T for one 128-byte-wide stage. Arguments: tensor maps a, b; words of A; d float32.

    trans_b: B comes as [k, n] with n = 64. 128 threads, dynamic shared memory.
    """
    operand = getattr(wgmma, kind)
    k = operand.k * 4
    options = {"b_step": 16 * 128 // 16, "trans_b": 1} if trans_b else {}
    stage = ptx.wgmma_stage(operand, n, k, a_registers=a_registers, **options)
    zeros = (types.float32(0),) * (n // 2)
    a_bytes, b_bytes = 64 * 128, n * 128
    high = np.uint64(ptx.descriptor_high())
    registers = 16

    def load(map_a, map_b, base, gate):
        ptx.mbarrier_init(gate, 1)
        ptx.fence_mbarrier_init()
        ptx.mbarrier_arrive_expect_tx(gate, a_bytes + b_bytes)
        ptx.cp_async_bulk_tensor_2d_load(base, map_a, gate, 0, 0)
        ptx.cp_async_bulk_tensor_2d_load(base + types.uint32(a_bytes), map_b, gate, 0, 0)

    namespace = {
        "cuda": cuda, "types": types, "ptx": ptx, "stage": stage, "zeros": zeros, "high": high,
        "load": cuda.jit(device=True)(load),
    }  # fmt: skip
    words = [f"a[(row + {8 * (r % 2)}) * 32 + {8 * (i // 4)} + lane % 4 + {4 * (r // 2)}]"
             for i in range(registers) for r in [i % 4]]  # fmt: skip
    first = ", ".join(words) if a_registers else "ptx.descriptor(base, high)"
    source = f"""
def kernel(map_a, map_b, a, d):
    shared = cuda.shared.array(0, types.uint8)
    thread = cuda.threadIdx.x
    base = (ptx.smem_addr(shared) + types.uint32(1023)) & types.uint32(0xFFFFFC00)
    gate = base + types.uint32({a_bytes + b_bytes})
    if thread == 0:
        load(map_a, map_b, base, gate)
    cuda.syncthreads()
    ptx.mbarrier_wait_parity(gate, 0)
    lane = thread % 32
    row = thread // 32 * 16 + lane // 4
    acc = stage(zeros, {first}, ptx.descriptor(base + types.uint32({a_bytes}), high))
    for j in range({n // 8}):
        for i in range(4):
            d[(row + i // 2 * 8) * {n} + j * 8 + lane % 4 * 2 + i % 2] = acc[j * 4 + i]
"""
    exec(source, namespace)
    return KernelSource(
        namespace["kernel"], (types.uint64, types.uint64, u32p, f32p),
        KernelOptions(max_threads=128, min_blocks=1, shared_bytes=a_bytes + b_bytes + 1024 + 64),
    )  # fmt: skip
