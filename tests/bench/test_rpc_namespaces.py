"""Packets between the namespaces are of the wire's MTU, and this thread comes back out of its."""

import os
import socket

import pytest

UDP, UDP_SEGMENT = 17, 103


@pytest.fixture
def namespaces(script):
    return script("rpc.namespaces")


@pytest.mark.parametrize(("wire", "packets"), [("1500-cut", 30), ("1500", 1)])
def test_packets_are_real_and_nothing_stays(namespaces, wire, packets):
    own = os.readlink("/proc/thread-self/ns/net")
    with namespaces.Network([wire]) as network:
        if network.impossible:
            pytest.skip(network.impossible)
        [place, *_] = network.places([f"mtu{wire}", "mtu9000"])
        at_server = os.readlink("/proc/thread-self/ns/net")
        at_client = place.run(os.readlink, "/proc/thread-self/ns/net")
        assert len({own, at_server, at_client}) == 3
        before, _ = network.packets(wire)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.setsockopt(UDP, UDP_SEGMENT, 1400)
            sender.sendto(bytes(30 * 1400), (namespaces.addresses(wire)[1], 9))
        after, _ = network.packets(wire)
        assert packets <= after - before < packets + 10  # and some of the kernel's own
    assert os.readlink("/proc/thread-self/ns/net") == own


def test_without_namespaces_there_is_loopback_and_a_reason(namespaces, monkeypatch):
    monkeypatch.setattr(namespaces.shutil, "which", lambda _: None)
    with namespaces.Network() as network:
        assert network.impossible == "there is no ip"
        assert [place.name for place in network.places(["mtu1500", "loopback"])] == ["loopback"]
