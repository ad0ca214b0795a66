"""Where one HTTP/1.1 answer after the other ends; of each only the status is read."""

from __future__ import annotations


class Malformed(ValueError):
    """An answer is no HTTP/1.1."""


_HEAD, _LENGTH, _UNTIL_CLOSE, _SIZE, _CHUNK, _TRAILER = range(6)


class Parser:
    """Finds the end of one answer after the other.

    >>> parser = Parser()
    >>> parser.feed(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\no"), parser.feed(b"k")
    (False, True)
    >>> parser.status, parser.keep
    (200, True)
    """

    __slots__ = ("_left", "_part", "_state", "keep", "started", "status")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Expect the next answer."""
        self._state, self._part, self._left = _HEAD, b"", 0
        self.status, self.keep, self.started = 0, True, False

    def feed(self, data: bytes) -> bool:
        """Whether the answer is complete. Raises ``Malformed``."""
        self.started = True
        if self._part:
            data, self._part = self._part + data, b""
        while True:
            if self._state == _HEAD:
                end = data.find(b"\r\n\r\n")
                if end < 0:
                    return self._keep_part(data, 1 << 16)
                head, data = data[:end], data[end + 4 :]
                if self._head(head):
                    return self._over(data)
            elif self._state == _LENGTH:
                self._left -= len(data)
                return self._left <= 0 and self._over(data[len(data) + self._left :])
            elif self._state == _UNTIL_CLOSE:
                return False
            elif self._state == _CHUNK:
                if len(data) < self._left:
                    self._left -= len(data)
                    return False
                data, self._state = data[self._left :], _SIZE
            else:
                line, mark, data = data.partition(b"\r\n")
                if not mark:
                    return self._keep_part(line, 1 << 12)
                if self._state == _SIZE:
                    self._size(line)
                elif not line:
                    return self._over(data)

    def closed(self) -> bool:
        """Whether the end of the connection completes the answer."""
        return self._state == _UNTIL_CLOSE

    def _keep_part(self, data: bytes, limit: int) -> bool:
        if len(data) > limit:
            raise Malformed("a line or head is too long")
        self._part = data
        return False

    def _over(self, rest: bytes) -> bool:
        # Nothing was asked for that could be answered by more.
        self.keep = self.keep and not rest
        return True

    def _size(self, line: bytes) -> None:
        try:
            size = int(line.split(b";", 1)[0], 16)
        except ValueError as error:
            raise Malformed(f"chunk size {line[:20]!r}") from error
        # Two more bytes: the line break after the chunk.
        self._state, self._left = (_CHUNK, size + 2) if size else (_TRAILER, 0)

    def _head(self, head: bytes) -> bool:
        """Whether the answer ends with its head."""
        if not head.startswith(b"HTTP/1.") or not head[9:12].isdigit():
            raise Malformed(f"status line {head[:20]!r}")
        self.status = int(head[9:12])
        if self.status < 200:  # interim: the answer itself follows
            return False
        lower = head.lower()
        self.keep = head[7:8] == b"1" and b"\r\nconnection: close" not in lower
        if self.status in (204, 304):
            return True
        if b"\r\ntransfer-encoding:" in lower:
            self._state = _SIZE
            return False
        at = lower.find(b"\r\ncontent-length:")
        if at < 0:
            self._state, self.keep = _UNTIL_CLOSE, False
            return False
        text = lower[at + 17 :].split(b"\r\n", 1)[0].strip()
        if not text.isdigit():
            raise Malformed(f"content-length {text[:20]!r}")
        self._state, self._left = _LENGTH, int(text)
        return self._left == 0
