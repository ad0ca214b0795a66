"""What somebody may do to the front end who has an address, or even a key."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence

import numpy as np

from rpc.load import native_of
from rpc.models import RpcModel
from rpc.namespaces import Place
from rpc.sides import open_session
from shunter.nic_frontend.client import InferenceError, Session
from shunter.nic_frontend.client.opening import Opening
from shunter.nic_frontend.wire.hello import Hello
from shunter.nic_frontend.wire.keys import SharedKey

PATIENCE_S = 5.0
LARGEST = 1 << 16
SMALL_BUFFER = 4096


@contextlib.contextmanager
def slow_readers(
    place: Place, url: str, model: RpcModel, key: SharedKey, count: int
) -> Iterator[int]:
    """Streams that ask for all they have credit for and read nothing; how many requests."""

    def begin() -> tuple[list[Session], int]:
        opened = [open_session(url, model, key=key) for _ in range(count)]
        return opened, sum(map(_ask_all, opened))

    x, y = model.request(), np.zeros(model.reply, np.uint8)

    def _ask_all(session: Session) -> int:
        core, begun = native_of(session), 0
        with socket.socket(fileno=os.dup(core.socket)) as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
        while core.may_begin and core.begin([x.ctypes.data], [y.ctypes.data]):
            begun += 1
        return begun

    sessions, asked = place.run(begin)
    try:
        yield asked
    finally:
        for session in sessions:
            session.close()


@contextlib.contextmanager
def half_open(
    place: Place, port: int, model: RpcModel, key: SharedKey, count: int
) -> Iterator[int]:
    """Sessions whose client is gone at once, and connections that never say anything."""
    where = place.host, port
    silent = place.run(lambda: [socket.create_connection(where) for _ in range(count)])
    opened = place.run(lambda: sum(_abandon(where, model, key) for _ in range(count)))
    try:
        yield opened
    finally:
        for each in silent:
            each.close()


def _abandon(where: tuple[str, int], model: RpcModel, key: SharedKey) -> bool:
    """Open a session and forget it; whether it was opened."""
    opening = Opening(Hello(os.urandom(16), model.name), key, stream=False)
    ends = time.monotonic() + PATIENCE_S
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as own:
        own.connect(where)
        own.settimeout(0.05)
        while time.monotonic() < ends:
            if hello := opening.next(time.monotonic_ns()):
                own.send(hello)
            with contextlib.suppress(TimeoutError):
                if opening.receive(own.recv(LARGEST), time.monotonic_ns()):
                    return True
    return False


def lost_now(place: Place, sessions: Sequence[Session], model: RpcModel) -> dict[int, str]:
    """Those that do not answer, or are not the ones that were opened first, and why."""
    x = model.request()

    def reason(session: Session) -> str:
        before = session.native
        try:
            session.infer([x], timeout_s=PATIENCE_S)
        except InferenceError as error:
            return f"{type(error).__name__}: {error}"
        return "" if session.native is before else "opened anew"

    reasons = place.run(lambda: [reason(session) for session in sessions])
    return {number: why for number, why in enumerate(reasons) if why}
