"""Models that share a process: it may go, and so may each of their workers; requests do not."""

import os
import signal

import psutil
import pytest

pytestmark = pytest.mark.e2e
POOLED = {"shunter": {"pool": "shared"}}


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


@pytest.mark.both_servers
def test_a_batch_that_hangs_ends_the_process_and_the_others_come_back(serve, wait_until):
    a, b = serve(config={**POOLED, "responseTimeout": 2}), serve(config=POOLED)
    pid = b.ask()["pid"]
    gate, [held] = a.hold()
    assert b.ask()["pid"] != pid
    assert held.result().status != 200
    gate.open()
    assert a.ask()["pid"] == b.ask()["pid"]
    assert not psutil.pid_exists(pid)


@pytest.mark.both_servers
def test_who_is_killed_or_unregistered_takes_nobody_with_it(serve, wait_until):
    a, b = serve(config=POOLED), serve(config=POOLED)
    pid = a.ask()["pid"]
    [seat] = b.pids()
    os.kill(seat, signal.SIGKILL)
    wait_until("it is back", lambda: b.pids() not in ([], [seat]) and b.ask()["pid"] == pid)
    b.end()
    assert a.ask()["pid"] == pid
    a.end()
    wait_until("the process has gone", lambda: not psutil.pid_exists(pid))


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
