"""When a server hears that a model has loaded: not before clients of the front end are served."""

import os
import select
import socket
import threading
import time
import types

import pytest

from shunter.batching.queue.attach import NAME, Attach, listen, receive, send
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.queue import front_end_link, pooled_link
from shunter.handlers.queue.front_end_link import FrontEndLink
from shunter.handlers.queue.pooled_link import PooledLink
from shunter.handlers.torchserve.connection import Connection
from shunter.nic_frontend.client.session import Session
from shunter.nic_frontend.server.front_end import FrontEnd, Settings
from shunter.nic_frontend.server.functions import Functions

PATIENCE_S = 120
X = TensorSpec("x", "int64", (1,))
ATTACH = Attach("m", "", (X,), (X,), 1, os.getpid())


class Worker:
    """Has loaded, and comes to the front end of a folder; ``told`` when its server may hear it."""

    def __init__(self, folder, *, is_pooled):
        self.told = threading.Event()
        self._link = FrontEndLink(folder / NAME, ATTACH, lambda *_: None)
        self._link.when_settled(self.told.set)
        self._ours, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._in_a_pool if is_pooled else self._alone)
        self._thread.start()

    def _alone(self):
        self._link.run(self._theirs, lambda: True)

    def _in_a_pool(self):
        link = PooledLink(self._link)
        while not select.select([self._theirs], [], [], 0.01)[0]:
            if link.due is not None and time.monotonic() >= link.due and link.late():
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                if error := connection.connect_ex(link.path):
                    connection.close()
                link.connected(None if error else connection, error)
            if select.select(link.descriptors, [], [], 0)[0]:
                link.hear()
        link.close()

    def end(self):
        self._ours.close()
        self._thread.join(PATIENCE_S)
        self._theirs.close()
        assert not self._thread.is_alive()


@pytest.fixture(params=[False, True], ids=["alone", "in a pool"])
def load(request, tmp_path):
    workers = []

    def load():
        workers.append(Worker(tmp_path, is_pooled=request.param))
        return workers[-1]

    yield load
    for worker in workers:
        worker.end()


@pytest.fixture
def be_patient(monkeypatch):
    """Sets how long a server waits for a front end."""

    def be_patient(seconds):
        for module in (front_end_link, pooled_link):
            monkeypatch.setattr(module, "ATTACH_S", seconds)

    return be_patient


@pytest.fixture
def front_end(tmp_path):
    """Takes connections; the test answers."""
    with listen(tmp_path / NAME) as listener:
        listener.setblocking(True)
        yield listener


def test_it_is_said_when_a_session_can_be_opened(built, tmp_path, load, be_patient, monkeypatch):
    be_patient(PATIENCE_S)
    came, go_on, attach = threading.Event(), threading.Event(), Functions._attach

    def slowly(functions, connection, message):
        came.set()
        assert go_on.wait(PATIENCE_S)
        attach(functions, connection, message)

    monkeypatch.setattr(Functions, "_attach", slowly)
    serving = FrontEnd(Settings(tmp_path / NAME, port=0))
    thread = threading.Thread(target=serving.run)
    thread.start()
    try:
        worker = load()
        assert came.wait(PATIENCE_S)
        assert not worker.told.wait(0.2)
        go_on.set()
        assert worker.told.wait(PATIENCE_S)
        Session(f"udp://127.0.0.1:{serving.port}", "m", timeout_s=PATIENCE_S).close()
    finally:
        go_on.set()
        serving.stop()
        thread.join()
        serving.close()


def test_it_is_said_when_no_front_end_listens(load):
    assert load().told.wait(PATIENCE_S)


def test_it_is_said_when_the_front_end_refuses_the_worker(front_end, load, be_patient):
    be_patient(PATIENCE_S)
    worker = load()
    with front_end.accept()[0] as connection:
        receive(connection)
        assert not worker.told.is_set()
        send(connection, {"refused": "there is no room"})
        assert worker.told.wait(PATIENCE_S)


def test_it_is_said_when_the_front_end_hangs(front_end, load, be_patient):
    be_patient(0.1)
    worker = load()
    with front_end.accept()[0] as connection:
        receive(connection)
        assert worker.told.wait(PATIENCE_S)
        assert not select.select([front_end, connection], [], [], 0.3)[0]  # it goes on waiting


def test_it_is_said_once(tmp_path):
    link, said = FrontEndLink(tmp_path, ATTACH, lambda *_: None), []
    link.when_settled(lambda: said.append("loaded"))
    assert not said
    link.settle()
    link.settle()
    assert said == ["loaded"]


@pytest.mark.parametrize(
    ("error", "is_over"), [(OSError("no lock"), True), (BrokenPipeError(), False)]
)
def test_who_cannot_say_it_ends_its_connection_and_hurts_no_others(tmp_path, error, is_over):
    def fail():
        raise error

    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(theirs, None, fail)
        connection.link = FrontEndLink(tmp_path, ATTACH, lambda *_: None)
        known = types.SimpleNamespace(model_name="m")
        connection.ready(types.SimpleNamespace(context=known, set_cl_socket=lambda _: None))
        connection.link.settle()
        ours.setblocking(False)
        if is_over:
            assert ours.recv(1) == b""
        else:
            with pytest.raises(BlockingIOError):
                ours.recv(1)


def test_it_is_said_at_once_where_the_host_asks_its_server_itself(tmp_path):
    link, said = FrontEndLink(tmp_path, ATTACH, lambda *_: None, outlives=True), []
    link.when_settled(lambda: said.append("loaded"))
    assert said == ["loaded"]
