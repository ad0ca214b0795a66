"""Where a front end is, and sockets to it."""

from __future__ import annotations

import os
import socket
from asyncio import AbstractEventLoop
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from shunter.nic_frontend.client.native_client import require_cipher
from shunter.nic_frontend.client.requests.errors import UnreachableError
from shunter.nic_frontend.wire.hello import DEFAULT_KEY, SMALLEST_SEGMENT
from shunter.nic_frontend.wire.keys import SharedKey
from shunter.nic_frontend.wire.layout import HEADER_BYTES, LARGEST_SEGMENT, Flags

IP_MTU, IP_MTU_DISCOVER, IP_PMTUDISC_DO = 14, 10, 2
IPV6_MTU, IPV6_MTU_DISCOVER = 24, 23
BUFFER = 4 << 20
PAUSE_S = 0.05
"""Between tries to connect."""
CONNECT_S = 1.0
"""One try takes no longer."""
KEY_BYTES = 32
"""At least so many bytes of a key file."""
Key = bytes | str | os.PathLike[str] | SharedKey
"""A pre-shared key, or the path of its file."""
_SCHEMES = ("udp", "tcp", "shunter")


@dataclass(frozen=True)
class Address:
    """What a URL says."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> Address:
        """``udp://HOST:PORT``, ``tcp://HOST:PORT``, ``shunter://HOST:PORT`` or ``unix:///PATH``.

        ``shunter``: UDP, or TCP for a model whose tensors are too large for it. Raises ValueError.
        A HOST of IPv6 stands in brackets: ``udp://[::1]:8083``.
        """
        parts = urlsplit(url)
        if parts.scheme == "unix" and parts.path and not parts.netloc:
            return cls("unix", parts.path, 0)
        if parts.scheme not in _SCHEMES or not parts.hostname or not parts.port:
            known = ", ".join(f"{scheme}://HOST:PORT" for scheme in _SCHEMES)
            raise ValueError(f"{url!r} is not {known} or unix:///PATH")
        return cls(parts.scheme, parts.hostname, parts.port)

    @property
    def is_stream(self) -> bool:
        """Whether nothing is lost on the way."""
        return self.scheme in ("tcp", "unix")

    def for_large(self) -> Address | None:
        """Where to go with tensors that are too large for datagrams, None: nowhere."""
        return Address("tcp", self.host, self.port) if self.scheme == "shunter" else None

    @property
    def kind(self) -> socket.SocketKind:
        """Of the socket."""
        return socket.SOCK_STREAM if self.is_stream else socket.SOCK_DGRAM

    def targets(self) -> list[Target]:
        """Every socket address that the name stands for. Raises UnreachableError."""
        if self.scheme == "unix":
            return [Target(socket.AF_UNIX, self.kind, self.host)]
        try:
            found = socket.getaddrinfo(self.host, self.port, type=self.kind)
        except OSError as error:
            raise UnreachableError(f"{self.host}: {reason_of(error)}") from error
        return [Target(family, self.kind, where) for family, _, _, _, where in found]

    async def targets_in(self, loop: AbstractEventLoop) -> list[Target]:
        """The same, without waiting for the name server."""
        return await loop.run_in_executor(None, self.targets)


@dataclass(frozen=True)
class Target:
    """One socket address."""

    family: int
    kind: socket.SocketKind
    where: str | tuple[str | int, ...]

    def socket(self) -> socket.socket:
        """A socket for :meth:`socket.connect`, which does not block."""
        made = socket.socket(self.family, self.kind | socket.SOCK_NONBLOCK)
        if self.kind == socket.SOCK_DGRAM:
            for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                made.setsockopt(socket.SOL_SOCKET, option, BUFFER)
        elif self.family != socket.AF_UNIX:
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def connected(self, timeout_s: float) -> socket.socket:
        """One that does not block, and is connected. Raises OSError."""
        made = self.socket()
        try:
            made.settimeout(timeout_s)
            made.connect(self.where)
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
        return made


def segment_of(connection: socket.socket) -> int:
    """Largest payload of a datagram that is not cut on the way; a stream's is the largest."""
    if connection.type != socket.SOCK_DGRAM:
        return LARGEST_SEGMENT
    if connection.family == socket.AF_INET6:
        connection.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IP_PMTUDISC_DO)
        mtu = connection.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU) - 48
    else:
        connection.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        mtu = connection.getsockopt(socket.IPPROTO_IP, IP_MTU) - 28
    return max(SMALLEST_SEGMENT, min(mtu - HEADER_BYTES, LARGEST_SEGMENT))


def reason_of(error: Exception) -> str:
    """Why there is no connection."""
    number = getattr(error, "errno", None) or 0
    return os.strerror(number) if number > 0 else str(error) or "it took too long"


def key_of(key: Key | None, key_id: str = DEFAULT_KEY) -> SharedKey | None:
    """A key with its id. Raises ValueError for a file that cannot be a key."""
    if key is None or isinstance(key, SharedKey):
        return key
    found = key if isinstance(key, bytes) else _read(Path(key))
    return SharedKey(key_id, found) if found else None


def _read(path: Path) -> bytes:
    try:
        found = path.read_bytes()
    except OSError as error:
        raise ValueError(f"the key {path} cannot be read: {error.strerror}") from error
    if len(found) < KEY_BYTES:
        raise ValueError(f"{path} has {len(found)} bytes; a key has at least {KEY_BYTES}")
    return found


def protection_of(key: SharedKey | None, *, encrypt: bool, crc: bool) -> int:
    """What a hello asks for. Raises ValueError for a key that is missing, NoCipherError."""
    if not encrypt:
        return int(Flags.PAYLOAD_CRC) if crc else 0
    if key is None:
        raise ValueError("encryption needs a key")
    require_cipher()
    return int(Flags.PAYLOAD_AEAD)
