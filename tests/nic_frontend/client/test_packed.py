"""Requests of any size: from a caller's arrays to a worker's and back, by every way."""

import asyncio
import importlib.util
from multiprocessing import shared_memory
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from packed_worker import PackedWorker

from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.client import (
    AsyncClient,
    BadRequestError,
    BatchError,
    Client,
    ServerError,
    Session,
)
from shunter.nic_frontend.client.requests.errors import InferenceError
from shunter.nic_frontend.tritonlike import (
    InferenceServerClient,
    InferenceServerException,
    InferInput,
    InferRequestedOutput,
)

KEY = bytes(range(32))
LONG = 20
SCHEMES = ["udp", "tcp", "unix"]
INPUTS = (
    TensorSpec("ids", "int64", (-1,)),
    TensorSpec("text", "bytes", (-1,)),
    TensorSpec("half", "bfloat16", (2, -1)),
)
OUTPUTS = (
    TensorSpec("sums", "int64", (-1,)),
    TensorSpec("back", "bytes", (-1,)),
    TensorSpec("twice", "bfloat16", (-1, 2)),
)


def infer(ids, text, half):
    return np.cumsum(ids), text[::-1], half.T * 2


def request_of(n):
    rng = np.random.default_rng(n)
    ids = rng.integers(-(2**40), 2**40, n)
    text = np.array([b"x" * (i % 7) for i in range(n % 11)], object)
    half = rng.normal(size=(2, n % 5)).astype(ml_dtypes.bfloat16)
    return [ids, text, half]


def is_answer(found, n):
    wanted = infer(*request_of(n))
    return all(
        a.shape == b.shape and (a.dtype == b.dtype) and (a == b).all()
        for a, b in zip(found, wanted, strict=True)
    )


@pytest.fixture
def make_worker(request):
    """Attaches a packed worker to a service."""
    made = []

    def make(service, model="m", inputs=INPUTS, outputs=OUTPUTS, function=infer, **more):
        path = service._folder / "nic.sock"
        made.append(PackedWorker(path, model, inputs, outputs, function, **more))
        service.wait_for(model)
        return made[-1]

    yield make
    for each in made:
        each.close()


PROTECTED = {"open": {}, "key": {"key": KEY}, "crc": {"crc": True}}
PROTECTED |= {"encrypted": {"encrypt": True, "key": KEY}}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("how", PROTECTED.values(), ids=PROTECTED)
def test_arrays_of_any_size_go_and_come(make_service, make_worker, scheme, how):
    service = make_service(key=how.get("key"))
    worker = make_worker(service)
    sizes = [0, 1, 3, 1000, 17, 60_000, 0, 8]
    with Client(service.url(scheme), timeout_s=LONG, **how) as client:
        for n in sizes:
            assert is_answer(client.infer("m", request_of(n)), n)
        many = client.infer_many("m", [request_of(n) for n in range(150)])
        assert all(is_answer(found, n) for n, found in enumerate(many))

    async def main():
        async with AsyncClient(service.url(scheme), timeout_s=LONG, **how) as client:
            asked = (client.infer("m", request_of(n)) for n in sizes)
            for n, found in zip(sizes, await asyncio.gather(*asked), strict=True):
                assert is_answer(found, n)

    asyncio.run(main())
    assert set(worker.rows) == {1} and not worker.bad


def test_inputs_are_written_where_workers_read(make_service, make_worker):
    service = make_service()
    make_worker(service)
    with Session(service.url("unix"), "m", timeout_s=LONG) as session:
        assert session.shares_memory
        with pytest.raises(BadRequestError, match="not known"):
            session.buffer()
        for n in [5, 0, 100_000, 7]:
            assert is_answer(session.infer(request_of(n)), n)
        many = session.infer_many([request_of(n) for n in range(100)])
        assert all(is_answer(found, n) for n, found in enumerate(many))
    assert service.front_end.path.stats()["bytes_in"] < 100_000  # headers


def test_wrong_arrays_are_refused_before_anything_is_sent(make_service, make_worker):
    service = make_service()
    worker = make_worker(service, request_bytes=4096)
    ids, text, half = request_of(3)
    with Session(service.url("udp"), "m", timeout_s=LONG) as session:
        before = service.front_end.path.stats()["datagrams_in"]
        wrong = {
            "2 tensors": [ids, text],
            "ids: no int64": [ids.astype(float), text, half],
            r"ids: \[1, 3\]; the model has": [ids[None], text, half],
            "where a byte string belongs": [ids, [1, 2], half],
            r"half: \[3, 3\]": [ids, text, np.zeros((3, 3), ml_dtypes.bfloat16)],
            "bytes; the model takes 4096": [np.zeros(600, np.int64), text, half],
        }
        for text_of, arrays in wrong.items():
            with pytest.raises(BadRequestError, match=text_of):
                session.infer(arrays)
        found = session.infer_many([wrong["2 tensors"]])
        assert isinstance(found[0], BadRequestError)
        with pytest.raises(BadRequestError, match="out"):
            session.infer(request_of(3), out=[])
        assert service.front_end.path.stats()["datagrams_in"] == before
        assert is_answer(session.infer(request_of(3)), 3)
    assert not worker.bad


def test_a_request_may_be_a_batch(make_service, make_worker):
    service = make_service()
    specs = (TensorSpec("x", "float32", (-1,)),), (TensorSpec("y", "float32", ()),)
    worker = make_worker(
        service, "m", *specs, lambda x: [x.sum(axis=1)], batch=5, batched=True
    )
    with Client(service.url("udp"), timeout_s=LONG) as client:
        session = client.model("m")
        assert session.tensors.rows == 5
        x = np.arange(12, dtype=np.float32).reshape(4, 3)
        assert client.infer("m", x).tolist() == x.sum(axis=1).tolist()
        with pytest.raises(BadRequestError, match="6 rows; the model takes 5"):
            client.infer("m", np.zeros((6, 3), np.float32))
        with pytest.raises(BadRequestError, match="rows"):
            client.infer("m", np.zeros((0, 3), np.float32))
        x = np.arange(69, dtype=np.float32).reshape(23, 3)
        assert client.infer_batch("m", x).tolist() == x.sum(axis=1).tolist()
    assert sorted(worker.rows) == [3, 4, 5, 5, 5, 5]


def test_a_batch_of_requests_has_answers_of_one_shape(make_service, make_worker):
    service = make_service()
    specs = (TensorSpec("x", "int32", (-1,)),), (TensorSpec("y", "int32", (-1,)),)
    make_worker(service, "m", *specs, lambda x: [np.repeat(x[:1], x[0])])
    with Session(service.url("tcp"), "m", timeout_s=LONG) as session:
        [found] = session.infer_batch([np.full((3, 2), 2, np.int32)])
        assert found.tolist() == [[2, 2]] * 3
        with pytest.raises(BadRequestError, match="infer_many"):
            session.infer_batch([np.array([[1], [2]], np.int32)])
        with pytest.raises(BatchError):
            session.infer_batch([np.array([[1], [1 << 20]], np.int32)])


def test_an_answer_that_cannot_be_is_an_error_of_the_server(make_service, make_worker):
    service = make_service()
    specs = (TensorSpec("n", "int32", ()),), (TensorSpec("y", "int8", (-1,)),)
    worker = make_worker(service, "m", *specs, lambda n: [np.ones(n, np.int8)], answer_bytes=1000)
    with Client(service.url("udp"), timeout_s=LONG) as client:
        assert client.infer("m", np.int32(1000 - 64)).size == 936
        with pytest.raises(ServerError, match="handler failed"):
            client.infer("m", np.int32(1000 - 63))
        worker.packings[1] = type(worker.packings[1])((TensorSpec("y", "int16", (-1,)),))
        with pytest.raises(ServerError, match="none of the model's"):
            client.infer("m", np.int32(5))


def test_a_run_that_is_none_is_the_clients_fault(make_service, make_worker):
    service = make_service()
    worker = make_worker(service)
    with Session(service.url("udp"), "m", timeout_s=LONG) as session:
        tensors, whole = session.tensors, session.tensors.pack
        for at, byte in ((4, 1), (8, 255), (0, 2), (50, 1)):

            def spoilt(inputs, at=at, byte=byte):
                run, rows = whole(inputs)
                run[at] = byte
                return run, rows

            tensors.pack = spoilt
            with pytest.raises(BadRequestError, match="refused the sizes"):
                session.infer(request_of(3))
        tensors.pack = whole
        assert is_answer(session.infer(request_of(3)), 3)
        tensors.pack = lambda inputs: (whole(inputs)[0], 2)  # the header says something else
        with pytest.raises(BadRequestError):
            session.infer(request_of(3))
    assert worker.bad == 4


def test_what_is_too_long_for_datagrams_goes_by_a_stream(make_service, make_worker):
    service = make_service()
    large = 8 << 20
    make_worker(service, request_bytes=large, answer_bytes=large, batch=1)
    with Client(service.url("shunter"), timeout_s=LONG) as client:
        assert is_answer(client.infer("m", request_of(500_000)), 500_000)
    for each in (Client(service.url("tcp"), timeout_s=LONG),):
        with each as client, pytest.raises(InferenceError, match="takes"):
            client.infer("m", request_of(2_000_000))


@pytest.mark.parametrize("how", [{}, PROTECTED["encrypted"]], ids=["open", "encrypted"])
def test_what_is_lost_on_the_way_comes_all_the_same(make_service, make_worker, how):
    service = make_service(key=how.get("key"))
    worker = make_worker(service)
    place = Path(__file__).with_name("test_native_client.py")
    spec = importlib.util.spec_from_file_location("of_sessions", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    link = module.Link(int(service.url().rpartition(":")[2]), 5, 0.05)
    try:
        with Session(f"udp://127.0.0.1:{link.port}", "m", timeout_s=LONG, **how) as session:
            sizes = [*range(100), 3000, 5000]
            many = session.infer_many([request_of(n) for n in sizes])
            assert all(is_answer(found, n) for n, found in zip(sizes, many, strict=True))
    finally:
        link.close()
    assert link.faults > 20 and not worker.bad


# ---- in Triton's shape


def triton(name, array, datatype, shape=None):
    found = InferInput(name, array.shape if shape is None else shape, datatype)
    return found.set_data_from_numpy(array)


@pytest.fixture
def triton_client(make_service):
    service = make_service()
    with InferenceServerClient(service.url(), network_timeout=LONG) as client:
        client.service = service
        yield client


def test_tritons_clients_send_byte_strings_and_bfloat16(triton_client, make_worker):
    make_worker(triton_client.service)
    ids, text, half = request_of(14)
    inputs = [
        triton("half", half.astype(np.float32), "BF16"),
        triton("text", text.astype("S"), "BYTES"),
        triton("ids", ids, "INT64"),
    ]
    result = triton_client.infer("m", inputs)
    assert result.as_numpy("sums").tolist() == np.cumsum(ids).tolist()
    assert result.as_numpy("back").tolist() == [b"xx", b"x", b""]
    twice = result.as_numpy("twice")
    assert twice.dtype == np.float32 and (twice == half.T.astype(np.float32) * 2).all()
    told = {each["name"]: each["datatype"] for each in result.get_response()["outputs"]}
    assert told == {"sums": "INT64", "back": "BYTES", "twice": "BF16"}
    metadata = triton_client.get_model_metadata("m")
    assert metadata["inputs"][1] == {"name": "text", "datatype": "BYTES", "shape": [-1, -1]}
    config = triton_client.get_model_config("m")
    assert config["input"][1] == {"name": "text", "data_type": "TYPE_STRING", "dims": [-1]}
    wanted = [InferRequestedOutput("back")]
    found = triton_client.infer("m", inputs, outputs=wanted).get_response()["outputs"]
    assert [each["name"] for each in found] == ["back"]


def test_a_batch_of_tritons_is_requests_of_one_shape(triton_client, make_worker):
    make_worker(triton_client.service)
    ids = np.arange(12).reshape(3, 4)
    text = np.array([["a", "é"]] * 3, object)
    half = np.ones((3, 2, 5), np.float32)
    asked = [
        triton("ids", ids, "INT64"), triton("text", text, "BYTES"), triton("half", half, "BF16")
    ]  # fmt: skip
    result = triton_client.infer("m", asked)
    assert (result.as_numpy("sums") == np.cumsum(ids, axis=1)).all()
    assert result.as_numpy("back").tolist() == [["é".encode(), b"a"]] * 3
    assert result.as_numpy("twice").shape == (3, 5, 2)
    none = [
        triton("ids", ids[:0], "INT64"), triton("text", text[:0], "BYTES"),
        triton("half", half[:0], "BF16"),
    ]  # fmt: skip
    assert triton_client.infer("m", none).as_numpy("sums").shape == (0, 0)


def test_a_batch_of_tritons_is_one_of_the_models(triton_client, make_worker):
    specs = (TensorSpec("x", "float32", (-1,)),), (TensorSpec("y", "float32", ()),)
    worker = make_worker(
        triton_client.service, "m", *specs, lambda x: [x.sum(axis=1)], batch=4, batched=True
    )
    x = np.ones((10, 3), np.float32)
    found = triton_client.infer("m", [triton("x", x, "FP32")])
    assert found.as_numpy("y").tolist() == [3] * 10
    assert sorted(worker.rows) == [2, 4, 4]
    with pytest.raises(InferenceServerException, match="is a batch"):
        triton_client.infer("m", [triton("x", x[0], "FP32")])
    with pytest.raises(InferenceServerException, match="the model wants"):
        triton_client.infer("m", [triton("x", x[None], "FP32")])


def test_tritons_regions_hold_byte_strings(triton_client, make_worker):
    specs = (TensorSpec("text", "bytes", (-1,)),), (TensorSpec("back", "bytes", (-1,)),)
    make_worker(triton_client.service, "m", *specs, lambda text: [text[::-1]])
    memory = shared_memory.SharedMemory(create=True, size=128)
    try:
        memory.buf[:11] = b"\3\0\0\0abc\0\0\0\0"
        triton_client.register_system_shared_memory("r", f"/{memory.name}", 128)
        asked = InferInput("text", [2], "BYTES")
        asked.set_shared_memory("r", 64)
        wanted = InferRequestedOutput("back")
        wanted.set_shared_memory("r", 11, 64)
        assert triton_client.infer("m", [asked], outputs=[wanted]).as_numpy("back") is None
        assert bytes(memory.buf[64:75]) == b"\0\0\0\0\3\0\0\0abc"
        wanted.set_shared_memory("r", 10, 64)
        with pytest.raises(InferenceServerException, match="11 bytes; its region has 10"):
            triton_client.infer("m", [asked], outputs=[wanted])
        memory.buf[0] = 100
        with pytest.raises(InferenceServerException, match="are not BYTES"):
            triton_client.infer("m", [asked])
        triton_client.unregister_system_shared_memory()
    finally:
        memory.close()
        memory.unlink()
