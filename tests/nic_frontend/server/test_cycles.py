"""How often the front end looks around, beside serving."""

from types import SimpleNamespace

import pytest

from shunter.nic_frontend.server import front_end
from shunter.nic_frontend.server.front_end import CYCLE_NS, QUIET_CYCLE_NS, FrontEnd

MS = 1_000_000


@pytest.fixture
def looks(monkeypatch):
    """A step of a front end whose time is ours: whether it looked around, and when it does next."""
    at, found = SimpleNamespace(ns=10**9), []
    server = object.__new__(FrontEnd)
    server._due_ns, server._seen, server._rereads = 0, {}, False
    stats = {"requests": 0, "sleeps": 0}
    server.path = SimpleNamespace(
        run=lambda until_ns: [], closed_streams=list, stats=lambda: dict(stats)
    )
    ready = SimpleNamespace(is_so=False)
    server._ready = SimpleNamespace(handle=lambda: ready.is_so)
    server.functions = SimpleNamespace(let_go=lambda: None)
    monkeypatch.setattr(front_end.time, "monotonic_ns", lambda: at.ns)
    monkeypatch.setattr(server, "_cycle", found.append, raising=False)

    def step(after_ms, *, requests=0, event=False):
        at.ns += after_ms * MS
        stats["requests"] += requests
        stats["sleeps"] += 1
        ready.is_so = event
        found.clear()
        server._step(0)
        return bool(found), server._due_ns - at.ns

    return step


def test_it_looks_around_five_times_a_second_and_once_when_nothing_comes(looks):
    assert looks(0) == (True, CYCLE_NS)  # nothing is known yet
    assert looks(200) == (True, QUIET_CYCLE_NS)  # that it slept is no news
    assert looks(999) == (False, MS)
    assert looks(1, requests=1) == (True, CYCLE_NS)
    assert looks(200) == (True, QUIET_CYCLE_NS)


def test_an_event_ends_the_quiet(looks):
    looks(0)
    assert looks(200) == (True, QUIET_CYCLE_NS)
    assert looks(10, event=True) == (False, CYCLE_NS)
    assert looks(100, event=True) == (False, 100 * MS)  # it does not put the cycle off
    assert looks(100) == (True, QUIET_CYCLE_NS)
