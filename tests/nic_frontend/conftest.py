"""Both cores behind one interface, and a client's datagrams by hand."""

import importlib.util
from pathlib import Path

import pytest

from shunter.batching import native
from shunter.batching.segments import SegmentPlan
from shunter.batching.wire import Header, behind
from shunter.batching.wire_layout import Flags, MessageType
from shunter.nic_frontend import build
from shunter.nic_frontend.core import Core, Place
from shunter.nic_frontend.native_core import NativeCore
from shunter.nic_frontend.sessions import Session

PEER = bytes([2, 0, 0x1F, 0x90, 127, 0, 0, 1]).ljust(32, b"\0")
OTHER_PEER = bytes([2, 0, 0x1F, 0x91, 127, 0, 0, 1]).ljust(32, b"\0")
FUNC, SESSION = 7, 0xABCD0001
KEY = bytes(range(16))
MS = 1_000_000


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


NATIVE = {"c": (True, True), "python": (False, False)}
MIXED = NATIVE | {"c-python": (True, False), "python-c": (False, True)}


@pytest.fixture
def make_site(nic, processes, tmp_path):
    """Makes a folder for a front end and workers; both are ended afterwards."""
    made = []

    def make(native=(True, True)):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(nic.Site(processes, folder, native))
        return made[-1]

    yield make
    for site in made:
        site.close()


@pytest.fixture(params=NATIVE)
def site(request, make_site):
    """With the data path in C, and in Python."""
    return make_site(NATIVE[request.param])


@pytest.fixture(params=MIXED)
def mixed_site(request, make_site):
    """With the front end and the workers each in C and in Python."""
    return make_site(MIXED[request.param])


@pytest.fixture(scope="session")
def built():
    """The library, built from these sources."""
    build.ensure()
    native.library.cache_clear()


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


class Table:
    """One session of one function."""

    func, session, peer, other_peer = FUNC, SESSION, PEER, OTHER_PEER

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
    ):
        self.core, self.key, self.protect = core, key, protect
        self.inputs, self.outputs = SegmentPlan(inputs, segment), SegmentPlan(outputs, segment)
        core.add_function(FUNC, inputs, outputs, entries)
        session = Session(SESSION, FUNC, PEER, segment, window, key, stream, protect)
        session.pkt_no = server_pkt_no
        core.add_session(session, 0)
        self.now = 0
        self.pkt_no = 0

    def header(self, kind=MessageType.REQ, req_id=1, seq=0, **more):
        """A right one, unless ``more`` says otherwise."""
        self.pkt_no += 1
        fields = {"type": kind, "req_id": req_id, "func_id": FUNC, "session": SESSION}
        add = more.pop("add", 0)
        fields |= {"credit": 1, "pkt_no": self.pkt_no}
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
        self, kind=MessageType.REQ, req_id=1, seq=0, peer=PEER, payload=b"", right=True, **more
    ):
        """Send a datagram, whose payload is right or not; the actions."""
        if payload:
            more["length"] = len(payload)
        header = self.header(kind, req_id, seq, **more)
        data = header.pack(self.key) + payload
        length = 64 + header.length + behind(header.flags)
        actions = self.core.receive(peer, data, self.now, length)
        if right and any(isinstance(a, Place) and a.later for a in actions):
            actions += self.core.accept(data, self.now)
        return actions

    def say_wrong(self, **changes):
        """The first segment of a request with other fields."""
        header = self.header()._replace(**changes)
        return self.core.receive(PEER, header.pack(), self.now, 64 + header.length)

    def whole(self, req_id=1, **more):
        """All segments of a request; the actions of the last."""
        for seq in range(self.inputs.count):
            actions = self.say(req_id=req_id, seq=seq, **more)
        return actions
