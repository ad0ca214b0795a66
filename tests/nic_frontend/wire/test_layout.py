"""The numbers of the wire: whoever changes one changes this, and WIRE_VERSION."""

from shunter.batching.queue.layout import EntryStatus
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus


def test_the_numbers_of_the_wire():
    types = "REQ RESP SACK CREDIT HELLO HELLO_ACK CANCEL ERROR ACK"
    assert [(kind.name, kind.value) for kind in MessageType] == [
        (name, number) for number, name in enumerate(types.split(), 1)
    ]
    flags = "LAST RETRANS HDR_TAG PAYLOAD_AEAD PAYLOAD_CRC ACK_REQ unused IDEMPOTENT"
    assert [(flag.name, flag.value) for flag in Flags] == [
        (name, 1 << bit) for bit, name in enumerate(flags.split()) if name != "unused"
    ]
    assert sorted(WireStatus) == [
        *(200, 400, 404, 409, 410, 426, 499, 500, 501, 502, 503, 504, 521),
    ]


def test_a_worker_s_words_mean_the_same_on_the_wire():
    for status in EntryStatus:
        assert WireStatus[status.name] == status
