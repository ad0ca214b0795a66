"""Bytes from a socket, received in large reads, and the fields in them.

A field is taken from a reusable buffer. Only a long value that has not arrived yet is received
straight into its own memory, so that its bytes are copied once, by the kernel.
"""

from __future__ import annotations

import socket
import struct

BUFFER_SIZE = 256 * 1024

# A value at least this long that is not here yet is received into its own memory.
DIRECT_SIZE = 64 * 1024

# A stream that lost its place must end in an error, not in a huge allocation. HTTP headers are
# limited to 8 KiB by the front end; names of gRPC inputs are not.
MAX_TEXT = 16 * 1024 * 1024

# Memory for a long value is taken in steps, so that a false length costs no more than this.
GROWTH_STEP = 16 * 1024 * 1024

MIN_READ = 4096

_I32 = struct.Struct("!i").unpack_from


class ProtocolError(ValueError):
    """The bytes received are not a message of TorchServe's worker protocol."""


class Disconnected(Exception):
    """The peer closed its side of the connection."""


class Inbox:
    """Fields of one connection, in the order in which they come."""

    def __init__(
        self, sock: socket.socket, size: int = BUFFER_SIZE, *, first: bytes = b""
    ) -> None:
        """Receive from ``sock``, which must block, through a buffer of ``size`` bytes.

        ``first``: what somebody else has received of it already.
        """
        self._sock = sock
        self._data = bytearray(size)
        self._view = memoryview(self._data)
        self._pos = 0
        self._end = len(first)
        self._view[: len(first)] = first
        # Raised when bytes in the buffer move, so that who remembers a position knows.
        self._shifts = 0

    def look(self) -> bytes:
        """The next byte, which stays, if it is there: nothing when the peer is gone.

        Raises BlockingIOError: it is not.
        """
        if self._pos < self._end:
            return bytes(self._data[self._pos : self._pos + 1])
        return self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)

    @property
    def has_more(self) -> bool:
        """Whether something was received that nobody has taken."""
        return self._pos < self._end

    def received(self) -> bytes:
        """All that was received so far. Only while that is one short message."""
        return bytes(self._view[: self._end])

    def byte(self) -> bytes:
        """Take one byte, when it comes."""
        self._need(1)
        byte = self._data[self._pos : self._pos + 1]
        self._pos += 1
        return bytes(byte)

    def i32(self) -> int:
        """Take one integer."""
        self._need(4)
        (number,) = _I32(self._data, self._pos)
        self._pos += 4
        return number

    def text(self, what: str, length: int | None = None) -> str:
        """Take one string, whose length is read first unless the caller has done so."""
        return self.blob(what, length).decode("utf-8")

    def blob(self, what: str, length: int | None = None) -> bytearray:
        """Take the bytes of one short field."""
        if length is None:
            length = self.i32()
        if not 0 <= length <= MAX_TEXT:
            raise ProtocolError(
                f"The length of the {what} is {length}; allowed are 0 to {MAX_TEXT}. "
                "The connection to the front end is out of step."
            )
        self._need(length)
        return self._take(length)

    def value(self) -> bytearray:
        """Take the bytes of one value, which may be long."""
        length = self.i32()
        if length < 0:
            raise ProtocolError(
                f"The length of a value is {length}; it must not be negative. "
                "The connection to the front end is out of step."
            )
        if length < DIRECT_SIZE or length <= self._end - self._pos:
            self._need(length)
            return self._take(length)
        return self._receive_apart(length)

    def _take(self, length: int) -> bytearray:
        start = self._pos
        self._pos += length
        return self._data[start : self._pos]

    def _need(self, count: int) -> None:
        """Return when at least ``count`` bytes that were not taken are in the buffer."""
        if self._end - self._pos < count:
            self._make_room(count)
            while self._end - self._pos < count:
                self._end += self._receive(self._view[self._end :])

    def _make_room(self, count: int) -> None:
        held = self._end - self._pos
        if held and self._pos + max(count, MIN_READ) <= len(self._data):
            return
        if count > len(self._data):
            data = bytearray(max(count, 2 * len(self._data)))
            data[:held] = self._view[self._pos : self._end]
            self._data, self._view = data, memoryview(data)
        elif held:
            self._view[:held] = self._view[self._pos : self._end]
        self._shifts += 1
        self._pos, self._end = 0, held

    def _receive(self, target: memoryview, flags: int = 0) -> int:
        count = self._sock.recv_into(target, 0, flags)
        if count == 0:
            raise Disconnected
        return count

    def _receive_apart(self, length: int) -> bytearray:
        held = self._end - self._pos
        head = self._view[self._pos : self._end]
        value = bytearray(min(length, GROWTH_STEP))
        value[:held] = head
        self._pos = self._end
        while True:
            with memoryview(value) as view:
                while held < len(value):
                    held += self._receive(view[held:], socket.MSG_WAITALL)
            if held == length:
                return value
            value.extend(bytes(min(length - held, max(held, GROWTH_STEP))))
