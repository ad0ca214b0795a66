"""Models that share a process: it may go, and so may each of their workers; requests do not."""

import contextlib
import os
import signal

import numpy as np
import psutil
import pytest

from shunter.nic_frontend import build
from shunter.nic_frontend.client import InferenceError, Session

pytestmark = pytest.mark.e2e
POOLED = {"shunter": {"pool": "shared"}}


@pytest.fixture(scope="module", autouse=True)
def seats():
    """The program is built from these sources."""
    try:
        build.ensure_seat()
    except build.BuildError as error:
        pytest.skip(str(error))


def pids(clients):
    return {each["pid"] for each in clients.answers}


@pytest.mark.both_servers
def test_the_process_of_two_models_is_killed_under_load_and_costs_no_request(
    serve, load, wait_until
):
    a, b = serve(batch_size=4, config=POOLED), serve(batch_size=4, config=POOLED)
    pid = a.ask()["pid"]
    assert b.ask()["pid"] == pid
    assert pid not in {*a.pids(), *b.pids()}
    with load(a, clients=4, sleep_ms=2) as first, load(b, clients=4, sleep_ms=2) as second:
        for clients in (first, second):
            wait_until("load", lambda c=clients: len(c.answers) > 50)
        os.kill(pid, signal.SIGKILL)
        for clients in (first, second):
            wait_until("another process", lambda c=clients: pids(c) - {pid})
    assert a.ask()["pid"] == b.ask()["pid"] != pid


def test_a_child_that_a_handler_has_forked_does_not_hide_that_the_process_is_gone(
    serve, tmp_path, wait_until
):
    a, b = serve(config=POOLED), serve(config=POOLED)
    pid = a.ask()["pid"]
    goes_on = tmp_path / "goes on"
    goes_on.touch()
    try:
        assert a.ask(fork=str(goes_on))["pid"] == pid
        os.kill(pid, signal.SIGKILL)
        for each in (a, b):
            wait_until("workers are back", lambda m=each: m.ask()["pid"] != pid and m.is_whole())
    finally:
        goes_on.unlink()


def has_gone(pid):
    """Nobody may have buried it."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_batch_that_hangs_takes_the_process_with_it_and_a_killed_worker_only_its_model(
    serve, wait_until
):
    a, b = serve(config={**POOLED, "responseTimeout": 1}), serve(config=POOLED)
    pid = b.ask()["pid"]
    gate, [held] = a.hold()
    assert b.ask()["pid"] != pid
    assert held.result().status != 200
    wait_until("it has gone", lambda: has_gone(pid))
    gate.open()
    pid = a.ask()["pid"]
    [seat] = b.pids()
    os.kill(seat, signal.SIGKILL)
    wait_until("it is back", lambda: b.pids() != [seat] and b.is_whole())
    assert b.ask()["pid"] == pid
    b.end()
    assert a.ask()["pid"] == pid
    a.end()
    wait_until("the process ends with its last model", lambda: has_gone(pid))


def test_a_request_that_ends_the_process_again_and_again_costs_the_others_nothing(
    serve, load, wait_until
):
    a, b = serve(config=POOLED), serve(batch_size=4, config=POOLED)
    with load(b, clients=4, sleep_ms=2, headers={"x-shunter-idempotent": "false"}) as clients:
        wait_until("load", lambda: len(clients.answers) > 20)
        assert a.ask(crash=True).status == 500
        before = pids(clients)
        wait_until("they are served again", lambda: pids(clients) - before)
    assert a.ask().status == 200


def test_http_and_the_network_are_served_by_one_process(serve, site, wait_until):
    tensor = {"name": "x", "dtype": "float32", "shape": [4]}
    outputs = [{**tensor, "name": "y"}, {"name": "pid", "dtype": "int64", "shape": [1]}]
    section = {"tensors": {"inputs": [tensor], "outputs": outputs}, "network": "1x1x8"}
    other = serve(config=POOLED)
    model = serve(handler="tensors", config={"shunter": {**section, "pool": "shared"}})

    def opened():
        port = site.status()["front_end"]["port"]
        with contextlib.suppress(InferenceError):
            return Session(f"udp://127.0.0.1:{port}", model.name, timeout_s=20) if port else None

    with wait_until("a session", opened) as session:
        for number in range(10):
            row = np.full(4, number, np.float32)
            y, pid = session.infer([row])
            assert (y == 2 * row + 1).all(), y
    assert int(pid[0]) == other.ask()["pid"]


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"pool": "yes"}, 'shunter.pool: \\"yes\\"; allowed: shared, dedicated'),
        ({"pool": "shared", "cores": "0"}, "not possible together with shunter.cores"),
        ({"pool": "shared", "auto": True}, "not possible together with shunter.auto: true"),
    ],
)
def test_what_cannot_be_is_refused(site, section, words):
    archive = site.archives.add("refused", config={"shunter": section})
    answer = site.register("refused", archive)
    assert (answer.status, words in answer.text) == (400, True), answer.text
