"""A front end, its workers and its clients: everything that goes well."""

import pytest

from shunter.batching.wire_layout import Flags, MessageType, WireStatus

KEY = bytes(range(32)).hex()
TWO_INPUTS = [("a", "uint8", [600]), ("c", "float32", [3])]
TWO_OUTPUTS = [("b", "uint8", [300]), ("d", "uint8", [0]), ("e", "int64", [2, 2])]


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
@pytest.mark.parametrize("kind", ["udp", "tcp", "unix"])
def test_requests_are_answered(mixed_site, kind, key):
    mixed_site.serve(key=key, unix=str(mixed_site.folder / "nic.stream"))
    mixed_site.worker(inputs=TWO_INPUTS, outputs=TWO_OUTPUTS)
    client = mixed_site.client(kind)
    asked = {client.ask(name): name for name in range(1000, 1020)}
    assert client.answers(20) == {i: client.expected(name) for i, name in asked.items()}
    client.acknowledge(21, add=Flags.ACK_REQ)
    assert client.get()[0].type == MessageType.CREDIT
    function = mixed_site.function()
    assert function["free"] == function["entries"]
    assert mixed_site.executions() == dict.fromkeys(asked.values(), 1)
