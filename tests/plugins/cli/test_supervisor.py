"""What a supervisor hears, at a socket of its own."""

import os
import socket

import pytest

from shunter.plugins.cli.supervisor import Supervisor


@pytest.fixture(params=["path", "abstract"])
def heard(request, tmp_path):
    """A socket as systemd has it: its name, and what came."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@shunter-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
        end.bind("\0" + name[1:] if name.startswith("@") else name)
        end.setblocking(False)

        def read():
            found = []
            while True:
                try:
                    found.append(end.recv(4096).decode())
                except BlockingIOError:
                    return found

        yield name, read


def test_it_is_told_when_it_serves_and_when_it_ends(heard):
    name, read = heard
    supervisor = Supervisor({"NOTIFY_SOCKET": name})
    supervisor.ready("TorchServe at http://127.0.0.1:8080")
    supervisor.look(lambda: pytest.fail("nobody asked for a watchdog"))
    supervisor.stopping()
    assert read() == [
        "READY=1\nSTATUS=TorchServe at http://127.0.0.1:8080",
        "STOPPING=1\nSTATUS=draining",
    ]


def test_the_watchdog_hears_of_a_server_that_is_well_and_of_no_other(heard, monkeypatch):
    name, read = heard
    clock = [100.0]
    monkeypatch.setattr("shunter.plugins.cli.supervisor.time.monotonic", lambda: clock[0])
    supervisor = Supervisor({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "20000000"})
    supervisor.look(lambda: True)
    supervisor.look(lambda: pytest.fail("not yet"))
    assert read() == ["WATCHDOG=1"]
    clock[0] += 9.9
    supervisor.look(lambda: pytest.fail("not yet"))
    clock[0] += 0.2
    supervisor.look(lambda: False)
    assert read() == []
    clock[0] += 10
    supervisor.look(lambda: True)
    assert read() == ["WATCHDOG=1"]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"},
    ],
)
def test_without_one_nobody_is_asked(environ):
    Supervisor(environ).look(lambda: pytest.fail("nobody asked"))


def test_one_that_is_gone_ends_nothing(tmp_path):
    supervisor = Supervisor({"NOTIFY_SOCKET": str(tmp_path / "gone"), "WATCHDOG_USEC": "1"})
    supervisor.ready("")
    supervisor.look(lambda: True)
    supervisor.stopping()
