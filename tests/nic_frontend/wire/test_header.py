"""The bytes on the wire, against literal ones, and what makes a header wrong."""

import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.nic_frontend.wire import header as wire
from shunter.nic_frontend.wire.header import Header, WrongHeader, check_tag, parse
from shunter.nic_frontend.wire.layout import X64, X64_FIELDS, X64_STRUCT, Flags, MessageType
from shunter.nic_frontend.wire.siphash import siphash24

OFFSETS = {
    "magic": 0,
    "version": 2,
    "type": 3,
    "flags": 4,
    "words": 6,
    "priority": 7,
    "req_id": 8,
    "func_id": 16,
    "seq": 18,
    "count": 20,
    "length": 22,
    "total": 24,
    "offset": 28,
    "session": 32,
    "deadline_us": 36,
    "credit": 40,
    "status": 44,
    "tensor": 46,
    "reserved": 47,
    "crc": 48,
    "pkt_no": 52,
    "tag": 56,
}
BYTES = bytes.fromhex(
    "5352 02 02 2100 08 01"  # magic, version, RESP, LAST | ACK_REQ, words, best effort
    "8877665544332211"  # req_id
    "0a00 0300 0400 0001"  # func_id, seq, count, length
    "00040000 00030000"  # total, offset
    "efbeadde 10270000 ffffffff"  # session, deadline_us, credit
    "c800 02 00 78563412"  # status, tensor, reserved, crc
    "0d0c0b0a 0000000000000000"  # pkt_no, tag
)
HEADER = Header(
    type=2,
    flags=33,
    priority=1,
    req_id=0x1122334455667788,
    func_id=10,
    seq=3,
    count=4,
    length=256,
    total=1024,
    offset=768,
    session=0xDEADBEEF,
    deadline_us=10_000,
    credit=0xFFFFFFFF,
    status=200,
    tensor=2,
    crc=0x12345678,
    pkt_no=0x0A0B0C0D,
)
KEY = bytes(range(16))


def test_the_fields_lie_where_they_were_published():
    assert {name: at for name, (at, _) in X64_FIELDS.items()} == OFFSETS
    assert X64_STRUCT == "<HBBHBBQHHHHIIIIIHBBIIQ"
    assert struct.calcsize(X64_STRUCT) == 64


def test_a_header_has_exactly_these_bytes():
    assert len(BYTES) == 64
    assert HEADER.pack() == BYTES
    assert parse(BYTES + bytes(256)) == HEADER


def test_a_tag_is_in_the_last_eight_bytes_and_covers_the_others():
    data = HEADER.pack(KEY)
    assert data[4] == 33 | 4
    assert data[:4] + data[5:56] == BYTES[:4] + BYTES[5:56]
    assert struct.unpack("<Q", data[56:])[0] == siphash24(KEY, data[:56])


@given(st.fixed_dictionaries({f.name: st.integers(0, 256**f.width - 1) for f in X64}))
def test_all_values_are_read_as_they_were_written(values):
    header = Header(**values)
    assert Header._make(struct.unpack(X64_STRUCT, header.pack())) == header


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"magic": 0x5352}, "magic"),
        ({"version": 0}, "version"),
        ({"version": 1}, "version"),
        ({"type": 0}, "type"),
        ({"type": 11}, "type"),
        ({"flags": 256}, "flags"),
        ({"flags": 1 << 15}, "flags"),
        ({"words": 7}, "words"),
        ({"reserved": 1}, "reserved"),
        ({"length": 255}, "length"),
        ({"flags": Flags.PAYLOAD_AEAD}, "length"),
        # The first in this order is the one that is counted.
        ({"magic": 0, "version": 9, "length": 1}, "magic"),
        ({"type": 99, "reserved": 1}, "type"),
    ],
    ids=str,
)
def test_a_header_is_wrong(changes, reason):
    with pytest.raises(WrongHeader) as wrong:
        parse(HEADER._replace(**changes).pack() + bytes(256))
    assert wrong.value.reason == reason
    assert reason in wire.REASONS


@pytest.mark.parametrize("length", [0, 1, 63])
def test_a_datagram_is_too_short(length):
    for data, said in ((BYTES[:length], None), (BYTES, length)):
        with pytest.raises(WrongHeader, match=re.escape("short")):
            parse(data, said)


def test_the_tag_of_an_encrypted_payload_stands_behind_it():
    header = HEADER._replace(flags=Flags.PAYLOAD_AEAD)
    assert parse(header.pack(), 64 + 256 + 16) == header


@pytest.mark.parametrize("kind", MessageType)
def test_every_type_is_read(kind):
    assert parse(Header(type=kind).pack()).type == kind


@pytest.mark.parametrize(
    ("packed_with", "checked_with", "right"),
    [
        (None, None, True),
        (KEY, KEY, True),
        (None, KEY, False),
        (KEY, None, False),
        (KEY, bytes(16), False),
    ],
)
def test_a_tag_must_be_there_exactly_when_there_is_a_key(packed_with, checked_with, right):
    data = HEADER.pack(packed_with)
    header = parse(data, 64 + 256)
    if right:
        check_tag(header, data, checked_with)
        return
    with pytest.raises(WrongHeader, match="tag"):
        check_tag(header, data, checked_with)


@given(st.integers(0, 8 * 64 - 1))
def test_a_bit_that_changes_makes_the_tag_wrong(bit):
    data = bytearray(HEADER.pack(KEY))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(WrongHeader):
        check_tag(parse(data, 64 + 256), data, KEY)


def test_a_tag_without_its_flag_is_wrong():
    data = HEADER._replace(tag=1).pack()
    with pytest.raises(WrongHeader, match="tag"):
        check_tag(parse(data, 64 + 256), data, None)
