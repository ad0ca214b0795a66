"""What a pool process does when a device has less room than it said."""

import selectors
import socket
import threading
from types import SimpleNamespace

import pytest

from shunter.allocator.memory.scheduling import Waiting
from shunter.handlers.pool import reception
from shunter.handlers.pool.reception import News
from shunter.handlers.torchserve.connection import DIED
from shunter.handlers.torchserve.pool.links import Links
from shunter.handlers.torchserve.pool.process import PoolProcess
from shunter.handlers.weights.hot_memory import NoRoom


class Models:
    """One that says that there is room, and then has none."""

    weights = SimpleNamespace(may_come_beside=lambda name: True)

    def inside(self, waiting, batch):
        raise NoRoom(waiting[0].name)


def test_who_finds_no_room_beside_a_batch_waits_for_its_end_and_is_no_fault_of_it():
    process = PoolProcess.__new__(PoolProcess)
    process._models, process._without_room = Models(), set()
    process._at_work = SimpleNamespace(name="low")
    passes = SimpleNamespace(may_pass=True, since=1.0)
    process._batches = {"a": passes, "b": passes}
    assert [each.name for each in process._that_pass()] == ["a", "b"]
    process._run_inside([Waiting("a", 1.0)])
    assert [each.name for each in process._that_pass()] == ["b"]
    assert set(process._batches) == {"a", "b"}


class Ended(Exception):
    """In place of the end of this process."""


def test_a_load_that_nobody_waits_for_ends_the_process_only_when_it_hangs(monkeypatch):
    def end(seat, why):
        raise Ended(why)

    monkeypatch.setattr(reception, "_end", end)
    monkeypatch.setattr(reception, "_LOAD_GRACE_S", -1.0)
    here, there = socket.socketpair()
    found = reception.Reception(here, lock=-1)
    found._loading = seat = reception.Seat(1, there, None, -1, -1)
    found._selector.register(there, selectors.EVENT_READ, seat)
    threads = set(threading.enumerate())
    found._lost(seat)
    assert set(threading.enumerate()) <= threads  # the load would be blamed for another
    with pytest.raises(Ended, match="does not end to load"):
        found._end_if_it_hangs()
    found._loading = None
    found._end_if_it_hangs()
    found._loading = seat  # another load
    found._end_if_it_hangs()
    here.close()


class Link:
    """One that does what nobody expects."""

    due, descriptors, path, is_over, has_batch = 0.0, (), b"", False, False

    def raise_it(self, *_):
        raise RuntimeError("out of memory")

    late = connected = hear = leave = raise_it


@pytest.mark.parametrize("what", ["look", "hear", "connected", "server_has_gone", "ran"])
def test_a_link_that_fails_costs_its_worker_and_not_the_process(what, caplog):
    broken = []
    link = Link()
    worker = SimpleNamespace(name="m#1", link=link)
    if what == "ran":
        link = worker.link = SimpleNamespace(descriptors=[-1])
    with selectors.DefaultSelector() as selector:
        links = Links(
            selector,
            ready=lambda each: None,
            over=lambda each: None,
            speaks=lambda each: None,
            broken=lambda each: (links.remove(each), broken.append(each)),
        )
        # It is found by what it is, as a worker is.
        worker = type("Worker", (), vars(worker))()
        links.add(worker)
        given = {"look": (), "connected": (worker, News(None))}.get(what, (worker,))
        assert not getattr(links, what)(*given)
    assert broken == [worker]
    assert DIED in caplog.text
