"""What a seat and its pool process say to each other, byte by byte. Pure.

Over a Unix stream socket. The seat says a ``handover`` first, with two descriptors: its standard
output and error. Behind it are so many bytes of texts, each ended by a zero: its working folder,
its arguments, its variables as ``NAME=VALUE``. From then on each side says a ``word`` at a time.
Whole words, so that nothing lies between fields.
What is emitted to C comes from here: ``python -m shunter.handlers.pool.emit``.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

MAGIC = int.from_bytes(b"SHUNTSEA", "little")
MOST_BYTES = 1 << 20
"""Of a seat's texts."""
MOST_TEXTS = 1 << 14
MOST_TEXT = 1 << 16
"""Bytes behind a word."""
SOCKET_VARIABLE, LOCK_VARIABLE = "SHUNTER_POOL_SOCKET", "SHUNTER_POOL_LOCK"
"""Environment of a pool process: its descriptors of ``p.K`` and ``p.K.lock``."""
CONTINUES_VARIABLE = "SHUNTER_CONTINUES"
"""Environment of a worker that was a seat: descriptor of its server's connection, and what was read
from it, in hexadecimal digits behind a colon."""

PATIENCE_VARIABLE, PATIENCE_S = "SHUNTER_POOL_PATIENCE_S", 30
"""Environment of a seat: so long it waits to be taken; then it looks whether to end the process."""

TUNABLES = "GLIBC_TUNABLES", "glibc.cpu.x86_non_temporal_threshold=1000000"
"""Environment of a pool process, unless it is set: copies of so many bytes, as those of a swap are,
go past the cache, which does not have to read first what they overwrite."""

UNBEGUN = 75
"""Status of a seat whose process went by another model's batch: nothing of its own had begun."""
AT_WORK = 2
"""A process works for so many seats at once: one batch stands still while another one runs."""

HANDOVER = ("magic", "digest", "arguments", "variables", "bytes")
WORD = ("kind", "value", "bytes")
"""``bytes``: of a text that follows."""
_HANDOVER, _WORD = struct.Struct(f"<{len(HANDOVER)}Q"), struct.Struct(f"<{len(WORD)}q")
HANDOVER_BYTES, WORD_BYTES = _HANDOVER.size, _WORD.size


class Kind(IntEnum):
    """Of a word."""

    TAKEN = 1
    """To the seat: it is served; ``value`` is its number. With the descriptor of a page, which
    begins with the numbers of the ``AT_WORK`` seats for which the process works, or 0."""
    END = 2
    """To the seat: end with ``value`` as status."""
    ALONE = 3
    """To the seat, with a descriptor: be a worker of your own; the text is for
    ``SHUNTER_CONTINUES``, without the descriptor."""
    CONNECT = 4
    """To the seat: connect to the socket of the text, as yourself."""
    CONNECTED = 5
    """From the seat: with a descriptor, if ``value`` is 0; else that is the error."""


class HandoverError(ValueError):
    """What was said makes no sense; the message says why."""


def digest() -> int:
    """Of all that is said: who was built from something else is not heard."""
    said = repr((MAGIC, AT_WORK, HANDOVER, WORD, [(each.name, int(each)) for each in Kind]))
    return int.from_bytes(hashlib.sha256(said.encode()).digest()[:7], "little")


@dataclass(frozen=True)
class Handover:
    """What a seat has."""

    folder: bytes
    arguments: tuple[bytes, ...]
    environment: dict[bytes, bytes]

    def pack(self) -> bytes:
        """As it is said."""
        variables = [name + b"=" + value for name, value in self.environment.items()]
        texts = (self.folder, *self.arguments, *variables)
        data = b"".join(each + b"\0" for each in texts)
        counts = len(self.arguments), len(variables), len(data)
        return _HANDOVER.pack(MAGIC, digest(), *counts) + data


@dataclass(frozen=True)
class Announced:
    """What follows the first words of a handover."""

    arguments: int
    variables: int
    bytes: int

    @classmethod
    def unpack(cls, data: bytes) -> Announced:
        """Raises HandoverError."""
        if len(data) != HANDOVER_BYTES:
            raise HandoverError(f"{len(data)} bytes instead of a handover")
        magic, other, arguments, variables, size = _HANDOVER.unpack(data)
        if magic != MAGIC or other != digest():
            raise HandoverError("the seat is of another version")
        if not 1 + arguments + variables <= min(size, MOST_TEXTS) or size > MOST_BYTES:
            raise HandoverError(f"{arguments} arguments, {variables} variables, {size} bytes")
        return cls(arguments, variables, size)

    def read(self, data: bytes) -> Handover:
        """Of its texts. Raises HandoverError."""
        texts, count = data.split(b"\0"), 1 + self.arguments + self.variables
        if len(data) != self.bytes or texts.pop() or len(texts) != count:
            raise HandoverError("there are not as many texts as were announced")
        folder, *rest = texts
        return Handover(folder, tuple(rest[: self.arguments]), _variables(rest[self.arguments :]))


def _variables(texts: Sequence[bytes]) -> dict[bytes, bytes]:
    """What has no name, or none that can be set, is left out, as Python does."""
    pairs = (each.partition(b"=") for each in texts)
    return {name: value for name, equals, value in pairs if name and equals}


def word(kind: Kind, value: int = 0, text: bytes = b"") -> bytes:
    """As it is said."""
    return _WORD.pack(kind, value, len(text)) + text


def unpack_word(data: bytes) -> tuple[Kind, int, int]:
    """Kind, value, and bytes of the text that follows. Raises HandoverError."""
    if len(data) != WORD_BYTES:
        raise HandoverError(f"{len(data)} bytes instead of a word")
    kind, value, size = _WORD.unpack(data)
    if kind not in Kind.__members__.values() or not 0 <= size <= MOST_TEXT:
        raise HandoverError(f"a word {kind} with {size} bytes")
    return Kind(kind), value, size
