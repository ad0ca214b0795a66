"""TorchServe's management API keeps its meaning, and costs no request."""

import json
import os
import signal
import socket
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.e2e


def _gone(pids):
    return not any(map(psutil.pid_exists, pids))


@pytest.mark.support("Management API, REST and gRPC")
def test_scaling_up_and_down_under_load_costs_no_request(site, serve, load, pings, wait_until):
    model = serve(batch_size=4, initial_workers=2)
    seen = set()
    with pings(site), load(model, clients=8, sleep_ms=2) as clients:
        for count in (3, 1, 2, 1):
            assert model.scale(count).status == 200
            wait_until("the number", lambda n=count: len(model.pids()) == n)
            enough = len(clients.answers) + 50
            wait_until("load", lambda n=enough: len(clients.answers) > n)
            seen |= set(model.pids())
    left = set(model.pids())
    assert len(left) == 1
    wait_until("the others ended", lambda: _gone(seen - left))


def test_scaling_down_lets_a_worker_finish_what_it_runs(serve, wait_until):
    """Stock kills it and runs its requests again elsewhere; both answer when it is gone."""
    model = serve(batch_size=4, initial_workers=2)
    before = model.pids()
    gate, futures = model.hold("a", "b")
    call = model.site.pool.submit(model.scale, 1)
    wait_until("it is taken up", lambda: model.state()["configuration"] == "1x0x4")
    model.state()  # one more turn of the server, in which it could answer
    assert not call.done() and not any(future.done() for future in futures)
    gate.open()
    assert {future.result()["pid"] for future in futures} == set(before)
    assert call.result().status == 200
    assert sum(map(psutil.pid_exists, before)) == 1
    assert model.order() == ["a", "b"]
    assert len(model.pids()) == 1


def test_unregistering_answers_when_the_processes_are_gone(site, serve):
    model = serve(initial_workers=2)
    pids = model.pids()
    assert site.management("DELETE", f"/models/{model.name}").status == 200
    assert _gone(pids)


def test_nobody_misses_a_model_whose_workers_are_slow_to_end(site, serve, pings, wait_until):
    model = serve(initial_workers=2)
    for pid in model.pids():
        os.kill(pid, signal.SIGSTOP)  # until it is killed
    with pings(site) as seen:
        call = site.pool.submit(model.scale, 0)
        wait_until("it is taken up", lambda: model.describe()["minWorkers"] == 0)
        enough = len(seen.answers) + 30
        wait_until("pings", lambda: len(seen.answers) > enough)
        assert call.result().status == 200


def test_a_negative_number_of_workers_is_refused_and_changes_nothing(serve):
    """Stock answers the same, after it has ended every worker."""
    model = serve(initial_workers=2)
    before = model.pids()
    refused = model.scale(-1)
    assert refused.status == 500 and "min_worker: -1" in refused["message"]
    assert model.scale(1, -1).status == 400
    assert model.scale(2, 1).status == 400
    assert model.pids() == before
    described = model.describe()
    assert (described["minWorkers"], described["maxWorkers"]) == (2, 2)


@pytest.fixture
def fresh(harness, make_server, plugins, archives, tmp_path):
    """A server on which nothing was started before."""
    with harness.running(make_server(plugins), archives, tmp_path) as site:
        yield site


def test_workers_that_end_while_they_start_leave_no_socket_and_no_number(fresh, wait_until):
    """A shared server has numbers of earlier tests to give, which may be any."""
    site = fresh
    model = site.add(initial_workers=1)
    runtime = Path(site.status()["runtime"])

    def left():
        return {path.name for path in runtime.glob("w.*")} == {
            f"w.{number}" for number in _numbers(site)
        }

    for _ in range(4):
        assert model.scale(3, wait=False).status == 202
        assert model.scale(1, wait=False).status == 202
    assert model.scale(1).status == 200
    wait_until("their processes end", lambda: len(site.server.worker_pids()) == len(_numbers(site)))
    wait_until("no other socket is left", left)
    [first] = _numbers(site)
    for _ in range(3):
        assert (model.scale(2).status, model.scale(1).status) == (200, 200)
    model.scale(2)
    assert max(_numbers(site)) <= first + 8


def _numbers(site):
    return {
        int(worker["id"])
        for model in site.status()["models"]
        for group in model["groups"]
        for worker in group["workers"]
    }


def test_calls_that_wait_for_workers_keep_no_client_waiting(site, serve):
    """Stock answers nobody while as many calls wait as it has threads for connections."""
    slow, other = (serve(batch_size=2) for _ in range(2))
    slow.slow_load.touch()
    calls = []
    for count in range(2, 7):
        calls.append(site.pool.submit(slow.scale, count))
        slow.wait_slow_load(count - 1)
    assert [other.ask().status for _ in range(8)] == [200] * 8
    assert [slow.ask().status for _ in range(8)] == [200] * 8
    assert slow.describe()["minWorkers"] == 6
    assert not any(call.done() for call in calls)
    slow.slow_load.unlink()
    assert {call.result().status for call in calls} == {200}


def test_calls_on_one_connection_are_answered_in_order(site, serve):
    model = serve()
    path = f"/models/{model.name}"
    port = site.server.ports.management
    header = "".join(f"{name}: {value}\r\n" for name, value in site._key().items())
    with socket.create_connection(("127.0.0.1", port), 60) as connection:
        for method, query in (("PUT", "?min_worker=2&synchronous=true"), ("GET", "")):
            text = f"{method} {path}{query} HTTP/1.1\r\nHost: x\r\n{header}\r\n"
            connection.sendall(text.encode())
        received = b""
        while b"jobQueueStatus" not in received:
            more = connection.recv(65536)
            assert more, received
            received += more
    assert received.index(b"Workers scaled to 2") < received.index(b"modelName")


def test_why_a_worker_does_not_load_is_told(site, archives, tmp_path, wait_until):
    flag = tmp_path / "no-load"
    flag.touch()
    section = {"environment": {"ECHO_NO_LOAD": str(flag)}}
    archive = archives.add("troubled", config={"shunter": section})
    assert site.register("troubled", archive, synchronous="false").status == 202
    path = "/shunter/models/troubled/configuration"

    def told():
        answer = site.management("GET", path).json
        return all("told to fail" in answer[key] for key in ("last_change", "problem"))

    wait_until("the cause", told)
    flag.unlink()
    wait_until("it loads", lambda: site.management("GET", path)["problem"] == "")
    assert site.management("DELETE", "/models/troubled").status == 200


def test_scaling_to_0_serves_what_waits_then_refuses_and_scaling_up_works_again(serve, wait_until):
    model = serve("ordered")
    before = model.pids()
    gate, futures = model.hold()
    futures += [model.queue(f"q{i}") for i in range(3)]
    assert model.scale(0, wait=False).status == 202
    assert model.ask("early").status == 503
    gate.open()
    assert [future.result().status for future in futures] == [200] * 4
    wait_until("no worker is left", lambda: _gone(before))
    assert model.describe()["workers"] == []
    refused = model.ask("late")
    assert refused.status == 503 and model.name in refused["message"]
    assert model.scale(1).status == 200
    assert model.ask("again").status == 200
    assert model.order() == ["held", "q0", "q1", "q2", "again"]


def test_describe_lists_the_workers_with_their_processes(serve):
    model = serve(initial_workers=2, batch_size=4, max_batch_delay=7)
    described = model.describe()
    assert (described["minWorkers"], described["maxWorkers"]) == (2, 2)
    assert (described["batchSize"], described["maxBatchDelay"]) == (4, 7)
    assert [worker["status"] for worker in described["workers"]] == ["READY"] * 2
    assert len({worker["id"] for worker in described["workers"]}) == 2
    for pid in model.pids():
        assert "shunter.handlers.torchserve.worker" in psutil.Process(pid).cmdline()


def test_an_explicit_scale_call_takes_the_model_from_the_controller(serve):
    model = serve()
    assert model.state()["auto"] is True
    model.scale(2)
    assert (model.state()["auto"], model.state()["configuration"]) == (False, "2x0x1")
    model.configure(auto="true")
    assert model.state()["auto"] is True


@pytest.mark.support("Several versions of a model")
def test_versions_are_served_apart_and_the_default_can_change(site, serve):
    old = serve("versions")
    new = serve("versions", version="2.0")
    path = f"/models/{old.name}"
    version = {old.pids()[0]: "old", new.pids()[0]: "new"}

    def asked(suffix=""):
        return version[old.ask(path=f"/predictions/{old.name}{suffix}")["pid"]]

    assert (asked(), asked("/1.0"), asked("/2.0")) == ("old", "old", "new")
    assert site.management("PUT", f"{path}/2.0/set-default").status == 200
    assert (asked(), asked("/1.0"), asked("/2.0")) == ("new", "old", "new")
    assert (old.state()["default"], new.state()["default"]) == (False, True)
    assert site.management("DELETE", f"{path}/1.0").status == 200
    assert asked() == "new"
    assert old.ask(path=f"/predictions/{old.name}/1.0").status == 404
    assert [m["version"] for m in site.status()["models"] if m["name"] == "versions"] == ["2.0"]


def test_unregistering_serves_what_waits_and_ends_the_workers(site, serve, wait_until):
    model = serve("ordered", batch_size=2)
    pids = model.pids()
    gate, futures = model.hold()
    futures += [model.queue(f"q{i}") for i in range(4)]
    removal = site.pool.submit(site.management, "DELETE", f"/models/{model.name}")
    wait_until("it is being removed", lambda: "ordered" not in str(site.status()["models"]))
    assert model.ask("late").status in (404, 503)
    gate.open()
    assert [future.result().status for future in futures] == [200] * 5
    assert removal.result().status == 200
    assert "ordered" not in site.models()
    wait_until("its worker ended", lambda: _gone(pids))
    assert model.ask("later").status == 404


def test_requests_wait_for_the_first_worker_of_a_new_model(site, archives, tmp_path, wait_until):
    slow = tmp_path / "slow-load"
    slow.touch()
    section = {"environment": {"ECHO_SLOW_LOAD": str(slow)}}
    archive = archives.add("early", config={"shunter": section})
    assert site.register("early", archive, synchronous="false").status == 202
    kind = {"Content-Type": "application/json"}
    future = site.pool.submit(site.inference, "POST", "/predictions/early", '{"id": "e"}', kind)
    path = "/shunter/models/early"
    wait_until("it waits", lambda: site.management("GET", path)["queue"]["strict"] == 1)
    slow.unlink()
    assert (future.result().status, future.result()["id"]) == (200, "e")
    assert site.management("DELETE", "/models/early").status == 200


def test_a_model_whose_workers_cannot_load_is_not_left_registered(site, archives, tmp_path):
    flag = tmp_path / "no-load"
    flag.touch()
    section = {"environment": {"ECHO_NO_LOAD": str(flag)}}
    archive = archives.add("unloadable", config={"shunter": section})
    assert site.register("unloadable", archive).status == 500
    assert "unloadable" not in site.models()
    assert "unloadable" not in json.dumps(site.status())


def test_settings_that_cannot_be_used_show_in_log_metrics_and_status(
    site, settings, wait_until
):
    def valid():
        (line,) = (x for x in site.metrics().splitlines() if x.startswith("shunter_settings_valid"))
        return float(line.split()[-1])

    def read_again(text):
        settings.write_text(text, encoding="utf-8")
        os.kill(site.status()["controller"]["pid"], signal.SIGHUP)

    good = settings.read_text(encoding="utf-8")
    assert valid() == 1
    try:
        read_again("[batching]\nalpha = 7\n")
        wait_until("the metric says so", lambda: valid() == 0)
        assert site.status()["controller"]["settings_valid"] is False
        assert site.page_status()["controller"]["settings_valid"] is False
        told = "batching.alpha = 7 is not"
        wait_until("the log says so", lambda: told in site.log())  # it comes through a pipe
        (line,) = (x for x in site.log().splitlines() if told in x)
        assert "ERROR" in line.split("controller:")[0]
    finally:
        read_again(good)
    wait_until("it is valid again", lambda: valid() == 1)
    assert site.status()["controller"]["settings_valid"] is True


def test_a_message_shows_an_equals_sign_as_one(site, serve):
    model = serve()
    answer = site.management("PUT", f"/shunter/models/{model.name}/configuration")
    assert answer.status == 400
    assert "?configuration=1x8x32" in answer.text


def test_the_metrics_port_shows_the_numbers_of_the_status(site, serve):
    model = serve("ordered")
    model.ask()
    gate, _ = model.hold(headers={"x-shunter-class": "best-effort"})
    model.ask(headers={"x-shunter-deadline-ms": "100"})
    gate.open()
    model.ask()
    labels = 'model="ordered",version="1.0",'
    rows = dict(row.rsplit(" ", 1) for row in site.metrics().splitlines() if "shunter_" in row)
    outcomes = {
        f'shunter_requests_total{{{labels}class="strict",outcome="answered",}}': 2,
        f'shunter_requests_total{{{labels}class="best_effort",outcome="answered",}}': 1,
        f'shunter_requests_total{{{labels}class="strict",outcome="expired",}}': 1,
        f'shunter_batch_size_bucket{{{labels}le="1.0",}}': 3,
        f"shunter_batch_size_sum{{{labels}}}": 3,
        f'shunter_latency_seconds_count{{{labels}class="strict",}}': 2,
        f'shunter_queue_seconds_count{{{labels}class="strict",}}': 2,
        f'shunter_service_seconds_bucket{{{labels}class="best_effort",le="+Inf",}}': 1,
        f'shunter_good_total{{{labels}class="strict",}}': 2,
        f'shunter_slo_met_total{{{labels}class="strict",}}': 0,
        f'shunter_slo_missed_total{{{labels}class="strict",reason="expired",}}': 1,
        f'shunter_slo_attainment{{{labels}class="strict",}}': 0,
        f"shunter_ready_workers{{{labels}}}": 1,
    }
    assert {name: float(rows[name]) for name in outcomes} == outcomes


def test_deadlines_are_counted_by_slice_too(site, serve, wait_until):
    groups = [{"configuration": "1x1x1", "cores": "0"}]
    model = serve("sliced", config={"shunter": {"groups": groups}})
    model.ask(headers={"x-shunter-deadline-ms": "60000"})
    model.ask(headers={"x-shunter-class": "best-effort"})
    labels = 'model="sliced",version="1.0",class="strict",group="0",slice="cpus:0",'
    rows = dict(row.rsplit(" ", 1) for row in site.metrics().splitlines() if "shunter_" in row)
    names = ("attainment", "met_total", "missed_total")
    found = {name: float(rows[f"shunter_slice_slo_{name}{{{labels}}}"]) for name in names}
    assert found == {"attainment": 1, "met_total": 1, "missed_total": 0}
    (group,) = model.state()["groups"]
    assert (group["slice"], group["device"]) == ("cpus:0", "")
    assert group["slo"]["strict"] == {"attainment": 1, "met": 1, "missed": 0}
    assert group["slo"]["best_effort"] == {"attainment": None, "met": 0, "missed": 0}

    def on_the_page():
        models = {each["name"]: each for each in site.page_status()["models"]}
        return models["sliced"]["groups"][0]

    wait_until("the page says so", lambda: on_the_page()["slo"]["strict"]["attainment"] == 1)
    assert on_the_page()["slice"] == "cpus:0"


def test_instances_follow_the_requests_in_the_server(site, serve, settings, wait_until):
    def read_again(text):
        settings.write_text(text, encoding="utf-8")
        os.kill(site.status()["controller"]["pid"], signal.SIGHUP)

    model = serve("scaled", batch_size=1)
    gate, held = model.hold()
    held += [model.send(name) for name in ("second", "third")]
    good = settings.read_text(encoding="utf-8")
    try:
        read_again(good + "\n[autoscaling]\nauto = true\ninterval_s = 0.1\nkeep_s = 0\n")
        wait_until("two more instances", lambda: model.configuration()["configuration"] == "3x0x1")
        gate.open()
        assert [future.result().status for future in held] == [200] * 3
        wait_until("one instance", lambda: model.configuration()["configuration"] == "1x0x1")
    finally:
        read_again(good)
    assert model.state()["auto"] is True


def test_what_processes_of_a_pool_say_of_their_memory_is_passed_on(site, serve):
    model = serve()
    told = {"pool": 3, "pid": os.getpid(), "models": ["a/1.0", "b/1.0"], "hot": ["a/1.0"]}
    path = Path(site.status()["runtime"]) / "pool.3.json"
    path.write_text(json.dumps({**told, "bytes": 5, "swap_ms": 1500.0}), "utf-8")
    try:
        [pool] = site.management("GET", "/shunter/memory").json["pools"]
        assert told.items() <= pool.items() and pool["age_ms"] >= 0
        lines = site.metrics().splitlines()
        assert 'shunter_pool_hot_models{pool="3",} 1.0' in lines
        assert 'shunter_pool_swap_seconds_total{pool="3",} 1.5' in lines
    finally:
        path.unlink()
    assert site.management("GET", "/shunter/memory").json == {"pools": []}
    state = model.state()
    assert state["waits_for_room"] == 0
    assert {worker["pool"] for group in state["groups"] for worker in group["workers"]} == {None}
