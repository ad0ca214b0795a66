"""A front end and the server that it belongs to: what it tells, what it takes, and both ends."""

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from shunter.batching.page import front_end_page
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.holds import NoHolderError, claim, held
from shunter.batching.page.layout import SLOT_FIELDS, SLOT_SIZE, SLOTS_OFFSET, Order
from shunter.batching.page.records import SlotCommands, SlotNetwork
from shunter.batching.page.runtime import only_live
from shunter.batching.queue.attach import NAME, Attach, receive, send
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.queue.front_end_link import Attachment, FrontEndLink
from shunter.handlers.queue.shared_regions import FrontEndWords
from shunter.nic_frontend.server import front_end as module
from shunter.nic_frontend.server import functions, listeners, server_link
from shunter.nic_frontend.server.absences import GONE
from shunter.nic_frontend.server.front_end import FrontEnd, Settings
from shunter.nic_frontend.server.server_link import ServerLink
from shunter.nic_frontend.server.structures import COUNTERS
from shunter.nic_frontend.wire.layout import WireStatus

PATIENCE_S = 120
HOLD = (
    "import fcntl, os, sys; lock = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY, 0o600);"
    "fcntl.lockf(lock, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
)
X = TensorSpec("x", "int64", (1,))


def wait_until(what, condition):
    end = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.01)
    return value


class Server:
    """A runtime folder whose lock is held, with a page and the model m in slot 0."""

    def __init__(self, parent, number):
        self.folder = parent / f"shunter-{os.geteuid()}-{number}"
        self.folder.mkdir(mode=0o700)
        command = [sys.executable, "-S", "-c", HOLD, str(self.folder / "lock")]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._holder.stdout.readline()
        path = self.folder / "control"
        self._sequences = itertools.count(2, 2)
        self.page = ControlPage.create(path, owner_pid=number, created_unix_ns=1, now_ns=1)
        self.register(0)

    def register(self, slot, version="", default_version=""):
        """Say that this version of m is in this slot, and which one is the default."""
        self._poke(slot, "slot_sequence", 1)
        texts = {"model_name": "m", "model_version": version, "default_version": default_version}
        for name, text in texts.items():
            self._poke(slot, name, int.from_bytes(text.encode(), "little"))
        self._poke(slot, "slot_state", 1)
        self._poke(slot, "slot_sequence", next(self._sequences))

    def unregister(self, slot):
        """The slot is free again."""
        self._poke(slot, "slot_state", 0)

    def _poke(self, slot, name, value):
        base = SLOTS_OFFSET + slot * SLOT_SIZE
        self.page.words[(base + SLOT_FIELDS[name].offset) // 8] = value

    @property
    def told(self):
        return front_end_page.read(self.page)

    @property
    def network(self):
        return front_end_page.read_network(self.page, 0)

    @property
    def telemetry(self):
        return front_end_page.read_telemetry(self.page, 0)

    def end(self):
        """As if it had been killed: the folder stays, the lock does not."""
        with self._holder:
            self._holder.stdin.close()


@pytest.fixture
def start_server(tmp_path, monkeypatch):
    """Starts servers, each with a runtime folder of its own."""
    monkeypatch.setenv("SHUNTER_RUNTIME_DIR", str(tmp_path))
    servers = []

    def start_server():
        servers.append(Server(tmp_path, len(servers) + 1))
        return servers[-1]

    yield start_server
    for server in servers:
        server.end()
        server.page.close()


@pytest.fixture
def server(start_server):
    return start_server()


@pytest.fixture
def serve(built, server, monkeypatch):
    """Runs a front end of the server."""
    monkeypatch.setattr(server_link, "LOOK_NS", 50_000_000)
    with contextlib.ExitStack() as stack:

        def serve(*, only_this=True, **settings):
            front_end = FrontEnd(Settings(server.folder / NAME, port=0, **settings))
            link = ServerLink(front_end, only_live(server.folder), only_this=only_this)
            thread = threading.Thread(target=front_end.run, args=(link.cycle,))
            thread.start()
            for each in (front_end.close, link.close, thread.join, front_end.stop):
                stack.callback(each)
            front_end.thread = thread
            return front_end

        yield serve


class Worker:
    """A worker of m in a thread; it answers 2 x, and waits while ``hold`` is not set."""

    def __init__(self, folder, outputs=(X,), version="", **place):
        self.go_on = threading.Event()
        self.go_on.set()
        self.began = threading.Event()
        self._ours, self._theirs = socket.socketpair()
        attach = Attach("m", version, (X,), outputs, 1, os.getpid(), **place)
        link = FrontEndLink(folder / NAME, attach, self._infer)
        self._thread = threading.Thread(
            target=link.run, args=(self._theirs, lambda: not self._theirs.recv(1, socket.MSG_PEEK))
        )
        self._thread.start()

    def _infer(self, inputs, outputs):
        self.began.set()
        assert self.go_on.wait(PATIENCE_S)
        for output in outputs:
            output.copy_(2 * inputs[0])

    def end(self):
        """As its server does it: the connection is closed."""
        self.go_on.set()
        self._ours.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        self._theirs.close()


@pytest.fixture
def work():
    """Starts workers where a server is."""
    workers = []

    def work(server, **options):
        workers.append(Worker(server.folder, **options))
        return workers[-1]

    yield work
    for worker in workers:
        worker.end()


@pytest.fixture
def client(nic):
    """Opens sessions with m, by hand, when it has so many workers."""
    with contextlib.ExitStack() as stack:

        def client(front_end, workers=1, **hello):
            known = front_end.functions.all
            wait_until("workers", lambda: sum(len(f.workers) for f in known()) == workers)
            where = types.SimpleNamespace(port=front_end.port, key=None)
            client = stack.enter_context(nic.Raw(where, "udp"))
            client.open(**hello)
            return client

        yield client


def answer(client, req_id=1):
    """The only answer: whether it is 2 x, or the status of an error."""
    found = client.answers(1)[req_id]
    if isinstance(found, int):
        return found
    [x], y = client.request_of(req_id), found[0]
    return int.from_bytes(y, "little") == 2 * int.from_bytes(x.tobytes(), "little")


def test_it_tells_its_numbers_and_those_of_its_models(server, serve, work, client):
    front_end = serve()
    work(server)
    asking = client(front_end)
    asking.ask()
    assert answer(asking) is True

    def all_of_it():
        told = server.told
        is_there = told.counters.get("answered") == 1 and told.state.front_end_sessions == 1
        return told if is_there else None

    told = wait_until("it tells the answer", all_of_it)
    assert list(told.counters) == list(COUNTERS)
    assert told.counters["requests"] == 1
    state = told.state
    assert (state.front_end_pid, state.front_end_port) == (os.getpid(), front_end.port)
    assert state.front_end_rtt_count >= 1 and state.front_end_rtt_ns > 0
    wait_until("it tells the session", lambda: server.network.network_sessions == 1)
    assert server.network.network_workers == 1
    assert server.network.network_credit > 0
    assert server.network.network_entries >= server.network.network_free > 0
    assert not front_end_page.claim(server.page)


def test_it_takes_the_policy_of_the_page(server, serve, work, client):
    front_end = serve()
    work(server)
    taken = []
    front_end.path.set_policy = lambda func_id, policy: taken.append(policy)
    client(front_end)
    wait_until("the built-in one", lambda: taken and taken[-1].threshold == 0)
    server.page.write_commands(0, SlotCommands(threshold_fixed_milli=4000, margin_us=7))
    wait_until("the commanded one", lambda: taken[-1].threshold == 4)
    assert taken[-1].margin_ns == 7000


def test_what_would_be_late_is_refused_where_the_page_says_so(server, serve, work, client):
    front_end = serve()
    worker = work(server)
    worker.go_on.clear()
    asking = client(front_end)
    known = {"latency_fixed_ns": 10**9, "ahead_batches": 0, "threshold_fixed_milli": 1000}
    taken, set_policy = [], front_end.path.set_policy

    def note(func_id, policy):
        set_policy(func_id, policy)
        taken.append(policy)

    front_end.path.set_policy = note
    server.page.write_commands(0, SlotCommands(admission=1, **known))
    wait_until("it is told", lambda: taken and taken[-1].admission)
    asking.ask(1, deadline_us=30_000_000)
    assert worker.began.wait(PATIENCE_S)
    asking.ask(2, deadline_us=1_000_000)
    assert asking.answers(1) == {2: WireStatus.WOULD_BE_LATE}
    asking.ask(3)
    worker.go_on.set()
    assert set(asking.answers(2)) == {1, 3}
    wait_until("all is told", lambda: server.telemetry.network_answered == (2, 0))
    told = server.telemetry
    assert (told.network_arrivals, told.network_rejected) == ((3, 0), (1, 0))
    assert (told.network_slo_met, told.network_slo_rejected) == ((1, 0), (1, 0))
    assert told.network_attainment_ppm == (500_000, -1)
    assert sum(told.network_latency_times) == told.network_batch_requests == 2
    assert server.told.counters["rejected"] == 1
    assert server.told.state.landing_blocks >= server.told.state.landing_free > 0


def test_who_names_no_version_gets_the_server_s_default(server, serve, work, client):
    server.register(0, "1", default_version="1")
    server.register(1, "2", default_version="1")
    front_end = serve()
    wait_until("it knows", lambda: front_end.functions.default_versions == {"m": "1"})
    work(server, version="1")
    first = client(front_end)
    work(server, version="2")
    named = client(front_end, workers=2, version="2")
    assert client(front_end, workers=2).func_id == first.func_id != named.func_id
    for slot, version in enumerate("12"):
        server.register(slot, version, default_version="2")
    wait_until("it is told", lambda: front_end.functions.default_versions == {"m": "2"})
    assert client(front_end, workers=2).func_id == named.func_id
    for each in (first, named):  # they stay where they are
        each.ask()
        assert answer(each) is True
    assert client(front_end, workers=2, version="1").func_id == first.func_id


def test_nobody_gets_another_version_than_the_default(server, serve, work, client, nic):
    server.register(0, "1", default_version="2")
    front_end = serve()
    wait_until("it knows", lambda: front_end.functions.default_versions)
    work(server, version="1")
    client(front_end, version="1")
    with nic.Raw(types.SimpleNamespace(port=front_end.port, key=None), "tcp") as stranger:
        stranger.hello()
        header, reason = stranger.get()
        assert header.status == WireStatus.NO_WORKER and b"none has attached" in reason
    with nic.Raw(types.SimpleNamespace(port=front_end.port, key=None), "tcp") as stranger:
        stranger.hello(model="another")
        assert stranger.get()[0].status == WireStatus.UNKNOWN_FUNCTION


def test_a_model_that_the_server_has_no_more_is_unknown(server, serve, work, client, nic):
    server.register(0, "1", default_version="1")
    front_end = serve()
    wait_until("it knows", lambda: front_end.functions.default_versions)
    front_end.functions.absences.note("m", "1", "its worker was refused", time.monotonic())
    front_end.functions.absences.note("past", "1", "its worker was refused", time.monotonic())
    assert "refused" in front_end.functions.why_none("m", "")
    assert front_end.functions.why_none("past", "") is None


def test_a_version_that_the_server_has_no_more_is_unknown_although_another_is_there(
    server, serve, work, client
):
    server.register(0, "1", default_version="1")
    server.register(1, "2", default_version="1")
    front_end = serve()
    known = front_end.functions
    wait_until("it knows", lambda: known.default_versions == {"m": "1"})
    worker = work(server, version="2")
    client(front_end, version="2")
    worker.end()
    wait_until("its worker is gone", lambda: known.find("m", "2") is None)
    assert known.why_none("m", "2") == GONE
    server.unregister(1)
    wait_until("it is told", lambda: known.why_none("m", "2") is None)
    assert "none has attached" in known.why_none("m", "")


def test_the_page_says_how_much_a_queue_needs_that_is_too_large(server, serve):
    server.register(0, "1", default_version="1")
    front_end = serve(queue_bytes=1 << 20)
    tensor = (TensorSpec("x", "uint8", (1 << 20,)),)
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) as worker:
        worker.connect(str(server.folder / NAME))
        send(worker, Attach("m", "1", tensor, (X,), 2, os.getpid()).to_json())
        refusal, _ = receive(worker)
        assert "queue_mb allows 1" in refusal["refused"]
    wait_until("it says so", lambda: server.network.network_needs_mb >= 2)
    assert "queue_mb allows 1" in front_end.functions.why_none("m", "")


def test_a_server_that_is_gone_has_no_default_version_any_more(server, serve):
    server.register(0, "1", default_version="2")
    front_end = serve(only_this=False)
    wait_until("it knows", lambda: front_end.functions.default_versions)
    server.end()
    wait_until("it forgets", lambda: not front_end.functions.default_versions)


def test_it_ends_with_its_server(server, serve, work, client):
    front_end = serve()
    worker = work(server)
    client(front_end)
    wait_until("it tells its numbers", lambda: server.told.state.front_end_pid)
    server.end()
    worker.end()
    front_end.thread.join(PATIENCE_S)
    assert not front_end.thread.is_alive()
    assert not (server.folder / NAME).exists()
    assert server.told.state.front_end_beat_ns == 0
    assert server.network == SlotNetwork()


def test_by_hand_it_goes_over_to_the_next_server(start_server, server, serve, work, client):
    front_end = serve(only_this=False)
    worker = work(server)
    first = client(front_end)
    server.end()
    worker.end()
    first.ask()
    assert answer(first) == WireStatus.NO_WORKER
    following = start_server()
    wait_until("it is there", (following.folder / NAME).exists)
    work(following)
    second = client(front_end)
    second.ask()
    assert answer(second) is True
    wait_until("it tells its numbers there", lambda: following.network.network_workers == 1)


def test_what_is_held_is_said_on_the_next_server_s_page(start_server, server, serve, work, client):
    front_end = serve(only_this=False)
    work(server, slot=0, slices=0b11).end()
    server.end()
    following = start_server()
    wait_until("it is there", (following.folder / NAME).exists)
    worker = work(following, slot=0, slices=0b110)
    asking = client(front_end)
    worker.go_on.clear()
    asking.ask()

    def is_held(page):
        return held(page, 0b111, time.monotonic_ns(), max_hold_ns=1 << 62)

    wait_until("it is held there", lambda: is_held(following.page) == 0b110)
    assert is_held(server.page) == 0
    worker.go_on.set()
    assert answer(asking) is True
    wait_until("nothing is held", lambda: is_held(following.page) == 0)


def test_at_its_end_what_is_on_its_way_is_answered(server, serve, work, client, monkeypatch):
    monkeypatch.setattr(module, "FINISH_S", PATIENCE_S)
    front_end = serve()
    worker = work(server)
    clients = [client(front_end) for _ in range(4)]
    worker.go_on.clear()
    for each in clients:
        each.ask()
    wait_until("all are there", lambda: server.told.counters.get("requests") == 4)
    front_end.stop()
    worker.go_on.set()
    front_end.thread.join(PATIENCE_S)
    assert [answer(each) for each in clients] == [True] * 4


def test_at_its_end_what_does_not_end_is_an_error(server, serve, work, client, monkeypatch):
    monkeypatch.setattr(module, "FINISH_S", 0.05)
    monkeypatch.setattr(module, "RUN_S", 0.05)
    front_end = serve()
    worker = work(server)
    clients = [client(front_end) for _ in range(4)]  # one runs, the next is sent ahead
    worker.go_on.clear()
    for each in clients:
        each.ask()
    wait_until("all are there", lambda: server.told.counters.get("requests") == 4)
    front_end.stop()
    front_end.thread.join(PATIENCE_S)
    assert sorted(answer(each) for each in clients) == [502, 521, 521, 521]


def test_a_request_for_a_model_without_workers_does_not_wait_for_ever(
    server, serve, work, client, monkeypatch
):
    monkeypatch.setattr(functions, "WORKERLESS_S", 0.3)
    front_end = serve()
    worker = work(server)
    asking = client(front_end)
    worker.end()
    asking.ask()
    assert answer(asking) == WireStatus.NO_WORKER


def test_a_model_comes_back_with_other_tensors(server, serve, work, client):
    front_end = serve()
    worker = work(server)
    client(front_end)
    worker.end()
    wait_until("it is gone", lambda: not any(f.workers for f in front_end.functions.all()))
    work(server, outputs=(X, TensorSpec("y", "float32", (1,))))
    after = client(front_end)
    assert len(after.opened.outputs) == 2
    after.ask()
    assert answer(after) is True


class Endless:
    """A queue that always has another batch, and a worker that has done it."""

    def __init__(self):
        self.held = []

    def wait(self, *_):
        return "batch"

    def answer(self, batch, statuses):
        assert (batch, statuses) == ("batch", [200])

    def pause_ns(self):
        return None

    def begin(self, batch):
        self.held.append(batch)

    def finished(self):
        return (self.held.pop(), [200]) if self.held else None


def attachment_of(connection, double, stack):
    """To a front end whose queue and whose worker are this double."""
    return Attachment(double, FrontEndWords(connection, double), double, -1, stack)


def test_a_worker_leaves_although_there_is_no_end_of_batches():
    pairs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET), socket.socketpair()
    with contextlib.ExitStack() as stack:
        [[front_end, ours], [server, theirs]] = [map(stack.enter_context, p) for p in pairs]
        link = FrontEndLink(Path("/nowhere"), Attach("m", "", (X,), (X,), 1, 1), lambda *_: None)
        arguments = (ours, theirs, lambda: True, attachment_of(ours, Endless(), stack))
        thread = threading.Thread(target=link._work, args=arguments)
        thread.start()
        server.close()
        front_end.settimeout(PATIENCE_S)
        assert receive(front_end) == ({"leave": True}, [])
        send(front_end, {"left": True})
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


class Slow:
    """A queue that gives a batch whenever two are not held, and a worker that takes its time."""

    def __init__(self):
        self.log, self.number, self.asked = [], 0, 0
        self.held = []

    def wait(self, others, spin_us, timeout_ns):
        self.log.append(("wait", timeout_ns))
        if len(self.held) == 2 or self.number == 4:
            return None
        self.number += 1
        return self.number

    def pause_ns(self):
        return 7 * len(self.held) if self.held else None

    def begin(self, batch):
        self.log.append(("begin", batch))
        self.held.append(batch)

    def finished(self):
        self.asked += 1
        return (self.held.pop(0), [200]) if self.held and self.asked % 3 == 0 else None

    def answer(self, batch, statuses):
        self.log.append(("answer", batch))
        assert statuses == [200]
        if batch == 4:
            raise EOFError


def test_batches_are_begun_while_others_run_and_answered_when_they_are_done():
    pairs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET), socket.socketpair()
    with contextlib.ExitStack() as stack:
        [[_, ours], [server, _]] = [map(stack.enter_context, p) for p in pairs]
        link = FrontEndLink(Path("/nowhere"), Attach("m", "", (X,), (X,), 1, 1), lambda *_: None)
        slow = Slow()
        with pytest.raises(EOFError):
            link._work(ours, server, lambda: True, attachment_of(ours, slow, stack))
    events = [event for event in slow.log if event[0] != "wait"]
    assert [each for kind, each in events if kind == "begin"] == [1, 2, 3, 4]
    assert [each for kind, each in events if kind == "answer"] == [1, 2, 3, 4]
    assert events[:4] == [("begin", 1), ("begin", 2), ("answer", 1), ("begin", 3)]
    waits = [timeout for kind, timeout in slow.log if kind == "wait"]
    assert waits[0] >= 1_000_000_000 and set(waits[1:]) <= {7, 14}  # it asks again soon


def test_a_page_that_another_front_end_writes_is_left_alone(server, serve, caplog):
    with ControlPage.attach(server.folder / "control") as page:
        assert front_end_page.claim(page)
        front_end = serve()
        assert "another front end writes" in caplog.text
        front_end.stop()
        front_end.thread.join(PATIENCE_S)
        assert server.told.state.front_end_pid == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_nothing_is_held_while_the_classes_take_turns(server, serve, work, client, threads):
    def is_held():
        return held(server.page, 0b11, time.monotonic_ns(), max_hold_ns=1 << 62)

    front_end = serve(threads=threads)
    worker = work(server, slot=0, slices=0b11)
    asking = client(front_end)
    worker.go_on.clear()
    asking.ask()
    wait_until("it is held", lambda: is_held() == 0b11)
    server.page.write_turns(Order.FIFO, Order.FIFO, exclusive=True)
    wait_until("it is not", lambda: is_held() == 0)
    server.page.write_turns(Order.CONCURRENT, Order.ROUND_ROBIN, exclusive=False)
    wait_until("it is again", lambda: is_held() == 0b11)
    worker.go_on.set()
    assert answer(asking) is True
    wait_until("it is done", lambda: is_held() == 0)


def test_without_a_free_line_for_holds_it_serves_all_the_same(server, serve, work, client, caplog):
    with ControlPage.attach(server.folder / "control") as page:
        with contextlib.suppress(NoHolderError):
            while True:
                claim(page, os.getpid(), 1)
        front_end = serve()
        assert [r.message for r in caplog.records if "does not stand still" in r.message]
        work(server, slot=0, slices=1)
        asking = client(front_end)
        asking.ask()
        assert answer(asking) is True
        wait_until("it tells the request", lambda: server.told.counters.get("requests") == 1)


def test_with_a_line_for_one_thread_only_it_takes_none(server, serve, caplog):
    with ControlPage.attach(server.folder / "control") as page:
        lines = []
        with contextlib.suppress(NoHolderError):
            while True:
                lines.append(claim(page, os.getpid(), 1))
        lines.pop().release()
        serve(threads=2)
        assert [r.message for r in caplog.records if "does not stand still" in r.message]
        claim(page, os.getpid(), 1)


def test_two_front_ends_never_share_a_port(server, serve, monkeypatch):
    monkeypatch.setattr(listeners, "PORT_WAIT_S", 0.1)
    front_end = serve()
    with pytest.raises(OSError, match="in use") as caught:
        FrontEnd(Settings(server.folder / "other", port=front_end.port))
    assert caught.value.filename == f"UDP 127.0.0.1 port {front_end.port}"
    with pytest.raises(OSError, match="in use") as caught:
        FrontEnd(Settings(server.folder / NAME, port=0))
    assert caught.value.filename == f"Unix socket {server.folder / NAME}"
