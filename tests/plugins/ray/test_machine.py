"""A machine that keeps a server: over a program that does what a test says."""

import time

import pytest

from shunter.plugins.errors import UserError
from shunter.plugins.ray import machine

PATIENCE_S = 60
STATUS = {"server": "fake", "models": []}
MODEL = {
    "name": "m",
    "version": "1",
    "ready": 1,
    "batches": 0,
    "answered": 0,
    "requests": 0,
    "waiting": [0, 0],
    "running": 0,
    "fixed_ns": 1,
    "per_request_ns": 0,
    "error_ns": 0,
    "configuration": "1x1x1",
}


class Server:
    """In memory."""

    begun = None

    def __init__(self, told):
        if told.get("refused"):
            raise OSError("no room")
        self.running, self.closed = True, False
        self.begun.append(self)

    def said(self):
        return {"inference": "http://127.0.0.1:5", "pid": len(self.begun), "folder": "/nowhere"}

    def close(self):
        self.closed = True


class Host:
    """Of it."""

    answers = True

    def __init__(self, folder, name):
        pass

    def status(self):
        if not self.answers:
            raise UserError("nobody is there")
        return {**STATUS, "models": [MODEL]}


@pytest.fixture
def begun(monkeypatch):
    monkeypatch.setattr(Server, "begun", [])
    monkeypatch.setattr(Host, "answers", True)
    monkeypatch.setattr(machine, "Server", Server)
    monkeypatch.setattr(machine, "RemoteHost", Host)
    monkeypatch.setattr(machine, "REDIRECT_S", 0)
    monkeypatch.setattr(machine, "FIRST_PAUSE_S", 0.01)
    # This process is to bury no children of others.
    monkeypatch.setattr(machine, "adopt_orphans", lambda: None)
    return Server.begun


def wait(found, is_so):
    end = time.monotonic() + PATIENCE_S
    while not is_so(found.report()[1]):
        assert time.monotonic() < end, found.report()
        time.sleep(0.01)
    return found.report()[1]


def start(**told):
    return machine.Machine({"kind": "fake", "address": "10.0.0.1", "name": "a", **told})


def test_it_serves_and_is_found_where_others_reach_it(begun):
    found = start()
    report = wait(found, lambda report: report.state == "serving")
    assert (found.report()[0], report.inference) == ("a", "http://10.0.0.1:5")
    found.drain()
    assert found.report()[1].state == "released"
    assert begun[0].closed


def test_a_server_that_ends_is_started_again(begun):
    found = start()
    first = wait(found, lambda report: report.state == "serving")
    begun[0].running = False
    again = wait(found, lambda report: report.state == "serving" and report.pid != first.pid)
    assert (again.starts, begun[0].closed) == (2, True)
    found.drain()


def test_a_server_that_cannot_be_started_is_told_of_and_tried_again(begun):
    found = start(refused=True)
    report = wait(found, lambda report: report.starts > 1)
    assert report.problem == "its server cannot be started: no room"
    found.drain()
    assert found.report()[1].state == "released"


def test_a_status_that_nobody_foresaw_starts_the_server_again(begun, monkeypatch):
    def parse(status):
        raise IndexError("of a list")

    with monkeypatch.context() as patched:
        patched.setattr(machine.loads, "parse", parse)
        found = start()
        wait(found, lambda report: report.problem == "IndexError: of a list")
    wait(found, lambda report: report.state == "serving")
    assert begun[0].closed
    found.drain()


def test_a_server_that_is_silent_is_left_out_and_then_started_again(begun, monkeypatch):
    monkeypatch.setattr(machine, "SILENT_S", 0.2)
    found = start()
    wait(found, lambda report: report.state == "serving")
    Host.answers = False
    assert "silent" in wait(found, lambda report: report.state == "lost").problem
    monkeypatch.setattr(machine, "HUNG_S", 0)
    wait(found, lambda report: len(begun) > 1)
    assert begun[0].closed
    Host.answers = True
    found.drain()
