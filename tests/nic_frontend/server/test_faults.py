"""Front ends, workers and clients that die or go mad: the others are unharmed."""

import os
import random
import signal
import socket
import tempfile
from pathlib import Path

import pytest

from shunter.batching.queue import attach
from shunter.nic_frontend.wire.layout import Flags, WireStatus


def is_empty(function):
    """Whether every entry is free."""
    return function["free"] == function["entries"]


def waiting_client(site, nic, kind="udp"):
    """A client of a model whose worker has died; the front end knows, and gives it nothing."""
    puppet = site.puppet()
    client = site.client(kind)
    puppet.die()
    nic.until(lambda: site.function()["workers"] == [], "its end is seen")
    return client


@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_a_worker_that_is_killed_leaves_nothing_unanswered_and_runs_nothing_twice(site, nic, kind):
    site.serve()
    client = waiting_client(site, nic, kind)
    once = [client.ask(name) for name in (1, 2)]
    twice = [client.ask(name, add=Flags.IDEMPOTENT) for name in (3, 4)]
    nic.until(lambda: site.function()["waiting"] == 4)
    site.hold()
    first = site.worker(batch=4)
    nic.until(lambda: site.ran() == [(first, [1, 2, 3, 4])], "the batch runs")
    site.kill(first)
    assert client.answers(2) == dict.fromkeys(once, WireStatus.WORKER_DIED)
    site.go_on()
    second = site.worker(batch=4)
    assert client.answers(2) == {i: client.expected(i) for i in twice}
    # Alone, so that only the cause of the death dies again.
    assert sorted(site.ran()[1:]) == [(second, [3]), (second, [4])]


def test_what_a_worker_had_not_begun_runs_in_its_turn_and_counts_once(site, nic):
    site.serve()
    puppet = site.puppet(batch=1)
    client = site.client()
    for name in range(1, 6):
        client.ask(name)
    assert puppet.names(puppet.batch()) == [1]
    nic.until(lambda: site.function()["waiting"] == 3, "one is given ahead")
    puppet.die()
    assert client.answers(1) == {1: WireStatus.WORKER_DIED}
    assert site.function()["waiting"] == 4
    other = site.puppet(batch=1)
    names = []
    for _ in range(4):
        names += other.names(other.batch())
        other.done(WireStatus.OK)
    assert names == [2, 3, 4, 5]
    assert site.look()["stats"]["requests"] == 5


def test_of_two_batches_that_a_worker_has_taken_both_may_have_run(site, nic):
    site.serve()
    puppet = site.puppet(batch=1)
    client = site.client()
    asked = [client.ask(1), client.ask(2), client.ask(3)]
    twice = client.ask(4, add=Flags.IDEMPOTENT)
    first, second = [puppet.names(puppet.batch()) for _ in range(2)]  # none of them is answered
    assert (first, second) == ([1], [2])
    assert puppet.batch(patience_s=0.05) is None  # it holds as many as it may
    puppet.die()
    assert client.answers(2) == dict.fromkeys(asked[:2], WireStatus.WORKER_DIED)
    other = site.puppet(batch=1)
    assert other.names(other.batch()) == [3]
    assert other.names(other.batch()) == [4]
    for _ in range(2):
        other.done(WireStatus.OK)
    assert set(client.answers(2)) == {asked[2], twice}


@pytest.mark.parametrize("turn", range(2))
def test_batches_are_answered_while_the_next_one_is_held(site, nic, turn):
    site.serve()
    puppet = site.puppet(batch=1)
    client = site.client()
    # Four: nothing is sent ahead of a batch that will take long, as is known from the third on,
    # where this process and the front end are slow.
    asked = [client.ask(name) for name in range(1, 5)]
    names = puppet.names(puppet.batch())
    for _ in asked[1:]:
        names += puppet.names(puppet.batch())
        puppet.done(WireStatus.OK)
    puppet.done(WireStatus.OK)
    assert names == [1, 2, 3, 4]
    assert set(client.answers(4)) == set(asked)


def test_what_kills_its_worker_twice_is_the_cause(site, nic):
    site.serve()
    client = waiting_client(site, nic)
    asked = client.ask(7, add=Flags.IDEMPOTENT)
    site.hold()
    for tries in (1, 2):
        pid = site.worker()
        nic.until(lambda tries=tries: len(site.ran()) == tries)
        site.kill(pid)
        nic.until(lambda: site.function()["workers"] == [], "its end is seen")
    assert client.answers(1) == {asked: WireStatus.WORKER_DIED}
    assert site.function()["free"] == site.function()["entries"]


def test_a_worker_that_hangs_is_killed(site, nic):
    site.serve()
    client = waiting_client(site, nic)
    site.hold()
    site.worker(model="patient")
    asked, again = client.ask(1), client.ask(2, add=Flags.IDEMPOTENT)
    hung = site.worker(batch=2, timeout_s=0.3)
    assert client.answers(1) == {asked: WireStatus.WORKER_DIED}
    nic.until(lambda: not alive(hung), "it is killed")
    assert site.function()["workers"] == []
    site.go_on()
    site.worker(timeout_s=0)
    assert client.answers(1) == {again: client.expected(2)}
    assert site.function("patient")["workers"] == [0]


def alive(pid):
    """Whether the process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_a_dead_worker_had_not_begun_runs_elsewhere(site, nic):
    site.serve()
    first = site.puppet()
    client = site.client()
    asked = [client.ask(name) for name in (1, 2)]
    assert first.batch() == [0]
    nic.until(lambda: first.queue.words[first.word("batch_number")] == 2, "one is sent ahead")
    second = site.puppet()
    first.die()
    assert client.answers(1) == {asked[0]: WireStatus.WORKER_DIED}
    assert second.names(second.batch()) == [2]
    second.done(WireStatus.OK)
    assert list(client.answers(1)) == [asked[1]]


def test_an_answer_that_was_finished_before_the_death_is_sent(site):
    site.serve()
    puppet = site.puppet()
    client = site.client()
    asked = client.ask()
    [entry] = puppet.batch()
    puppet.results[entry] = 9
    puppet.queue.words[puppet.queue.entry(entry, "entry_status")] = WireStatus.OK
    puppet.die()
    assert client.answers(1) == {asked: [b"\x09" * 512]}


def test_a_front_end_that_is_killed_is_replaced_and_workers_find_the_new_one(site, nic):
    settings = {"unix": str(site.folder / "nic.stream")}
    site.serve(**settings)
    workers = [site.worker(), site.worker()]
    client = site.client()
    client.answers(client.ask(1))
    site.kill(site.front)
    assert (site.folder / "nic.sock").exists() and (site.folder / "nic.stream").exists()
    site.serve(port=site.port, port_wait_s=nic.PATIENCE_S, **settings)
    assert not site.refused()
    nic.until(lambda: (site.function() or {"workers": []})["workers"] == [0, 1], "workers attach")
    for kind in ("udp", "tcp", "unix"):
        fresh = site.client(kind)
        asked = fresh.ask(2)
        assert fresh.answers(1) == {asked: fresh.expected(2)}
    client.ask(3)
    nic.until(lambda: site.dropped("session") == 4)
    assert 3 not in site.executions()
    assert {pid for pid, _ in site.ran()} <= set(workers)


def test_a_front_end_ends_when_it_is_told_to_and_leaves_no_socket(site):
    site.serve(unix=str(site.folder / "nic.stream"))
    puppet = site.puppet()
    client = site.client("tcp")
    site.kill(site.front, signal.SIGTERM)
    assert not (site.folder / "nic.sock").exists() and not (site.folder / "nic.stream").exists()
    assert puppet.connection.recv(1) == b"" == client.socket.recv(1)


def test_while_it_ends_it_lets_the_next_one_listen_and_when_told_again_it_leaves(site, nic):
    front = site.serve(run_s=3600)
    site.worker()
    client = site.client()
    site.hold()
    client.ask(1)
    nic.until(lambda: site.executions() == {1: 1}, "it runs")
    os.kill(front, signal.SIGTERM)
    path = site.folder / "nic.sock"
    nic.until(lambda: not path.exists(), "it listens no more")
    assert site.function()["workers"] == [0]  # it waits for the answer
    site.kill(front, signal.SIGTERM)
    assert client.answers(1) == {1: WireStatus.WORKER_DIED}


def test_clients_that_vanish_leave_nothing_behind(site, nic):
    site.serve()
    site.worker()
    keeper, before = site.client(), site.look()
    for kind in ("udp", "tcp"):
        for number in range(20):
            client = site.client(kind)
            client.ask(100 + number)
            client.segment(2, 0)  # and never the rest of it
            client.answers(1)
            client.socket.close()
    nic.until(lambda: site.look()["sessions"] == 1 + 20, "streams are forgotten")
    nic.until(lambda: is_empty(site.function()), "all are free")
    after = site.look()
    assert after["memories"] == before["memories"]
    assert after["rss_kb"] < before["rss_kb"] + 8_000
    asked = keeper.ask(1)
    assert keeper.answers(1) == {asked: keeper.expected(1)}


def test_a_client_that_vanishes_while_its_request_runs_holds_it_until_it_has_run(site, nic):
    site.serve()
    puppet = site.puppet()
    client = site.client("tcp")
    client.ask()
    entries = puppet.batch()
    client.ask()
    nic.until(lambda: puppet.queue.words[puppet.word("batch_number")] == 2)
    client.ask()
    nic.until(lambda: site.function()["waiting"] == 1)
    client.socket.close()
    nic.until(lambda: site.function()["waiting"] == 0, "what waits is withdrawn")
    function = site.function()
    assert function["entries"] - function["free"] == 2
    while entries:
        puppet.done(WireStatus.OK)
        entries = puppet.batch(0.2)
    nic.until(lambda: site.look()["sessions"] == 0)
    assert site.function()["free"] == function["entries"]


def test_a_worker_that_writes_nonsense_harms_nobody_else(site, nic):
    site.serve()
    mad = site.puppet(batch=2)
    site.worker(model="sane")
    victim, client = site.client(), site.client(model="sane")
    choose = random.Random(5)
    words = mad.queue.words
    names = ("done_number", "worker_asleep")
    fields = ("entry_status", "entry_direct", "entry_req_id", "entry_session", "entry_peer")
    for name in range(200):
        victim.ask(name)
        for _ in range(5):
            at = choose.choice(
                [mad.word(choose.choice(names)), mad.queue.entry(0, choose.choice(fields))]
            )
            words[at] = choose.choice([0, 1, 2, 200, -1, 1 << 62, choose.getrandbits(62)])
        os.eventfd_write(mad._bells[1], 1)
        if name % 20 == 0:
            asked = client.ask(name)
            assert client.answers(1) == {asked: client.expected(name)}
            client.acknowledge(asked + 1)
    mad.die()
    nic.until(lambda: site.function()["workers"] == [])
    site.worker()
    fresh = site.client()
    asked = fresh.ask(5)
    assert fresh.answers(1) == {asked: fresh.expected(5)}


WRONG_WORKERS = [
    {"attach": {}},
    {"attach": 5},
    [],
    "hello",
    {"leave": True},
]


def right(**changes):
    spec = {"name": "a", "dtype": "uint8", "shape": [1024]}
    out = {"name": "b", "dtype": "uint8", "shape": [512]}
    content = {"model": "new", "version": "1", "inputs": [spec], "outputs": [out], "batch": 1}
    return {"attach": {**content, "pid": 1, **changes}}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((content, "not a worker's first message") for content in WRONG_WORKERS),
        (right(batch=0), "a batch below 1"),
        (right(batch=5000), "at most 4096"),
        (right(inputs=[]), "0 inputs"),
        (right(outputs=[]), "0 outputs"),
        (right(inputs=right()["attach"]["inputs"] * 65), "65 inputs"),
        (right(inputs=[{"name": "a", "dtype": "object", "shape": [1]}]), "object"),
        (right(inputs=[{"name": "a", "dtype": "U4", "shape": [1]}]), "U4"),
        (right(inputs=[{"name": "a", "dtype": "nonsense", "shape": [1]}]), "nonsense"),
        (right(inputs=[{"name": "a", "dtype": "uint8", "shape": [-1]}]), "no packing"),
        (right(outputs=[{"name": "b", "dtype": "uint8", "shape": [-1]}]), "no packing"),
        (right(inputs=[{"name": "a", "dtype": "uint8", "shape": [1 << 62]}]), "at most"),
        (right(request_class="urgent"), "allowed: strict, best_effort"),
        (right(slo_ns=-1), "slo_ns -1; allowed: 0 to"),
        (right(slo_ns=1.5), "slo_ns 1.5"),
        (right(client_timeout_ns=1 << 62), "client_timeout_ns"),
        (right(model="m", outputs=right()["attach"]["inputs"]), "its peers"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_worker_that_says_something_wrong_is_told_so(wrong_worker_site, content, reason):
    site = wrong_worker_site
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(20)
        connection.connect(str(site.folder / attach.NAME))
        attach.send(connection, content)
        answer, _ = attach.receive(connection)
        assert reason in answer["refused"]
        assert connection.recv(1) == b""


@pytest.fixture
def wrong_worker_site(make_site):
    site = make_site()
    site.serve(queue_bytes=64 << 20)
    site.puppet()
    yield site
    assert site.function()["workers"] == [0]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_process_of_another_user_cannot_attach(make_site):
    site = make_site()
    with tempfile.TemporaryDirectory() as folder:
        site.folder = Path(folder)
        site.serve()
        site.folder.chmod(0o755)
        path = site.folder / attach.NAME
        assert path.stat().st_mode & 0o777 == 0o600
        path.chmod(0o666)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
            connection.settimeout(20)
            os.seteuid(65534)
            try:
                connection.connect(str(path))
            finally:
                os.seteuid(0)
            assert connection.recv(1) == b""
        site.puppet()
        site.close()
