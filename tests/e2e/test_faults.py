"""Workers, clients and the controller may go at any moment; requests do not."""

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import zlib

import psutil
import pytest

pytestmark = pytest.mark.e2e


def _restarted(model, before):
    """Whether every worker runs again, none of them as one of the processes ``before``.

    In this order: whole may still be what it was before the death was noticed.
    """
    return not set(model.pids()) & set(before) and model.is_whole()


def test_a_large_body_runs_once_more_when_its_worker_dies(serve):
    model = serve("ordered", initial_workers=1, batch_size=2)
    loads = [random.Random(i).randbytes(100_000).hex() for i in range(3)]
    gate, [held] = model.hold(load=loads[0])
    waiting = [model.queue(f"q{i}", load=loads[i]) for i in (1, 2)]
    [pid] = model.pids()
    os.kill(pid, signal.SIGKILL)
    gate.open()
    answers = [future.result() for future in (held, *waiting)]
    assert [(a.status, a["checksum"]) for a in answers] == [
        (200, zlib.crc32(load.encode())) for load in loads
    ]
    assert {a["pid"] for a in answers}.isdisjoint({pid})


@pytest.mark.both_servers
def test_requests_wait_for_a_worker_that_takes_long_to_come_back(serve):
    model = serve()
    model.slow_load.touch()
    os.kill(model.pids()[0], signal.SIGKILL)
    model.wait_slow_load()
    waits = model.send("waits")
    time.sleep(13)  # behind Triton they wait 10 s for one that nobody starts
    assert not waits.done()
    model.slow_load.unlink()
    assert waits.result().status == 200


@pytest.mark.both_servers
def test_workers_killed_under_load_cost_no_request_and_come_back(serve, load, wait_until):
    model = serve(batch_size=4, initial_workers=2)
    before = model.pids()
    with load(model, clients=8, sleep_ms=5) as clients:
        for pid in before:  # one after the other: who loses two workers is taken for the cause
            enough = len(clients.answers) + 50
            wait_until("load", lambda n=enough: len(clients.answers) > n)
            # On a busy host it may still be at its first batch, and then would never have answered.
            wait_until("it serves", lambda p=pid: p in {each["pid"] for each in clients.answers})
            os.kill(pid, signal.SIGKILL)
            wait_until("it is back", lambda p=pid: _restarted(model, [p]))
        now = {*before, *model.pids()}
        wait_until("all serve", lambda: {each["pid"] for each in clients.answers} == now)
    if model.tells_more:
        workers = model.state()["groups"][0]["workers"]
        assert [worker["restarts"] for worker in workers] == [1, 1]


@pytest.mark.both_servers
def test_a_child_that_a_handler_has_forked_does_not_hide_that_its_worker_is_gone(
    serve, tmp_path, wait_until
):
    model = serve()
    pid = model.ask()["pid"]
    goes_on = tmp_path / "goes on"
    goes_on.touch()
    try:
        assert model.ask(fork=str(goes_on))["pid"] == pid
        os.kill(pid, signal.SIGKILL)
        wait_until("another worker", lambda: model.ask()["pid"] != pid and model.is_whole())
    finally:
        goes_on.unlink()


def test_a_worker_that_stands_still_under_load_is_replaced_and_costs_no_request(
    serve, load, wait_until
):
    """What it held runs again where it may; the others serve meanwhile."""
    model = serve(batch_size=4, initial_workers=2, config={"responseTimeout": 2})
    stopped, _ = model.pids()
    with load(model, headers={"x-shunter-idempotent": "true"}, sleep_ms=5) as clients:
        wait_until("load", lambda: len(clients.answers) > 50)
        os.kill(stopped, signal.SIGSTOP)
        wait_until("it is back", lambda: _restarted(model, [stopped]))
        enough = len(clients.answers) + 100
        wait_until("load", lambda: len(clients.answers) > enough)
    assert not psutil.pid_exists(stopped)


@pytest.mark.both_servers
def test_what_a_killed_worker_ran_runs_once_more_elsewhere(serve):
    model = serve(batch_size=4, initial_workers=2)
    gate, futures = model.hold()
    first = model.ran()[0]["pid"]
    os.kill(first, signal.SIGKILL)
    gate.open()
    answer = futures[0].result()
    assert answer.status == 200 and answer["pid"] != first
    assert model.order() == ["held", "held"]
    assert not model.tells_more or model.count("retried") == 1


def test_a_poison_request_ends_two_workers_and_fails_alone(serve):
    model = serve("ordered", batch_size=4)
    gate, _ = model.hold()
    requests = [("g0", False), ("poison", True), ("g1", False), ("g2", False)]
    futures = [model.queue(request, crash=crash) for request, crash in requests]
    gate.open()
    poison = futures.pop(1).result()
    assert poison.status == model.KILLED, poison
    assert ("ended 2 workers" if model.tells_more else "of this request") in poison["message"]
    assert [future.result().status for future in futures] == [200] * 3
    assert len({row["pid"] for row in model.ran() if row["id"] == "poison"}) == 2
    # In the first batch together, then each alone.
    assert sorted(model.order()) == sorted(["held", *["g0", "poison", "g1", "g2"] * 2])
    assert {row["batch"] for row in model.ran()[5:]} == {1}
    assert (model.count("failed"), model.count("answered")) == (1, 4)
    if model.tells_more:
        assert model.count("poisoned") == 1
        line = next(line for line in model.site.log().splitlines() if poison.request in line)
        assert "ordered/1.0" in line and "answered 507" in line
    assert model.ask().status == 200


def test_a_request_that_a_dead_worker_had_not_begun_is_not_blamed(serve, wait_until):
    model = serve(batch_size=4)
    gate, poison = model.hold("poison", crash=True)
    innocent = model.send("innocent")
    wait_until("it is sent ahead", lambda: model.state()["in_flight"]["batches"] == 2)
    other = model.queue("other")
    gate.open()
    assert poison[0].result().status == 507
    # It went back to the queue like any other: those that saw a death run alone.
    assert [future.result()["batch"] for future in (innocent, other)] == [2, 2]
    assert model.order() == ["poison", "poison", "innocent", "other"]


def test_a_worker_that_does_not_answer_is_replaced_and_its_request_not_run_again(serve):
    model = serve(config={"responseTimeout": 1})
    before = model.pids()
    gate = model.gate()  # never opened
    stuck = model.ask("stuck", **gate.mark)
    assert stuck.status == 500 and "responseTimeout of 1 s" in stuck["message"]
    assert model.order() == ["stuck"]
    idempotent = model.ask("again", headers={"X-Shunter-Idempotent": "true"}, **gate.mark)
    assert idempotent.status == 500 and "ended 2 workers" in idempotent["message"]
    assert model.order() == ["stuck", "again", "again"]
    assert model.ask("next").status == 200
    assert not set(model.pids()) & set(before)


@pytest.mark.parametrize(
    ("variables", "why"),
    [
        ({}, "ModuleNotFoundError: No module named 'no_such_package'"),
        ({"BROKEN_WORDS": "this host has no licence"}, "this host has no licence"),
    ],
)
def test_why_a_model_does_not_load_is_told_wherever_one_looks(site, wait_until, variables, why):
    config = {"maxRetryTimeoutInSec": 1, "shunter": {"environment": variables}}
    archive = site.archives.add("broken", "broken", config=config)
    assert site.register("broken", archive, initial_workers=0).status == 200
    said = site.management("PUT", "/models/broken", min_worker=1, synchronous="true")
    assert said.status == 500 and said["type"] == "InternalServerException"
    assert said["message"].startswith("Failed to start workers for model broken version: 1.0; ")
    assert why in said["message"]

    def problem(status):
        return next((m["problem"] for m in status["models"] if m["name"] == "broken"), "")

    wait_until("status", lambda: why in problem(site.status()))
    told = site.management("GET", "/shunter/events").json["events"]
    assert any(each["about"] == "broken/1.0" and why in each["text"] for each in told)
    assert why in problem(site.page_status())
    assert why in site.management("GET", "/shunter/models/broken")["problem"]
    wait_until("it is given up", lambda: not site.management("GET", "/models/broken")[0]["workers"])
    answer = site.inference("POST", "/predictions/broken", "x")
    assert answer.status == 503 and "no worker left" in answer["message"]
    assert why in answer["message"]
    assert site.management("DELETE", "/models/broken").status == 200
    log = site.log()
    assert any(why in line and "was lost in state LOADING" in line for line in log.splitlines())
    if not variables:  # the whole traceback
        assert 'broken.py", line ' in log and f"MODEL_LOG - {why}" in log

def test_what_must_not_run_twice_is_answered_when_its_worker_dies(serve, grpc_client):
    import grpc

    model = serve(config={"shunter": {"retry": False}})
    assert model.ask("model", crash=True).status == 507
    again = model.ask("again", crash=True, headers={"x-shunter-idempotent": "true"})
    assert again.status == 507 and "ended 2 workers" in again["message"]
    other = serve()
    assert other.ask("once", crash=True, headers={"x-shunter-idempotent": "false"}).status == 507
    body = json.dumps({"id": "grpc", "crash": True}).encode()
    with pytest.raises(grpc.RpcError) as error:
        grpc_client.predict(other.name, {"data": body, "x-shunter-idempotent": b"false"})
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED  # as stock
    assert "not run again" in error.value.details()
    whole = grpc_client.predict(
        other.name, {"data": b'{"id": "keys"}', "x-shunter-idempotent": b"true"}
    )
    assert json.loads(whole)["keys"] == ["data"]
    assert model.order() == ["model", "again", "again"]
    assert other.order() == ["once", "grpc", "keys"]


PIPELINED = 200


def _pipeline(site, model):
    """Send many requests on a connection, at most 40 ahead of the answers; count those."""
    text = json.dumps({"id": "pipelined"})
    head = f"POST /predictions/{model.name} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
    request = f"{head}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()
    sent = answered = 0
    received = b""
    with socket.create_connection(("127.0.0.1", site.server.ports.inference), timeout=60) as link:
        while answered < PIPELINED:
            more = min(PIPELINED - sent, 40 - (sent - answered))
            link.sendall(request * more)
            sent += more
            part = link.recv(1 << 16)
            assert part, received[-1000:]
            received += part
            answered = received.count(b"HTTP/1.1 200")
    return answered


def test_pipelined_requests_beside_ordinary_ones_are_all_answered(serve, site, load):
    model = serve(config={"jobQueueSize": 1000}, batch_size=8, initial_workers=2)
    with load(model, clients=8):
        pipelines = [site.pool.submit(_pipeline, site, model) for _ in range(6)]
        assert [pipeline.result() for pipeline in pipelines] == [PIPELINED] * 6
    workers = model.state()["groups"][0]["workers"]
    assert [worker["restarts"] for worker in workers] == [0, 0]


def test_what_waits_for_workers_that_cannot_come_back_is_answered_503(serve, site, wait_until):
    model = serve("ordered", config={"maxRetryTimeoutInSec": 1})
    gate, futures = model.hold()
    futures.append(model.queue("waits"))
    model.no_load.touch()
    os.kill(model.pids()[0], signal.SIGKILL)
    for future in futures:
        assert future.result().status == 503
        assert "no worker left" in future.result()["message"]
    assert site.inference("GET", "/ping").status == 500
    gate.open()
    model.no_load.unlink()
    assert model.scale(1).status == 200
    assert model.ask().status == site.inference("GET", "/ping").status == 200


def test_who_is_given_up_is_missed_by_ping_until_the_model_is_scaled_again(serve, site, wait_until):
    model = serve(initial_workers=2, config={"maxRetryTimeoutInSec": 1})

    def ping():
        return site.inference("GET", "/ping")["status"]

    assert ping() == "Healthy"
    model.no_load.touch()
    os.kill(model.pids()[0], signal.SIGKILL)
    wait_until("it is given up", lambda: len(model.pids()) == 1)
    assert ping() == "Unhealthy"
    model.no_load.unlink()
    assert model.scale(2).status == 200
    assert ping() == "Healthy"


def test_a_streamed_answer_whose_worker_dies_is_cut_and_not_repeated(serve):
    model = serve(handler="stream")
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        model.ask("s", parts=9, crash_after=2)
    assert (model.count("failed"), model.count("retried")) == (1, 0)
    assert model.ask("t", parts=2).text == "t:0 t:1"


def _request(site, model, body):
    """A connection on which a request was sent."""
    text = json.dumps(body)
    head = f"POST /predictions/{model.name} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json"
    link = socket.create_connection(("127.0.0.1", site.server.ports.inference))
    link.sendall(f"{head}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
    return link


def _heap(site):
    """Bytes of arrays of bytes that are in use on the server's heap."""
    command = ["jcmd", str(site.server.pid), "GC.class_histogram"]  # collects garbage before
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return next(int(line.split()[2]) for line in lines if line.split()[3:4] == ["[B"])


@pytest.mark.skipif(shutil.which("jcmd") is None, reason="needs a JDK")
def test_idle_connections_keep_no_body_alive(site, serve):
    model = serve()
    before = _heap(site)
    with contextlib.ExitStack() as links:
        for number in range(40):
            weight = "x" * (1 << 20)
            link = links.enter_context(_request(site, model, {"id": str(number), "x": weight}))
            assert link.recv(65536).startswith(b"HTTP/1.1 200")
        assert _heap(site) - before < 10 << 20


def test_requests_of_clients_that_hung_up_leave_the_queue(site, serve, wait_until):
    model = serve("ordered", batch_size=4)
    gate, held = model.hold()
    kept = model.queue("kept")
    with contextlib.ExitStack() as links:
        for i in range(5):
            links.enter_context(_request(site, model, {"id": f"gone{i}"}))
        wait_until("they wait", lambda: model.waiting() == 6)
    wait_until("they are gone", lambda: model.waiting() == 1)
    assert model.count("abandoned") == 5
    gate.open()
    assert [held[0].result().status, kept.result().status] == [200, 200]
    assert model.ask("after").status == 200
    assert model.order() == ["held", "kept", "after"]


def test_a_client_that_hangs_up_while_its_request_runs_costs_no_other(site, serve, wait_until):
    model = serve("patient", batch_size=4, max_batch_delay=20_000)
    gate = model.gate()
    kept = [model.send(f"k{i}", **gate.mark) for i in range(3)]
    wait_until("they wait", lambda: model.waiting() == 3)
    with _request(site, model, {"id": "gone"}):
        gate.wait_reached("k0", "k1", "k2")  # the fourth request made it a batch
    gate.open()
    assert [(f.result().status, f.result()["batch"]) for f in kept] == [(200, 4)] * 3
    assert model.count("abandoned") == 0


def test_a_cancelled_grpc_call_leaves_the_queue(site, serve, grpc_client, wait_until):
    import grpc

    model = serve("ordered")
    gate, _ = model.hold()
    with grpc_client:  # its end cancels what it waits for
        call = site.pool.submit(grpc_client.predict, model.name, {"data": b'{"id": "gone"}'})
        wait_until("it waits", lambda: model.waiting() == 1)
    with pytest.raises(grpc.RpcError):
        call.result()
    wait_until("it is gone", lambda: model.count("abandoned") == 1)
    gate.open()
    model.ask("after")
    assert model.order() == ["held", "after"]


@pytest.mark.both_servers
def test_serving_does_not_notice_that_the_controller_dies(site, serve, load, pings, wait_until):
    model = serve("ordered", batch_size=4)
    def runs():
        return site.status()["controller"]["state"] == "running"

    wait_until("it runs", runs)
    before = site.status()["controller"]
    numbers = site.commands(model)
    with pings(site), load(model) as clients:
        os.kill(before["pid"], signal.SIGKILL)
        wait_until("it is gone", lambda: not psutil.pid_exists(before["pid"]))
        assert site.commands(model) == numbers

        def another_runs():
            now = site.status()["controller"]
            return now["state"] == "running" and now["pid"] != before["pid"]

        wait_until("another runs", another_runs)
        enough = len(clients.answers) + 100
        wait_until("load", lambda: len(clients.answers) > enough)
    after = site.status()["controller"]
    assert after["state"] == "running"
    assert not model.tells_more or after["restarts"] == before["restarts"] + 1
    assert site.commands(model) == numbers
    other = serve("ageing")  # the new controller works: add() waits for its numbers
    assert other.ask().status == 200


def test_a_hung_controller_and_a_hung_front_end_are_replaced(site, serve, wait_until):
    def both(status):
        return [status[name] for name in ("controller", "front_end")]

    wait_until("both run", lambda: all(p["state"] == "running" for p in both(site.status())))
    before = both(site.status())
    for process in before:
        os.kill(process["pid"], signal.SIGSTOP)
    wait_until("it shows", lambda: {p["state"] for p in both(site.status())} == {"hung"})
    assert {p["state"] for p in both(site.page_status())} == {"hung"}
    wait_until(
        "others run",
        lambda: all(
            now["state"] == "running" and now["restarts"] == then["restarts"] + 1
            for now, then in zip(both(site.status()), before, strict=True)
        ),
        seconds=90,
    )
    assert not {p["pid"] for p in both(site.status())} & {p["pid"] for p in before}
    for name, process in zip(("controller", "network front end"), before, strict=True):
        assert f"The {name}, process {process['pid']}, has been silent" in site.log()
    assert serve("ageing").ask().status == 200
