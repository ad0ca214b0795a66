"""Every request gets its own answer, whatever way it came."""

import contextlib
import http.client
import json
import random
import socket
import zlib
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.e2e


def test_requests_that_wait_share_batches_and_each_gets_its_own_answer(serve):
    model = serve("ordered", batch_size=8)
    gate, held = model.hold()
    waiting = [model.queue(f"q{i}") for i in range(16)]
    gate.open()
    answers = [future.result() for future in waiting]
    assert [a["id"] for a in answers] == [f"q{i}" for i in range(16)]
    assert [a["batch"] for a in answers] == [8] * 16
    assert held[0].result()["batch"] == 1


def test_many_clients_of_several_workers_get_one_answer_each(serve, load, wait_until):
    model = serve(batch_size=8, initial_workers=2)
    with load(model, clients=16) as clients:
        wait_until("500 answers", lambda: len(clients.answers) >= 500)
    assert len({answer["pid"] for answer in clients.answers}) == 2
    assert 1 < max(answer["batch"] for answer in clients.answers) <= 8
    assert model.count("answered") == model.count("arrivals") == len(clients.answers)
    assert len(model.order()) == len(set(model.order())) == len(clients.answers)


def test_large_answers_in_a_batch_stay_whole(serve):
    model = serve("ordered", batch_size=4)
    gate, _ = model.hold()
    sizes = [1, 300_000, 70_000, 1_000_000]
    waiting = [model.queue(f"q{size}", weigh=size) for size in sizes]
    gate.open()
    answers = [future.result() for future in waiting]
    assert [(a["id"], len(a["weight"]), a["batch"]) for a in answers] == [
        (f"q{size}", size, 4) for size in sizes
    ]


def _text(size):
    return random.Random(size).randbytes(size // 2).hex()


@pytest.mark.parametrize("kind", ["application/json", "form"])
def test_bodies_of_all_sizes_arrive_whole_and_each_in_its_place(serve, wait_until, kind):
    """Also in forms, and in batches of small and large ones."""
    model = serve("ordered", batch_size=8)
    gate, _ = model.hold()
    sizes = (2, 16_000, 17_000, 70_000, 300, 262_144, 1_000_000, 6_400_000)
    loads = [_text(size) for size in sizes]
    bodies = [model.wrap({"id": f"q{i}", "load": load}) for i, load in enumerate(loads)]
    header = {"Content-Type": kind}
    if kind == "form":
        head = '--x\r\nContent-Disposition: form-data; name="data"\r\n\r\n'
        bodies = [f"{head}{body}\r\n--x--\r\n" for body in bodies]
        header = {"Content-Type": "multipart/form-data; boundary=x"}
    waiting = [
        model.site.pool.submit(model.site.inference, "POST", model.address, body, header)
        for body in bodies
    ]
    wait_until("they wait", lambda: model.waiting() == len(loads))
    gate.open()
    answers = [future.result() for future in waiting]
    assert [(a.status, a["id"], a["checksum"], a["batch"]) for a in answers] == [
        (200, f"q{i}", zlib.crc32(load.encode()), 8) for i, load in enumerate(loads)
    ]


def test_a_large_body_in_pieces_arrives_whole(serve):
    model = serve()
    load = _text(400_000)
    body = model.wrap({"id": "pieces", "load": load}).encode()
    link = http.client.HTTPConnection("127.0.0.1", model.site.server.ports.inference, timeout=60)
    with contextlib.closing(link):
        pieces = (body[i : i + 30_011] for i in range(0, len(body), 30_011))
        headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
        link.request("POST", model.address, pieces, headers, encode_chunked=True)
        answer = json.loads(link.getresponse().read())
    assert answer["checksum"] == zlib.crc32(load.encode())


@pytest.mark.parametrize(
    ("version", "connection"), [("1.1", "close"), ("1.0", ""), ("1.0", "close")]
)
def test_the_connection_ends_after_the_answer_where_the_client_says_so(serve, version, connection):
    model = serve("ordered", batch_size=4)
    body = model.wrap({"id": "last", "weigh": 3_000_000, "more": "x" * 500_000}).encode()
    head = [f"POST {model.address} HTTP/{version}", "Host: h", "Content-Type: application/json"]
    head += [f"Content-Length: {len(body)}", *([f"Connection: {connection}"] if connection else [])]
    address = ("127.0.0.1", model.site.server.ports.inference)
    with socket.create_connection(address, timeout=60) as link:
        link.sendall("\r\n".join([*head, "", ""]).encode() + body)
        with link.makefile("rb") as file:
            answer = file.read()  # to the end
    lines, _, content = answer.partition(b"\r\n\r\n")
    assert b" 200" in lines.splitlines()[0]
    assert b"connection: close" in lines.lower() or version == "1.0"
    assert len(json.loads(content)["weight"]) == 3_000_000


@pytest.mark.support("REST predictions, KServe v1 and v2")
def test_kserve_rest_requests_share_batches_and_get_their_own_answers(serve):
    model = serve("ordered", batch_size=4)
    tensors = [
        [{"name": "x", "datatype": "INT64", "shape": [1], "data": [i * i]}] for i in range(8)
    ]
    for path in (f"/v2/models/{model.name}/infer", f"/v1/models/{model.name}:predict"):
        gate, _ = model.hold()
        waiting = [model.queue(f"q{i}", path=path, inputs=tensors[i]) for i in range(8)]
        gate.open()
        for i, future in enumerate(waiting):
            answer = future.result()
            assert answer.status == 200, answer
            assert (answer["id"], answer["outputs"][0]["data"]) == (f"q{i}", [i * i])
            assert answer["batch"] == 4


@pytest.mark.support("gRPC predictions and streaming, KServe v2 gRPC")
def test_grpc_requests_share_batches_and_get_their_own_answers(serve, grpc_client, wait_until):
    model = serve("ordered", batch_size=8)
    gate, _ = model.hold()

    def ask(i):
        return json.loads(grpc_client.predict(model.name, {"data": b'{"id": "g%d"}' % i}))

    with ThreadPoolExecutor(16) as pool:
        waiting = [pool.submit(ask, i) for i in range(16)]
        wait_until("all wait", lambda: model.waiting() == 16)
        gate.open()
        answers = [future.result() for future in waiting]
    assert [a["id"] for a in answers] == [f"g{i}" for i in range(16)]
    assert [a["batch"] for a in answers] == [8] * 16


@pytest.mark.support("gRPC predictions and streaming, KServe v2 gRPC")
def test_kserve_grpc_requests_get_their_own_answers(site, serve, grpc_calls):
    model = serve(batch_size=4)
    requests = [(f"g{i}", i * i) for i in range(20)]
    answers = grpc_calls.infer(site.server.grpc_inference, model.name, requests)
    assert answers == [(request, [x]) for request, x in requests]


def _parts(request, count):
    return " ".join(f"{request}:{part}" for part in range(count))


@pytest.mark.support("Streaming answers (`send_intermediate_predict_response`)")
def test_streamed_answers_arrive_whole_and_apart(site, serve):
    """Both requests are in one batch: a reply carries a part of each."""
    model = serve("patient", handler="stream", batch_size=4, max_batch_delay=20_000)
    futures = [model.send(f"s{i}", parts=20) for i in range(4)]
    for i, future in enumerate(futures):
        assert future.result().text == _parts(f"s{i}", 20)
    assert model.state()["batches"] == {"4": 1}


@pytest.mark.support("gRPC predictions and streaming, KServe v2 gRPC")
def test_streamed_grpc_answers_arrive_part_by_part(site, serve, grpc_calls):
    model = serve(handler="stream")
    body = b'{"id": "s", "parts": 5}'
    parts = list(grpc_calls.stream(site.server.grpc_inference, model.name, body))
    assert [part.strip() for part in parts] == _parts("s", 5).split()


def test_a_handler_that_raises_fails_its_batch_and_nothing_else(serve):
    model = serve("ordered", batch_size=2)
    gate, _ = model.hold()
    good, bad, after = (model.queue("good"), model.queue("bad", fail=True), model.queue("after"))
    gate.open()
    assert [f.result().status for f in (good, bad, after)] == [503, 503, 200]
    assert good.result()["message"] == "Prediction failed"
    assert model.state()["groups"][0]["workers"][0]["restarts"] == 0


def test_an_answer_that_cannot_be_sent_costs_no_worker_and_runs_once(serve):
    model = serve()
    answer = model.ask("odd", odd=True)
    assert (answer.status, answer["message"]) == (503, "Unsupported model output data type.")
    pid = model.ask("whole")["pid"]
    assert model.order() == ["odd", "whole"]
    assert {row["pid"] for row in model.ran()} == {pid}


def test_a_phrase_of_any_letters_is_answered(serve):
    model = serve()
    assert model.ask("said", phrase="Ungültig").status == 400
    pid = model.ask("whole")["pid"]
    assert model.order() == ["said", "whole"]
    assert {row["pid"] for row in model.ran()} == {pid}
