"""The numbers of the wire: whoever changes one changes this, and WIRE_VERSION."""

import struct

from shunter.batching.queue.layout import EntryStatus
from shunter.nic_frontend.wire.layout import (
    HELLO,
    OPENED,
    STRUCTURES,
    Flags,
    MessageType,
    WireStatus,
    format_of,
    place_wire,
)


def test_the_numbers_of_the_wire():
    types = "REQ RESP SACK CREDIT HELLO HELLO_ACK CANCEL ERROR ACK QUERY"
    assert [(kind.name, kind.value) for kind in MessageType] == [
        (name, number) for number, name in enumerate(types.split(), 1)
    ]
    flags = "LAST RETRANS HDR_TAG PAYLOAD_AEAD PAYLOAD_CRC ACK_REQ NEXT IDEMPOTENT"
    assert [(flag.name, flag.value) for flag in Flags] == [
        (name, 1 << bit) for bit, name in enumerate(flags.split())
    ]
    assert sorted(WireStatus) == [
        *(100, 102, 200, 202, 204, 400, 401, 403, 404, 408, 409, 410, 413),
        *(426, 429, 499, 500, 501, 502, 503, 504, 521),
    ]


def test_a_worker_s_words_mean_the_same_on_the_wire():
    for status in EntryStatus:
        assert WireStatus[status.name] == status


def test_the_places_of_a_hello_and_its_answers():
    hello = {name: at for name, (at, _) in place_wire(HELLO).items()}
    assert hello == {
        "nonce": 0, "cookie": 16, "segment": 32, "window": 36, "want": 38,
        "key_id": 40, "public": 72, "model": 104, "version": 232, "mac": 296,
    }
    opened = {name: at for name, (at, _) in place_wire(OPENED).items()}
    assert opened == {
        "client_nonce": 0, "server_nonce": 16, "segment": 32, "window": 36, "protect": 38,
        "rights": 40, "reserved": 42, "public": 48,
    }
    sizes = {name: struct.calcsize(format_of(each)) for name, each in STRUCTURES.items()}
    assert sizes == {"x64": 64, "wire_hello": 328, "wire_cookie": 32, "wire_opened": 80}
