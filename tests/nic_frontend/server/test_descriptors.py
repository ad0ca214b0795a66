"""A front end that runs out of descriptors, and clients that open connections and say nothing."""

import contextlib
import errno
import socket

import pytest

from shunter.nic_frontend.server import readiness
from shunter.nic_frontend.server.front_end import FrontEnd, Settings
from shunter.nic_frontend.server.reception import NewStreams


@pytest.fixture
def front(built, tmp_path):
    found = FrontEnd(Settings(tmp_path / "nic.sock", port=0, unix=tmp_path / "stream.sock"))
    with contextlib.closing(found):
        yield found


class Full:
    """A listener when there are no descriptors."""

    def __init__(self, descriptor, number):
        self.descriptor, self.number = descriptor, number

    def fileno(self):
        return self.descriptor

    def accept(self):
        raise OSError(self.number, "too many")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("way", ["stream", "worker"])
def test_without_descriptors_a_listener_rests_for_a_cycle(front, number, way):
    ready, descriptor = front._ready, front._attach_at[0].fileno()

    def come(listener):
        if way == "worker":
            front.functions.on_worker(listener)
        else:
            NewStreams(listener, ready, front.path, front.reception).accept()

    come(Full(descriptor, number))
    assert descriptor not in ready._then
    ready.cycle()
    assert descriptor in ready._then
    come(Full(descriptor, errno.ECONNABORTED))
    assert descriptor in ready._then
    come(Full(descriptor, number))
    front.detach()  # also while it rests
    ready.cycle()
    assert descriptor not in ready._then


def test_of_many_who_say_nothing_the_oldest_is_closed(front, monkeypatch):
    monkeypatch.setattr(readiness, "MOST_UNKNOWN", 3)
    listener = front._attach_at[0]
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(5):
            made.append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)))
            made[-1].connect(listener.getsockname())
            front.functions.on_worker(listener)
        assert len(front._ready._unknown) == 3
        for one in made[:2]:
            assert one.recv(1) == b""
        made[2].setblocking(False)
        with pytest.raises(BlockingIOError):
            made[2].recv(1)
