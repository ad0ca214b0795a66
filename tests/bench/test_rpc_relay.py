"""The relay carries everything, and repeats it in both directions."""

import socket


def test_what_was_carried_is_repeated_and_sent_back(script):
    relay = script("rpc.relay").Relay
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        for each in (server, client):
            each.bind(("127.0.0.1", 0))
            each.settimeout(10)
        with relay(*server.getsockname()) as between:
            client.connect(("127.0.0.1", between.port))
            client.send(b"first")
            data, peer = server.recvfrom(100)
            assert data == b"first"
            client.send(b"second")
            assert [server.recv(100), server.recv(100)] == [b"second", b"first"]  # replayed
            assert client.recv(100) == b"first"  # reflected
            server.sendto(b"answer", peer)
            assert client.recv(100) == b"answer"
    assert (between.replayed, between.reflected) == (1, 1)
