"""Thin intrinsics named after their PTX instruction, and `instruction()`, the factory to write more.

Importing this package needs the `cuda` extra (llvmlite, numba-cuda) but no GPU. Section numbers are those of the PTX
ISA 9.0. In kernels: `from ninfer_nb.cuda import ptx`, then `ptx.ld_global_nc_v4_u32(address)`.
"""

from ninfer_nb.cuda.ptx.bits import *  # noqa: F403
from ninfer_nb.cuda.ptx.control import *  # noqa: F403
from ninfer_nb.cuda.ptx.convert import *  # noqa: F403
from ninfer_nb.cuda.ptx.factory import f32, i32, i64, instruction, operands, u16, u32, u64  # noqa: F401
from ninfer_nb.cuda.ptx.memory import *  # noqa: F403
from ninfer_nb.cuda.ptx.mma import *  # noqa: F403
from ninfer_nb.cuda.ptx.tma import *  # noqa: F403
from ninfer_nb.cuda.ptx.wgmma import *  # noqa: F403
