"""Every intrinsic compiles and assembles, offline, for the architectures that have it."""

import pytest

pytest.importorskip("numba_cuda", reason="needs the cuda extra (numba-cuda)")

from numba import types

from ninfer_nb.cuda import ptx
from ninfer_nb.cuda.compiler import ARCHITECTURES, compile_spec
from ninfer_nb.cuda.errors import KernelError
from ninfer_nb.cuda.ptx import wgmma
from ninfer_nb.cuda.spec import KernelOptions, KernelSource, KernelSpec

PARAMETRIC = {
    made.__name__: made
    for made in (
        ptx.lop3(0x6A),
        ptx.setmaxnreg_inc(232),
        ptx.setmaxnreg_dec(40),
        ptx.cp_async_wait_group(2),
        ptx.cp_async_bulk_wait_group(0, read=True),
        ptx.wgmma_wait_group(1),
        ptx.tensor_load(3, multicast=True, policy=True),
        *(ptx.wgmma_stage(wgmma.BF16, n, 64) for n in (8, 64, 256)),
        ptx.wgmma_stage(wgmma.BF16, 128, 64, a_registers=True, trans_b=1, b_step=128),
        ptx.wgmma_stage(wgmma.F16, 32, 64, zero_first=True),
        ptx.wgmma_stage(wgmma.E4M3, 256, 128),
        ptx.wgmma_stage(wgmma.E4M3, 64, 128, a_registers=True),
        ptx.wgmma_stage(wgmma.S8, 64, 128),
        ptx.wgmma_stage(wgmma.U8S8, 16, 128, a_registers=True, zero_first=True),
    )
}
FIXED = {name: made for name, made in vars(ptx).items() if hasattr(made, "operand_types")}
INSTRUCTIONS = FIXED | PARAMETRIC


def caller(*, name: str) -> KernelSource:
    """A kernel that passes its arguments to the instruction and stores what comes back."""
    inputs, outputs, tied = INSTRUCTIONS[name].operand_types
    arguments = ", ".join(f"x{i}" for i in range(len(inputs)))
    accumulators = "(" + "".join(f"out[{i}]," for i in range(len(outputs))) + ")" if tied else ""
    call = f"instruction({', '.join(filter(None, [accumulators, arguments]))})"
    lines = [f"def kernel({', '.join(filter(None, ['out', arguments]))}):", f"    r = {call}"]
    lines += [f"    out[{i}] = r{f'[{i}]' if tied or len(outputs) > 1 else ''}" for i in range(len(outputs))]
    namespace = {"instruction": INSTRUCTIONS[name]}
    exec("\n".join(lines), namespace)
    pointer = types.CPointer(outputs[0] if outputs else types.uint32)
    return KernelSource(namespace["kernel"], (pointer, *inputs), KernelOptions(max_threads=128, min_blocks=1))


def architectures(name: str) -> set[str]:
    if "e2m1" in name:
        return {"sm_120a"}
    return {"sm_90a"} if name.startswith("wgmma") else {"sm_90a", "sm_120a"}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_instruction_assembles_where_it_exists(name):
    for arch in ARCHITECTURES:
        spec = KernelSpec.of(caller, name=name)
        if arch in architectures(name):
            assert compile_spec(spec, arch).resources.spill_bytes == 0
        else:
            with pytest.raises(KernelError, match="does not assemble"):
                compile_spec(spec, arch)
