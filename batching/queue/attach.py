"""How a worker and the front end find each other: messages with descriptors over a Unix socket.

The worker says which model it has loaded, with its tensors, and gets the descriptors of the
function's queue. The connection then stands for its life: when it ends, the other side is gone.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from array import array
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shunter.batching.page.layout import CLASSES, SLOT_COUNT
from shunter.batching.page.slices import EVERY, SliceSet
from shunter.batching.queue.layout import MAX_TENSORS
from shunter.batching.queue.packed_form import PackedForm, must_be_packed
from shunter.batching.queue.tensor_spec import TensorSpec

NAME = "nic.sock"
"""In the server's runtime folder."""
_LONGEST = 1 << 16
_DESCRIPTORS = 8 + MAX_TENSORS
_CREDENTIALS = struct.Struct("3i")
RESPONSE_TIMEOUT_S = 120.0
"""Where the server says no other."""
LONGEST_NS = 86_400_000_000_000
"""One day, of a deadline."""
LONGEST_S = 10**9
"""Of a batch: as nanoseconds it fits into 64 bits."""
MOST_POOLS = 64
"""Processes of several models that a server has."""
_RANGES = {
    "slo_ns": (0, LONGEST_NS),
    "client_timeout_ns": (0, LONGEST_NS),
    "slot": (-1, SLOT_COUNT - 1),
    "slices": (0, EVERY),
    "pool": (0, MOST_POOLS),
    "place": (0, EVERY),
}


class AttachError(Exception):
    """The other side cannot be attached to; the message says why."""


@dataclass(frozen=True)
class Attach:
    """What a worker says first."""

    model: str
    version: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    batch: int
    """Largest batch that it takes."""
    pid: int
    response_timeout_s: float = RESPONSE_TIMEOUT_S
    """A batch may run so long; 0: as long as it wants."""
    request_class: str = CLASSES[0]
    """Of requests that name none."""
    slo_ns: int = 0
    """Deadline of strict requests that have none, after their arrival; 0: none."""
    client_timeout_ns: int = 0
    """Latest deadline of every request, after its arrival; 0: none."""
    slot: int = -1
    """Of its model on the server's control page, -1: none."""
    slices: SliceSet = 0
    """The slices that its strict requests want for themselves, 0: none."""
    packing: PackedForm | None = None
    """Where requests and answers are runs of bytes; None: each has as many bytes as all others."""
    retry: bool = True
    """Whether a request whose worker died may run again that does not say so itself."""
    pool: int = 0
    """Number of the process that it shares with other models, from 1; 0: it has its own."""
    place: SliceSet = 0
    """Where it runs, whatever the class of its requests; 0: that is not known, and it waits for no
    turn there."""

    @property
    def yields(self) -> bool:
        """Whether its batches stand still for strict requests: it is on the page, and its own want
        nothing for themselves there."""
        return self.slot >= 0 and not self.slices

    @property
    def carried_inputs(self) -> tuple[TensorSpec, ...]:
        """The tensors of a request for those who only carry it: queue, core and network."""
        return self.packing.carried_inputs() if self.packing else self.inputs

    @property
    def carried_outputs(self) -> tuple[TensorSpec, ...]:
        """The same of an answer."""
        return self.packing.carried_outputs() if self.packing else self.outputs

    def to_json(self) -> dict[str, Any]:
        """For :func:`send`."""
        return {"attach": asdict(self)}

    @classmethod
    def from_json(cls, content: Any) -> Attach:
        """The inverse of :meth:`to_json`. Raises AttachError."""
        try:
            found = dict(content["attach"])
            for kind in ("inputs", "outputs"):
                found[kind] = tuple(
                    TensorSpec(str(s["name"]), str(s["dtype"]), tuple(map(int, s["shape"])))
                    for s in found[kind]
                )
            if found.get("packing") is not None:
                found["packing"] = PackedForm(**found["packing"])
            attach = cls(**found)
            _check_numbers(attach)
            _check_tensors(attach)
        except (KeyError, TypeError, ValueError) as error:
            raise AttachError(f"not a worker's first message: {error!r}") from error
        return attach


def _check_numbers(attach: Attach) -> None:
    """Raises ValueError, or TypeError, for what cannot be served."""
    if attach.batch < 1:
        raise ValueError("a batch below 1")
    if not 0 <= attach.response_timeout_s <= LONGEST_S:
        raise ValueError(
            f"responseTimeout {attach.response_timeout_s!r}; allowed: 0 to {LONGEST_S}"
        )
    for name, (least, most) in _RANGES.items():
        number = getattr(attach, name)
        if not isinstance(number, int) or not least <= number <= most:
            raise ValueError(f"{name} {number!r}; allowed: {least} to {most}")
    if not isinstance(attach.retry, bool):
        raise TypeError(f"retry {attach.retry!r}; allowed: true, false")
    if attach.request_class not in CLASSES:
        raise ValueError(f"class {attach.request_class!r}; allowed: {', '.join(CLASSES)}")


def _check_tensors(attach: Attach) -> None:
    """The same."""
    for spec in (*attach.inputs, *attach.outputs):
        spec.check()
    if attach.packing:
        attach.packing.check(attach.inputs, attach.outputs)
    elif must_be_packed(attach.inputs, attach.outputs):
        raise ValueError("tensors of any size, and no packing")


def listen(path: Path) -> socket.socket:
    """Listen where workers attach. Raises OSError when another front end does."""
    remove_left_over(path, socket.SOCK_SEQPACKET)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        mask = os.umask(0o177)
        try:
            server.bind(str(path))
        finally:
            os.umask(mask)
        server.listen(64)
    except BaseException:
        server.close()
        raise
    return server


def remove_left_over(path: Path, kind: int) -> None:
    """Remove the socket of that kind of a front end that was killed, and no other file."""
    with socket.socket(socket.AF_UNIX, kind) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            if path.is_socket():
                path.unlink()
        except OSError:
            return  # nothing is there, or it is none of ours


def peer_process(connection: socket.socket) -> tuple[int, int]:
    """Number and user of the process at the other end, as the kernel knows them."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(data)
    return pid, uid


def send(connection: socket.socket, content: Any, descriptors: Sequence[int] = ()) -> None:
    """One message. Raises OSError when the other side is gone."""
    socket.send_fds(connection, [json.dumps(content).encode()], list(descriptors))


def receive(connection: socket.socket, flags: int = 0) -> tuple[Any, list[int]]:
    """One message and its descriptors. ``flags``: of the system call.

    Raises EOFError when the other side is gone, AttachError when it is no message, OSError (such
    as BlockingIOError) of the socket.
    """
    data, descriptors, found = receive_descriptors(connection, _LONGEST, _DESCRIPTORS, flags)
    if not data:
        raise EOFError
    try:
        if found & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise ValueError("it is too long")
        return json.loads(data), list(descriptors)
    except ValueError as error:
        for descriptor in descriptors:
            os.close(descriptor)
        raise AttachError(f"not a message: {error}") from error


def receive_descriptors(
    connection: socket.socket, most_bytes: int, most: int, flags: int = 0
) -> tuple[bytes, list[int], int]:
    """Bytes with their descriptors, and the flags of the message. Raises OSError.

    ``socket.recv_fds`` of Python 3.11 does not heed flags.
    """
    room = socket.CMSG_LEN(most * array("i").itemsize)
    flags |= socket.MSG_CMSG_CLOEXEC
    data, others, found, _ = connection.recvmsg(most_bytes, room, flags)
    descriptors = array("i")
    for level, kind, content in others:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    return data, list(descriptors), found
