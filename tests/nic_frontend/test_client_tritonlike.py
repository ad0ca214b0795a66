"""Code that was written for Triton's client, against a real front end and a real worker."""

from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import numpy as np
import pytest

from shunter.nic_frontend import tritonlike
from shunter.nic_frontend.tritonlike import (
    InferenceServerClient,
    InferenceServerException,
    InferInput,
    InferRequestedOutput,
)

LONG = 30


@pytest.fixture
def client(make_service):
    """Of a server with a model of two inputs and two outputs."""

    def infer(inputs, outputs):
        outputs[0].copy_(inputs[0] * 2)
        outputs[1].copy_(inputs[1] + inputs[0].sum(dim=1).long())

    service = make_service()
    inputs = [("float32", (3,)), ("int64", ())]
    service.serve("both", inputs, inputs, infer)
    # Triton's URLs have no scheme.
    url = service.url().removeprefix("udp://")
    with InferenceServerClient(url, network_timeout=LONG, concurrency=4) as made:
        made.service = service
        yield made


def inputs_of(first, second):
    found = [
        InferInput("in1", second.shape, "INT64"),
        InferInput("in0", first.shape, "FP32"),
    ]
    found[0].set_data_from_numpy(second)
    found[1].set_data_from_numpy(first, binary_data=True)
    return found


def batch(n):
    return np.arange(3 * n, dtype=np.float32).reshape(n, 3), np.arange(n)


@pytest.mark.parametrize("n", [0, 1, 2, 200])
def test_a_batch_is_as_many_requests_and_one_answer(client, n):
    first, second = batch(n)
    result = client.infer("both", inputs_of(first, second), request_id="7")
    assert np.array_equal(result.as_numpy("out0"), first * 2)
    assert result.as_numpy("out1").tolist() == [9 * i + 3 + i for i in range(n)]
    assert result.as_numpy("out2") is None
    assert result.get_response()["id"] == "7"
    assert result.get_output("out0") == {"name": "out0", "datatype": "FP32", "shape": [n, 3]}


def test_a_shape_without_the_batch_is_one_request(client):
    found = client.infer("both", inputs_of(np.ones(3, np.float32), np.array(5)))
    assert found.as_numpy("out0").tolist() == [2, 2, 2]
    assert found.as_numpy("out1").shape == () and found.as_numpy("out1") == 8


def test_only_the_outputs_that_are_wanted_come_back(client):
    found = client.infer("both", inputs_of(*batch(2)), outputs=[InferRequestedOutput("out1")])
    assert found.as_numpy("out0") is None and found.as_numpy("out1").tolist() == [3, 13]


def test_the_tensors_of_a_model_are_told(client):
    assert client.get_model_metadata("both") == {
        "name": "both",
        "versions": ["1"],
        "inputs": [
            {"name": "in0", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "in1", "datatype": "INT64", "shape": [-1]},
        ],
        "outputs": [
            {"name": "out0", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "out1", "datatype": "INT64", "shape": [-1]},
        ],
    }


@pytest.mark.parametrize(("given", "expected"), [(0, 0), (1, 1), (2, 2), (7, 2)])
def test_a_priority_is_a_class_and_none_is_the_model_s(client, monkeypatch, given, expected):
    infer, asked = client._infer, []
    monkeypatch.setattr(client, "_infer", lambda *args: asked.append(args[3]) or infer(*args))
    client.infer("both", inputs_of(*batch(1)), priority=given)
    assert [options.priority for options in asked] == [expected]


def test_what_is_there_is_live_and_ready(client, monkeypatch):
    assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("both")
    assert not client.is_model_ready("none")
    client.service.stop()
    for worker in client.service._workers:
        worker.close()
    client.service._workers.clear()
    monkeypatch.setattr(tritonlike, "LIVE_S", 0.1)
    assert not client.is_server_live() and not client.is_model_ready("both")


# ---- faults


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        ([], "has in0, in1"),
        (inputs_of(*batch(2))[:1], "has in0, in1"),
        (inputs_of(np.ones((2, 3), np.float32), np.arange(3)), "different sizes"),
        (inputs_of(np.ones((2, 4), np.float32), np.arange(2)), "in0 has shape"),
        (inputs_of(np.ones((2, 2, 3), np.float32), np.ones((2, 2), np.int64)), "in0 has shape"),
        ([InferInput("in0", [2, 3], "FP64"), InferInput("in1", [2], "INT64")], "wants FP32"),
        ([InferInput("in0", [2, 3], "FP32"), InferInput("in1", [2], "INT64")], "no data"),
    ],
)
def test_wrong_inputs_are_invalid_arguments(client, inputs, text):
    with pytest.raises(InferenceServerException, match=text) as caught:
        client.infer("both", inputs)
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert text in caught.value.message()


def test_other_faults_have_tritons_codes(client):
    good = inputs_of(*batch(1))
    for model, more, status in (
        ("none", {}, "INVALID_ARGUMENT"),
        ("both", {"sequence_id": 1}, "INVALID_ARGUMENT"),
        ("both", {"outputs": [InferRequestedOutput("out7")]}, "INVALID_ARGUMENT"),
    ):
        with pytest.raises(InferenceServerException) as caught:
            client.infer(model, good, **more)
        assert caught.value.status() == f"StatusCode.{status}"
    with pytest.raises(InferenceServerException, match="class_count"):
        InferRequestedOutput("out0", class_count=3)
    with pytest.raises(InferenceServerException, match="BYTES"):
        InferInput("in0", [1], "BYTES")
    for wrong in (np.ones(3), np.ones(4, np.float32), [1.0, 2.0, 3.0]):
        with pytest.raises(InferenceServerException):
            InferInput("in0", [3], "FP32").set_data_from_numpy(wrong)


def test_a_server_that_is_not_there_is_unavailable():
    with (
        InferenceServerClient("127.0.0.1:9", network_timeout=0.1) as client,
        pytest.raises(InferenceServerException) as caught,
    ):
        client.infer("both", [])
    assert caught.value.status() == "StatusCode.UNAVAILABLE"


# ---- shared memory


@pytest.fixture
def region():
    """A POSIX shared memory object, as Python's library makes them."""
    made = shared_memory.SharedMemory(create=True, size=8192)
    yield made
    made.close()
    made.unlink()


def test_tensors_are_read_from_and_written_to_shared_memory(client, region):
    first, second = batch(4)
    region.buf[100:148] = first.tobytes()
    region.buf[200:232] = second.tobytes()
    client.register_system_shared_memory("in", f"/{region.name}", 150, offset=100)
    client.register_system_shared_memory("all", region.name, 8192)
    inputs = [InferInput("in0", [4, 3], "FP32"), InferInput("in1", [4], "INT64")]
    inputs[0].set_shared_memory("in", 48)
    inputs[1].set_shared_memory("all", 32, offset=200)
    outputs = [InferRequestedOutput("out0"), InferRequestedOutput("out1")]
    outputs[0].set_shared_memory("all", 48, offset=4096)
    found = client.infer("both", inputs, outputs=outputs)
    assert bytes(region.buf[4096:4144]) == (first * 2).tobytes()
    assert found.as_numpy("out0") is None
    assert found.get_output("out0")["parameters"]["shared_memory_offset"] == 4096
    assert found.as_numpy("out1").tolist() == [3, 13, 23, 33]
    assert [each["name"] for each in client.get_system_shared_memory_status()] == ["in", "all"]
    client.unregister_system_shared_memory("in")
    assert [each["name"] for each in client.get_system_shared_memory_status()] == ["all"]
    client.unregister_system_shared_memory()
    assert client.get_system_shared_memory_status() == []


@pytest.mark.parametrize(
    ("key", "size", "offset"),
    [("none", 1, 0), ("a/b", 1, 0), ("..", 1, 0), ("", 1, 0), (None, 9000, 0), (None, 1, 8192),
     (None, 0, 0), (None, 1, -1)],
)  # fmt: skip
def test_a_region_that_is_not_there_is_refused(client, region, key, size, offset):
    with pytest.raises(InferenceServerException):
        client.register_system_shared_memory(
            "r", region.name if key is None else key, size, offset
        )
    assert client.get_system_shared_memory_status() == []


def test_a_region_is_not_left(client, region):
    client.register_system_shared_memory("r", region.name, 100)
    with pytest.raises(InferenceServerException, match="already"):
        client.register_system_shared_memory("r", region.name, 100)
    for name, size, offset in (("r", 101, 0), ("r", 12, 89), ("r", 12, -1), ("q", 12, 0)):
        inputs = inputs_of(*batch(1))
        inputs[1].set_shared_memory(name, size, offset)
        outputs = [InferRequestedOutput("out0")]
        with pytest.raises(InferenceServerException):
            client.infer("both", inputs)
        outputs[0].set_shared_memory(name, size, offset)
        with pytest.raises(InferenceServerException):
            client.infer("both", inputs_of(*batch(1)), outputs=outputs)
    outputs[0].set_shared_memory("r", 11)
    with pytest.raises(InferenceServerException, match="12 bytes"):
        client.infer("both", inputs_of(*batch(1)), outputs=outputs)
    with pytest.raises(InferenceServerException):
        client.unregister_system_shared_memory("q")


def test_mapping_a_region_leaves_it_to_who_made_it(client, region):
    # Python's own class would remove it when this process ends, whoever made it.
    asked = []
    original, resource_tracker.register = resource_tracker.register, lambda *a: asked.append(a)
    try:
        client.register_system_shared_memory("r", region.name, 100)
    finally:
        resource_tracker.register = original
    client.unregister_system_shared_memory("r")
    assert asked == [] and Path("/dev/shm", region.name).exists()


def test_regions_of_tritons_own_package(client):
    shm = pytest.importorskip("tritonclient.utils.shared_memory")
    from tritonclient.utils import InferenceServerException as Theirs

    first, second = batch(3)
    size = first.nbytes + second.nbytes
    handle = shm.create_shared_memory_region("region", "/shunter-test-region", 2 * size)
    try:
        shm.set_shared_memory_region(handle, [first, second])
        client.register_system_shared_memory("region", "/shunter-test-region", 2 * size)
        inputs = [InferInput("in0", [3, 3], "FP32"), InferInput("in1", [3], "INT64")]
        inputs[0].set_shared_memory("region", first.nbytes)
        inputs[1].set_shared_memory("region", second.nbytes, offset=first.nbytes)
        outputs = [InferRequestedOutput("out0"), InferRequestedOutput("out1")]
        outputs[0].set_shared_memory("region", first.nbytes, offset=size)
        outputs[1].set_shared_memory("region", second.nbytes, offset=size + first.nbytes)
        client.infer("both", inputs, outputs=outputs)
        doubled = shm.get_contents_as_numpy(handle, np.float32, [3, 3], offset=size)
        summed = shm.get_contents_as_numpy(handle, np.int64, [3], offset=size + first.nbytes)
        assert np.array_equal(doubled, first * 2) and summed.tolist() == [3, 13, 23]
        client.unregister_system_shared_memory("region")
    finally:
        del doubled, summed
        shm.destroy_shared_memory_region(handle)
    with pytest.raises(Theirs):
        client.infer("none", [])
