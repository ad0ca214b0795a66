"""The front end's data path in Python: the twin of ``c/server.c``, for where no library is.

Same core, same queues, same workers; one system call for each datagram instead of one for many.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shunter.batching.queue_worker import address_of, fence
from shunter.batching.segments import Segment
from shunter.batching.slices import SliceSet
from shunter.batching.tensor_queue import TensorQueue
from shunter.batching.wire import behind, unpack
from shunter.batching.wire_layout import AHEAD, HEADER_BYTES, Flags, MessageType, WireStatus
from shunter.nic_frontend.aead import NoCipherError, require_cipher, server_guard
from shunter.nic_frontend.core import (
    Action,
    Core,
    Defaults,
    Drop,
    Hello,
    Place,
    Ready,
    Send,
    Whom,
    Withdraw,
)
from shunter.nic_frontend.dispatch import Dispatch, Hand, Policy, Run
from shunter.nic_frontend.listeners import peer_of
from shunter.nic_frontend.native_server import COUNTERS
from shunter.nic_frontend.sessions import CallState, Session

TICK_NS = 1_000_000
BEAT_NS = 100_000_000
_MOST_AT_ONCE = 64
_LARGEST = 1 << 16
_NOWHERE = memoryview(bytearray())
LOOK_NS = 200_000_000
"""Streams are looked at so often, and when a session has ended."""
LATE_NS = 2_000_000_000
"""A message of a stream that is not complete by then ends it."""
_CONTROL_BYTES = 1 << 16
_MOST_OUT = 256 << 20
"""Bytes that all streams together did not take yet."""


@dataclass
class _Served:
    func_id: int
    queue: TensorQueue
    dispatch: Dispatch
    inputs: list[memoryview]
    outputs: list[memoryview]
    doorbells: dict[int, int] = field(default_factory=dict)
    indirect: set[int] = field(default_factory=set)
    """Entries that run and whose answers the front end sends."""

    def enqueue(self, ready: Ready, now_ns: int) -> None:
        """A request can run; workers may see it before it is given to one of them."""
        number = self.dispatch.enqueue(ready, now_ns)
        self.queue.words[self.queue.entry(ready.entry, "entry_arrival")] = number
        self.queue.words[self.queue.front_end("front_end_arrivals")] = self.dispatch.arrivals


@dataclass
class _Stream:
    socket: socket.socket
    session: int
    peer: bytes
    data: bytearray = field(default_factory=bytearray)
    begun_ns: int = 0
    """When a message that is not complete began, 0: there is none."""
    out: bytearray = field(default_factory=bytearray)


class PythonServer:
    """See :class:`shunter.nic_frontend.native_server.NativeServer`."""

    def __init__(self, udp: int, doorbell: int, wake: int, *, spin_us: int, gro: bool) -> None:
        """Descriptors of the socket, the doorbell and of what else run() returns for.

        ``gro`` must be off: every datagram is received by itself.
        """
        assert not gro
        self._udp = socket.socket(fileno=os.dup(udp))
        self._udp.setblocking(False)
        self._doorbell, self._wake, self._spin_ns = doorbell, wake, spin_us * 1000
        self._spins = False
        self._core = Core()
        self._served: dict[int, _Served] = {}
        self._streams: dict[int, _Stream] = {}
        self._closed: list[int] = []
        self._epoll = select.epoll()
        for descriptor in (self._udp.fileno(), doorbell, wake):
            self._epoll.register(descriptor, select.EPOLLIN)
        self._counts: Counter[str] = Counter()
        self._header, self._spill = bytearray(HEADER_BYTES), bytearray(_LARGEST)
        self._last: tuple[int, int] = (0, 0)
        """Session and request of the last segment that was placed."""
        self._hellos: list[tuple[bytes, bytes]] = []
        self._now = 0
        self._next_tick = self._next_look = self._ended_streams = 0

    def limit(self, sessions: int, streams: int) -> None:
        """So many sessions at once, and so many on streams among them."""
        self._core.limit(sessions, streams)

    def close(self) -> None:
        """Close streams and the socket's copy."""
        for stream in self._streams.values():
            stream.socket.close()
        self._epoll.close()
        self._udp.close()

    # ---- the loop

    def why_no_encryption(self) -> str:
        """Empty when it can encrypt."""
        try:
            require_cipher()
        except NoCipherError as error:
            return str(error)
        return ""

    def run(self, until_ns: int) -> list[tuple[bytes, bytes]]:
        """Serve until then, or until something is up; peers and datagrams of hellos."""
        self._hellos = []
        quiet = 0
        while True:
            self._now = time.monotonic_ns()
            busy = self._collect() + self._receive()
            self._tick()
            for served in self._served.values():
                self._dispatch(served)
            woken = False
            if not busy and self._now - quiet >= self._spin_ns * self._spins:
                woken = self._sleep(until_ns)
            elif self._streams or not busy:
                woken = self._events(0)
            if busy:
                quiet = self._now
            if self._hellos or self._closed or woken or self._now >= until_ns:
                return self._hellos

    def _sleep(self, until_ns: int) -> bool:
        queues = [served.queue for served in self._served.values()]
        words = [(queue.words, queue.front_end("front_end_asleep")) for queue in queues]
        for each, at in words:
            each[at] = 1
        fence()  # one of the two sees the other
        woken = False
        if not self._collect():
            times = [until_ns, self._next_tick]
            times += [t for s in self._served.values() if (t := s.dispatch.next_ns()) is not None]
            self._counts["sleeps"] += 1
            slept_ns = time.monotonic_ns()
            woken = self._events(max(0, min(times) - self._now) / 1e9)
            # After a sleep so short the next wait is worth spinning for; after a spin in vain not.
            self._spins = time.monotonic_ns() - slept_ns < self._spin_ns
        for each, at in words:
            each[at] = 0
        return woken

    def _events(self, timeout_s: float) -> bool:
        woken = False
        for descriptor, event in self._epoll.poll(timeout_s):
            if descriptor == self._wake:
                woken = True
            elif descriptor == self._doorbell:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._doorbell)
            elif stream := self._streams.get(descriptor):
                if event & select.EPOLLOUT:
                    self._write(stream)
                if event & ~select.EPOLLOUT and descriptor in self._streams:
                    self._read(stream)
        return woken

    def _tick(self) -> None:
        step = TICK_NS if self._core.is_pressed() else BEAT_NS
        if self._now < min(self._next_tick, self._now + step):
            self._next_tick = min(self._next_tick, self._now + step)
            return
        self._close_late()
        self._act(self._core.tick(self._now))
        self._next_tick = self._now + step

    # ---- datagrams

    def _receive(self) -> int:
        for number in range(_MOST_AT_ONCE):
            target = self._expected()
            try:
                length, _, _, address = self._udp.recvmsg_into(
                    [self._header, target, self._spill]
                )
            except (BlockingIOError, ConnectionRefusedError):
                return number
            self._now = time.monotonic_ns()
            self._counts["datagrams_in"] += 1
            self._counts["bytes_in"] += length
            self._datagram(peer_of(address), length, target)
        return _MOST_AT_ONCE

    def _expected(self) -> memoryview:
        """Where the next segment is likely to belong: of the same request, or of the next one."""
        session = self._core.sessions.get(self._last[0])
        if session is None or session.closing:
            return _NOWHERE
        function = self._core.functions[session.func_id]
        plan = function.plan(function.inputs, session.segment)
        call = session.call(self._last[1])
        entry, seq = function.ring.peek(), 0
        if call.req_id == self._last[1] and call.state is CallState.RECEIVING:
            entry = call.entry
            seq = next(i for i in range(plan.count) if not call.received >> i & 1)
        if entry is None:
            return _NOWHERE
        return self._place(session.func_id, entry, plan.place(seq))

    def _place(self, func_id: int, entry: int, segment: Segment) -> memoryview:
        served = self._served[func_id]
        size = served.queue.inputs[segment.tensor].bytes
        begin = entry * size + segment.offset
        return served.inputs[segment.tensor][begin : begin + segment.length]

    def _datagram(self, peer: bytes, length: int, target: memoryview) -> None:
        def payload() -> bytes:
            behind = max(0, length - HEADER_BYTES - len(target))
            return bytes(target[: length - HEADER_BYTES]) + bytes(self._spill[:behind])

        head = bytes(self._header[: min(length, HEADER_BYTES)])
        needs = len(head) == HEADER_BYTES and head[3] in (MessageType.SACK, MessageType.HELLO)
        whole = head + payload() if needs else head
        actions = self._core.receive(peer, whole, self._now, length)
        for action in actions:
            if isinstance(action, Place):
                self._land(action, head, target, payload)
                self._last = _session_of(head), int.from_bytes(head[8:16], "little")
            elif isinstance(action, Hello):
                self._hellos.append((peer, whole))
        self._act(actions)

    def _land(
        self, action: Place, head: bytes, target: memoryview, payload: Callable[[], bytes]
    ) -> None:
        """Put a payload where it belongs, if it is right."""
        session = self._core.sessions[_session_of(head)]
        segment = Segment(action.tensor, action.offset, action.length)
        place = self._place(session.func_id, action.entry, segment)
        found: bytes | None = None
        if session.protect:
            found = server_guard(session).open(head, action.number, payload())
            if found is None:
                self._counts[f"drop_{session.guarded_by}"] += 1
                return
        elif action.length and not _same(place, target):
            found = payload()
        if found is None:
            self._counts["placed_segments"] += 1
        else:
            place[:] = found
            self._counts["copied_segments"] += 1
            self._counts["copied_bytes"] += action.length
        self._act(self._core.accept(head, self._now))

    # ---- actions

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            if isinstance(action, Ready):
                self._served[action.func_id].enqueue(action, self._now)
                self._counts["requests"] += not (action.again or action.returned)
            elif isinstance(action, Withdraw):
                self._served[action.func_id].dispatch.withdraw(action.entry)
            elif isinstance(action, Send):
                self._send(action)
            elif isinstance(action, Drop):
                self._counts[f"drop_{action.reason}"] += 1

    def _send(self, action: Send) -> None:
        payload: bytes | memoryview = action.payload
        if action.entry >= 0:
            served = self._served[self._core.sessions[action.session].func_id]
            size = served.queue.outputs[action.tensor].bytes
            begin = action.entry * size + action.offset
            length = int.from_bytes(action.header[22:24], "little")
            payload = served.outputs[action.tensor][begin : begin + length]
        header = action.header
        if action.number:
            session = self._core.sessions[action.session]
            header, payload = server_guard(session).seal(header, action.number, payload)
        self._counts["bytes_out"] += HEADER_BYTES + len(payload)
        if not any(action.peer[:2]):
            stream = self._streams.get(_descriptor_of(action.peer))
            if stream is not None and stream.session == action.session:
                self._keep(stream, header + bytes(payload))
            return
        try:
            self._udp.sendmsg([header, payload], [], 0, address_of(action.peer))
            self._counts["datagrams_out"] += 1
        except OSError:  # it counts as lost; the client asks for it again
            self._counts["send_failures"] += 1

    # ---- workers

    def _dispatch(self, served: _Served) -> None:
        func_id = served.func_id
        for entry in served.dispatch.overdue(self._now):
            self._counts["expired"] += 1
            self._act(self._core.expired(func_id, entry, self._now))
        served.dispatch.dispatch(self._now, lambda *given: self._give(served, func_id, *given))
        wants = any(map(len, served.dispatch.lines)) or served.indirect
        served.queue.words[served.queue.front_end("front_end_wants_done")] = int(bool(wants))
        fence()

    def _give(self, served: _Served, func_id: int, worker: int, number: int, run: Run) -> None:
        queue, words = served.queue, served.queue.words
        for entry in self._entries(queue, run):
            whom = self._core.running(func_id, entry, self._now)
            _write_whom(queue, entry, whom)
            arrival = queue.entry(entry, "entry_arrival")
            words[arrival] = -abs(words[arrival])
            if not whom.direct:
                served.indirect.add(entry)
        place = number % AHEAD
        words[queue.worker(worker, "batch_first") + place] = run.first
        words[queue.worker(worker, "batch_count") + place] = run.count
        words[queue.worker(worker, "batch_number")] = number
        hand = served.dispatch.hands[worker]
        if hand.in_flight == 1:
            hand.began_ns = self._now
        fence()
        if words[queue.worker(worker, "worker_asleep")]:
            self._counts["rings"] += 1
            with contextlib.suppress(OSError):
                os.eventfd_write(served.doorbells[worker], 1)
        self._counts["batches"] += 1

    @staticmethod
    def _entries(queue: TensorQueue, run: Run) -> list[int]:
        return [(run.first + i) % queue.entries for i in range(run.count)]

    def _collect(self) -> int:
        batches = 0
        for func_id, served in self._served.items():
            for worker, hand in served.dispatch.hands.items():
                at = served.queue.worker(worker, "done_number")
                # It is the worker's word: never believe more than was given.
                done = min(served.queue.words[at], hand.given)
                while hand.done < done:
                    hand.done += 1
                    hand.began_ns = self._now
                    batches += 1
                    self._finish(func_id, served, hand.held.pop(hand.done), died=False)
        return batches

    def _finish(self, func_id: int, served: _Served, run: Run, *, died: bool) -> None:
        queue, words = served.queue, served.queue.words
        for entry in self._entries(queue, run):
            status = words[queue.entry(entry, "entry_status")]
            direct = entry not in served.indirect
            served.indirect.discard(entry)
            if status == WireStatus.OK:
                self._counts["answered"] += 1
                sent = direct and not died
                actions = self._core.finished(func_id, entry, status, self._now, sent=sent)
            elif died and status == 0:
                actions = self._core.worker_died(func_id, entry, self._now)
            else:
                self._counts["failed"] += 1
                failed = WireStatus.HANDLER_FAILED
                actions = self._core.finished(func_id, entry, failed, self._now, sent=False)
            self._act(actions)

    def add_worker(self, func_id: int, worker: int, cap: int, doorbell: int) -> None:
        """It gets batches of at most ``cap`` from now on."""
        served = self._served[func_id]
        for name in ("batch_number", "done_number", "worker_asleep"):
            served.queue.words[served.queue.worker(worker, name)] = 0
        served.dispatch.hands[worker] = Hand(min(cap, served.queue.entries))
        served.doorbells[worker] = doorbell

    def drain_worker(self, func_id: int, worker: int) -> None:
        """It gets no more batches."""
        self._served[func_id].dispatch.hands[worker].draining = True

    def is_idle(self, func_id: int, worker: int) -> bool:
        """Whether it has answered everything."""
        hand = self._served[func_id].dispatch.hands.get(worker)
        return hand is None or hand.in_flight == 0

    def busy_ns(self, func_id: int, worker: int, now_ns: int) -> int:
        """For how long the oldest batch that it holds has run; 0: it holds none."""
        hand = self._served[func_id].dispatch.hands[worker]
        return max(0, now_ns - hand.began_ns) if hand.in_flight else 0

    def give_up(self, func_id: int, status: int) -> int:
        """Answer what waits for a worker: it has not run. Returns the number of requests."""
        self._now = time.monotonic_ns()
        entries = self._served[func_id].dispatch.empty()
        for entry in entries:
            self._counts["failed"] += 1
            self._act(self._core.finished(func_id, entry, status, self._now, sent=False))
        return len(entries)

    def remove_worker(self, func_id: int, worker: int) -> None:
        """It is gone, whether it has finished or not."""
        self._now = time.monotonic_ns()
        self._collect()
        served = self._served[func_id]
        hand = served.dispatch.hands.pop(worker)
        for index, run in enumerate(hand.held[n] for n in sorted(hand.held)):
            if index == 0:
                self._finish(func_id, served, run, died=True)
                continue
            for entry in self._entries(served.queue, run):
                served.indirect.discard(entry)
                self._act(self._core.returned(func_id, entry, self._now))

    # ---- functions and sessions

    def add_function(self, func_id: int, queue: TensorQueue, policy: Policy, burst: int) -> None:
        """Serve a function; the queue must stay mapped until it is removed."""
        sizes = [tuple(spec.bytes for spec in specs) for specs in (queue.inputs, queue.outputs)]
        self._core.add_function(func_id, *sizes, queue.entries, burst)
        views = [
            [memoryview(a).cast("B") if a.size else memoryview(b"") for a in arrays]
            for arrays in queue.arrays()
        ]
        self._served[func_id] = _Served(func_id, queue, Dispatch(queue.entries, policy), *views)

    def set_policy(self, func_id: int, policy: Policy) -> None:
        """Other numbers from now on."""
        self._served[func_id].dispatch.policy = policy

    def set_defaults(self, func_id: int, defaults: Defaults) -> None:
        """What its requests take from their model from now on."""
        self._core.set_defaults(func_id, defaults)

    def set_hold(self, func_id: int, slot: int, slices: SliceSet) -> None:
        """Where its strict requests run from now on: see :class:`holding.Hold`."""
        self._core.set_hold(func_id, slot, slices, time.monotonic_ns())

    def hold_at(self, line: memoryview | None) -> None:
        """Say on this holder's line of the control page what strict requests hold.

        None: nowhere; the line before is lowered and let go of.
        """
        self._core.hold_at(line, time.monotonic_ns())

    def remove_function(self, func_id: int) -> None:
        """Raises OSError (EBUSY) while it has sessions or batches."""
        served, function = self._served[func_id], self._core.functions[func_id]
        if function.sessions or any(h.in_flight for h in served.dispatch.hands.values()):
            raise OSError(16, f"function {func_id}: it is in use")
        del self._served[func_id]
        self._core.remove_function(func_id)

    def add_session(self, session: Session, now_ns: int) -> int:
        """Open a session; returns its first grant.

        Raises OSError: EEXIST, E2BIG for its segments, ENOSPC when there are too many sessions.
        """
        if session.id in self._core.sessions:
            raise OSError(17, "a session: it exists")
        try:
            self._act(self._core.add_session(session, now_ns))
        except ValueError as error:
            raise OSError(7, f"a session: {error}") from error
        return session.grant

    def remove_session(self, session_id: int, now_ns: int) -> None:
        """Forget it; nothing when it is not there."""
        if self._core.is_open(session_id):
            self._act(self._core.remove_session(session_id, now_ns))

    def has_session(self, session_id: int) -> bool:
        """Whether it is open."""
        return self._core.is_open(session_id)

    def reply(self, peer: bytes, datagram: bytes) -> None:
        """Send the answer to a hello; what does not leave is asked for again."""
        with contextlib.suppress(OSError):
            self._udp.sendto(datagram, address_of(peer))

    # ---- streams

    def add_stream(self, descriptor: int, session_id: int) -> None:
        """Serve a stream, whose descriptor is taken."""
        connection = socket.socket(fileno=descriptor)
        connection.setblocking(False)
        peer = self.stream_peer(descriptor)
        self._streams[descriptor] = _Stream(connection, session_id, peer)
        self._epoll.register(descriptor, select.EPOLLIN)

    @staticmethod
    def stream_peer(descriptor: int) -> bytes:
        """What stands for the address of a stream."""
        return (b"\0\0" + descriptor.to_bytes(4, "little")).ljust(32, b"\0")

    def _read(self, stream: _Stream) -> None:
        try:
            data = stream.socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_stream(stream)
            return
        self._counts["bytes_in"] += len(data)
        stream.data += data
        self._messages(stream)
        stream.begun_ns = self._now if stream.data and not stream.begun_ns else stream.begun_ns

    def _messages(self, stream: _Stream) -> None:
        while len(stream.data) >= HEADER_BYTES:
            said = unpack(stream.data)
            if said.session != stream.session or said.type == MessageType.HELLO:
                self._close_stream(stream)
                return
            length = HEADER_BYTES + said.length + behind(said.flags)
            if len(stream.data) < length:
                return
            message = bytes(stream.data[:length])
            del stream.data[:length]
            stream.begun_ns = 0
            self._counts["streams_in"] += 1
            actions = self._core.receive(stream.peer, message, self._now)
            for action in actions:
                if isinstance(action, Place):
                    self._land(action, message, _NOWHERE, lambda m=message: m[HEADER_BYTES:])
            self._act(actions)

    def _close_late(self) -> None:
        """End streams that are in the midst of a message for too long: they hold an entry; and
        those whose session has ended."""
        ended = self._core.ended_streams
        if ended == self._ended_streams and self._now < self._next_look:
            return
        self._ended_streams, self._next_look = ended, self._now + LOOK_NS
        for stream in list(self._streams.values()):
            late = stream.begun_ns and self._now - stream.begun_ns > LATE_NS
            if late or not self._core.is_open(stream.session):
                self._close_stream(stream)

    def _keep(self, stream: _Stream, message: bytes) -> None:
        """Send when it can be; a client that asks, and does not read, is left."""
        session = self._core.sessions.get(stream.session)
        if session is None:  # it has ended since
            return
        most = self._core.answer_bytes(session) + _CONTROL_BYTES
        kept = sum(len(each.out) for each in self._streams.values())
        if len(stream.out) + len(message) > most or kept + len(message) > _MOST_OUT:
            self._close_stream(stream)
            return
        stream.out += message
        self._write(stream)

    def _write(self, stream: _Stream) -> None:
        try:
            sent = stream.socket.send(stream.out) if stream.out else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._close_stream(stream)
            return
        del stream.out[:sent]
        events = select.EPOLLIN | (select.EPOLLOUT if stream.out else 0)
        self._epoll.modify(stream.socket.fileno(), events)

    def _close_stream(self, stream: _Stream) -> None:
        descriptor = stream.socket.fileno()
        if descriptor in self._streams:
            self._epoll.unregister(descriptor)
            del self._streams[descriptor]
            stream.socket.close()
            self._closed.append(stream.session)

    def closed_streams(self) -> list[int]:
        """Sessions of streams that have ended since."""
        closed, self._closed = self._closed, []
        return closed

    # ---- numbers

    def stats(self) -> dict[str, int]:
        """All counters; what was dropped as ``drop_REASON``."""
        return {name: self._counts[name] for name in COUNTERS}

    def load(self, func_id: int) -> tuple[int, int]:
        """Open sessions, and requests that they may have on their way together."""
        return self._core.load(func_id)

    def waiting(self, func_id: int) -> int:
        """Requests that wait for a worker."""
        return sum(map(len, self._served[func_id].dispatch.lines))

    def sessions(self) -> int:
        """Sessions that there are."""
        return len(self._core.sessions)

    def free_entries(self, func_id: int) -> int:
        """Entries that nobody uses."""
        return self._core.functions[func_id].ring.free


def _same(left: memoryview, right: memoryview) -> bool:
    """Whether two views are of the same memory."""
    import ctypes

    if len(left) != len(right) or not left:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(left)) == ctypes.addressof(
        ctypes.c_char.from_buffer(right)
    )


def _session_of(head: bytes) -> int:
    return int.from_bytes(head[32:36], "little")


def _descriptor_of(peer: bytes) -> int:
    return int.from_bytes(peer[2:6], "little")


def _write_whom(queue: TensorQueue, entry: int, whom: Whom) -> None:
    words, at = queue.words, queue.entry(entry, "entry_req_id")
    flags = (Flags.HDR_TAG if whom.key else 0) | (Flags.ACK_REQ if whom.asks else 0)
    flags |= Flags.IDEMPOTENT if whom.idempotent else 0
    values = (
        *(whom.req_id, whom.session, flags, whom.segment, whom.pkt_no, whom.credit),
        int(whom.direct),
    )
    for i, value in enumerate(values):
        words[at + i] = value
    raw = words.cast("B")
    key_at = 8 * queue.entry(entry, "entry_key")
    raw[key_at : key_at + 16] = whom.key or bytes(16)
    peer_at = 8 * queue.entry(entry, "entry_peer")
    raw[peer_at : peer_at + 32] = whom.peer
    words[queue.entry(entry, "entry_status")] = 0
