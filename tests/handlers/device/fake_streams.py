"""What standing still needs of a driver, on top of the fake one: gates, graphs, priorities.

Streams go on while anybody asks or waits, one step at a time, in an order drawn from the seed;
several threads may do so. A wait for a word reads the real memory when its turn comes, as a device
would, so whoever stores it may be another thread or another process.
"""

import ctypes
import importlib.util
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from torch.utils._python_dispatch import TorchDispatchMode

spec = importlib.util.spec_from_file_location(
    "device_fake_cuda", Path(__file__).with_name("fake_cuda.py")
)
fake_cuda = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fake_cuda)
OK, WRONG = fake_cuda.OK, fake_cuda.WRONG
WAIT, WRITE = "wait", "write"


class Operation:
    """CUstreamBatchMemOpParams."""

    def __init__(self):
        self.operation = None
        self.waitValue = SimpleNamespace(operation=None, address=0, value=0, flags=None)
        self.writeValue = SimpleNamespace(operation=None, address=0, value=0, flags=None)


class Node:
    """CUDA_BATCH_MEM_OP_NODE_PARAMS."""

    ctx = count = flags = paramArray = None


class FakeStreams(fake_cuda.FakeCuda):
    """The fake driver with gates and graphs."""

    CU_MEMHOSTREGISTER_DEVICEMAP = 2
    CUdevice_attribute = SimpleNamespace(
        **vars(fake_cuda.FakeCuda.CUdevice_attribute),
        CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED="priorities",
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT="sms",
        CU_DEVICE_ATTRIBUTE_COMPUTE_MODE="compute_mode",
        CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS="wide",
        CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR="nor",
    )
    CUstreamWaitValue_flags = SimpleNamespace(CU_STREAM_WAIT_VALUE_EQ=1)
    CUstreamWriteValue_flags = SimpleNamespace(CU_STREAM_WRITE_VALUE_DEFAULT=0)
    CUstreamBatchMemOpType = SimpleNamespace(
        CU_STREAM_MEM_OP_WAIT_VALUE_32=WAIT, CU_STREAM_MEM_OP_WRITE_VALUE_32=WRITE
    )
    CUstreamBatchMemOpParams, CUDA_BATCH_MEM_OP_NODE_PARAMS = Operation, Node
    CUdevResourceType = SimpleNamespace(
        CU_DEV_RESOURCE_TYPE_SM=1, CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG=1000
    )
    CUdevWorkqueueConfigScope = SimpleNamespace(CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)

    def __init__(self, seed=0, **options):
        super().__init__(seed, **options)
        self.attributes |= dict.fromkeys(("priorities", "wide", "nor"), 1)
        self.attributes |= {"sms": 132, "compute_mode": 0}
        self.priorities = {}
        """Of every stream that was made with one."""
        self.launched = []
        """Streams, in the order of launches of graphs."""
        self.started = []
        """Streams, in the order in which steps of graphs ran."""
        self.described = []
        """Resources of green contexts."""
        self._graphs = {}
        self._lock = threading.RLock()

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name.startswith("cu") and name != "cuStreamSynchronize":
            lock = self._lock

            def locked(*arguments):
                with lock:
                    return found(*arguments)

            return locked
        return found

    def _step(self):
        with self._lock:
            able = [ops for ops in self._streams.values() if ops and ops[0][0]()]
            if able:
                self._random.choice(able).popleft()[1]()

    def cuStreamSynchronize(self, stream):
        while self._streams[stream]:
            self._step()
            time.sleep(0)
        return (self.broken,)

    def idle(self, stream):
        """Nothing is left to do on it."""
        return not self._streams[stream]

    def step(self):
        """One step of one stream, if any can."""
        self._step()

    # ---- streams with priorities

    def cuCtxGetStreamPriorityRange(self):
        return (OK, 0, -5)

    def cuStreamCreateWithPriority(self, flags, priority):
        made = self.cuStreamCreate(flags)[1]
        self.priorities[made] = priority
        return made

    # ---- words of memory

    def cuMemHostGetDevicePointer(self, address, flags):
        return address if self._region(address, 4) is not None else (WRONG,)

    def _word(self, address):
        assert self._region(address, 4) is not None, "the device does not know this memory"
        return ctypes.c_uint32.from_address(address)

    def _operation(self, kind, address, value):
        word = self._word(address)
        if kind == WAIT:
            return (lambda: word.value == value), lambda: None
        return (lambda: True), lambda: setattr(word, "value", value)

    def cuStreamWaitValue32(self, stream, address, value, flags):
        assert flags == self.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
        self._streams[stream].append(self._operation(WAIT, address, value))
        return (OK,)

    def cuStreamWriteValue32(self, stream, address, value, flags):
        self._streams[stream].append(self._operation(WRITE, address, value))
        return (OK,)

    # ---- graphs: lists of steps

    def graph_of(self, *steps):
        """A captured graph that calls these."""
        name = self._make("graph")
        self._graphs[name] = [((lambda: True), step) for step in steps]
        return name

    def cuGraphCreate(self, flags):
        return self.graph_of()

    def cuGraphDestroy(self, graph):
        del self._graphs[graph], self.live[graph]
        return (OK,)

    cuGraphExecDestroy = cuGraphDestroy

    def cuGraphGetNodes(self, graph, number=0):
        return (OK, [], len(self._graphs[graph]))

    def _add(self, graph, before, count, steps):
        assert len(before) == count
        known = self._graphs[graph]
        assert before == ([f"node {len(known)}"] if known else []), "not behind the last one"
        known += steps
        return f"node {len(self._graphs[graph])}"

    def cuGraphAddChildGraphNode(self, graph, before, count, child):
        return self._add(graph, before, count, list(self._graphs[child]))

    def cuGraphAddBatchMemOpNode(self, graph, before, count, node):
        assert node.ctx == "context"
        assert node.count == len(node.paramArray)
        steps = []
        for each in node.paramArray:
            what = each.waitValue if each.operation == WAIT else each.writeValue
            assert what.operation == each.operation
            steps.append(self._operation(each.operation, what.address, what.value))
        return self._add(graph, before, count, steps)

    def cuGraphAddEventRecordNode(self, graph, before, count, event):
        def stamp():
            self._events[event].at = len(self.started)

        return self._add(graph, before, count, [((lambda: True), stamp)])

    def cuEventElapsedTime(self, begin, end):
        """Milliseconds; every step takes a microsecond, and so does a stamp."""
        return (self._events[end].at - self._events[begin].at) / 1000

    def cuGraphInstantiate(self, graph, flags):
        name = self._make("executable")
        self._graphs[name] = list(self._graphs[graph])
        return name

    def cuGraphUpload(self, executable, stream):
        return (OK,)

    def cuGraphLaunch(self, executable, stream):
        self.launched.append(stream)

        def started(step):
            def run():
                self.started.append(stream)
                step()

            return run

        steps = self._graphs[executable]
        self._streams[stream].extend((ready, started(step)) for ready, step in steps)
        return (OK,)

    # ---- green contexts

    def cuDeviceGetDevResource(self, device, kind):
        if kind == self.CUdevResourceType.CU_DEV_RESOURCE_TYPE_WORKQUEUE_CONFIG:
            return SimpleNamespace(wqConfig=SimpleNamespace(sharingScope=0))
        return SimpleNamespace(sm=SimpleNamespace(smCount=self.attributes["sms"]))

    def cuDevSmResourceSplitByCount(self, groups, everything, flags, least):
        number = -(-least // 8) * 8
        if number > everything.sm.smCount:
            return (WRONG,)
        part = SimpleNamespace(sm=SimpleNamespace(smCount=number))
        return (OK, [part], 1, everything)

    def cuDevResourceGenerateDesc(self, parts, count):
        assert len(parts) == count
        self.described.append(parts)
        return parts[0].sm.smCount

    def cuGreenCtxCreate(self, wanted, device, flags):
        return self._make("green context")

    def cuGreenCtxDestroy(self, context):
        del self.live[context]
        return (OK,)

    def cuGreenCtxStreamCreate(self, context, flags, priority):
        assert self.live[context] == "green context"
        return self.cuStreamCreateWithPriority(flags, priority)[1]


class FakeRecorder(TorchDispatchMode):
    """Records what torch does on the host as graphs of the fake driver.

    A part computes again what was computed, into the very tensors of the first time.
    """

    def __init__(self, cuda, cost_us=10.0):
        super().__init__()
        self._cuda, self._cost = cuda, cost_us
        self._steps = None

    def session(self):
        return self

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        options = options or {}
        made = function(*arguments, **options)
        if self._steps is not None and not function.is_view:
            self._steps.append(lambda: _again(function, arguments, options, made))
        return made

    def begin(self):
        self._steps = []

    def end(self):
        steps, self._steps = self._steps, None
        return self._cuda.graph_of(*steps) if steps else None

    def costs_us(self, parts, restore):
        return [self._cost] * len(parts)


def _again(function, arguments, options, made):
    with torch.no_grad():
        found = function(*arguments, **options)
        pairs = [(made, found)] if isinstance(made, torch.Tensor) else zip(made, found, strict=True)
        for there, here in pairs:
            if isinstance(there, torch.Tensor) and there is not here:
                there.copy_(here)
