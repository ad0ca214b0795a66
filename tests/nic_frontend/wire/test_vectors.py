"""The test vectors of docs/wire.md are what the code computes."""

import re
from pathlib import Path

import numpy as np
import pytest

from oracle.aead import Guard
from shunter.batching.queue.packed import Packing
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend import x25519
from shunter.nic_frontend.wire.header import Header
from shunter.nic_frontend.wire.hello import Hello, Opened, hello_ack
from shunter.nic_frontend.wire.keys import hello_ack_mac, session_keys
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus
from shunter.nic_frontend.wire.segments import SegmentPlan

PAGE = Path(__file__).parents[3] / "docs/wire.md"
SECRET, MINE, THEIRS = (bytes(range(at, at + 32)) for at in (0, 0x20, 0x40))
NONCE, SERVER_NONCE, COOKIE = (bytes(range(at, at + 16)) for at in (0xA0, 0xB0, 0xC0))
INPUTS, OUTPUTS = (TensorSpec("x", "float32", (4,)),), (TensorSpec("y", "float32", (2,)),)
PLACE = {"func_id": 7, "session": 0x01020304}


def tables():
    """The rows of both tables: what is said of each name."""
    text = PAGE.read_text("utf-8").split("### Test vectors")[1].split("## Requests")[0]
    blocks = re.findall(r"(?:^    \S.*\n(?:^    .*\n)*)", text, re.M)
    found = []
    for block in blocks:
        rows = re.findall(r"^    (.{34})(.*)$", block, re.M)
        table, last = {}, ""
        for name, value in rows:
            last = name.strip() or last
            table[last] = table.get(last, "") + value
        found.append(table)
    return found


def said(want, segment, public=(bytes(32), bytes(32)), shared=b""):
    """What both say, and the keys."""
    hello = Hello(NONCE, "digits", "1.0", 1408, 64, COOKIE, want, "default", public[0])
    opened = Opened(
        *(NONCE, SERVER_NONCE, segment, 64, INPUTS, OUTPUTS, want, 1, public[1])
    ).pack()
    message = hello.message(SECRET)
    return message, opened, session_keys(SECRET, shared, message[:-32], opened)


def test_the_vectors_with_encryption(built):
    pytest.importorskip("cryptography")
    table = tables()[0]
    public = x25519.public_key(MINE), x25519.public_key(THEIRS)
    shared = x25519.shared_secret(MINE, public[1])
    assert shared == x25519.shared_secret(THEIRS, public[0])
    want = int(Flags.PAYLOAD_AEAD)
    message, opened, keys = said(want, 1392, public, shared)
    head = hello_ack(WireStatus.OK, len(opened) + 32, grant=16, **PLACE)
    fields = {"req_id": 1, "length": 16, "total": 16, "credit": 1, "pkt_no": 1, **PLACE}
    req = Header(type=MessageType.REQ, flags=Flags.LAST | want, **fields).pack(keys.tag_to_server)
    guard = Guard(want, keys.tag_to_server, keys.payload_to_server)
    _, sealed = guard.seal(req, 1, bytes(range(0xE0, 0xF0)))
    assert table["JSON"].encode() == opened[80:]
    found = {
        "client's X25519 public key": public[0],
        "server's X25519 public key": public[1],
        "shared": shared,
        "mac of HELLO": message[-32:],
        "tag to server": keys.tag_to_server,
        "tag to client": keys.tag_to_client,
        "payload to server": keys.payload_to_server,
        "payload to client": keys.payload_to_client,
        "hello ack": keys.hello_ack,
        "MAC of HELLO_ACK": hello_ack_mac(keys, head),
        "header of the first REQ": req,
        "its payload, e0..ef, encrypted": sealed[:16],
        "its AEAD tag": sealed[16:],
    }
    assert {name: table[name] for name in found} == {n: v.hex() for n, v in found.items()}


def test_the_vectors_without_encryption():
    message, _, keys = said(0, 1408)
    assert tables()[1] == {
        "mac of HELLO": message[-32:].hex(),
        "tag to server": keys.tag_to_server.hex(),
        "tag to client": keys.tag_to_client.hex(),
        "hello ack": keys.hello_ack.hex(),
    }


def runs():
    """The blocks of bytes of what is said of packed models."""
    text = PAGE.read_text("utf-8").split("### Packed models")[1].split("### Shared memory")[0]
    blocks = re.findall(r"(?:^    [0-9a-f ]+\n)+", text, re.M)
    return [bytes.fromhex("".join(block.split())) for block in blocks]


def test_the_vectors_of_packed_requests():
    specs = TensorSpec("ids", "int64", (-1,)), TensorSpec("text", "bytes", (-1,))
    run = Packing(specs).pack([[1, -2, 3], [b"ab", b""]])
    rows = Packing((TensorSpec("x", "float32", (-1,)),), batched=True)
    batch = rows.pack([np.array([[1, 2, 3], [4, 5, 6]], np.float32)])
    plan = SegmentPlan((len(run),), 100)
    headers = b""
    for seq in range(plan.count):
        place = plan.place(seq)
        header = Header(
            type=MessageType.REQ,
            flags=Flags.LAST if seq + 1 == plan.count else 0,
            req_id=1,
            seq=seq,
            count=plan.count,
            length=place.length,
            total=len(run),
            offset=place.offset,
            credit=1,
            status=1,
            pkt_no=1 + seq,
            **PLACE,
        )
        headers += header.pack()
    assert runs() == [run, headers, batch]
