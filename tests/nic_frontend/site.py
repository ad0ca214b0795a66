"""A front end, its workers and its clients, as processes and by hand."""

import contextlib
import ctypes
import importlib.util
import json
import mmap
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from copy import copy
from pathlib import Path

import numpy as np

from shunter.batching.queue import attach
from shunter.batching.queue.layout import PIECE
from shunter.batching.queue.native import WorkerQueue, load
from shunter.batching.queue.shared_memory import Mapping
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend import library
from shunter.nic_frontend.wire.header import Header, parse
from shunter.nic_frontend.wire.hello import (
    DEFAULT_KEY,
    NO_COOKIE,
    Hello,
    Opened,
    parse_cookie,
)
from shunter.nic_frontend.wire.keys import session_keys
from shunter.nic_frontend.wire.layout import MAC_BYTES, Flags, MessageType, Rights, WireStatus
from shunter.nic_frontend.wire.segments import SegmentPlan, shared_places

PROCESSES = Path(__file__).with_name("processes.py")
PATIENCE_S = 60
"""Nothing takes so long, however slow the machine is."""
INPUTS, OUTPUTS = [("a", "uint8", [1024])], [("b", "uint8", [512])]
"""Four segments and two, of 256 bytes."""


def until(condition, what="it"):
    """Wait for a condition; its value."""
    end = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not come true"
        time.sleep(0.002)
    return found


class Processes:
    """Starts processes, quickly. ``library``: another one than the usual, of the data path in C.

    ``before``: a command that runs the one that follows it.
    """

    def __init__(self, library="", before=(), **environment):
        self._library = library
        self._process = subprocess.Popen(
            [*before, sys.executable, str(PROCESSES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._process.stdout.readline()

    def using(self, library):
        """The same one, starting them with another library."""
        found = copy(self)
        found._library = library
        return found

    def start(self, role, **options):
        """The number of a process with this role."""
        self._process.stdin.write(json.dumps([role, self._library, options]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class Site:
    """Everything in one folder."""

    def __init__(self, processes, folder):
        self._processes, self.folder = processes, folder
        self._closing = contextlib.ExitStack()
        self._alive = set()
        self.links = {}

    def close(self):
        """End every process."""
        (self.folder / "hold").unlink(missing_ok=True)
        self._closing.close()
        for pid in list(self._alive):
            self.kill(pid)

    def _start(self, role, **options):
        pid = self._processes.start(role, folder=str(self.folder), **options)
        self._alive.add(pid)
        return pid

    def kill(self, pid, number=signal.SIGKILL):
        """End a process, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):  # it may end by itself at any moment
            descriptor = os.pidfd_open(pid)
            with contextlib.closing(os.fdopen(descriptor, "rb", 0)):
                signal.pidfd_send_signal(descriptor, number)
                assert select.select([descriptor], [], [], PATIENCE_S)[0], f"{pid} does not end"
        self._alive.discard(pid)

    # ---- front end

    def serve(self, **settings):
        """Start a front end, at a free port."""
        self.front = self._start("front_end", **{"port": 0, **settings})
        self.key = bytes.fromhex(settings["key"]) if settings.get("key") else None
        control = self.folder / f"control-{self.front}"
        until(lambda: control.exists() or self.refused(), "the front end")
        if control.exists():
            self.port = self.look()["port"]
        return self.front

    def refused(self):
        """Why a front end could not serve."""
        path = self.folder / "refused"
        return path.read_text() if path.exists() else ""

    def look(self):
        """What the front end says of itself."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
            control.settimeout(PATIENCE_S)
            until(lambda: _connects(control, self.folder / f"control-{self.front}"))
            return json.loads(control.recv(1 << 16))

    def function(self, model="m"):
        """What the front end says of a model."""
        return self.look()["functions"].get(model)

    def dropped(self, reason):
        """Datagrams that were dropped for it."""
        return self.look()["stats"].get(f"drop_{reason}", 0)

    # ---- workers

    def worker(self, batch=4, inputs=INPUTS, outputs=OUTPUTS, **options):
        """Start a worker and wait until it is attached."""
        path = self.folder / f"server-{secrets.token_hex(4)}"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            tensors = {"inputs": inputs, "outputs": outputs}
            pid = self._start(
                "worker",
                **{"server": str(path), "batch": batch, **tensors, **options},
            )
            listener.settimeout(PATIENCE_S)
            self.links[pid] = self._closing.enter_context(listener.accept()[0])
        until(lambda: pid in self.look()["attached"], "a worker attaches")
        return pid

    def puppet(self, batch=1, inputs=INPUTS, outputs=OUTPUTS, **options):
        """A worker that a test plays itself."""
        return self._closing.enter_context(
            Puppet(self.folder / attach.NAME, batch, inputs, outputs, **options)
        )

    def hold(self):
        """Let what runs wait until :meth:`go_on`."""
        (self.folder / "hold").touch()

    def go_on(self):
        """End :meth:`hold`."""
        (self.folder / "hold").unlink()

    def ran(self):
        """Batches that ran: the worker's number and the requests."""
        path = self.folder / "ran"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(pid, names) for pid, names in map(json.loads, lines)]

    def executions(self):
        """How often each request ran."""
        return Counter(name for _, names in self.ran() for name in names)

    # ---- clients

    def client(self, kind="udp", **options):
        """A client with a session."""
        client = self._closing.enter_context(Raw(self, kind))
        client.open(**options)
        return client

    def stranger(self, kind="udp"):
        """A client without one."""
        return self._closing.enter_context(Raw(self, kind))


def _connects(connection, path):
    try:
        connection.connect(str(path))
    except OSError:
        return False
    return True


class Puppet:
    """Attached to the front end as a worker, doing only what it is told."""

    def __init__(self, path, batch, inputs, outputs, model="m", version="1", **more):
        self.connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.settimeout(PATIENCE_S)
        self.connection.connect(str(path))
        specs = [tuple(TensorSpec(n, d, tuple(s)) for n, d, s in k) for k in (inputs, outputs)]
        hello = attach.Attach(model, version, *specs, batch, os.getpid(), **more)
        attach.send(self.connection, hello.to_json())
        self.answer, descriptors = attach.receive(self.connection)
        self._sender = socket.socket(fileno=descriptors[0])
        self._bells = descriptors[1:3]
        self.landing = Mapping(descriptors[3], self.answer["landing"], writable=False)
        os.close(descriptors[3])
        carried = hello.carried_inputs, hello.carried_outputs
        self.queue = TensorQueue.attach(descriptors[4:], *carried, packed=bool(hello.packing))
        self.index = self.answer["worker"]
        [self.results, *_] = self.queue.results()
        self._held = []
        """Batches that it has taken and not answered."""
        self._end = WorkerQueue(
            load(str(library.require()._name)),
            *(self.queue, self.answer["func_id"], self.index, self.landing),
            doorbell=self._bells[0],
            socket=self._sender.fileno(),
            front=self._bells[1],
        )

    def batch(self, patience_s=PATIENCE_S):
        """Entries of the next batch, None when there is none."""
        end = time.monotonic() + patience_s
        while True:
            if (found := self._end.wait([], 0, 10_000_000)) is not None:
                self._held.append(found)
                return found.entries[: found.count]
            if time.monotonic() > end:
                return None

    def requests(self):
        """The inputs of the last batch, as bytes: by tensor, a row for each request."""
        batch = self._held[-1]
        rows = [np.empty((batch.count, spec.bytes), np.uint8) for spec in self.queue.inputs]
        into = (ctypes.c_void_p * len(rows))(*[r.ctypes.data for r in rows])
        self._end.gather(batch, 0, batch.count, into)
        return rows

    def names(self, entries):
        """The requests of the batch, which has these entries."""
        assert entries is not None
        return [int(row[:4].view("<u4")[0]) for row in self.requests()[0]]

    def pieces(self, entry):
        """The bytes of each part of an entry's input that has come, None: it has not."""
        found = []
        for i in range(self.queue.words[self.queue.entry(entry, "entry_pieces")]):
            at = (entry * self.queue.most_pieces + i) * PIECE.size
            offset, length, region = PIECE.unpack_from(self.queue.pieces.bytes, at)
            assert region == 0
            found.append(bytes(self.landing.bytes[offset : offset + length]) if length else None)
        return found

    def held(self):
        """Parts of inputs that entries hold."""
        words = np.frombuffer(self.queue.pieces.bytes, np.uint32).reshape(-1, 4)
        return int(np.count_nonzero(words[:, 2]))

    def put(self, entry, answer):
        """Make these bytes the answer to a request of any length."""
        self.queue.words[self.queue.entry(entry, "entry_result_bytes")] = len(answer)
        answer = np.frombuffer(answer, np.uint8)[: self.results.shape[1]]
        self.results[entry, : answer.size] = answer

    def done(self, *statuses):
        """Answer the batch, the oldest of those that it holds."""
        self._end.answer(self._held.pop(0), list(statuses))

    def word(self, name):
        """Index of a word of its own."""
        return self.queue.worker(self.index, name)

    def leave(self):
        """Say that it is enough."""
        attach.send(self.connection, {"leave": True})

    def die(self):
        """The connection ends."""
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()
        self._end.close()
        self._sender.close()
        for descriptor in self._bells:
            os.close(descriptor)
        self.results = None
        self.queue.close()
        self.landing.close()


class Raw:
    """A client that makes its datagrams by hand."""

    def __init__(self, site, kind):
        self._site, self.kind, self.stream = site, kind, kind != "udp"
        if kind == "unix":
            self.socket = socket.socket(socket.AF_UNIX)
            where = str(site.folder / "nic.stream")
        else:
            how = socket.SOCK_STREAM if kind == "tcp" else socket.SOCK_DGRAM
            self.socket = socket.socket(socket.AF_INET, how)
            where = "127.0.0.1", site.port
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(where)
        self.pkt_no, self.key, self.below = 0, None, 1
        self.next_id = 1
        self.memory, self.shared = -1, None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        if self.memory >= 0:
            os.close(self.memory)

    # ---- hello

    def hello(
        self, model="m", cookie=NO_COOKIE, segment=256, window=64, nonce=None, version="", **more
    ):
        """Send a hello; its nonce."""
        nonce = nonce or secrets.token_bytes(16)
        key_id = more.pop("key_id", DEFAULT_KEY if self._site.key else "")
        hello = Hello(nonce, model, version, segment, window, cookie, key_id=key_id, **more)
        self.said = hello.message(self._site.key)
        self.put(self.said)
        return nonce

    def open(self, **options):
        """Open a session."""
        nonce = self.hello(**options)
        if not self.stream or self._site.key:
            header, payload = self.get()
            assert header.status == WireStatus.COOKIE
            cookie = parse_cookie(payload, nonce)
            self.hello(cookie=cookie, nonce=nonce, **options)
        header, payload = self.get()
        assert header.status == WireStatus.OK, header
        opened = Opened.parse(payload[:-MAC_BYTES], nonce)
        self.session, self.func_id = header.session, header.func_id
        self.grant, self.opened = header.credit, opened
        if self._site.key:
            said = self.said[:-MAC_BYTES], payload[:-MAC_BYTES]
            self.keys = session_keys(self._site.key, b"", *said)
            self.key = self.keys.tag_to_server
        sides = opened.inputs, opened.outputs
        if form := opened.packing:
            sides = form.carried_inputs(), form.carried_outputs()
        sizes = [tuple(s.bytes for s in kind) for kind in sides]
        self.plan, self.back = (SegmentPlan(each, opened.segment) for each in sizes)
        if opened.rights & Rights.SHARED_MEMORY:
            self.places, self.each = shared_places(sizes[0])
            self.shared = mmap.mmap(self.memory, opened.window * self.each)

    # ---- bytes

    def put(self, data):
        """Send a datagram, or the same on a stream."""
        self.socket.sendall(data) if self.stream else self.socket.send(data)

    def get(self):
        """The next message."""
        if not self.stream:
            data = self.socket.recv(1 << 16)
            return parse(data), data[64:]
        head = self._read(64)
        payload = self._read(int.from_bytes(head[22:24], "little"))
        return parse(head + payload), payload

    def _read(self, count):
        data = b""
        while len(data) < count:
            if self.kind == "unix":
                more, found, _ = attach.receive_descriptors(self.socket, count - len(data), 1)
                [self.memory] = found or [self.memory]
            else:
                more = self.socket.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def is_quiet(self, wait_s=0.05, but=()):
        """Whether nothing comes, except messages of these types."""
        while select.select([self.socket], [], [], wait_s)[0]:
            if self.get()[0].type not in but:
                return False
        return True

    # ---- requests

    def header(self, kind=MessageType.REQ, req_id=1, seq=0, **more):
        """A right one, unless ``more`` says otherwise."""
        self.pkt_no += 1
        fields = {"type": kind, "req_id": req_id, "func_id": self.func_id, "flags": 0}
        fields |= {"session": self.session, "credit": self.below, "pkt_no": self.pkt_no}
        if kind == MessageType.REQ:
            segment = self.plan.place(min(seq, self.plan.count - 1))
            fields |= {"seq": seq, "count": self.plan.count, "tensor": segment.tensor}
            fields |= {"length": segment.length, "offset": segment.offset}
            fields["total"] = self.plan.sizes[segment.tensor]
            fields["flags"] = Flags.LAST if seq == self.plan.count - 1 else 0
        fields["flags"] |= more.pop("add", 0)
        return Header(**{**fields, **more})

    def request_of(self, name):
        """The bytes of a request's tensors; the first four are its name."""
        tensors = []
        for size in self.plan.sizes:
            content = np.arange(size, dtype=np.uint8) + name % 251
            content[:4] = np.frombuffer(np.uint32(name).tobytes(), np.uint8)[:size]
            tensors.append(content)
        return tensors

    def segment(self, req_id, seq, name=None, **more):
        """Send one segment of a request."""
        header = self.header(MessageType.REQ, req_id, seq, **more)
        tensors = self.request_of(req_id if name is None else name)
        place = self.plan.place(seq)
        payload = tensors[place.tensor][place.offset : place.offset + place.length].tobytes()
        self.put(header.pack(self.key) + payload)

    def ask(self, name=None, req_id=None, **more):
        """Send a whole request; its number."""
        if req_id is None:
            req_id, self.next_id = self.next_id, self.next_id + 1
        for seq in range(self.plan.count):
            self.segment(req_id, seq, name, **more)
        return req_id

    def ask_run(self, run, req_id=None, rows=1, **more):
        """Send a request of as many bytes; its number."""
        if req_id is None:
            req_id, self.next_id = self.next_id, self.next_id + 1
        plan = SegmentPlan((len(run),), self.plan.segment)
        for seq in range(plan.count):
            at, length = plan.place(seq)[1:]
            fields = {"total": len(run), "offset": at, "length": length, "count": plan.count}
            fields |= {"status": rows, "flags": Flags.LAST if seq == plan.count - 1 else 0}
            header = self.header(MessageType.REQ, req_id, seq, **{**fields, **more})
            self.put(header.pack(self.key) + run[at : at + length])
        return req_id

    def run_of(self, req_id):
        """The answer to it, which has any length, or the status of its error."""
        parts = {}
        while True:
            header, payload = self.get()
            if header.req_id == req_id and header.type == MessageType.ERROR:
                return header.status
            if header.req_id == req_id and header.type == MessageType.RESP:
                parts[header.offset] = payload
                if len(parts) == header.count:
                    assert sum(map(len, parts.values())) == header.total
                    return b"".join(parts[at] for at in sorted(parts))

    def ask_shared(self, name=None, req_id=None, offset=None, **more):
        """Send a request whose tensors lie in shared memory; its number."""
        if req_id is None:
            req_id, self.next_id = self.next_id, self.next_id + 1
        at = req_id % self.opened.window * self.each
        content = self.request_of(req_id if name is None else name)
        for place, tensor in zip(self.places, content, strict=True):
            self.shared[at + place : at + place + tensor.size] = tensor.tobytes()
        fields = {"count": 1, "length": 0, "total": 0, "flags": Flags.LAST}
        fields |= {"offset": at if offset is None else offset}
        payload = more.pop("payload", b"")
        header = self.header(MessageType.REQ, req_id, **{**fields, **more})
        self.put(header.pack(self.key) + payload)
        return req_id

    def control(self, kind, req_id=0, payload=b"", **more):
        """Send an ACK, QUERY or CANCEL."""
        header = self.header(kind, req_id, length=len(payload), **more)
        self.put(header.pack(self.key) + payload)

    def acknowledge(self, below, **more):
        """Everything below is done."""
        self.below = below
        self.control(MessageType.ACK, **more)

    def answers(self, count):
        """By request: the bytes of the answer's tensors, or the status of its error."""
        return self._answers(lambda found: len(found) >= count)

    def answers_to(self, numbers):
        """The same of these requests; of others nobody wants to know."""
        found = self._answers(lambda found: set(numbers) <= found.keys())
        return {number: found[number] for number in numbers}

    def _answers(self, is_enough):
        found, parts = {}, {}
        while not is_enough(found):
            header, payload = self.get()
            if header.type == MessageType.ERROR:
                found[header.req_id] = header.status
            elif header.type == MessageType.RESP:
                have = parts.setdefault(header.req_id, {})
                have[header.seq] = header, payload
                if len(have) == self.back.count:
                    found[header.req_id] = self._joined(have)
        return found

    def _joined(self, parts):
        tensors = [b""] * len(self.back.sizes)
        for seq in range(self.back.count):
            header, payload = parts[seq]
            place = self.back.place(seq)
            assert (header.tensor, header.offset) == (place.tensor, place.offset)
            tensors[place.tensor] += payload
        return tensors

    def expected(self, name):
        """The answer to a request."""
        request = self.request_of(name)[0]
        return [PROCESSES_MODULE.answer_of(request, size).tobytes() for size in self.back.sizes]


def _processes_module():
    spec = importlib.util.spec_from_file_location("nic_processes", PROCESSES)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PROCESSES_MODULE = _processes_module()
FAILING = PROCESSES_MODULE.FAILING
