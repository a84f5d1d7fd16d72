"""Streams and events of the driver API: order and time on the device."""

from __future__ import annotations

from ninfer_nb.cuda.errors import check, driver


class Stream:
    """A non-blocking stream; `handle` is what launches and copies take."""

    def __init__(self, *, high_priority: bool = False):
        api = driver()
        _, greatest = check(api.cuCtxGetStreamPriorityRange())
        flags = api.CUstream_flags.CU_STREAM_NON_BLOCKING
        self.handle = check(api.cuStreamCreateWithPriority(flags, greatest if high_priority else 0))

    def synchronize(self) -> None:
        check(driver().cuStreamSynchronize(self.handle))

    def record(self, event: Event) -> None:
        check(driver().cuEventRecord(event.handle, self.handle))

    def wait(self, event: Event) -> None:
        """Later work of this stream starts after the event's last record."""
        check(driver().cuStreamWaitEvent(self.handle, event.handle, 0))

    def close(self) -> None:
        check(driver().cuStreamDestroy(self.handle))


class Event:
    """A mark in a stream. Without timing it is cheaper, and only orders."""

    def __init__(self, *, timing: bool = False):
        api = driver()
        kinds = api.CUevent_flags
        self.handle = check(api.cuEventCreate(kinds.CU_EVENT_DEFAULT if timing else kinds.CU_EVENT_DISABLE_TIMING))

    def synchronize(self) -> None:
        check(driver().cuEventSynchronize(self.handle))

    def done(self) -> bool:
        api = driver()
        (status,) = api.cuEventQuery(self.handle)
        if status == api.CUresult.CUDA_ERROR_NOT_READY:
            return False
        check((status,))
        return True

    def elapsed_ms(self, end: Event) -> float:
        """Milliseconds on the device from this event to `end`; both must be timing events and complete."""
        return check(driver().cuEventElapsedTime(self.handle, end.handle))

    def close(self) -> None:
        check(driver().cuEventDestroy(self.handle))
