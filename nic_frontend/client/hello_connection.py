"""A connection over which no session is open yet; nothing here waits."""

from __future__ import annotations

import os
import socket

from shunter.batching.queue.attach import receive_descriptors
from shunter.nic_frontend.wire.layout import HEADER_BYTES, X64_FIELDS

_LENGTH_AT = X64_FIELDS["length"][0]
_LARGEST = 1 << 16
_NO_WAIT = socket.MSG_DONTWAIT


class HelloConnection:
    """Says hellos, and takes in whole messages and not a byte of what is behind them."""

    def __init__(self, connection: socket.socket) -> None:
        """The socket stays the caller's."""
        self._socket = connection
        self._is_stream = connection.type != socket.SOCK_DGRAM
        self._got = bytearray()
        self.memory = -1
        """Descriptor that came with an answer, for as long as this is open; -1: none."""

    def say_hello(self, datagram: bytes) -> None:
        """Send a hello; on a new stream there is room for it. Raises OSError."""
        try:
            self._socket.send(datagram, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            if self._is_stream:
                raise

    def receive(self) -> bytes:
        """A message, empty: there is none yet. Raises OSError."""
        try:
            return self._whole() if self._is_stream else self._socket.recv(_LARGEST, _NO_WAIT)
        except BlockingIOError:
            return b""

    def _whole(self) -> bytes:
        while wanted := self._wanted():
            more = self._more(wanted)
            if not more:
                raise ConnectionResetError("the server closed the connection")
            self._got += more
        found, self._got = bytes(self._got), bytearray()
        return found

    def _more(self, wanted: int) -> bytes:
        if self._socket.family != socket.AF_UNIX:
            return self._socket.recv(wanted, _NO_WAIT)
        more, descriptors, _ = receive_descriptors(self._socket, wanted, 1, _NO_WAIT)
        for each in descriptors:
            self.close()
            self.memory = each
        return more

    def close(self) -> None:
        """Let go of what came."""
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1

    def __del__(self) -> None:
        """What nobody closed."""
        self.close()

    def _wanted(self) -> int:
        """Bytes that are missing of the header, or of the payload."""
        got = self._got
        length = int.from_bytes(got[_LENGTH_AT : _LENGTH_AT + 2], "little")
        is_header = len(got) < HEADER_BYTES
        return HEADER_BYTES + (0 if is_header else length) - len(got)
