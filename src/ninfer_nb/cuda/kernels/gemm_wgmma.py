"""Linear maps of many rows on Hopper: out [T, N] = x [T, K] @ W [N, K].T for every stored format, on wgmma.

    spec = gemm_wgmma.spec("NVFP4", "store")
    schedule = gemm_wgmma.schedule("store", T, N, multiprocessors)
    kernel.launch((schedule.blocks, 1, 1), (THREADS, 1, 1), stream,
                  x_map, T, K, codes, high, scales, divisor, N, out, ldo, tiles, shared, workspace, pdl=True)

x_map: tensor map of x with boxes [TILE_ROWS, 64]; BF16 weights come through a map of their own with the same box in
place of `codes`. Epilogues as in `gemm_output`; N a multiple of 8, K of 8 and stored in whole 64s (grouped formats are
padded, the copy engine reads zeros beyond K of x). workspace: `workspace_bytes(multiprocessors)`, zero at the start.

A block has two warpgroups that multiply 64 x 256 each and one that feeds them: it asks the copy engine for x, reads the
codes of the next step into registers while it turns the last ones into BF16 in shared memory (`gemm_weights`). So codes
cross the L2 once for each token tile and no dequantised copy exists.

Floor on H200: 2 T N K flop at the 790 TFLOP/s that cuBLAS reaches on large squares; 1024 x 34816 x 5120: 462 us.
A step of 64 columns is 4.2 Mflop, 0.7 us of a multiprocessor; turning its 16,384 weights costs 3 instructions each,
a third of the issue slots of that time.
"""

from __future__ import annotations

from numba import cuda
from numpy import float32, int32, int64, uint32, uint64

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.kernels import gemm_output
from ninfer_nb.cuda.kernels.gemm_output import ACCUMULATORS, CONSUMERS, PARTIAL_BYTES
from ninfer_nb.cuda.kernels.gemm_schedule import Schedule, next_segment, share_begin
from ninfer_nb.cuda.kernels.gemm_weights import ROW_BYTES, STAGE_COLUMNS, fetch_of, put_of
from ninfer_nb.cuda.ptx import i32, u64
from ninfer_nb.cuda.ptx import wgmma as wg
from ninfer_nb.cuda.ptx.control import setmaxnreg_dec, setmaxnreg_inc
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

TILE_ROWS, TILE_COLUMNS = 128, 256  # tokens and weight rows of a tile
THREADS = 384
STAGES = 4
X_BYTES, W_BYTES = TILE_ROWS * ROW_BYTES, TILE_COLUMNS * ROW_BYTES
STAGE_BYTES = X_BYTES + W_BYTES
SHARED_BYTES = STAGES * STAGE_BYTES + 1024 + 16 * STAGES
FLAG_BYTES = 4096
ZERO = tuple(float32(0) for _ in range(ACCUMULATORS))


def gemm(*, format: str, epilogue: str) -> KernelSource:
    """See the module. Grid (blocks, 1, 1), all resident together; block 384."""
    direct, swiglu = format == "BF16", epilogue == "swiglu"
    multiply = wg.wgmma_stage(wg.BF16, TILE_COLUMNS, STAGE_COLUMNS, zero_first=True)
    high_bits = uint64(wg.descriptor_high())
    write = gemm_output.output_of(format, epilogue)
    empty = STAGES * STAGE_BYTES + 8 * STAGES
    full = STAGES * STAGE_BYTES
    arrivals = 1 if direct else 129
    expected = STAGE_BYTES if direct else X_BYTES

    @cuda.jit(device=True, forceinline=True)
    def start(base):
        for s in range(STAGES):
            ptx.mbarrier_init(base + uint32(full + 8 * s), uint32(arrivals))
            ptx.mbarrier_init(base + uint32(empty + 8 * s), uint32(2))
        ptx.fence_mbarrier_init()

    @cuda.jit(device=True, forceinline=True)
    def stored_row(tile, token_tiles, n, i):
        """Stored row of line i (0..255) of a tile; lines beyond the matrix repeat its last row."""
        column = tile // token_tiles
        if swiglu:
            half = n // int32(2)
            line = min(column * int32(TILE_COLUMNS // 2) + i % int32(128), half - int32(1))
            return line + (half if i >= 128 else int32(0))
        return min(column * int32(TILE_COLUMNS) + i, n - int32(1))

    @cuda.jit(device=True, forceinline=True)
    def load_x(base, stage, x_map, tile, token_tiles, k):
        barrier = base + uint32(full) + uint32(8) * uint32(stage)
        ptx.mbarrier_arrive_expect_tx(barrier, uint32(expected))
        target = base + uint32(stage) * uint32(STAGE_BYTES)
        row = (tile % token_tiles) * int32(TILE_ROWS)
        ptx.cp_async_bulk_tensor_2d_load(target, x_map, barrier, k * int32(STAGE_COLUMNS), row)

    @cuda.jit(device=True, forceinline=True)
    def load_w(base, stage, w_map, tile, token_tiles, n, k):
        barrier = base + uint32(full) + uint32(8) * uint32(stage)
        target = base + uint32(stage) * uint32(STAGE_BYTES) + uint32(X_BYTES)
        column = (tile // token_tiles) * int32(TILE_COLUMNS // 2 if swiglu else TILE_COLUMNS)
        second = column + (n // int32(2) if swiglu else int32(128))
        at = k * int32(STAGE_COLUMNS)
        ptx.cp_async_bulk_tensor_2d_load(target, w_map, barrier, at, column)
        ptx.cp_async_bulk_tensor_2d_load(target + uint32(W_BYTES // 2), w_map, barrier, at, second)

    @cuda.jit(device=True, forceinline=True)
    def feed_direct(base, x_map, codes, n, token_tiles, tiles, shared, steps):
        """One thread: both operands by the copy engine."""
        block, blocks = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        at, whole = share_begin(block, blocks, shared * steps), shared + block
        share_end = share_begin(block + int32(1), blocks, shared * steps)
        stage, parity = int32(0), uint32(1)
        tile, k, end, at, whole = next_segment(at, share_end, whole, blocks, tiles, steps)
        while tile >= 0:
            while k < end:
                ptx.mbarrier_wait_parity(base + uint32(empty) + uint32(8) * uint32(stage), parity)
                load_x(base, stage, x_map, tile, token_tiles, k)
                load_w(base, stage, codes, tile, token_tiles, n, k)
                stage += int32(1)
                if stage == STAGES:
                    stage, parity = int32(0), parity ^ uint32(1)
                k += int32(1)
            tile, k, end, at, whole = next_segment(at, share_end, whole, blocks, tiles, steps)

    if not direct:
        fetch, put = fetch_of(format), put_of(format)

    @cuda.jit(device=True, forceinline=True)
    def feed_decoded(base, line, x_map, codes, high, scales, n, token_tiles, tiles, shared, steps):
        """128 threads: two rows of weights each; the first also asks for x."""
        block, blocks = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        at, whole = share_begin(block, blocks, shared * steps), shared + block
        share_end = share_begin(block + int32(1), blocks, shared * steps)
        stage, parity = int32(0), uint32(1)
        wide, swizzle = int64(steps), line & int32(7)
        tile, k, end, at, whole = next_segment(at, share_end, whole, blocks, tiles, steps)
        a_row = b_row = int64(0)
        if tile >= 0:
            a_row = int64(stored_row(tile, token_tiles, n, line))
            b_row = int64(stored_row(tile, token_tiles, n, line + int32(128)))
        a = fetch(codes, high, scales, a_row, int64(k), wide)
        b = fetch(codes, high, scales, b_row, int64(k), wide)
        while tile >= 0:
            ptx.mbarrier_wait_parity(base + uint32(empty) + uint32(8) * uint32(stage), parity)
            if line == 0:
                load_x(base, stage, x_map, tile, token_tiles, k)
            k += int32(1)
            if k == end:
                tile, k, end, at, whole = next_segment(at, share_end, whole, blocks, tiles, steps)
                if tile >= 0:
                    a_row = int64(stored_row(tile, token_tiles, n, line))
                    b_row = int64(stored_row(tile, token_tiles, n, line + int32(128)))
            after = fetch(codes, high, scales, a_row, int64(k), wide)
            beyond = fetch(codes, high, scales, b_row, int64(k), wide)
            target = int32(base + uint32(stage) * uint32(STAGE_BYTES) + uint32(X_BYTES)) + line * int32(ROW_BYTES)
            put(target, swizzle, a)
            put(target + int32(W_BYTES // 2), swizzle, b)
            ptx.fence_proxy_async_shared()
            ptx.mbarrier_arrive(base + uint32(full) + uint32(8) * uint32(stage))
            a, b = after, beyond
            stage += int32(1)
            if stage == STAGES:
                stage, parity = int32(0), parity ^ uint32(1)

    @cuda.jit(device=True, forceinline=True)
    def gathered(acc, tid, end, units, steps, workspace):
        """The sums of the blocks that did the rest of this block's last tile, in order."""
        block, blocks = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
        while end < steps:
            block += int32(1)
            flag = ptx.at(workspace, int64(block) * int64(4))
            while ptx.ld_acquire_gpu_u32(flag) == uint32(0):
                pass
            place = int64(FLAG_BYTES) + int64(block) * int64(PARTIAL_BYTES) + int64(tid) * int64(16)
            acc = gemm_output.add_partials(acc, ptx.at(workspace, place))
            ptx.bar_sync(uint32(1), uint32(CONSUMERS))
            if tid == 0:
                ptx.st_release_gpu_u32(flag, uint32(0))
            end += share_begin(block + int32(1), blocks, units) - share_begin(block, blocks, units)
        return acc

    @cuda.jit(device=True, forceinline=True)
    def handed_over(acc, tid, workspace):
        block = int64(cuda.blockIdx.x)
        place = int64(FLAG_BYTES) + block * int64(PARTIAL_BYTES) + int64(tid) * int64(16)
        gemm_output.store_partials(acc, ptx.at(workspace, place))
        ptx.fence_acq_rel_gpu()
        ptx.bar_sync(uint32(1), uint32(CONSUMERS))
        if tid == 0:
            ptx.st_release_gpu_u32(ptx.at(workspace, block * int64(4)), uint32(1))

    give_registers, take_registers = setmaxnreg_dec(88 if direct else 104), setmaxnreg_inc(200)

    def kernel(x_map, rows, width, codes, high, scales, divisor, n, out, ldo, tiles, shared, workspace):
        base = (uint32(ptx.smem_addr(cuda.shared.array(0, ptx.u32))) + uint32(1023)) & uint32(0xFFFFFC00)
        tid = int32(cuda.threadIdx.x)
        token_tiles = (rows + int32(TILE_ROWS - 1)) // int32(TILE_ROWS)
        steps = (width + int32(STAGE_COLUMNS - 1)) // int32(STAGE_COLUMNS)
        if tid == 0:
            start(base)
        cuda.syncthreads()
        ptx.griddepcontrol_wait()
        ptx.griddepcontrol_launch_dependents()
        if tid >= CONSUMERS:
            give_registers()
            if direct:
                if tid == CONSUMERS:
                    feed_direct(base, x_map, codes, n, token_tiles, tiles, shared, steps)
            else:
                line = tid - int32(CONSUMERS)
                feed_decoded(base, line, x_map, codes, high, scales, n, token_tiles, tiles, shared, steps)
        else:
            take_registers()
            group, lane = tid // int32(128), tid % int32(32)
            block, blocks = int32(cuda.blockIdx.x), int32(cuda.gridDim.x)
            units = shared * steps
            at, whole = share_begin(block, blocks, units), shared + block
            share_end = share_begin(block + int32(1), blocks, units)
            stage, parity = int32(0), uint32(0)
            acc = ZERO
            tile, first, end, at, whole = next_segment(at, share_end, whole, blocks, tiles, steps)
            while tile >= 0:
                for k in range(first, end):
                    barrier = uint32(8) * uint32(stage)
                    ptx.mbarrier_wait_parity(base + uint32(full) + barrier, parity)
                    x_at = base + uint32(stage) * uint32(STAGE_BYTES)
                    x_desc = ptx.descriptor(x_at + uint32(group) * uint32(X_BYTES // 2), high_bits)
                    w_desc = ptx.descriptor(x_at + uint32(X_BYTES), high_bits)
                    acc = multiply(acc, x_desc, w_desc, uint32(k != first))
                    if tid % int32(128) == 0:
                        ptx.mbarrier_arrive(base + uint32(empty) + barrier)
                    stage += int32(1)
                    if stage == STAGES:
                        stage, parity = int32(0), parity ^ uint32(1)
                if first > 0:
                    handed_over(acc, tid, workspace)
                else:
                    acc = gathered(acc, tid, end, units, steps, workspace)
                    low = (tile % token_tiles) * int32(TILE_ROWS) + group * int32(64)
                    low += (tid % int32(128)) // int32(32) * int32(16) + lane // int32(4)
                    column = (tile // token_tiles) * int32(TILE_COLUMNS // 2 if swiglu else TILE_COLUMNS)
                    write(acc, lane, rows, low, n, column, scales, divisor, out, ldo)
                tile, first, end, at, whole = next_segment(at, share_end, whole, blocks, tiles, steps)

    arguments = (u64, i32, i32, u64, u64, u64, u64, i32, u64, i32, i32, i32, u64)
    return KernelSource(kernel, arguments, KernelOptions(max_threads=THREADS, min_blocks=1, shared_bytes=SHARED_BYTES))


def spec(format: str, epilogue: str = "store") -> KernelSpec:
    return KernelSpec.of(gemm, format=format, epilogue=epilogue)


def schedule(epilogue: str, rows: int, height: int, multiprocessors: int) -> Schedule:
    """For `rows` of x and a matrix of `height` stored rows."""
    columns, tile = (height // 2, TILE_COLUMNS // 2) if epilogue == "swiglu" else (height, TILE_COLUMNS)
    return Schedule.of(-(-rows // TILE_ROWS) * -(-columns // tile), multiprocessors)


def workspace_bytes(multiprocessors: int) -> int:
    return FLAG_BYTES + multiprocessors * PARTIAL_BYTES
