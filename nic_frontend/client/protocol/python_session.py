"""An open session in Python, with its connection and the memory of its requests.

The twin of :class:`native_session.NativeCore`; what comes is handed to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from shunter.nic_frontend.client.protocol.core import ClientCore
from shunter.nic_frontend.client.protocol.state import Landing, Outgoing, Refused
from shunter.nic_frontend.client.protocol.transports import Datagrams, Piece, Stream
from shunter.nic_frontend.wire.segments import Segment, SegmentPlan

_EMPTY = memoryview(bytearray())


class PythonSession:
    """What :class:`ClientCore` says is sent, and what comes lies where it belongs."""

    def __init__(self, core: ClientCore, transport: Datagrams | Stream) -> None:
        """The connection stays the caller's."""
        self.core, self._transport = core, transport
        self.inputs: SegmentPlan = core.inputs
        self.stream = core.stream
        self._memory: dict[int, tuple[Sequence[memoryview], Sequence[memoryview]]] = {}
        """Of requests that are on their way: inputs, and where the answers belong."""
        self._begun: list[Outgoing] = []
        self._expected: tuple[int, Segment | None, memoryview] = (0, None, _EMPTY)
        self._landing: Landing | None = None

    @property
    def session(self) -> int:
        """The server's number of it."""
        return self.core.session

    @property
    def func_id(self) -> int:
        """The server's number of the model."""
        return self.core.func_id

    @property
    def heard_ns(self) -> int:
        """When something true came last."""
        return self.core.heard_ns

    @property
    def unknown_ns(self) -> int:
        """When somebody said last that there is no such session."""
        return self.core.unknown_ns

    @property
    def may_begin(self) -> bool:
        """Whether there is credit for another request."""
        return self.core.may_begin

    @property
    def pending(self) -> Collection[int]:
        """Numbers of the requests that are on their way."""
        return self.core.pending

    # ---- requests

    def begin(
        self,
        now_ns: int,
        inputs: Sequence[memoryview],
        landing: Sequence[memoryview],
        *,
        deadline_us: int,
        priority: int,
        idempotent: bool,
    ) -> int:
        """A request that leaves with the next :meth:`flush`; its number. The memory must stay."""
        req_id, datagrams = self.core.begin(
            now_ns, deadline_us=deadline_us, priority=priority, idempotent=idempotent
        )
        self._memory[req_id] = inputs, landing
        self._begun += datagrams
        return req_id

    def flush(self) -> None:
        """Send what has begun. Raises ConnectionLost, as does all that follows."""
        begun, self._begun = self._begun, []
        self._post(begun)

    def cancel(self, req_id: int) -> None:
        """Give a request up; its memory is the caller's again."""
        del self._memory[req_id]
        if self._landing is not None and self._landing.req_id == req_id:
            self._landing = None  # the rest of this payload has no place any more
            self._transport.discard()
        if req_id in self.core.pending:
            self._post(self.core.cancel(req_id))

    def ask(self) -> None:
        """For credit, or for a sign of life."""
        self._post(self.core.ask())

    def farewell(self) -> None:
        """Everything is done."""
        self._post(self.core.farewell())

    def tick(self, now_ns: int) -> None:
        """Do what is due."""
        self._post(self.core.tick(now_ns))

    def overdue(self, now_ns: int) -> list[int]:
        """Requests that the server has refused until it was too late for them."""
        return self.core.overdue(now_ns)

    def _post(self, datagrams: Sequence[Outgoing]) -> None:
        if not datagrams:
            return
        core, pieces = self.core, list[Piece]()
        for header, req_id, segment, payload in datagrams:
            if segment is None:
                pieces.append((header, payload))
                continue
            view = self._memory[req_id][0][segment.tensor]
            if segment.length != len(view):
                view = view[segment.offset : segment.offset + segment.length]
            pieces.append((header, view) if core.guard is None else core.sealed(header, view))
        self._transport.post(pieces)

    # ---- what comes

    def expected(self) -> memoryview:
        """Where the next payload is likely to belong."""
        if self.core.guard is None:
            for req_id, segment in self.core.expected():
                if self._expected[0] != req_id or self._expected[1] is not segment:
                    self._expected = req_id, segment, self._place(req_id, segment)
                return self._expected[2]
        self._expected = 0, None, _EMPTY
        return _EMPTY

    def _place(self, req_id: int, segment: Segment) -> memoryview:
        view = self._memory[req_id][1][segment.tensor]
        if segment.length == len(view):
            return view
        return view[segment.offset : segment.offset + segment.length]

    def receive(
        self, head: bytearray, length: int, now_ns: int, payload: Callable[[], bytes]
    ) -> Landing | Refused | None:
        """What a message means, as :meth:`ClientCore.receive` says; what it asks for is sent."""
        found, answers = self.core.receive(head, length, now_ns, payload)
        self._post(answers)
        if isinstance(found, Landing):
            self._landing = found
        elif found is not None:
            del self._memory[found.req_id]
        return found

    def place(self, found: Landing) -> memoryview | None:
        """Where the payload belongs that has just been announced; None: it is there."""
        if found.payload is not None:
            self._place(found.req_id, found.segment)[:] = found.payload
            return None
        req_id, segment, view = self._expected
        if req_id == found.req_id and segment is found.segment:
            return view
        return self._place(found.req_id, found.segment)

    def landed(self) -> int:
        """The payload is where it belongs; the request that has its whole answer now, 0: none."""
        landing, self._landing = self._landing, None
        if landing is None or not landing.is_last:
            return 0
        del self._memory[landing.req_id]
        return landing.req_id
