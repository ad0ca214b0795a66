"""The C twin of :class:`oracle.core.Core`, with the same methods and actions.

For tests: the data path calls the C core from C.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    byref,
    c_bool,
    c_char_p,
    c_int32,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from oracle.core import (
    Action,
    Drop,
    Hello,
    Place,
    Ready,
    Send,
    Whom,
    Withdraw,
)
from oracle.series import Part, Unwanted
from oracle.sessions import Session
from shunter.batching.page.slices import SliceSet
from shunter.batching.queue.native import PEER_BYTES, check
from shunter.nic_frontend.library import library
from shunter.nic_frontend.server.model_policy import Defaults, Runs
from shunter.nic_frontend.server.sessions import SessionStruct, struct_of
from shunter.nic_frontend.server.structures import (
    DROPS,
    DefaultsStruct,
    HoldLine,
    RunsStruct,
    defaults_struct,
    slice_words,
)
from shunter.nic_frontend.wire.layout import HEADER_BYTES, MAX_SEGMENTS, WireStatus

_PLACE, _READY, _WITHDRAW, _LET_GO, _SEND, _HELLO, _DROP, _PART, _UNWANTED = range(1, 10)


class _Guard(Structure):
    _fields_ = (("protect", c_uint16), ("number", c_uint64), ("key", c_uint8 * 16))


class _Action(Structure):
    _fields_ = (
        ("kind", c_uint8),
        ("tensor", c_uint8),
        ("priority", c_uint8),
        ("again", c_uint8),
        ("returned", c_uint8),
        ("drop", c_uint16),
        ("func_id", c_uint16),
        ("rows", c_uint16),
        ("entry", c_int32),
        ("offset", c_uint32),
        ("length", c_uint32),
        ("left", c_uint32),
        ("region", c_uint32),
        ("session", c_uint32),
        ("deadline_ns", c_uint64),
        ("guard", _Guard),
        ("peer", c_uint8 * PEER_BYTES),
        ("header", c_uint8 * HEADER_BYTES),
        ("payload", c_uint8 * (MAX_SEGMENTS // 8)),
    )


class _Whom(Structure):
    _fields_ = (
        ("req_id", c_uint64),
        ("session", c_uint32),
        ("credit", c_uint32),
        ("pkt_no", c_uint32),
        ("segment", c_uint16),
        ("priority", c_uint8),
        ("direct", c_uint8),
        ("direct_bytes", c_uint32),
        ("idempotent", c_uint8),
        ("asks", c_uint8),
        ("tagged", c_uint8),
        ("key", c_uint8 * 16),
        ("peer", c_uint8 * PEER_BYTES),
    )


_EMIT = CFUNCTYPE(None, c_void_p, POINTER(_Action))


class NativeCore:
    """All sessions and functions of a front end, in C."""

    def __init__(self) -> None:
        """Nothing is registered."""
        found = library()
        assert found is not None
        self._library = found
        self._actions: list[Action] = []
        self.let_gone: list[tuple[int, int]] = []
        """Functions and entries whose input is not needed any more, which only C says: the oracle
        knows nothing of memory."""
        self._emit = _EMIT(self._said)
        _declare(found)
        self._core = found.shunter_core_new(self._emit, None)

    def close(self) -> None:
        """Free everything."""
        self._library.shunter_core_free(self._core)
        self._core = None

    def _said(self, _: object, pointer: Any) -> None:
        action = pointer.contents
        if action.kind == _LET_GO:
            self.let_gone.append((int(action.func_id), int(action.entry)))
        else:
            self._actions.append(_converted(action))

    def _taken(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions

    def add_function(
        self,
        func_id: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        entries: int,
        burst: int | None = None,
    ) -> None:
        """Register a function."""
        result = self._library.shunter_core_add_function(
            self._core,
            func_id,
            (c_uint32 * len(inputs))(*inputs),
            len(inputs),
            (c_uint32 * len(outputs))(*outputs),
            len(outputs),
            entries,
            burst or entries,
        )
        check(result, "a function")

    def set_defaults(self, func_id: int, defaults: Defaults) -> None:
        """What requests take from their model."""
        structure = byref(defaults_struct(defaults))
        check(self._library.shunter_core_set_defaults(self._core, func_id, structure), "defaults")

    def set_runs(self, func_id: int, runs: Runs) -> None:
        """The function is packed."""
        structure = byref(RunsStruct(*runs))
        check(self._library.shunter_core_set_runs(self._core, func_id, structure), "runs")

    def set_hold(self, func_id: int, slot: int, slices: SliceSet, now_ns: int) -> None:
        """Where the strict requests of a function run from now on."""
        words = slice_words(slices)
        result = self._library.shunter_core_set_hold(self._core, func_id, slot, words, now_ns)
        check(result, f"hold of function {func_id}")

    def hold_at(self, line: memoryview | None, now_ns: int) -> None:
        """Say on this holder's line what strict requests hold, None: nowhere."""
        held = None if line is None else HoldLine.from_buffer(line)
        self._library.shunter_core_hold_at(self._core, held and byref(held), now_ns)
        self._line = held  # it stays mapped

    def limit(self, sessions: int, streams: int) -> None:
        """So many at once, and so many on streams among them."""
        self._library.shunter_core_limit(self._core, sessions, streams)

    def add_session(self, session: Session, now_ns: int) -> list[Action]:
        """A client has said hello."""
        opening = byref(struct_of(session))
        result = self._library.shunter_core_add_session(self._core, opening, now_ns)
        check(result, "a session")
        return self._taken()

    def remove_session(self, session_id: int, now_ns: int) -> list[Action]:
        """Forget a client."""
        self._library.shunter_core_remove_session(self._core, session_id, now_ns)
        return self._taken()

    def remove_key(self, key: int, now_ns: int) -> list[Action]:
        """Forget all clients of a key."""
        self._library.shunter_core_remove_key(self._core, key, now_ns)
        return self._taken()

    def receive(
        self, peer: bytes, datagram: bytes, now_ns: int, length: int | None = None
    ) -> list[Action]:
        """What to do with a datagram."""
        size = len(datagram) if length is None else length
        padded = datagram.ljust(HEADER_BYTES + MAX_SEGMENTS // 8, b"\0")
        self._library.shunter_core_receive(self._core, peer, padded, size, now_ns)
        return self._taken()

    def accept(self, datagram: bytes, now_ns: int) -> list[Action]:
        """The payload of a Place is there."""
        self._library.shunter_core_accept(self._core, datagram, now_ns)
        return self._taken()

    def awaits(self, datagram: bytes) -> bool:
        """Whether that segment is missing."""
        return bool(self._library.shunter_core_awaits(self._core, datagram))

    def running(self, func_id: int, entry: int, now_ns: int) -> Whom:
        """A worker has been given the entry."""
        whom = _Whom()
        self._library.shunter_core_running(self._core, func_id, entry, now_ns, byref(whom))
        return Whom(
            whom.req_id,
            whom.session,
            whom.credit,
            whom.pkt_no,
            whom.segment,
            whom.priority,
            bool(whom.direct),
            bool(whom.idempotent),
            bool(whom.asks),
            bytes(whom.key) if whom.tagged else None,
            bytes(whom.peer),
            whom.direct_bytes,
        )

    def finished(
        self, func_id: int, entry: int, status: int, now_ns: int, *, sent: bool, size: int = 0
    ) -> list[Action]:
        """A worker has answered."""
        found = self._library
        found.shunter_core_finished(self._core, func_id, entry, status, sent, size, now_ns)
        return self._taken()

    def part(self, func_id: int, entry: int, size: int, now_ns: int) -> list[Action]:
        """The worker has written the next part of an answer."""
        self._library.shunter_core_part(self._core, func_id, entry, size, now_ns)
        return self._taken()

    def parts_over(
        self, func_id: int, entry: int, now_ns: int, status: int = WireStatus.END
    ) -> list[Action]:
        """None follows, though the request runs on."""
        self._library.shunter_core_parts_over(self._core, func_id, entry, status, now_ns)
        return self._taken()

    def worker_died(self, func_id: int, entry: int, now_ns: int) -> list[Action]:
        """Its worker died."""
        self._library.shunter_core_worker_died(self._core, func_id, entry, now_ns)
        return self._taken()

    def returned(self, func_id: int, entry: int, now_ns: int) -> list[Action]:
        """Its worker had not begun it."""
        self._library.shunter_core_returned(self._core, func_id, entry, now_ns)
        return self._taken()

    def expired(self, func_id: int, entry: int, now_ns: int) -> list[Action]:
        """Its deadline has passed."""
        self._library.shunter_core_expired(self._core, func_id, entry, now_ns)
        return self._taken()

    def tick(self, now_ns: int) -> list[Action]:
        """What the passing of time asks for."""
        self._library.shunter_core_tick(self._core, now_ns)
        return self._taken()

    def free_entries(self, func_id: int) -> int:
        """Entries that nobody uses."""
        return int(self._library.shunter_core_free_entries(self._core, func_id))

    def load(self, func_id: int) -> tuple[int, int]:
        """Open sessions of a function, and requests that they may have on their way together."""
        sessions, credit = c_uint32(), c_uint64()
        self._library.shunter_core_load(self._core, func_id, byref(sessions), byref(credit))
        return sessions.value, credit.value

    def is_open(self, session_id: int) -> bool:
        """Whether there is such a session."""
        return bool(self._library.shunter_core_is_open(self._core, session_id))

    def is_pressed(self) -> bool:
        """Whether requests are here in parts, or sessions wait for room."""
        return bool(self._library.shunter_core_is_pressed(self._core))

    def grant(self, session_id: int) -> int:
        """Highest request that the client may send."""
        return int(self._library.shunter_core_grant(self._core, session_id))


def _converted(action: _Action) -> Action:
    entry = int(action.entry)
    if action.kind == _PLACE:
        place = entry, action.tensor, action.offset, action.length
        return Place(*place, action.guard.number, action.region)
    if action.kind == _READY:
        return Ready(
            *(action.func_id, entry, action.priority, action.deadline_ns),
            *(bool(action.again), bool(action.returned), action.rows, action.length),
        )
    if action.kind == _WITHDRAW:
        return Withdraw(action.func_id, entry)
    if action.kind == _SEND:
        payload = bytes(action.payload[: action.length]) if entry < 0 else b""
        return Send(
            action.session,
            bytes(action.peer),
            bytes(action.header),
            payload,
            entry,
            action.tensor,
            action.offset,
            action.guard.number,
        )
    if action.kind == _HELLO:
        return Hello()
    if action.kind == _PART:
        return Part(entry, action.offset)
    if action.kind == _UNWANTED:
        return Unwanted(entry)
    return Drop(DROPS[action.drop])


def _declare(found: ctypes.CDLL) -> None:
    core = c_void_p
    arguments: dict[str, Sequence[Any]] = {
        "new": (_EMIT, c_void_p),
        "free": (core,),
        "add_function": (
            *(core, c_uint16, POINTER(c_uint32), c_uint32, POINTER(c_uint32), c_uint32),
            *(c_uint32, c_uint32),
        ),
        "set_defaults": (core, c_uint16, POINTER(DefaultsStruct)),
        "set_runs": (core, c_uint16, POINTER(RunsStruct)),
        "set_hold": (core, c_uint16, c_int32, POINTER(c_uint64), c_uint64),
        "hold_at": (core, c_void_p, c_uint64),
        "add_session": (core, POINTER(SessionStruct), c_uint64),
        "limit": (core, c_uint32, c_uint32),
        "remove_session": (core, c_uint32, c_uint64),
        "remove_key": (core, c_uint32, c_uint64),
        "receive": (core, c_char_p, c_char_p, ctypes.c_size_t, c_uint64),
        "accept": (core, c_char_p, c_uint64),
        "awaits": (core, c_char_p),
        "running": (core, c_uint16, c_uint32, c_uint64, POINTER(_Whom)),
        "finished": (core, c_uint16, c_uint32, c_uint16, c_bool, c_uint32, c_uint64),
        "part": (core, c_uint16, c_uint32, c_uint32, c_uint64),
        "parts_over": (core, c_uint16, c_uint32, c_uint16, c_uint64),
        "worker_died": (core, c_uint16, c_uint32, c_uint64),
        "returned": (core, c_uint16, c_uint32, c_uint64),
        "expired": (core, c_uint16, c_uint32, c_uint64),
        "tick": (core, c_uint64),
        "free_entries": (core, c_uint16),
        "grant": (core, c_uint32),
        "is_open": (core, c_uint32),
        "is_pressed": (core,),
        "load": (core, c_uint16, POINTER(c_uint32), POINTER(c_uint64)),
    }
    for name, types in arguments.items():
        getattr(found, f"shunter_core_{name}").argtypes = list(types)
    found.shunter_core_new.restype = c_void_p
    found.shunter_core_free_entries.restype = c_uint32
    found.shunter_core_is_open.restype = c_bool
    found.shunter_core_awaits.restype = c_bool
    found.shunter_core_is_pressed.restype = c_bool
    found.shunter_core_load.restype = None
    found.shunter_core_grant.restype = c_uint64
