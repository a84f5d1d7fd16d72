"""The CUDA backend: each op chooses a kernel by format, rows and architecture, and launches it on one stream.

Ops may be rehearsed: the body runs without launching, which tells the kernels and the scratch that it needs.
Knows nothing of models or requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from ...artifact.inventory import TensorSpec
from ...artifact.layouts import encoded_bytes
from ...artifact.synthetic import segments, stream
from ...cuda import graphs
from ...cuda.devices import Device, open_device
from ...cuda.kernels.synthetic import THREADS as FILL_THREADS
from ...cuda.kernels.synthetic import fill_grid, fill_spec
from ...cuda.launch import KernelLibrary
from ...cuda.memory import Arena, DeviceArray, copy_on_device, download, fill, upload
from ...cuda.spec import KernelSpec
from ...cuda.stream import Stream
from .. import Columns, Drafts, GdnLayer, GdnRecord, KvLayer, Progress, Rope, SamplingRows, Verdict
from . import attention, gdn, linear, rows
from .memory import CudaFrame, Persistent, TensorMaps, Uploader, values_of, words_of
from .weights import CudaWeight, place

__all__ = ["CudaOps", "CudaWeight"]

REHEARSAL_BYTES = 1 << 40
TABLE_BYTES = 4 << 20


class CudaOps:
    """Implements `ninfer_nb.ops.Ops` on one GPU."""

    name = "cuda"

    def __init__(self, device: Device):
        self.device = device
        self.multiprocessors = device.info.multiprocessors
        self.stream = Stream()
        self.kernels = KernelLibrary(device)
        self.weights = Persistent("weights")
        self.state = Persistent("state")
        self.tables = Persistent("tables", TABLE_BYTES)
        self.constants: dict[object, DeviceArray] = {}  # small tables that kernels read, by what they hold
        self._maps = TensorMaps(self.tables, self.stream)
        self._uploader: Uploader | None = None
        self._scratch = Arena("rehearsal", 0, REHEARSAL_BYTES)
        self._rehearsed: dict[KernelSpec, None] | None = None

    @classmethod
    def open(cls, index: int) -> CudaOps:
        return cls(open_device(index))

    # -- launching -----------------------------------------------------------------------------------

    def launch(
        self,
        spec: KernelSpec,
        grid: tuple[int, int, int],
        threads: int,
        *arguments: int | float,
        cluster: tuple[int, int, int] | None = None,
    ) -> None:
        """Queue a kernel that may start while the one before it still runs; every kernel waits where it must."""
        if self._rehearsed is not None:
            self._rehearsed[spec] = None
            return
        self.kernels.get(spec).launch(grid, (threads, 1, 1), self.stream, *arguments, pdl=True, cluster=cluster)

    @property
    def rehearsing(self) -> bool:
        return self._rehearsed is not None

    @contextmanager
    def loading(self) -> Iterator[None]:
        self._uploader = Uploader(self.stream)
        try:
            yield
        finally:
            self._uploader.close()
            self._uploader = None

    def rehearse(self, bodies: Iterable[Callable[[], None]], progress: Progress | None = None) -> None:
        """Be ready to run `bodies`: their kernels compiled and loaded, scratch for the largest of them in place."""
        needed = Arena("rehearsal", 0, REHEARSAL_BYTES)
        held, self._scratch, self._rehearsed = self._scratch, needed, {}
        try:
            for body in bodies:
                body()
            specs = list(self._rehearsed)
        finally:
            self._scratch, self._rehearsed = held, None
        self.kernels.warm_up(specs, (lambda done, total, _: progress("kernels", done, total)) if progress else None)
        if held.base == 0 or held.capacity < needed.high_water:
            held.close()
            self._scratch = Arena.allocate("scratch", needed.high_water)

    def attach(self) -> None:
        self.device.make_current()

    def free_bytes(self) -> int | None:
        return self.device.memory()[0]

    # -- memory --------------------------------------------------------------------------------------

    def empty(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        array = self.state.take(shape, dtype)
        fill(array, 0, self.stream)
        return array

    def constant(self, key: object, make: Callable[[], np.ndarray], dtype: str) -> DeviceArray:
        """A small read-only table, uploaded on first use; `key` is hashable and says what it holds."""
        if key not in self.constants:
            words = words_of(make(), dtype)
            self.constants[key] = self.tables.take(words.shape, dtype)
            upload(self.constants[key], words, self.stream)
        return self.constants[key]

    def tensor_map(self, array: DeviceArray, box: tuple[int, int]) -> int:
        """Device address of the copy engine's descriptor of `array` [rows, columns] for tiles of `box`."""
        return 0 if self.rehearsing else self._maps.address(array, box)

    def frame(self, fields: Mapping[str, tuple[tuple[int, ...], str]]) -> CudaFrame:
        return CudaFrame(fields, self.state, self)

    def clear(self, out: DeviceArray) -> None:
        if not self.rehearsing:
            fill(out, 0, self.stream)

    def write(self, out: DeviceArray, array: np.ndarray) -> None:
        if not self.rehearsing:
            upload(out, words_of(array, out.dtype), self.stream)

    def read(self, buf: DeviceArray) -> np.ndarray:
        return values_of(download(buf, self.stream), buf.dtype)

    def synchronize(self) -> None:
        if not self.rehearsing:
            self.stream.synchronize()

    def graph(self, body: Callable[[], None]) -> Callable[[], None]:
        body()  # what is made on first use cannot be made while capturing
        self.stream.synchronize()
        with graphs.capture(self.stream) as captured:
            body()
        executable = captured.instantiate()
        captured.close()
        executable.upload(self.stream)
        return lambda: executable.replay(self.stream)

    @contextmanager
    def scope(self) -> Iterator[None]:
        with self._scratch.scope():
            yield

    def take(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        return self._scratch.take("scratch", tuple(shape), dtype)

    @property
    def workspace_peak(self) -> int:
        return self._scratch.high_water

    def weight(self, payload: np.ndarray, format: str, shape: Sequence[int]) -> CudaWeight:
        if self._uploader is None:
            raise RuntimeError("weights are placed inside loading()")
        array = self.weights.take((encoded_bytes(format, shape),), "u8")
        self._uploader.copy(array.ptr, payload)
        return place(array.ptr, format, shape, array.nbytes)

    def synthetic(self, spec: TensorSpec, seed: int, index: int) -> CudaWeight:
        array = self.weights.take((encoded_bytes(spec.format, spec.shape),), "u8")
        fill(array, 0, self.stream)
        start = stream(seed, index)
        for part in segments(spec):
            kernel = self.kernels.get(fill_spec(part.kind))
            kernel.launch(
                fill_grid(part.bytes, part.rows), (FILL_THREADS, 1, 1), self.stream,
                array.ptr, start, part.offset, part.bytes, part.stride, part.parameter,
            )  # fmt: skip
        return place(array.ptr, spec.format, spec.shape, array.nbytes)

    # -- embedding, norms, linear ----------------------------------------------------------------------

    def embed(self, ids: DeviceArray, table: CudaWeight, out: DeviceArray) -> None:
        rows.embed(self, ids, table, out)

    def rms_norm(self, x: DeviceArray, gain: CudaWeight, out: DeviceArray, eps: float) -> None:
        rows.rms_norm(self, x, gain, out, eps)

    def linear(self, x: DeviceArray, weight: CudaWeight, out: DeviceArray) -> None:
        linear.linear(self, x, weight, out)

    def linear_add(self, x: DeviceArray, weight: CudaWeight, residual: DeviceArray) -> None:
        linear.linear_add(self, x, weight, residual)

    def norm_linear(
        self, x: DeviceArray, gain: CudaWeight, eps: float, weights: Sequence[CudaWeight], out: DeviceArray
    ) -> None:
        linear.norm_linear(self, x, gain, eps, weights, out)

    def norm_swiglu(self, x: DeviceArray, gain: CudaWeight, eps: float, gate_up: CudaWeight, out: DeviceArray) -> None:
        linear.norm_swiglu(self, x, gain, eps, gate_up, out)

    # -- attention ---------------------------------------------------------------------------------------

    def rope_append(
        self,
        q: DeviceArray,
        k: DeviceArray,
        v: DeviceArray,
        q_gain: CudaWeight,
        k_gain: CudaWeight,
        eps: float,
        rope: Rope,
        cache: KvLayer,
        columns: Columns,
    ) -> None:
        attention.append(self, q, k, v, q_gain, k_gain, eps, rope, cache, columns)

    def attention(
        self, q: DeviceArray, gate: DeviceArray, cache: KvLayer, columns: Columns, scale: float, out: DeviceArray
    ) -> None:
        attention.attention(self, q, gate, cache, columns, scale, out)

    # -- gated delta net -----------------------------------------------------------------------------------

    def gdn_project(
        self,
        x: DeviceArray,
        gain: CudaWeight,
        eps: float,
        projections: Sequence[CudaWeight],
        controls: Sequence[CudaWeight],
        a_log: CudaWeight,
        dt_bias: CudaWeight,
        joint: DeviceArray,
        g: DeviceArray,
        beta: DeviceArray,
    ) -> None:
        gdn.project(self, x, gain, eps, projections, controls, a_log, dt_bias, joint, g, beta)

    def gdn_mix(
        self,
        joint: DeviceArray,
        taps: CudaWeight,
        g: DeviceArray,
        beta: DeviceArray,
        gain: CudaWeight,
        eps: float,
        layer: GdnLayer,
        columns: Columns,
        out: DeviceArray,
        convolved: DeviceArray | None = None,
    ) -> None:
        gdn.mix(self, joint, taps, g, beta, gain, eps, layer, columns, out, convolved)

    def gdn_fold(self, record: GdnRecord, layer: GdnLayer, columns: Columns) -> None:
        gdn.fold(self, record, layer, columns)

    # -- rows and tokens -------------------------------------------------------------------------------------

    def gather_rows(self, x: DeviceArray, index: DeviceArray, out: DeviceArray) -> None:
        rows.copy(self, x, index, out, gather=True)

    def scatter_rows(self, x: DeviceArray, index: DeviceArray, out: DeviceArray) -> None:
        rows.copy(self, x, index, out, gather=False)

    def copy(self, source: DeviceArray, out: DeviceArray) -> None:
        if not self.rehearsing:
            copy_on_device(out.ptr, source.ptr, source.nbytes, self.stream)

    def lookup(self, table: CudaWeight, index: DeviceArray) -> None:
        rows.lookup(self, table, index)

    def argmax(self, logits: DeviceArray, domain: int, out: DeviceArray) -> None:
        rows.argmax(self, logits, domain, out)

    def sample(self, logits: DeviceArray, domain: int, which: SamplingRows, purpose: int, out: DeviceArray) -> None:
        rows.sample(self, logits, domain, which, purpose, out)

    def accept(self, logits: DeviceArray, domain: int, drafts: Drafts, which: SamplingRows, verdict: Verdict) -> None:
        rows.accept(self, logits, domain, drafts, which, verdict)
