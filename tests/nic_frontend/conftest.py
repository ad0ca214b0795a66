"""Both cores behind one interface, a client's datagrams by hand, and a service in threads."""

import contextlib
import errno
import fcntl
import importlib.util
import os
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from oracle.core import Core, Place
from oracle.native_core import NativeCore
from oracle.sessions import Session, keys_of
from shunter.batching.queue.attach import Attach
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.queue import front_end_link
from shunter.nic_frontend import build, library
from shunter.nic_frontend.server.front_end import FrontEnd, Settings
from shunter.nic_frontend.wire.header import Header, behind
from shunter.nic_frontend.wire.layout import Flags, MessageType
from shunter.nic_frontend.wire.segments import SegmentPlan

PEER = bytes([2, 0, 0x1F, 0x90, 127, 0, 0, 1]).ljust(64, b"\0")
OTHER_PEER = bytes([2, 0, 0x1F, 0x91, 127, 0, 0, 1]).ljust(64, b"\0")
FUNC, SESSION = 7, 0xABCD0001
KEY = bytes(range(16))

MS = 1_000_000
PATIENT = "-DRECEIVE_NS=600000000000ULL"
"""Flag of a library that waits as long as a test may take for the rest of a request."""


class PythonCore(Core):
    """The reference, with the numbers that the C one also tells."""

    def free_entries(self, func_id):
        return self.functions[func_id].ring.free

    def grant(self, session_id):
        found = self.sessions.get(session_id)
        return found.grant if found else 0

    def close(self):
        pass


@pytest.fixture(scope="session")
def nic():
    """site.py of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location("nic_site", Path(__file__).with_name("site.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def processes(nic, built):
    """What starts front ends and workers."""
    found = nic.Processes()
    yield found
    found.close()


@pytest.fixture(scope="session")
def built_once(tmp_path_factory):
    """Builds a library with more flags: once for all processes that run these tests."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def build_once(name, more):
        path = folder / name / "libshunter.so"
        path.parent.mkdir(exist_ok=True)
        with (path.parent / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return path if path.exists() else build.build(path, more=more)

    return build_once


@pytest.fixture(scope="session")
def sanitized(built_once):
    """A library under the sanitizers, and the environment of processes that use it: their runtime
    must be loaded first."""
    names = ("libasan.so", "libubsan.so")
    compiler = os.environ.get("CC", "cc")
    try:
        found = [
            subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
            for name in names
        ]
        path = built_once("sanitized", ("-O1", *build.SANITIZERS, PATIENT))
    except (OSError, build.BuildError) as error:
        pytest.skip(f"no sanitizers: {error}")
    return str(path), {"LD_PRELOAD": " ".join(found), "ASAN_OPTIONS": "detect_leaks=0"}


@pytest.fixture(scope="session")
def patient_processes(nic, processes, built_once):
    """The same as ``processes``, with front ends that wait long for the rest of a request."""
    return processes.using(str(built_once("patient", (PATIENT,))))


@pytest.fixture(scope="session")
def sanitized_processes(nic, sanitized):
    """The same as ``processes`` under the sanitizers."""
    path, environment = sanitized
    started = nic.Processes(path, **environment)
    yield started
    started.close()


@pytest.fixture
def make_site(nic, processes, tmp_path):
    """Makes a folder for a front end and workers; both are ended afterwards."""
    made = []

    def make(processes=processes):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(nic.Site(processes, folder))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture
def site(make_site):
    """One of them."""
    return make_site()


@pytest.fixture
def patient_site(make_site, patient_processes):
    """The same, for tests that leave a request half sent."""
    return make_site(processes=patient_processes)


@pytest.fixture(params=["patient", "sanitized"])
def abused_site(request, make_site):
    """The same, also under the sanitizers."""
    return make_site(processes=request.getfixturevalue(f"{request.param}_processes"))


@pytest.fixture(scope="session")
def built():
    """The library, built from these sources."""
    build.ensure()
    library.library.cache_clear()


@pytest.fixture
def both(built):
    """Makes a pair of fresh cores."""
    made = []

    def make():
        pair = PythonCore(), NativeCore()
        made.extend(pair)
        return pair

    yield make
    for core in made:
        core.close()


@pytest.fixture(params=["python", "c"])
def core(request, both):
    """One core, in turn."""
    return both()[request.param == "c"]


@pytest.fixture
def make_table(core):
    """A core with a function and a session, and a client that speaks to it."""
    return lambda **options: Table(core, **options)


@pytest.fixture
def table(make_table):
    """With a request of three segments and an answer of two."""
    return make_table()


@pytest.fixture
def c_table(both):
    """The same, of the C core."""
    return Table(both()[1])


class Table:
    """One session of one function."""

    func, session, other_peer = FUNC, SESSION, OTHER_PEER

    def __init__(
        self,
        core,
        inputs=(10,),
        outputs=(6,),
        entries=4,
        segment=4,
        window=4,
        key=None,
        stream=False,
        protect=0,
        server_pkt_no=0,
        strict=True,
        peer=PEER,
    ):
        self.core, self.key, self.protect = core, key, protect
        self.inputs, self.outputs = SegmentPlan(inputs, segment), SegmentPlan(outputs, segment)
        core.add_function(FUNC, inputs, outputs, entries)
        self.peer = peer
        self.base = 0
        """Numbers of requests, and what is done, count from here."""
        self.keys, self.entries = keys_of(key), entries
        session = Session(SESSION, FUNC, peer, segment, window, self.keys, stream, protect)
        session.may_be_strict = strict
        session.pkt_no = server_pkt_no
        core.add_session(session, 0)
        self.now = 0
        self.pkt_no = 0

    def header(self, kind=MessageType.REQ, req_id=1, seq=0, **more):
        """A right one, unless ``more`` says otherwise."""
        self.pkt_no += 1
        req_id += self.base if req_id else 0
        fields = {"type": kind, "req_id": req_id, "func_id": FUNC, "session": SESSION}
        add = more.pop("add", 0)
        fields |= {"credit": self.base + more.pop("credit", 1), "pkt_no": self.pkt_no}
        if kind == MessageType.REQ:
            segment = self.inputs.place(seq)
            last = seq == self.inputs.count - 1
            fields |= {
                "flags": (Flags.LAST if last else 0) | self.protect,
                "seq": seq,
                "count": self.inputs.count,
                "length": segment.length,
                "offset": segment.offset,
                "tensor": segment.tensor,
                "total": self.inputs.sizes[segment.tensor],
            }
        fields = {**fields, **more}
        return Header(**fields | {"flags": fields.get("flags", 0) | add})

    def say(
        self, kind=MessageType.REQ, req_id=1, seq=0, peer=None, payload=b"", right=True, **more
    ):
        """Send a datagram, whose payload is right or not; the actions."""
        if payload:
            more["length"] = len(payload)
        header = self.header(kind, req_id, seq, **more)
        data = header.pack(self.key) + payload
        length = 64 + header.length + behind(header.flags)
        actions = self.core.receive(peer or self.peer, data, self.now, length)
        if right and any(isinstance(a, Place) for a in actions):
            actions += self.core.accept(data, self.now)
        return actions

    def say_wrong(self, **changes):
        """The first segment of a request with other fields."""
        header = self.header()._replace(**changes)
        return self.core.receive(PEER, header.pack(), self.now, 64 + header.length)

    def prove(self):
        """Requests come whole, so that the next ones hold while they are in parts; each of the
        entries has been used once."""
        for req_id in range(1, self.entries + 1):
            self.whole(req_id, priority=2)
            self.say(MessageType.CANCEL, req_id)
        self.base = self.entries

    def whole(self, req_id=1, **more):
        """All segments of a request; the actions of the last."""
        for seq in range(self.inputs.count):
            actions = self.say(req_id=req_id, seq=seq, **more)
        return actions


# ---- a front end and its workers in threads of the test


def wait_until(condition, what="it", seconds=120):
    """Wait for a condition; what it found."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not happen in {seconds} s"
        time.sleep(0.005)
    return found


class Worker:
    """A worker of one model, as TorchServe's process would run it."""

    def __init__(
        self, path, model, inputs, outputs, infer, batch=8, version="1", form=None, **more
    ):
        """``form``: of a packed function; ``more``: for the link."""
        specs = [
            tuple(TensorSpec(f"{kind}{i}", *each) for i, each in enumerate(given))
            for kind, given in (("in", inputs), ("out", outputs))
        ]
        self._server, self._other = socket.socketpair()
        attach = Attach(model, version, *specs, batch, 1, packing=form)
        link = front_end_link.FrontEndLink(path, attach, infer, **more)
        self._thread = threading.Thread(target=link.run, args=(self._server, lambda: True))
        self._thread.start()

    def close(self):
        self._other.close()  # twice does no harm
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._server.close()


class Service:
    """A front end at a port that stays the same when it is started again, and its workers."""

    until = staticmethod(wait_until)

    def __init__(self, folder, host="127.0.0.1", **settings):
        self._folder, self._host, self._settings = folder, host, settings
        self._port = 0
        self._workers = []
        self.front_end = None
        self.start()

    def start(self):
        unix = self._folder / "stream.sock"
        settings = {"host": self._host, "unix": unix, **self._settings}
        settings["port"] = self._port
        self.front_end = wait_until(lambda: self._bound(settings), "the port is free")
        self._port = self.front_end.port
        self._thread = threading.Thread(target=self.front_end.run)
        self._thread.start()

    def _bound(self, settings):
        """A worker that has not noticed the end of the last front end still has its socket."""
        try:
            return FrontEnd(Settings(self._folder / "nic.sock", **settings))
        except OSError as error:
            assert error.errno == errno.EADDRINUSE
            return None

    def stop(self, *, gently=False):
        """As when its process is killed, or told to end."""
        self.front_end.stop(finish=gently)
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.front_end.close()
        self.front_end = None

    def serve(self, model, inputs, outputs, infer, **more):
        """A worker, attached; inputs and outputs as pairs of dtype and shape."""
        worker = self.start_worker(model, inputs, outputs, infer, **more)
        self.wait_for(model)
        return worker

    def start_worker(self, model, inputs, outputs, infer, **more):
        """The same, whether or not it can attach."""
        path = self._folder / "nic.sock"
        self._workers.append(Worker(path, model, inputs, outputs, infer, **more))
        return self._workers[-1]

    def wait_for(self, model):
        wait_until(lambda: self.front_end.functions.find(model, ""), f"{model} attached")

    def url(self, scheme="udp"):
        if scheme == "unix":
            return f"unix://{self._folder}/stream.sock"
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{scheme}://{host}:{self._port}"

    def close(self):
        for worker in self._workers:
            worker.close()
        if self.front_end is not None:
            self.stop()


@pytest.fixture
def make_service(built, tmp_path, monkeypatch):
    """Makes a service; its folder's path is short enough for a socket."""
    monkeypatch.setattr(front_end_link, "RETRY_S", 0.02)  # workers come back soon
    with contextlib.ExitStack() as stack:

        def make(folder=tmp_path, **settings):
            service = Service(folder, **settings)
            stack.callback(service.close)
            return service

        yield make


@pytest.fixture
def double():
    """A model, twice its input, as arguments of ``serve``."""

    def infer(inputs, outputs):
        outputs[0].copy_(inputs[0] * 2)

    shape = [("float32", (3,))]
    return {"inputs": shape, "outputs": shape, "infer": infer}


@pytest.fixture
def gated(make_service):
    """A service whose model waits for a gate, and remembers what ran."""
    service = make_service()
    service.gate, service.ran, service.begun = threading.Event(), [], threading.Event()

    def infer(inputs, outputs):
        service.begun.set()
        assert service.gate.wait(60)
        service.ran += inputs[0][:, 0].tolist()
        outputs[0].copy_(inputs[0])

    shape = [("float32", (3,))]
    service.serve("gated", shape, shape, infer, batch=1)
    yield service
    service.gate.set()
