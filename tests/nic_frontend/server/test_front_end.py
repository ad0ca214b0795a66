"""A front end, its workers and its clients: everything that goes well."""

import contextlib

import pytest

from shunter.nic_frontend.wire.hello import parse_cookie
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus

KEY = bytes(range(32)).hex()
TWO_INPUTS = [("a", "uint8", [600]), ("c", "float32", [3])]
TWO_OUTPUTS = [("b", "uint8", [300]), ("d", "uint8", [0]), ("e", "int64", [2, 2])]


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
@pytest.mark.parametrize("kind", ["udp", "tcp", "unix"])
def test_requests_are_answered(site, nic, kind, key):
    site.serve(key=key, unix=str(site.folder / "nic.stream"))
    site.worker(inputs=TWO_INPUTS, outputs=TWO_OUTPUTS)
    client = site.client(kind)
    asked = {client.ask(name): name for name in range(1000, 1020)}
    assert client.answers(20) == {i: client.expected(name) for i, name in asked.items()}
    client.acknowledge(21, add=Flags.ACK_REQ)
    assert client.get()[0].type == MessageType.CREDIT
    # The acknowledgement may be there before the front end has seen that the batch is done.
    nic.until(lambda: site.function()["free"] == site.function()["entries"])
    assert site.executions() == dict.fromkeys(asked.values(), 1)


def small(site, entries=8, **options):
    """A front end whose queues are that small, as far as their memory says."""
    site.serve(queue_bytes=entries * (1024 + 512), **options)


@contextlib.contextmanager
def visit(site, **model):
    """A worker that comes and goes, so that requests wait for another one."""
    puppet = site.puppet(**model)
    yield
    puppet.leave()
    assert puppet.connection.recv(100) == b'{"left": true}'
    puppet.die()


def patient_client(site, kind="udp", **model):
    """A client of a model that has no worker now, so that requests wait for one."""
    with visit(site, **model):
        return site.client(kind)


@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_what_waits_runs_as_one_batch_where_it_lies_one_behind_the_other(site, nic, kind):
    small(site)
    client = patient_client(site, kind)
    asked = [client.ask(name) for name in range(100, 106)]
    nic.until(lambda: site.function()["waiting"] == 6)
    site.worker(batch=4)
    assert client.answers(6) == {i: client.expected(99 + i) for i in asked}
    assert [names for _, names in site.ran()] == [[100, 101, 102, 103], [104, 105]]


def test_a_batch_is_of_any_entries(site, nic):
    small(site)
    client = patient_client(site)
    puppet = site.puppet(batch=1)
    for name in range(6):
        client.ask(name)
        assert puppet.batch() == [name]
        puppet.done(WireStatus.OK)
    client.answers(6)
    client.acknowledge(7)
    puppet.die()
    nic.until(lambda: site.function()["workers"] == [])
    asked = [client.ask(name) for name in range(50, 54)]
    nic.until(lambda: site.function()["waiting"] == 4)
    wide = site.puppet(batch=8)
    entries = wide.batch()
    assert entries == [6, 7, 0, 1]
    assert wide.names(entries) == [50, 51, 52, 53]
    wide.results[entries] = [[1] * 512, [2] * 512, [3] * 512, [4] * 512]
    wide.done(*[WireStatus.OK] * 4)
    answers = client.answers(4)
    assert [answers[i][0][0] for i in asked] == [1, 2, 3, 4]


def test_several_workers_get_each_batch_exactly_once(site):
    site.serve()
    for _ in range(3):
        site.worker(batch=2)
    client = site.client()
    asked = {client.ask(name): name for name in range(60)}
    assert client.answers(60) == {i: client.expected(name) for i, name in asked.items()}
    assert site.executions() == dict.fromkeys(range(60), 1)


def test_versions_are_functions_of_their_own_and_the_last_is_the_default(site):
    site.serve()
    first = site.puppet(version="1")
    second = site.puppet(version="2")
    clients = [site.client(version=version) for version in ("1", "2", "")]
    assert [c.func_id for c in clients] == [
        *(first.answer["func_id"], second.answer["func_id"], second.answer["func_id"]),
    ]


@pytest.mark.parametrize("options", [{}, {"key": KEY}], ids=["", "key"])
def test_of_a_batch_that_fails_only_what_may_run_twice_runs_alone(site, nic, options):
    site.serve(**options)
    client = patient_client(site)
    again = Flags.IDEMPOTENT
    flags = {1: again, nic.FAILING: again, 2: 0, 3: again, 4: 0}
    asked = [client.ask(name, add=add) for name, add in flags.items()]
    nic.until(lambda: site.function()["waiting"] == 5)
    site.worker(batch=5)
    answers = client.answers(5)
    failed = WireStatus.HANDLER_FAILED
    assert [answers[i] for i in asked] == [
        *(client.expected(1), failed, failed, client.expected(3), failed),
    ]
    assert site.executions() == {name: 1 + bool(add) for name, add in flags.items()}


def test_a_hello_that_is_repeated_opens_one_session(site):
    site.serve()
    site.worker()
    client = site.stranger()
    nonce = client.hello()
    cookie = parse_cookie(client.get()[1], nonce)
    found = []
    for _ in range(3):
        client.hello(nonce=nonce, cookie=cookie)
        found.append(client.get())
    assert found[0] == found[1] == found[2] and site.look()["sessions"] == 1
    client.hello(nonce=nonce, cookie=cookie, segment=512)
    assert client.get()[0].session != found[0][0].session
    assert site.look()["sessions"] == 2


def test_a_hello_that_comes_again_behind_the_end_of_its_session_opens_another(site, nic):
    site.serve()
    site.worker()
    client = site.client()
    nonce = client.hello()
    cookie = parse_cookie(client.get()[1], nonce)
    client.hello(nonce=nonce, cookie=cookie)
    client.session = client.get()[0].session
    client.acknowledge(1, add=Flags.LAST)
    nic.until(lambda: site.look()["sessions"] == 1)
    client.hello(nonce=nonce, cookie=cookie)
    header, _ = client.get()
    assert header.status == WireStatus.OK and header.session != client.session


def test_what_is_too_late_is_said_to_be(site):
    site.serve()
    client = patient_client(site)
    late = client.ask(deadline_us=2000)
    assert client.answers(1) == {late: WireStatus.TOO_LATE}
    assert site.look()["stats"]["expired"] == 1
    assert site.function()["free"] == site.function()["entries"]


def test_what_is_cancelled_does_not_run(site, nic):
    site.serve()
    client = patient_client(site)
    for name in (1, 2):
        client.ask(name)
    nic.until(lambda: site.function()["waiting"] == 2)
    client.control(MessageType.CANCEL, 1)
    nic.until(lambda: site.function()["waiting"] == 1)
    site.worker()
    client.answers(1)
    assert site.executions() == {2: 1}


def test_strict_requests_go_first(site, nic):
    site.serve()
    client = patient_client(site)
    for name, priority in ((1, 2), (2, 2), (3, 1), (4, 0)):
        client.ask(name, priority=priority)
    nic.until(lambda: site.function()["waiting"] == 4)
    site.worker(batch=2)
    client.answers(4)
    assert [names for _, names in site.ran()] == [[3, 4], [1, 2]]


def test_who_names_no_class_has_the_model_s(site, nic):
    site.serve()
    client = patient_client(site, request_class="best_effort")
    for name, priority in ((1, 0), (2, 2), (3, 1)):
        client.ask(name, priority=priority)
    nic.until(lambda: site.function()["waiting"] == 3)
    site.worker(batch=2)
    client.answers(3)
    assert [names for _, names in site.ran()] == [[3], [1, 2]]


@pytest.mark.parametrize(
    ("model", "priority"),
    [
        ({"slo_ns": 1_000_000}, 0),
        ({"slo_ns": 1_000_000, "request_class": "best_effort"}, 1),
        ({"client_timeout_ns": 1_000_000}, 2),
    ],
)
def test_who_states_no_deadline_has_that_of_the_model_s_newest_worker(
    site, nic, model, priority
):
    site.serve()
    client = patient_client(site, **model)
    client.ask(1, priority=priority)
    assert client.answers(1) == {1: WireStatus.TOO_LATE}
    with visit(site):
        pass
    client.ask(2, priority=priority)
    nic.until(lambda: site.function()["waiting"] == 1)
    site.worker()
    assert client.answers(1) == {2: client.expected(2)}


def test_a_worker_that_leaves_answers_what_it_has_and_gets_no_more(site, nic):
    site.serve()
    leaving = site.puppet()
    client = site.client()
    running = client.ask()
    assert leaving.batch() is not None
    leaving.leave()
    site.look()  # it is known by now
    waiting = client.ask()
    nic.until(lambda: site.function()["waiting"] == 1)
    # Where segments come slowly, the front end says which are there.
    assert client.is_quiet(but={MessageType.SACK})
    leaving.done(WireStatus.OK)
    assert list(client.answers(1)) == [running]
    assert leaving.connection.recv(100) == b'{"left": true}'
    site.worker()
    assert list(client.answers(1)) == [waiting]


def test_a_worker_ends_when_its_server_says_so(site, nic):
    site.serve()
    pids = [site.worker(), site.worker()]
    site.links[pids[0]].close()
    nic.until(lambda: site.function()["workers"] == [1], "the worker has left")
    client = site.client()
    asked = client.ask(7)
    assert client.answers(1) == {asked: client.expected(7)}


def test_what_nobody_uses_any_more_is_given_back(site, nic):
    site.serve()
    before = site.look()["memories"]
    puppet = site.puppet()
    client = site.client("tcp")
    assert site.look()["memories"][0] > before[0]
    puppet.die()
    client.socket.close()
    nic.until(lambda: site.look()["functions"] == {}, "the function is removed")
    assert site.look()["memories"] == before  # the pool stays
    assert site.look()["sessions"] == 0


@pytest.mark.parametrize("what", ["port", "folder"])
def test_a_second_front_end_says_what_is_taken_and_harms_nobody(make_site, what):
    site = make_site()
    site.serve()
    first, port = site.front, site.port
    if what == "folder":
        site.serve(port=0)
    else:
        (site.folder / "nic.sock").rename(site.folder / "aside")
        site.serve(port=port, port_wait_s=0.1)
        (site.folder / "aside").rename(site.folder / "nic.sock")
    assert "Address already in use" in site.refused()
    site.front = first
    site.worker()
    client = site.client()
    asked = client.ask(7)
    assert client.answers(1) == {asked: client.expected(7)}
