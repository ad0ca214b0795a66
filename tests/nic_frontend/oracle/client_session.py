"""A client's open session by its twin in Python, in place of that in C; time is the test's."""

from __future__ import annotations

import time

from oracle.client_core import ClientCore
from oracle.client_state import Landing, Refused
from shunter.nic_frontend.wire.layout import HEADER_BYTES, MessageType, WireStatus
from shunter.nic_frontend.wire.segments import SegmentPlan

NO_WAIT = 0x40
LARGEST = 1 << 16


class ClientSession:
    """See :class:`shunter.nic_frontend.client.native_session.NativeSession`."""

    clock = time
    """Where the time comes from."""
    stream, kept = False, 0

    def __init__(self, opened, connection, _tensors, _shared=None):
        sizes = [tuple(spec.bytes for spec in each) for each in (opened.inputs, opened.outputs)]
        plans = [SegmentPlan(each, opened.segment) for each in sizes]
        self.session, self.func_id = opened.session, opened.func_id
        self.request_bytes = sum(sizes[0])
        who = opened.session, opened.func_id, opened.keys
        self._core = ClientCore(*who, *plans, opened.grant, trip_ns=opened.trip_ns)
        self._core.heard_ns = self.clock.monotonic_ns()
        self._connection, self._memory, self._hello = connection, {}, b""

    @property
    def heard_ns(self):
        return self._core.heard_ns

    @property
    def unknown_ns(self):
        return self._core.unknown_ns

    @property
    def may_begin(self):
        return self._core.may_begin

    @property
    def pending(self):
        return len(self._core.pending)

    def start(self, call, deadline_us):
        req_id, datagrams = self._core.begin(
            self.clock.monotonic_ns(),
            deadline_us=deadline_us,
            priority=call.options.priority,
            idempotent=call.options.idempotent,
        )
        memory = (memoryview(each).cast("B") for each in (*call.inputs, *call.outputs))
        views = list(memory)
        self._memory[req_id] = views[: len(call.inputs)], views[len(call.inputs) :]
        self._post(datagrams)
        return req_id

    def cork(self, _corked):
        """Requests may go together; here each goes by itself."""

    def _post(self, datagrams):
        for header, req_id, segment, payload in datagrams:
            data = payload if segment is None else self._part(req_id, 0, segment)
            self._connection.send(header + bytes(data), NO_WAIT)

    def _part(self, req_id, side, segment):
        view = self._memory[req_id][side][segment.tensor]
        return view[segment.offset : segment.offset + segment.length]

    def poll_runs(self, _until_ns, _spin=False):
        """Numbers and statuses of what has ended; no function is packed here."""
        now, ended = self.clock.monotonic_ns(), []
        try:
            while True:
                self._take(self._connection.recv(LARGEST, NO_WAIT), now, ended)
        except BlockingIOError:
            pass
        self._post(self._core.tick(now))
        for req_id in self._core.overdue(now):
            self.cancel(req_id)
            ended.append((req_id, int(WireStatus.TOO_LATE), 0))
        return ended

    def _take(self, datagram, now, ended):
        if datagram[3] == MessageType.HELLO_ACK:
            self._hello = datagram
            return
        head, payload = datagram[:HEADER_BYTES], datagram[HEADER_BYTES:]
        found, answers = self._core.receive(head, len(datagram), now, lambda: payload)
        self._post(answers)
        if isinstance(found, Landing):
            self._part(found.req_id, 1, found.segment)[:] = payload
            if found.is_last:
                ended.append((found.req_id, int(WireStatus.OK), 0))
        elif isinstance(found, Refused):
            ended.append((found.req_id, found.status, 0))

    def hello(self):
        found, self._hello = self._hello, b""
        return found

    def say_hello(self, datagram):
        self._connection.send(datagram, NO_WAIT)

    def cancel(self, req_id):
        self._post(self._core.cancel(req_id))

    def ask(self):
        self._post(self._core.ask())

    def farewell(self):
        self._post(self._core.farewell())

    def close(self):
        """Nothing is held."""
