"""The calls of the driver as cuda-python takes them: names, and kinds of arguments.

The real module is called with what our files give it. Without a driver every call fails, but not
before its arguments were taken: a wrong name or kind is another error.
"""

from types import SimpleNamespace

import pytest

from shunter.handlers.device.driver import Driver
from shunter.handlers.device.graphs import MemoryOperation
from shunter.handlers.device.padding import _queues

cuda = pytest.importorskip("cuda.bindings.driver", reason="needs cuda-python", exc_type=ImportError)
GRAPH, STREAM, DEVICE = 5, 7, 0


def node():
    made = cuda.CUDA_BATCH_MEM_OP_NODE_PARAMS()
    made.ctx, made.count, made.flags = cuda.CUcontext(1), 0, 0
    return made


CALLS = {
    "cuCtxGetStreamPriorityRange": (),
    "cuStreamCreateWithPriority": (1, -5),
    "cuMemHostRegister": (4096, 4096, 3),
    "cuMemHostGetDevicePointer": (4096, 0),
    "cuMemHostUnregister": (4096,),
    "cuStreamWaitValue32": (STREAM, 4096, 0, 1),
    "cuStreamWriteValue32": (STREAM, 4096, 1, 0),
    "cuGraphCreate": (0,),
    "cuGraphGetNodes": (GRAPH,),
    "cuGraphAddChildGraphNode": (GRAPH, [cuda.CUgraphNode(3)], 1, GRAPH),
    "cuGraphAddBatchMemOpNode": (GRAPH, [], 0, node()),
    "cuGraphAddEventRecordNode": (GRAPH, [cuda.CUgraphNode(3)], 1, 9),
    "cuEventCreate": (0,),
    "cuEventElapsedTime": (9, 11),
    "cuEventDestroy": (9,),
    "cuGraphInstantiate": (GRAPH, 0),
    "cuGraphUpload": (GRAPH, STREAM),
    "cuGraphLaunch": (GRAPH, STREAM),
    "cuGraphExecDestroy": (GRAPH,),
    "cuGraphDestroy": (GRAPH,),
    "cuDeviceGetDevResource": (DEVICE, cuda.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM),
    "cuDevSmResourceSplitByCount": (1, cuda.CUdevResource(), 0, 8),
    "cuDevResourceGenerateDesc": ([cuda.CUdevResource()], 1),
    "cuGreenCtxCreate": (
        cuda.CUdevResourceDesc(0),
        DEVICE,
        int(cuda.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM),
    ),
    "cuGreenCtxStreamCreate": (cuda.CUgreenCtx(0), 1, 0),
    "cuGreenCtxDestroy": (cuda.CUgreenCtx(0),),
}


@pytest.fixture(autouse=True)
def no_driver():
    """Nothing may be called for good."""
    try:
        found = cuda.cuInit(0)
    except RuntimeError:
        return
    if int(found[0]) == 0:
        pytest.skip("there is a GPU; the others call for good")


@pytest.mark.parametrize("name", CALLS)
def test_a_call_takes_its_arguments(name):
    with pytest.raises(RuntimeError, match=r"libcuda|NVIDIA driver library"):
        getattr(cuda, name)(*CALLS[name])


def test_the_queues_of_a_green_context_can_be_its_own():
    if not hasattr(cuda, "CUdevWorkqueueConfigScope"):
        pytest.skip("needs cuda-python 13.1")
    balanced = cuda.CUdevWorkqueueConfigScope.CU_WORKQUEUE_SCOPE_GREEN_CTX_BALANCED
    found = cuda.CUdevResource()
    driver = SimpleNamespace(module=cuda, device=DEVICE, call=lambda *_: found)
    assert _queues(driver) == [found]
    assert found.wqConfig.sharingScope == balanced


@pytest.mark.parametrize("waits", [True, False])
def test_a_memory_operation_has_what_a_node_needs(waits):
    driver = object.__new__(Driver)
    driver.module = cuda
    made = MemoryOperation(waits, 4096, 7).parameters(driver)
    what = made.waitValue if waits else made.writeValue
    assert int(made.operation) == int(what.operation)
    assert (int(what.address), int(what.value), what.flags) == (4096, 7, int(waits))
    params = node()
    params.count, params.paramArray = 1, [made]
    assert params.count == 1
    assert int(params.paramArray[0].operation) == int(made.operation)
