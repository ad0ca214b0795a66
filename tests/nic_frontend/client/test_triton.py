"""Code that was written for Triton's client, against a real front end and a real worker."""

import importlib
import queue
import threading
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

import numpy as np
import pytest

from shunter.nic_frontend.tritonlike import (
    InferenceServerClient,
    InferenceServerException,
    InferInput,
    InferRequestedOutput,
)
from shunter.nic_frontend.tritonlike import client as tritonlike
from shunter.nic_frontend.tritonlike.models import NOT_SERVED

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


def test_a_model_has_a_configuration_and_a_server_a_name(client):
    config = client.get_model_config("both", client_timeout=LONG)
    assert config["name"] == "both" and config["max_batch_size"] > 1000
    assert config["input"] == [
        {"name": "in0", "data_type": "TYPE_FP32", "dims": [3]},
        {"name": "in1", "data_type": "TYPE_INT64", "dims": []},
    ]
    assert [each["name"] for each in config["output"]] == ["out0", "out1"]
    assert client.get_server_metadata()["name"] == "shunter"
    assert client.get_model_metadata("both", client_timeout=LONG) == client.get_model_metadata(
        "both"
    )
    for ask in (client.get_model_config, client.get_model_metadata):
        with pytest.raises(InferenceServerException, match="no such model"):
            ask("none")


def test_what_is_asked_of_a_server_that_is_not_there_takes_no_longer_than_it_may():
    with InferenceServerClient("127.0.0.1:9") as client:
        assert not client.is_server_ready(client_timeout=0.1)
        assert not client.is_model_ready("m", client_timeout=0.1)
        for ask in (
            client.get_server_metadata,
            lambda **more: client.get_model_metadata("m", **more),
            lambda **more: client.get_model_config("m", **more),
        ):
            with pytest.raises(InferenceServerException) as caught:
                ask(client_timeout=0.1)
            assert caught.value.status() == "StatusCode.UNAVAILABLE"


# ---- several at once


class Ended:
    """Takes what callbacks are given."""

    def __init__(self):
        self.all = queue.Queue()

    def __call__(self, result, error):
        self.all.put((result, error))

    def get(self):
        result, error = self.all.get(timeout=LONG)
        assert (result is None) != (error is None)
        return result, error


def test_requests_with_callbacks_are_answered_each_with_its_own(client):
    ended, inputs = Ended(), inputs_of(*batch(2))
    for i in range(40):  # the same objects and arrays again and again, as one may with Triton's
        inputs[0].set_data_from_numpy(np.full(2, i))
        client.async_infer("both", inputs, ended, request_id=str(i), client_timeout=LONG)
    found = {}
    for _ in range(40):
        result, error = ended.get()
        assert error is None
        found[int(result.get_response()["id"])] = result.as_numpy("out1").tolist()
    assert found == {i: [i + 3, i + 12] for i in range(40)}


def test_what_is_sent_later_is_what_it_was_when_it_was_asked(client):
    first, second = batch(3)
    inputs = inputs_of(first, second)
    asked = [client.async_infer("both", inputs) for _ in range(10)]
    first[:], second[:] = -1, -1
    for each in asked:
        assert each.get_result(timeout=LONG).as_numpy("out1").tolist() == [3, 13, 23]


def test_faults_come_with_the_result(client):
    ended = Ended()
    for model, inputs, text in (
        ("none", inputs_of(*batch(1)), "no such model"), ("both", [], "has in0, in1"),
    ):  # fmt: skip
        asked = client.async_infer(model, inputs, ended)
        with pytest.raises(InferenceServerException, match=text) as caught:
            asked.get_result(timeout=LONG)
        assert ended.get() == (None, caught.value)
    with pytest.raises(InferenceServerException, match="model_version"):
        client.async_infer("both", [], "1")


def triton_client(service, **settings):
    return InferenceServerClient(service.url(), network_timeout=LONG, **settings)


def gated_inputs():
    made = InferInput("in0", [1, 3], "FP32")
    return [made.set_data_from_numpy(np.ones((1, 3), np.float32))]


def test_what_is_cancelled_ends_at_once_and_once(gated):
    ended = Ended()
    with triton_client(gated, concurrency=1) as client:
        asked = [client.async_infer("gated", gated_inputs(), ended) for _ in range(3)]
        assert gated.begun.wait(LONG)
        for timeout, block in ((0.01, True), (None, False)):
            with pytest.raises(InferenceServerException, match="failed to obtain"):
                asked[0].get_result(block, timeout)
        for each in asked[:2]:  # one that runs, one that waits
            each.cancel()
            each.cancel()
            assert ended.get()[1].status() == "StatusCode.CANCELLED"
        gated.gate.set()
        assert asked[2].get_result(timeout=LONG).as_numpy("out0").tolist() == [[1, 1, 1]]
        assert ended.get()[1] is None
    assert ended.all.empty() and len(gated.ran) == 2


def test_closing_cancels_what_has_not_begun_and_waits_for_the_rest(gated):
    ended = Ended()
    client = triton_client(gated, concurrency=1)
    first, second = (client.async_infer("gated", gated_inputs(), ended) for _ in range(2))
    assert gated.begun.wait(LONG)
    closing = threading.Thread(target=client.close)
    closing.start()
    assert ended.get()[1].status() == "StatusCode.CANCELLED" and second.has_ended
    gated.gate.set()
    closing.join(LONG)
    assert first.get_result(block=False).as_numpy("out0").tolist() == [[1, 1, 1]]
    with pytest.raises(InferenceServerException, match="closed"):
        client.async_infer("gated", gated_inputs())


def test_a_callback_may_close_the_client(gated, monkeypatch):
    client, closed, ended = triton_client(gated, concurrency=2), threading.Event(), Ended()
    close = client._client.close
    monkeypatch.setattr(client._client, "close", lambda: (close(), closed.set()))

    def end(result, error):
        client.close()
        ended(result, error)

    asked = [client.async_infer("gated", gated_inputs(), end) for _ in range(4)]
    gated.until(lambda: len(client._threads._waiting) == 2)  # the others run
    gated.gate.set()
    for each in asked[:2]:  # the second may run when the first closes
        assert each.get_result(timeout=LONG).as_numpy("out0").tolist() == [[1, 1, 1]]
    errors = [ended.get()[1] for _ in asked]
    assert sorted(each is None for each in errors) == [False, False, True, True]
    assert closed.wait(LONG)
    with pytest.raises(InferenceServerException, match="closed"):
        client.async_infer("gated", gated_inputs())


def test_a_callback_that_fails_harms_nobody(client, caplog):
    inputs = inputs_of(*batch(1))
    asked = client.async_infer("both", inputs, lambda result, error: 1 // 0)
    assert asked.get_result(timeout=LONG)
    client.service.until(lambda: "callback" in caplog.text)
    assert client.async_infer("both", inputs).get_result(timeout=LONG)


# ---- what is not there


@pytest.mark.parametrize("name", sorted(NOT_SERVED))
def test_what_is_not_served_says_so(name):
    with (
        InferenceServerClient("127.0.0.1:9") as client,
        pytest.raises(InferenceServerException, match=f"{name} is not served") as caught,
    ):
        getattr(client, name)("any", thing=1)
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"


def test_there_are_no_regions_of_a_gpu():
    with InferenceServerClient("127.0.0.1:9") as client:
        client.unregister_cuda_shared_memory()
        assert client.get_cuda_shared_memory_status() == []
        for ask in (client.unregister_cuda_shared_memory, client.get_cuda_shared_memory_status):
            with pytest.raises(InferenceServerException, match="'r'"):
                ask("r")
        assert not hasattr(client, "no_such_thing")


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_nothing_that_tritons_own_clients_have_is_unknown_here(kind):
    try:
        theirs = importlib.import_module(f"tritonclient.{kind}")
    except (ImportError, RuntimeError) as error:
        pytest.skip(str(error))
    for name in ("InferenceServerClient", "InferInput", "InferRequestedOutput", "InferResult"):
        public = {each for each in dir(getattr(theirs, name)) if not each.startswith("_")}
        ours = set(dir(getattr(tritonlike, name))) | NOT_SERVED | {"from_response_body"}
        assert public <= ours, public - ours


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
        InferInput("in0", [1], "JSON")
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
