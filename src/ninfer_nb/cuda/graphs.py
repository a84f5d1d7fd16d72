"""CUDA graphs: capture a stream's work once, replay it with one call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ninfer_nb.cuda.errors import CudaError, check, driver
from ninfer_nb.cuda.stream import Stream


class Graph:
    """Captured work, not yet runnable."""

    def __init__(self):
        self.handle = None

    @property
    def node_count(self) -> int:
        _, count = check(driver().cuGraphGetNodes(self.handle))
        return count

    def instantiate(self) -> GraphExec:
        return GraphExec(self)

    def close(self) -> None:
        check(driver().cuGraphDestroy(self.handle))


class GraphExec:
    """A runnable graph. `memory_bytes` is what the device's free memory fell by when it was made."""

    def __init__(self, graph: Graph):
        api = driver()
        before, _ = check(api.cuMemGetInfo())
        self.handle = check(api.cuGraphInstantiate(graph.handle, 0))
        after, _ = check(api.cuMemGetInfo())
        self.memory_bytes = before - after

    def upload(self, stream: Stream) -> None:
        """Moves the graph to the device now, so that the first replay does not pay for it."""
        check(driver().cuGraphUpload(self.handle, stream.handle))

    def replay(self, stream: Stream) -> None:
        check(driver().cuGraphLaunch(self.handle, stream.handle))

    def update(self, graph: Graph) -> bool:
        """Takes over the parameters of a graph of the same shape; False when the shapes differ."""
        api = driver()
        status, _ = api.cuGraphExecUpdate(self.handle, graph.handle)
        if status == api.CUresult.CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE:
            return False
        check((status,))
        return True

    def close(self) -> None:
        check(driver().cuGraphExecDestroy(self.handle))


@contextmanager
def capture(stream: Stream) -> Iterator[Graph]:
    """Records what the body puts on `stream`; nothing runs. The graph is complete when the block ends."""
    api = driver()
    graph = Graph()
    check(api.cuStreamBeginCapture(stream.handle, api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
    try:
        yield graph
    except BaseException:
        api.cuStreamEndCapture(stream.handle)
        raise
    graph.handle = check(api.cuStreamEndCapture(stream.handle))
    if not graph.handle:
        raise CudaError("the stream capture was invalidated by a call that cannot be captured")
