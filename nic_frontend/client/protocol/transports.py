"""A client's end of the network: datagrams, or a stream of them.

Nothing here waits, but a receive that is asked to. What cannot be sent at once is kept until
:meth:`flush`.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol

from shunter.nic_frontend.client.protocol.state import Refused
from shunter.nic_frontend.wire.header import AEAD_TAG, PROTECTIONS, behind
from shunter.nic_frontend.wire.layout import HEADER_BYTES, MessageType

NO_WAIT = socket.MSG_DONTWAIT
SPIN = NO_WAIT | 1 << 24
"""Wait, but without sleeping, where that can be done; elsewhere the same as NO_WAIT."""
TICK_NS = 10_000_000
"""No receive waits longer."""
UDP_SEGMENT = 103
MOST_AT_ONCE = 128
"""Datagrams that the kernel cuts one send into."""
LARGEST_SEND = 65_507
"""Bytes of one send."""
MOST_PIECES = 512
"""Of one send to a stream; the kernel takes 1024."""
_NOT_CUT = (errno.EINVAL, errno.EIO, errno.EMSGSIZE, errno.ENOPROTOOPT, errno.EOPNOTSUPP)
_RESP = int(MessageType.RESP)
_PROTECTED = int(PROTECTIONS)
Piece = tuple[bytes, bytes | memoryview]
"""A header and what is behind it."""


class ConnectionLost(Exception):
    """There is nobody at the other end; the message says how that was noticed."""


class Sink(Protocol):
    """Who takes what comes."""

    def expected(self) -> memoryview:
        """Where the next payload is likely to belong; may be empty."""

    def on_message(
        self, head: bytearray, length: int, payload: Callable[[], bytes]
    ) -> memoryview | None:
        """A message of ``length`` bytes; where its payload belongs, None: nowhere."""

    def on_payload(self) -> None:
        """The payload is where it belongs."""

    def on_heard(self, now_ns: int) -> None:
        """Something came that is about no request."""

    def on_ended(self, ended: Refused, *, is_answered: bool) -> None:
        """A request has ended; its answer, if there is one, is where it belongs."""


class Datagrams:
    """A connected UDP socket."""

    is_stream = is_stuck = False
    is_trusted = False
    """The server has answered: a port that refuses may be one of its restarts, or an old message,
    and whether it is gone is known when it stays silent."""

    def __init__(self, connection: socket.socket) -> None:
        """The socket is taken."""
        self.socket = connection
        self._kept: deque[Piece] = deque()
        self._header = bytearray(HEADER_BYTES)
        self._spill = bytearray(1 << 16)
        self._cuts = True

    @property
    def has_kept(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._kept)

    def post(self, pieces: Sequence[Piece]) -> None:
        """Send, each piece a datagram. Raises ConnectionLost."""
        self._kept.extend(pieces)
        self.flush()

    def flush(self) -> None:
        """Send what was kept, as far as there is room. Raises ConnectionLost."""
        kept, refused = self._kept, 0
        while kept:
            count = self._alike() if len(kept) > 1 and self._cuts else 1
            try:
                if count == 1:
                    self.socket.sendmsg(kept[0], (), NO_WAIT)
                else:
                    self._send_together(count)
            except BlockingIOError:
                return
            except ConnectionRefusedError:
                refused += 1  # of an earlier datagram: this one has not left
                if refused == 1:
                    continue
                if not self.is_trusted:
                    raise ConnectionLost(os.strerror(errno.ECONNREFUSED)) from None
            except OSError as error:
                if count > 1 and error.errno in _NOT_CUT:
                    self._cuts = False
                    continue
                if error.errno != errno.ENOBUFS:  # which is a loss like any other
                    raise ConnectionLost(error.strerror) from error
            for _ in range(count):
                kept.popleft()

    def _alike(self) -> int:
        """How many, from the first, the kernel can cut from one send: the last may be shorter."""
        size = sum(map(len, self._kept[0]))
        most = min(MOST_AT_ONCE, LARGEST_SEND // size)
        count = 1
        for piece in islice(self._kept, 1, most):
            length = len(piece[0]) + len(piece[1])
            count += length <= size
            if length != size:
                break
        return count

    def _send_together(self, count: int) -> None:
        size = sum(map(len, self._kept[0]))
        parts = [part for piece in islice(self._kept, count) for part in piece]
        cut = (socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))
        self.socket.sendmsg(parts, [cut], NO_WAIT)

    def receive(self, sink: Sink, flags: int) -> bool:
        """Take one datagram; whether there was one. Raises ConnectionLost."""
        target = sink.expected()
        try:
            pieces = (self._header, target, self._spill)
            length = self.socket.recvmsg_into(pieces, 0, flags & NO_WAIT)[0]
        except (BlockingIOError, TimeoutError):
            return False
        except OSError as error:
            if self.is_trusted and error.errno == errno.ECONNREFUSED:
                return False
            raise ConnectionLost(error.strerror) from error

        def payload() -> bytes:
            inside = max(0, length - HEADER_BYTES)
            behind = max(0, inside - len(target))
            return bytes(target[:inside]) + bytes(self._spill[:behind])

        place = sink.on_message(self._header, length, payload)
        if place is not None:
            if place is not target:
                place[:] = payload()
            sink.on_payload()
        return True

    def discard(self) -> None:
        """What is half received belongs nowhere; a datagram never is."""


class Stream:
    """A connected TCP or Unix socket."""

    is_stream = True

    def __init__(self, connection: socket.socket) -> None:
        """The socket is taken."""
        self.socket = connection
        self._kept: deque[bytes | memoryview] = deque()
        self._header = bytearray(HEADER_BYTES)
        self._spill = memoryview(bytearray((1 << 16) + AEAD_TAG))
        self._target = memoryview(self._header)
        self._got = 0
        self._behind_header = False
        self._has_place = False
        self._is_whole = False
        """A message that is looked at with its payload."""

    @property
    def has_kept(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._kept)

    @property
    def is_stuck(self) -> bool:
        """Whether it has not taken all of what was sent."""
        return bool(self._kept)

    def post(self, pieces: Sequence[Piece]) -> None:
        """Send, one behind the other. Raises ConnectionLost."""
        for header, payload in pieces:
            self._kept.append(header)
            if len(payload):
                self._kept.append(payload)
        self.flush()

    def flush(self) -> None:
        """Send what was kept, as far as there is room. Raises ConnectionLost."""
        kept = self._kept
        while kept:
            parts = list(islice(kept, MOST_PIECES))
            try:
                sent = self.socket.sendmsg(parts, (), NO_WAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError as error:
                raise ConnectionLost(error.strerror) from error
            while kept and sent >= len(kept[0]):
                sent -= len(kept.popleft())
            if sent:
                kept[0] = memoryview(kept[0])[sent:]

    def receive(self, sink: Sink, flags: int) -> bool:
        """Take what is there of a header or payload; whether there was any.

        Raises ConnectionLost.
        """
        try:
            more = self.socket.recv_into(self._target[self._got :], 0, flags & NO_WAIT)
        except (BlockingIOError, TimeoutError):
            return False
        except OSError as error:
            raise ConnectionLost(error.strerror) from error
        if more == 0:
            raise ConnectionLost("the server closed the connection")
        self._got += more
        if self._got == len(self._target):
            if self._behind_header:
                self._payload_is_whole(sink)
            else:
                self._header_is_whole(sink)
        return True

    def _header_is_whole(self, sink: Sink) -> None:
        length = int.from_bytes(self._header[22:24], "little")
        flags = int.from_bytes(self._header[4:6], "little")
        self._is_whole = self._header[3] != _RESP or bool(flags & _PROTECTED)
        length += behind(flags)
        place = None
        if not self._is_whole:
            place = sink.on_message(self._header, HEADER_BYTES + length, bytes)
        self._has_place = place is not None
        self._target = self._spill[:length] if place is None else place
        self._got, self._behind_header = 0, True
        if not length:
            self._payload_is_whole(sink)

    def _payload_is_whole(self, sink: Sink) -> None:
        length = len(self._target)
        self._target, self._got, self._behind_header = memoryview(self._header), 0, False
        if self._has_place:
            sink.on_payload()
        elif self._is_whole:
            inside = self._spill[:length]
            sink.on_message(self._header, HEADER_BYTES + length, lambda: bytes(inside))

    def discard(self) -> None:
        """What is half received belongs nowhere."""
        if self._behind_header and self._has_place:
            self._has_place = False
            self._target = self._spill[: len(self._target)]
