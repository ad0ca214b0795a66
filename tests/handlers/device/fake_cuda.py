"""A CUDA driver made of host memory, for tests of what is built on it."""

import ctypes
import random
from collections import deque
from enum import IntEnum
from itertools import count
from types import SimpleNamespace


class Result(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


OK = Result.CUDA_SUCCESS
WRONG = Result.CUDA_ERROR_INVALID_VALUE


class FakeCuda:
    """Functions of the driver, on one device whose memory is the host's.

    A stream does nothing until somebody waits; then all streams go on, one step of one of them at
    a time, in an order drawn from a seed. What is used without waiting for it is found not done.
    """

    CUresult = Result
    CU_MEMHOSTREGISTER_PORTABLE = 1
    CUdevice_attribute = SimpleNamespace()
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0, CU_EVENT_DISABLE_TIMING=2)

    def __init__(self, seed=0):
        self.attributes = {}
        self.failing = {}
        """Results by name of function."""
        self.live = {}
        """What was made and not given back, by name or address."""
        self.eager_copies = True
        """Copies to the device may be as fast as that."""
        self.synchronized = []
        """Streams that somebody waited for."""
        self.copies = []
        """Direction and bytes of every copy that was asked for."""
        self.on_query = self.on_copy = lambda: None
        """Called while a caller asks for something: what other processes do meanwhile."""
        self.broken = OK
        self._random = random.Random(seed)
        self._names = count(1)
        self._streams, self._events = {}, {}
        self._buffers = {}
        self._pinned = {}
        self._entered = False

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if not name.startswith("cu"):
            return found

        def call(*arguments):
            error = self.failing.get(name, OK) or self.broken
            if error:
                return (error,)
            if name not in FREE and not self._entered:
                return (Result.CUDA_ERROR_INVALID_CONTEXT,)
            result = found(*arguments)
            return result if isinstance(result, tuple) else (OK, result)

        return call

    def _make(self, kind):
        name = next(self._names)
        self.live[name] = kind
        return name

    # ---- the device

    def cuInit(self, flags):
        return (OK,)

    def cuDeviceGet(self, ordinal):
        return ordinal

    def cuDeviceGetAttribute(self, attribute, device):
        return self.attributes[attribute]

    def cuDevicePrimaryCtxRetain(self, device):
        self.live["context"] = self.live.get("context", 0) + 1
        return "context"

    def cuDevicePrimaryCtxRelease(self, device):
        self.live["context"] -= 1
        if not self.live["context"]:
            del self.live["context"]
        return (OK,)

    def cuCtxSetCurrent(self, context):
        self._entered = context == "context"
        return (OK,)

    # ---- streams

    def cuStreamCreate(self, flags):
        name = self._make("stream")
        self._streams[name] = deque()
        return name

    def cuStreamDestroy(self, stream):
        del self.live[stream]
        return (OK,)

    def cuStreamSynchronize(self, stream):
        self.synchronized.append(stream)
        self._run_out(stream)
        return (self.broken,)

    def _run_out(self, stream):
        while self._streams[stream]:
            self._step()

    def cuEventCreate(self, flags):
        name = self._make("event")
        self._events[name] = SimpleNamespace(recorded=0, done=0)
        return name

    def cuEventDestroy(self, event):
        del self.live[event]
        return (OK,)

    def cuEventRecord(self, event, stream):
        found = self._events[event]
        found.recorded += 1
        number = found.recorded
        self.launch(stream, lambda: setattr(found, "done", number))
        return (OK,)

    def cuStreamWaitEvent(self, stream, event, flags):
        found = self._events[event]
        number = found.recorded
        self._streams[stream].append((lambda: found.done >= number, lambda: None))
        return (OK,)

    def cuEventQuery(self, event):
        self.on_query()
        self._step()
        found = self._events[event]
        if self.broken:
            return (self.broken,)
        return (OK if found.done == found.recorded else Result.CUDA_ERROR_NOT_READY,)

    def launch(self, stream, kernel):
        self._streams[stream].append((lambda: True, kernel))

    def _step(self):
        able = [ops for ops in self._streams.values() if ops and ops[0][0]()]
        if able:
            self._random.choice(able).popleft()[1]()
        else:
            assert not any(self._streams.values()), "streams wait for each other"

    def _all_quiet(self):
        assert not any(self._streams.values()), "memory goes away under a copy"

    # ---- memory

    def cuMemAlloc(self, size):
        buffer = ctypes.create_string_buffer(size)
        address = ctypes.addressof(buffer)
        self._buffers[address] = buffer
        self.live[address] = "memory"
        return address

    def cuMemFree(self, address):
        del self._buffers[address], self.live[address]
        return (OK,)

    def cuMemHostRegister(self, address, size, flags):
        if self._region(address, size) is not None:
            return (WRONG,)
        self._pinned[address] = size
        self.live[f"pinned {address}"] = "pinned"
        return (OK,)

    def cuMemHostUnregister(self, address):
        self._all_quiet()
        del self._pinned[address], self.live[f"pinned {address}"]
        return (OK,)

    def _region(self, address, size):
        """Where the pinned region of these bytes begins, None if they are not pinned at all."""
        for begin, length in self._pinned.items():
            end = begin + length
            if begin <= address and address + size <= end:
                return begin
            assert address + size <= begin or end <= address, "a copy passes the end of a region"
        return None

    def _is_device(self, address, size):
        buffers = [(begin, len(buffer)) for begin, buffer in self._buffers.items()]
        return any(b <= address and address + size <= b + n for b, n in buffers)

    def cuMemcpyHtoDAsync(self, to, begin, size, stream):
        if not self._is_device(to, size):
            return (WRONG,)
        self.copies.append(("in", size))
        if self._region(begin, size) is None:
            staged = ctypes.string_at(begin, size)
            self.launch(stream, lambda: ctypes.memmove(to, staged, size))
        else:
            self.launch(stream, lambda: ctypes.memmove(to, begin, size))
        if self.eager_copies and self._random.random() < 0.5:
            self._run_out(stream)
        self.on_copy()
        return (OK,)

    def cuMemcpyDtoDAsync(self, to, begin, size, stream):
        if not (self._is_device(to, size) and self._is_device(begin, size)):
            return (WRONG,)
        self.copies.append(("within", size))
        self.launch(stream, lambda: ctypes.memmove(to, begin, size))
        return (OK,)

    def cuMemcpyDtoHAsync(self, to, begin, size, stream):
        if not self._is_device(begin, size):
            return (WRONG,)
        self.copies.append(("out", size))
        self.launch(stream, lambda: ctypes.memmove(to, begin, size))
        if self._region(to, size) is None:
            self._run_out(stream)
        return (OK,)


FREE = {"cuInit", "cuDeviceGet", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain"} | {
    *("cuDevicePrimaryCtxRelease", "cuCtxSetCurrent")
}
"""Functions that need no context."""
