"""Workers that the network front end feeds, and the front end as the server keeps it."""

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from shunter.batching.forming.latency import SKIP
from shunter.batching.page import holds
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import HEADER_SIZE, HOLDER_FIELDS, HOLDER_SIZE, RUNNERS_OFFSET
from shunter.batching.page.slices import EVERY
from shunter.nic_frontend.client import BadRequestError, InferenceError, Session, TooLateError

pytestmark = pytest.mark.e2e

X = {"name": "x", "dtype": "float32", "shape": [4]}
TENSORS = {
    "inputs": [X],
    "outputs": [{**X, "name": "y"}, {"name": "pid", "dtype": "int64", "shape": [1]}],
}
SECTION = {"tensors": TENSORS, "network": "1x1x8"}
NUMBERS = np.array([1, 2, 3, 4], np.float32)


@pytest.fixture(scope="module")
def served(torchserve_site):
    """A model that both front ends serve."""
    model = torchserve_site.add(handler="tensors", config={"shunter": SECTION}, batch_size=4)
    yield model
    model.end()


@pytest.fixture
def client(wait_until):
    """Opens sessions with a model as soon as there is a front end with a worker for it."""
    with contextlib.ExitStack() as stack:

        def opened(site, name):
            port = network(site)["port"]
            try:
                return Session(f"udp://127.0.0.1:{port}", name, timeout_s=20) if port else None
            except InferenceError:
                return None

        def client(site, name):
            found = wait_until("a session", lambda: opened(site, name))
            return stack.enter_context(found)

        yield client


def network(site):
    """State of the network front end."""
    return site.status()["front_end"]


def runs(pid):
    """Whether it has not ended; orphans are buried later."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def ask(client):
    """The numbers and the pid that the model answers."""
    y, pid = client.infer([NUMBERS])
    return y.tolist(), int(pid[0])


def fed(model):
    """The worker that the network front end feeds."""
    groups = [g for g in model.state()["groups"] if g["front_end"] == "network"]
    [worker] = groups[0]["workers"]
    return worker


def test_both_front_ends_give_the_same_answers(served, client, site, wait_until):
    answer = served.ask(x=NUMBERS.tolist())
    y, pid = ask(client(site, served.name))
    assert (answer.status, answer["y"]) == (200, y) == (200, [3, 5, 7, 9])
    assert pid == fed(served)["pid"] != answer["pid"]
    assert sorted(served.pids()) == sorted([pid, answer["pid"]])
    wait_until("its numbers", lambda: (served.state()["network"] or {}).get("sessions") == 1)
    told = served.state()["network"]
    assert (told["workers"], told["queued"]) == (1, 0)
    assert told["entries"] >= told["free"] > 0 < told["credit"]
    front_end = lambda: site.page_status()["front_end"]  # noqa: E731
    wait_until("its request", lambda: front_end()["counters"]["requests"] >= 1)
    assert front_end()["state"] == "running"
    metrics = site.metrics()
    assert f'shunter_nic_workers{{model="{served.name}",version="1.0",}} 1.0' in metrics
    assert "shunter_nic_requests_total" in metrics
    assert 'shunter_nic_drops_total{reason="tag",} 0.0' in metrics
    assert "shunter_nic_rtt_seconds_count" in metrics


def test_only_strict_requests_hold_the_slices_of_their_workers(served, site, client, wait_until):
    """Best-effort work elsewhere in the server stands still for what comes by the network."""
    path = Path(site.status()["runtime"]) / "control"
    session = client(site, served.name)
    with ControlPage.attach(path, writable=False) as page:

        def held_ns():
            """When the front end's line was raised last; the first line is the server's own."""
            at = HOLDER_FIELDS["hold_since_ns"].offset
            starts = range(HEADER_SIZE + HOLDER_SIZE, RUNNERS_OFFSET, HOLDER_SIZE)
            return max(page.words[(start + at) // 8] for start in starts)

        before = held_ns()
        session.infer([NUMBERS], best_effort=True)
        assert held_ns() == before
        session.infer([NUMBERS], best_effort=False)
        assert held_ns() > before
        wait_until("nothing is held", lambda: not holds.held(page, EVERY, time.monotonic_ns()))


def test_scaling_leaves_them_alone(served, site, client):
    pid = fed(served)["pid"]
    assert served.scale(2).status == 200
    assert len(served.pids()) == 3
    assert served.configuration()["configuration"] == "2x0x4"
    assert served.scale(1).status == 200
    assert fed(served)["pid"] == pid == ask(client(site, served.name))[1]


def test_without_the_front_end_http_is_served_and_it_comes_back(
    served, site, client, load, wait_until
):
    before = network(site)
    worker = ask(client(site, served.name))[1]
    with load(served, clients=4, x=NUMBERS.tolist()) as clients:
        enough = len(clients.answers) + 50
        wait_until("load", lambda: len(clients.answers) > enough)
        os.kill(before["pid"], signal.SIGKILL)
        wait_until("another one", lambda: network(site)["pid"] not in (0, before["pid"]))
        enough = len(clients.answers) + 50
        wait_until("load", lambda: len(clients.answers) > enough)
    assert network(site)["restarts"] == before["restarts"] + 1
    assert network(site)["port"] == before["port"]
    assert ask(client(site, served.name)) == ([3, 5, 7, 9], worker)


def test_a_killed_worker_is_started_again(served, site, client, wait_until):
    before = fed(served)["restarts"]
    with pytest.raises(InferenceError, match="worker died"):
        client(site, served.name).infer([np.full(4, 13, np.float32)], timeout_s=20)
    wait_until("it is back", lambda: fed(served)["restarts"] == before + 1)
    wait_until("it has loaded", lambda: fed(served)["state"] == "READY")
    assert ask(client(site, served.name))[1] == fed(served)["pid"]


def test_a_worker_that_hangs_is_replaced(serve, site, client, wait_until):
    config = {"shunter": SECTION, "responseTimeout": 1}
    model = serve(handler="tensors", config=config)
    hung = client(site, model.name)
    pid = ask(hung)[1]
    with pytest.raises(InferenceError, match="worker died"):
        hung.infer([np.full(4, 14, np.float32)], timeout_s=20)
    wait_until("it has ended", lambda: not runs(pid))
    wait_until("another one has loaded", lambda: fed(model)["state"] == "READY")
    assert ask(client(site, model.name))[1] == fed(model)["pid"] != pid


def test_an_unregistered_model_leaves_the_front_end(serve, site, client, wait_until):
    model = serve(handler="tensors", config={"shunter": SECTION})
    open_client = client(site, model.name)
    pid = ask(open_client)[1]
    assert model.site.management("DELETE", f"/models/{model.name}/1.0").status == 200
    wait_until("its worker has ended", lambda: not runs(pid))

    def refused():
        try:
            Session(f"udp://127.0.0.1:{network(site)['port']}", model.name).close()
        except InferenceError as error:
            return isinstance(error, BadRequestError) and "no such model" in str(error)
        return False  # it has not heard of the worker's end

    wait_until("the front end has looked at the page again", refused)


def test_requests_take_class_and_deadline_of_the_model(
    serve, site, client, tmp_path, wait_until
):
    gate = tmp_path / "gate"
    shunter = {**SECTION, "network": "1x1x1", "class": "best_effort", "slo_ms": 200}
    shunter["environment"] = {"TENSORS_GATE": str(gate)}
    model = serve("ordered", handler="tensors", config={"shunter": shunter})

    def told(name):
        return (model.state()["network"] or {}).get(name)

    def send(first, **terms):
        session = client(site, model.name)
        return site.pool.submit(session.infer, [NUMBERS + first - 1], timeout_s=60, **terms)

    last = client(site, model.name)
    wait_until("its policy", lambda: told("sessions"))  # it is taken at the same moment
    futures = [send(15)]
    wait_until("it runs", model.order)
    futures.append(send(1))
    wait_until("it waits", lambda: told("queued") == 1)
    with pytest.raises(TooLateError):
        last.infer([NUMBERS + 1], best_effort=False, timeout_s=60)
    futures.append(send(3, best_effort=False, deadline_ms=600_000))
    wait_until("both wait", lambda: told("queued") == 2)
    gate.touch()
    assert [int(future.result()[0][0]) for future in futures] == [31, 3, 7]
    assert model.order() == [15, 3, 1]


def test_admission_and_what_became_of_requests_are_in_the_metrics(
    serve, site, client, tmp_path, wait_until
):
    """One that is in time, one that is late, one that would be and is refused, one without."""
    gate = tmp_path / "gate"
    shunter = {**SECTION, "network": "1x1x1", "environment": {"TENSORS_GATE": str(gate)}}
    model = serve("admitting", handler="tensors", config={"shunter": shunter})
    session, other = client(site, model.name), client(site, model.name)
    told = lambda: model.state()["network"] or {}  # noqa: E731
    wait_until("its policy", lambda: told().get("sessions"))

    def held(**terms):
        """One that runs until the gate is open."""
        count = len(model.order())
        future = site.pool.submit(session.infer, [NUMBERS + 14], timeout_s=60, **terms)
        wait_until("it runs", lambda: len(model.order()) > count)
        return future

    for _ in range(SKIP):  # first batches say nothing of the next ones
        ask(session)
    first = held(deadline_ms=600_000)
    time.sleep(2)  # so long it will be predicted to last
    gate.touch()
    first.result()
    gate.unlink()
    late = held(deadline_ms=100)
    with pytest.raises(TooLateError, match="predicted to miss the deadline") as caught:
        other.infer([NUMBERS], deadline_ms=800, timeout_s=60)
    assert not caught.value.may_have_run
    last = site.pool.submit(other.infer, [NUMBERS], best_effort=True, timeout_s=60)
    wait_until("it waits", lambda: told()["queued"] == 1)
    time.sleep(0.2)
    gate.touch()
    assert [int(future.result()[0][0]) for future in (late, last)] == [31, 3]
    wait_until("all is told", lambda: told()["counters"]["answered"]["best_effort"] == 1)

    metrics, labels = site.metrics(), f'model="{model.name}",version="1.0"'
    expected = {
        'arrivals_total{%s,class="strict",}': 3 + SKIP,
        'arrivals_total{%s,class="best_effort",}': 1,
        'outcomes_total{%s,class="strict",outcome="answered",}': 2 + SKIP,
        'outcomes_total{%s,class="strict",outcome="rejected",}': 1,
        'outcomes_total{%s,class="strict",outcome="failed",}': 0,
        'slo_met_total{%s,class="strict",}': 1,
        'slo_missed_total{%s,class="strict",reason="late",}': 1,
        'slo_missed_total{%s,class="strict",reason="rejected",}': 1,
        'slo_missed_total{%s,class="best_effort",reason="late",}': 0,
        'latency_seconds_bucket{%s,class="strict",le="+Inf",}': 2 + SKIP,
        'batch_size_bucket{%s,le="1.0",}': 3 + SKIP,
        "batch_size_sum{%s,}": 3 + SKIP,
    }
    for text, value in expected.items():
        assert f"shunter_nic_{text % labels} {value:.1f}\n" in metrics, text
    attainment = f"shunter_nic_slo_attainment{{{labels},class="
    assert f'{attainment}"strict",}} 0.333333' in metrics
    assert f'{attainment}"best_effort",}} NaN' in metrics
    state, front_end = told(), network(site)
    share = state["slo_attainment"]
    assert share == {"strict": pytest.approx(1 / 3, abs=1e-5), "best_effort": None}
    assert state["mean_latency_ms"]["strict"] >= 2200 / (2 + SKIP)
    assert state["batches"] == {"1": 3 + SKIP}
    assert front_end["counters"]["rejected"] >= 1
    assert front_end["landing"]["blocks"] >= front_end["landing"]["free"] > 0
    assert "shunter_nic_landing_free" in metrics and "shunter_nic_landing_wanted" in metrics
    assert not front_end["landing"]["scarce"]
    [seen] = [m for m in site.page_status()["models"] if m["name"] == model.name]
    assert seen["network"] == state
    assert seen["counters"]["arrivals"] == {"strict": 0, "best_effort": 0}  # of those over HTTP


def test_the_client_timeout_of_torchserve_is_a_deadline_of_all(
    serve, client, site, tmp_path, wait_until
):
    gate = tmp_path / "gate"
    shunter = {**SECTION, "network": "1x1x1", "environment": {"TENSORS_GATE": str(gate)}}
    config = {"shunter": shunter, "clientTimeoutInMills": 200}
    model = serve("ordered", handler="tensors", config=config)
    first, second = (client(site, model.name) for _ in range(2))
    wait_until("its policy", lambda: (model.state()["network"] or {}).get("sessions"))
    held = site.pool.submit(first.infer, [NUMBERS + 14], timeout_s=60)
    wait_until("it runs", model.order)
    for terms in ({}, {"best_effort": True}, {"deadline_ms": 600_000}):
        with pytest.raises(TooLateError):
            second.infer([NUMBERS], timeout_s=60, **terms)
    gate.touch()
    assert int(held.result()[0][0]) == 31
    assert model.order() == [15]


def test_who_names_no_version_gets_the_default_and_stays_with_it(serve, site, client, wait_until):
    config = {"shunter": SECTION}
    old = serve(handler="tensors", config=config)
    new = serve(old.name, version="2.0", handler="tensors", config=config)
    workers = [fed(model)["pid"] for model in (old, new)]
    wait_until("both serve", lambda: (new.state()["network"] or {}).get("workers"))
    first = client(site, old.name)
    assert ask(first)[1] == workers[0]
    assert site.management("PUT", f"/models/{old.name}/2.0/set-default").status == 200
    wait_until("it is told", lambda: ask(client(site, old.name))[1] == workers[1])
    assert ask(first)[1] == workers[0]


def test_a_worker_that_does_not_load_fails_the_registration(site):
    shunter = {**SECTION, "environment": {"ECHO_NO_LOAD": __file__}}
    archive = site.archives.add("noload", "tensors", config={"shunter": shunter})
    answer = site.register("noload", archive)
    assert answer.status == 500, answer
    assert "noload" not in site.models()


def test_a_handler_that_cannot_serve_tensors_fails_the_registration(site):
    archive = site.archives.add("untensored", "plain", config={"shunter": SECTION})
    answer = site.register("untensored", archive)
    assert answer.status == 500, answer
    assert "has neither infer(inputs, outputs) nor inference(batch)" in site.log()
    assert "untensored" not in site.models()


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"network": "1x1x8"}, 'shunter.network: "1x1x8" needs shunter.tensors'),
        ({**SECTION, "network": "1x8"}, 'shunter.network: "1x8" is not INSTANCESxTHREADSxBATCH'),
        ({**SECTION, "network": "65x1x1"}, "at most 64 workers with batches of at most 4096"),
        ({"tensors": []}, 'shunter.tensors: "[]" is not a mapping'),
        ({"tensors": {"in": []}}, "shunter.tensors.in is not known; allowed: answer_bytes"),
        ({"tensors": {"inputs": [X]}}, 'shunter.tensors.outputs: "null"; allowed: a list'),
        ({"tensors": {**TENSORS, "inputs": [{}]}}, 'inputs[0].name: "null"; allowed: a text'),
        ({"tensors": {**TENSORS, "inputs": [X, X]}}, 'inputs: "x" is there twice'),
        (
            {"tensors": {**TENSORS, "inputs": [{**X, "dtype": "float31"}]}},
            'shunter.tensors.inputs[0].dtype: "float31"; allowed: bool, uint8',
        ),
        (
            {"tensors": {**TENSORS, "inputs": [{**X, "shape": [-2]}]}},
            'shunter.tensors.inputs[0].shape: "[-2]"; allowed: a list of sizes',
        ),
        ({"tensors": {**TENSORS, "batched": 1}}, 'tensors.batched: "1"; allowed: true, false'),
        ({"tensors": {**TENSORS, "ragged": True}}, "tensors.ragged: all requests have the same"),
        ({"tensors": {**TENSORS, "answer_bytes": 0}}, 'answer_bytes: "0"; allowed: bytes, from 1'),
        (
            {"tensors": {**TENSORS, "batched": True, "buckets": [2, 2]}},
            'tensors.buckets: "[2, 2]"; allowed: a list of sizes, each larger than the last',
        ),
        (
            {"tensors": {**TENSORS, "batched": True, "buckets": [2], "ragged": True}},
            "tensors.buckets: where tensors are ragged nothing is padded",
        ),
        (
            {"tensors": {**TENSORS, "inputs": [{**X, "dims": 4}]}},
            "shunter.tensors.inputs[0].dims is not known; allowed: dtype, name, shape",
        ),
    ],
)
def test_a_mistake_fails_the_registration(site, section, message):
    archive = site.archives.add("wrong", "tensors", config={"shunter": section})
    answer = site.register("wrong", archive)
    assert (answer.status, answer["type"]) == (400, "BadRequestException"), answer
    assert message in answer["message"]
    assert "wrong" not in site.models()


def test_it_waits_for_its_port_and_ends_with_a_server_that_was_killed(
    harness, archives, plugins, make_server, tmp_path, wait_until, client
):
    settings = tmp_path / "shunter.toml"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        settings.write_text(f"[nic]\nenabled = true\nport = {port}\ntcp = false\n")
        model = archives.add("killed", "tensors", config={"shunter": SECTION})
        server = make_server(plugins, models=[model], config={"shunter_config": str(settings)})
        server.start()
        with contextlib.ExitStack() as stack:
            stack.callback(server.stop)
            site = harness.Site(server, archives, tmp_path)
            told = f"cannot serve at UDP 127.0.0.1 port {port}: Address already in use"
            wait_until("it says why", lambda: told in site.log())
            assert network(site)["state"] == "restarting"
            taken.close()
            wait_until("it serves", lambda: network(site)["port"] == port)
            _, worker = ask(client(site, "killed"))
            pid = network(site)["pid"]
            settings.write_text(settings.read_text() + "spin_us = 1\n")
            os.kill(site.status()["controller"]["pid"], signal.SIGHUP)
            wait_until("it has other settings", lambda: network(site)["pid"] not in (0, pid))
            assert network(site)["port"] == port
            pid = network(site)["pid"]
            os.kill(server.pid, signal.SIGKILL)
            wait_until("it has ended", lambda: not runs(pid))
            wait_until("its worker too", lambda: not runs(worker))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
                free.bind(("127.0.0.1", port))
