"""What can go wrong with a GPU, each as one message, and the lazy door to the driver API.

Knows nothing of devices or kernels: it only loads `cuda.bindings.driver` and turns its status codes into errors.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

from ninfer_nb.errors import NInferError

INSTALL_HINT = "pip install 'ninfer-nb[cuda]'"


class CudaError(NInferError):
    """The driver refused a call; the message has the call's status name and text."""


class CudaUnavailable(CudaError):
    """There is no usable GPU here: no extra, no driver, an old driver, no device or an unsupported one."""


class OutOfDeviceMemory(CudaError):
    """An arena or the device cannot hold an allocation; the message names it, the wanted and the free bytes."""


class KernelError(CudaError):
    """A kernel failed to compile, assemble or load, or was asked for after the kernel set was frozen."""


def missing_extra(error: ImportError) -> CudaUnavailable:
    """The error to raise when a package of the `cuda` extra cannot be imported."""
    return CudaUnavailable(f"GPU support is not installed ({error}); install it with {INSTALL_HINT}")


@cache
def driver() -> ModuleType:
    """`cuda.bindings.driver` after a successful cuInit; CudaUnavailable when extra or driver is missing."""
    try:
        from cuda.bindings import driver as api
    except ImportError as error:
        raise missing_extra(error) from error
    try:
        (status,) = api.cuInit(0)
    except RuntimeError as error:  # the bindings load libcuda on the first call
        raise CudaUnavailable(f"no NVIDIA driver was found ({error}); install driver 580 or newer") from error
    if status == api.CUresult.CUDA_ERROR_NO_DEVICE:
        raise CudaUnavailable("the NVIDIA driver sees no GPU (check nvidia-smi and CUDA_VISIBLE_DEVICES)")
    check((status,))
    return api


def check(result: tuple) -> Any:
    """Unwraps a `cuda.bindings` result `(status, *values)`: None, the value, or the tuple of values."""
    status, *values = result
    if status:
        raise CudaError(describe(status))
    return values[0] if len(values) == 1 else tuple(values) or None


def describe(status: Any) -> str:
    """`CUDA_ERROR_X: the driver's sentence` of a CUresult."""
    from cuda.bindings import driver as api

    _, text = api.cuGetErrorString(status)
    return f"{status.name}: {text.decode() if text else 'unknown error'}"
