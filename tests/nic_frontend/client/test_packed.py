"""Requests of any size: from a caller's arrays to a worker's and back, by every way."""

import asyncio

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
