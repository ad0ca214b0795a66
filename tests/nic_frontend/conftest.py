"""Both cores behind one interface, and a client's datagrams by hand."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

from shunter.batching import native
from shunter.batching.segments import SegmentPlan
from shunter.batching.wire import Header
from shunter.batching.wire_layout import Flags, MessageType
from shunter.nic_frontend import build
from shunter.nic_frontend.core import Core
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


@pytest.fixture(scope="session")
def sanitized_processes(nic, tmp_path_factory):
    """The same with the library under the sanitizers; their runtime must be loaded first."""
    names = ("libasan.so", "libubsan.so")
    compiler = os.environ.get("CC", "cc")
    try:
        found = [
            subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
            for name in names
        ]
        library = tmp_path_factory.mktemp("sanitized") / "libshunter.so"
        build.build(library, more=("-O1", *build.SANITIZERS))
    except (OSError, build.BuildError) as error:
        pytest.skip(f"no sanitizers: {error}")
    started = nic.Processes(
        str(library), LD_PRELOAD=" ".join(found), ASAN_OPTIONS="detect_leaks=0"
    )
    yield started
    started.close()


NATIVE = {"c": (True, True), "python": (False, False)}
MIXED = NATIVE | {"c-python": (True, False), "python-c": (False, True)}


@pytest.fixture
def make_site(nic, processes, tmp_path):
    """Makes a folder for a front end and workers; both are ended afterwards."""
    made = []

    def make(native=(True, True), processes=processes):
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


@pytest.fixture(params=[*NATIVE, "sanitized"])
def abused_site(request, make_site):
    """The same, and in C under the sanitizers."""
    if request.param == "sanitized":
        return make_site(processes=request.getfixturevalue("sanitized_processes"))
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
    ):
        self.core, self.key = core, key
        self.inputs, self.outputs = SegmentPlan(inputs, segment), SegmentPlan(outputs, segment)
        core.add_function(FUNC, inputs, outputs, entries)
        session = Session(SESSION, FUNC, PEER, segment, window, key, stream)
        core.add_session(session, 0)
        self.now = 0
        self.pkt_no = 0

    def header(self, kind=MessageType.REQ, req_id=1, seq=0, **more):
        """A right one, unless ``more`` says otherwise."""
        self.pkt_no += 1
        fields = {"type": kind, "req_id": req_id, "func_id": FUNC, "session": SESSION}
        fields |= {"credit": 1, "pkt_no": self.pkt_no}
        if kind == MessageType.REQ:
            segment = self.inputs.place(seq)
            last = seq == self.inputs.count - 1
            fields |= {
                "flags": Flags.LAST if last else 0,
                "seq": seq,
                "count": self.inputs.count,
                "length": segment.length,
                "offset": segment.offset,
                "tensor": segment.tensor,
                "total": self.inputs.sizes[segment.tensor],
            }
        return Header(**{**fields, **more})

    def say(self, kind=MessageType.REQ, req_id=1, seq=0, peer=PEER, payload=b"", **more):
        """Send a datagram; the actions."""
        if payload:
            more["length"] = len(payload)
        header = self.header(kind, req_id, seq, **more)
        return self.core.receive(
            peer, header.pack(self.key) + payload, self.now, 64 + header.length
        )

    def say_wrong(self, **changes):
        """The first segment of a request with other fields."""
        header = self.header()._replace(**changes)
        return self.core.receive(PEER, header.pack(), self.now, 64 + header.length)

    def whole(self, req_id=1, **more):
        """All segments of a request; the actions of the last."""
        for seq in range(self.inputs.count):
            actions = self.say(req_id=req_id, seq=seq, **more)
        return actions
