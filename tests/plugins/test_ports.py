"""Ports of servers that are told theirs."""

import socket

import pytest

from shunter.plugins import ports
from shunter.plugins.ports import free_ports


def test_they_differ_and_are_none_that_connections_get():
    found = free_ports(200)
    assert len(set(found)) == 200
    assert max(found) < ports._first_of_connections()
    assert min(found) >= ports.LOWEST


def test_one_that_somebody_has_is_not_found(monkeypatch):
    with socket.socket() as taken, socket.socket() as probe:
        for each in (taken, probe):
            each.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
        probe.close()
        numbers = iter([taken.getsockname()[1], free])
        monkeypatch.setattr(ports.secrets, "randbelow", lambda end: next(numbers) - ports.LOWEST)
        assert free_ports(1) == [free]


@pytest.mark.parametrize(("text", "first"), [("20000\t30000\n", 20000), ("", ports.USUAL_END)])
def test_the_range_is_the_kernels(tmp_path, monkeypatch, text, first):
    (tmp_path / "range").write_text(text)
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "range")
    assert ports._first_of_connections() == first


def test_where_connections_get_them_all_they_are_found_among_these(tmp_path, monkeypatch):
    (tmp_path / "range").write_text("1024 65535")
    monkeypatch.setattr(ports, "_RANGE", tmp_path / "range")
    assert len(set(free_ports(20))) == 20


def test_a_host_that_is_not_this_one_has_none():
    with pytest.raises(OSError, match="assign"):
        free_ports(1, "192.0.2.1")
