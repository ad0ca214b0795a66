"""Payloads with a CRC, and encrypted ones: the bytes, the core, and whole front ends."""

import ctypes
import importlib.util
import os
import select
import signal
import socket
import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oracle.aead import Guard, client_guard, crc32c
from oracle.core import GAP_NS, RECEIVE_NS, Drop, Place, Ready, Send
from oracle.sessions import Replay
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend import build, x25519
from shunter.nic_frontend.client import AuthenticationError, Client, NoCipherError, native_client
from shunter.nic_frontend.client.native_client import NativeClient
from shunter.nic_frontend.client.opening import Opening
from shunter.nic_frontend.library import library
from shunter.nic_frontend.server.front_end import FrontEnd, Settings
from shunter.nic_frontend.wire.header import Header, behind, check_tag, nearest, parse
from shunter.nic_frontend.wire.hello import (
    Hello,
    HelloError,
    Opened,
    agreed,
    hello_ack,
    parse_cookie,
    room,
)
from shunter.nic_frontend.wire.keys import (
    Keys,
    SharedKey,
    hello_ack_mac,
    session_keys,
)
from shunter.nic_frontend.wire.layout import (
    LARGEST_SEGMENT,
    MAC_BYTES,
    Flags,
    MessageType,
    WireStatus,
)

AEAD, CRC = int(Flags.PAYLOAD_AEAD), int(Flags.PAYLOAD_CRC)
KEY = bytes(range(32))
WAYS = {"plain": 0, "crc": CRC, "aead": AEAD}
UDP_SEGMENT = 103
WRAP = 2**32
PRIVATE = bytes(range(1, 33))
HEADER = Header(type=1, req_id=5, pkt_no=7, length=3).pack(bytes(16))

needs_cipher = pytest.mark.skipif(
    importlib.util.find_spec("cryptography") is None, reason="needs the package cryptography"
)


# ---- bytes


class CGuard(ctypes.Structure):
    """``struct shunter_guard``."""

    _fields_ = (
        ("protect", ctypes.c_uint16),
        ("number", ctypes.c_uint64),
        ("key", ctypes.c_uint8 * 16),
    )


class CCipher:
    """The C part."""

    def __init__(self, library):
        self._library = library
        library.shunter_aead_is_there.restype = ctypes.c_bool
        if not library.shunter_aead_is_there():
            pytest.skip("there is no libcrypto here")
        library.shunter_aead_new.restype = ctypes.c_void_p
        for name in ("seal", "open"):
            function = getattr(library, f"shunter_aead_{name}")
            function.restype = ctypes.c_bool
            function.argtypes = [
                *(ctypes.c_void_p, ctypes.POINTER(CGuard), ctypes.c_char_p),
                *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p),
            ]
        library.shunter_aead_free.argtypes = [ctypes.c_void_p]
        self._aead = library.shunter_aead_new()

    def seal(self, key, number, header, payload):
        out = ctypes.create_string_buffer(len(payload) + 16)
        guard = CGuard(AEAD, number, (ctypes.c_uint8 * 16)(*key))
        source = ctypes.create_string_buffer(payload, max(1, len(payload)))
        call = self._library.shunter_aead_seal
        assert call(self._aead, guard, header, source, len(payload), out)
        return out.raw

    def open(self, key, number, header, sealed):
        data = ctypes.create_string_buffer(sealed, len(sealed))
        guard = CGuard(AEAD, number, (ctypes.c_uint8 * 16)(*key))
        length = len(sealed) - 16
        tag = ctypes.addressof(data) + length
        good = self._library.shunter_aead_open(self._aead, guard, header, data, length, tag)
        return data.raw[:length] if good else None

    def close(self):
        self._library.shunter_aead_free(self._aead)


@pytest.fixture(scope="module")
def cipher(built):
    found = CCipher(library())
    yield found
    found.close()


keys = st.sampled_from([bytes(range(16)), bytes(16)])
numbers = st.sampled_from([1, 2, WRAP - 1, WRAP, WRAP + 1, 2**64 - 1])


@needs_cipher
@given(key=keys, number=numbers, payload=st.binary(max_size=300))
def test_what_one_twin_seals_the_other_opens(cipher, key, number, payload):
    guard = Guard(AEAD, None, key, key)
    sealed = guard.seal(HEADER, number, payload)[1]
    assert cipher.seal(key, number, HEADER, payload) == sealed
    assert cipher.open(key, number, HEADER, sealed) == payload
    assert guard.open(HEADER, number, sealed) == payload


@needs_cipher
def test_the_nonce_is_the_number_and_the_header_is_sealed_too():
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    key = bytes(range(16))
    sealed = Guard(AEAD, None, key, b"").seal(HEADER, WRAP + 7, b"abc")[1]
    nonce = struct.pack("<IQ", 0, WRAP + 7)
    assert sealed == AESGCM(key).encrypt(nonce, b"abc", HEADER[:56])


@needs_cipher
@pytest.mark.parametrize("twin", ["c", "python"])
@pytest.mark.parametrize("change", ["key", "number", "header", "payload", "tag"])
def test_what_was_changed_is_not_opened(cipher, twin, change):
    key, number, payload = bytes(range(16)), 9, b"some payload"
    sealed = bytearray(cipher.seal(key, number, HEADER, payload))
    header = bytearray(HEADER)
    if change == "key":
        key = bytes(16)
    elif change == "number":
        number += WRAP
    elif change == "header":
        header[40] ^= 1
    else:
        sealed[0 if change == "payload" else -1] ^= 1
    if twin == "c":
        assert cipher.open(key, number, bytes(header), bytes(sealed)) is None
    else:
        assert Guard(AEAD, None, b"", key).open(header, number, bytes(sealed)) is None


def crc_in_c(found, data):
    found.shunter_crc32c.restype = ctypes.c_uint32
    found.shunter_crc32c.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return found.shunter_crc32c(data, len(data))


def test_the_crc_is_castagnolis(built):
    for data, crc in ((b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"", 0)):
        assert crc_in_c(library(), data) == crc32c(data) == crc


@given(st.binary(max_size=100))
def test_the_crc_of_both_twins_is_the_same(built, data):
    assert crc_in_c(library(), data) == crc32c(data)


def test_the_crc_is_the_same_on_other_processors(built, tmp_path):
    portable = build.build(tmp_path / "portable.so", more=["-DSHUNTER_PORTABLE"])
    for data in (b"123456789", bytes(range(256)) * 3):
        assert crc_in_c(ctypes.CDLL(str(portable)), data) == crc32c(data)


@pytest.mark.parametrize("tag_key", [None, bytes(16)])
def test_a_crc_stands_in_a_header_whose_tag_is_right(tag_key):
    guard = Guard(CRC, tag_key)
    header = Header(type=2, flags=CRC, length=3, pkt_no=1).pack(tag_key)
    sealed, payload = guard.seal(header, 1, b"abc")
    found = parse(sealed + payload)
    check_tag(found, sealed, tag_key)
    assert found.crc == crc32c(b"abc")
    assert guard.open(sealed, 1, b"abc") == b"abc"
    assert guard.open(sealed, 1, b"abd") is None


def test_a_missing_libcrypto_is_named(monkeypatch):
    class Without:
        @staticmethod
        def shunter_aead_is_there():
            return False

    monkeypatch.setattr(native_client, "functions", Without)
    with pytest.raises(NoCipherError, match="libcrypto"):
        Client("udp://127.0.0.1:1", key=KEY, encrypt=True).model("m")


# ---- hello


@pytest.mark.parametrize(
    ("want", "can", "must", "expected"),
    [
        (0, True, False, 0),
        (CRC, True, False, CRC),
        (AEAD, True, False, AEAD),
        (AEAD | CRC, True, False, AEAD),
        (AEAD | CRC, False, False, WireStatus.CANNOT_ENCRYPT),
        (CRC, False, False, CRC),
        (0, True, True, WireStatus.MUST_ENCRYPT),
        (CRC, True, True, WireStatus.MUST_ENCRYPT),
        (AEAD, True, True, AEAD),
    ],
)
def test_what_is_agreed(want, can, must, expected):
    assert agreed(want, can=can, must=must) == expected


def test_a_hello_says_what_it_wants_and_nothing_else():
    hello = Hello(bytes(16), "m", want=AEAD | CRC)
    assert Hello.parse(hello.pack()) == hello
    with pytest.raises(HelloError):
        Hello.parse(Hello(bytes(16), "m", want=int(Flags.LAST)).pack())


def test_the_largest_datagram_has_room_for_the_tag():
    assert room(65_535, AEAD) + 64 + 16 == LARGEST_SEGMENT + 64
    assert [room(1408, way) for way in (0, CRC, AEAD)] == [1408, 1408, 1392]


# ---- core


def drops(actions):
    return [a.reason for a in actions if isinstance(a, Drop)]


@pytest.fixture(params=[CRC, AEAD], ids=["crc", "aead"])
def guarded(request, make_table):
    """A session that protects its payloads."""
    return make_table(protect=request.param, key=bytes(16))


def test_a_segment_counts_when_it_is_right(guarded):
    for seq in (0, 1, 1, 2):
        [place] = guarded.say(seq=seq, right=False)
        assert place.number == guarded.pkt_no
    assert guarded.say(seq=0) == [Place(0, 0, 0, 4, guarded.pkt_no)]
    assert drops(guarded.say(seq=0)) == ["duplicate"]
    assert guarded.core.tick(GAP_NS + 1)[0].payload == b"\1"  # the others are asked for
    guarded.say(seq=1)
    assert guarded.say(seq=2)[-1] == Ready(guarded.func, 0, 0, 0)
    assert drops(guarded.say(seq=2)) == ["duplicate"]


def test_a_segment_that_came_twice_counts_once(guarded):
    first, second = (guarded.header(seq=0).pack(guarded.key) for _ in "12")
    for data in (first, second):
        guarded.core.receive(guarded.peer, data, 0, 68 + behind(guarded.protect))
    for data in (first, second, first):
        assert guarded.core.accept(data, 0) == []
    guarded.say(seq=1)
    assert len(guarded.say(seq=2)) == 2


def test_what_is_right_too_late_writes_no_state(guarded):
    data = guarded.header(seq=0).pack(guarded.key)
    guarded.core.receive(guarded.peer, data, 0, 68 + behind(guarded.protect))
    guarded.core.tick(RECEIVE_NS + 1)
    assert guarded.core.accept(data, RECEIVE_NS + 2) == []
    guarded.core.remove_session(guarded.session, 0)
    assert guarded.core.accept(data, RECEIVE_NS + 2) == []


def test_who_asks_is_told_when_the_segment_counts(guarded):
    assert len(guarded.say(seq=0, right=False, add=Flags.ACK_REQ)) == 1
    place, told = guarded.say(seq=0, add=Flags.ACK_REQ)
    assert isinstance(place, Place) and told.payload == b"\1"


@pytest.mark.parametrize("have", WAYS)
@pytest.mark.parametrize("agreed_way", WAYS)
def test_payloads_carry_what_was_agreed_and_nothing_else(make_table, have, agreed_way):
    table = make_table(protect=WAYS[agreed_way], key=bytes(16))
    found = table.say(flags=WAYS[have])
    assert drops(found) == ([] if have == agreed_way else ["flags"])


@pytest.mark.parametrize("kind", [MessageType.ACK, MessageType.QUERY, MessageType.CANCEL])
def test_only_tensors_are_protected(guarded, kind):
    assert drops(guarded.say(kind, flags=guarded.protect)) == ["flags"]


def test_the_front_end_sends_what_it_has_to_protect(guarded):
    for seq in range(3):
        guarded.say(seq=seq)
    assert not guarded.core.running(guarded.func, 0, 0).direct
    sent = guarded.core.finished(guarded.func, 0, 200, 0, sent=False)
    guarded.now = 12_000_000  # it must be lost
    again = guarded.say(MessageType.QUERY, payload=b"\0")
    numbers = [each.number for each in (*sent, *again)]
    assert len(set(numbers)) == len(numbers) == 4 and min(numbers) > 0
    for each in sent:
        header = Header._make(struct.unpack("<HBBHBBQHHHHIIIIIHBBIIQ", each.header))
        assert header.flags & guarded.protect and header.pkt_no == each.number


def test_plain_sessions_have_no_numbers(table):
    table.whole()
    assert table.core.running(table.func, 0, 0).direct
    assert {a.number for a in table.core.finished(table.func, 0, 200, 0, sent=False)} == {0}


def test_on_a_stream_a_segment_counts_when_its_payload_has_come(make_table):
    table = make_table(stream=True)
    assert table.say(seq=0, right=False) == [Place(0, 0, 0, 4)]
    for seq in range(3):
        actions = table.say(seq=seq)
    assert isinstance(actions[-1], Ready)


def test_what_is_encrypted_is_not_taken_twice_from_a_stream_either(make_table):
    table = make_table(stream=True, protect=AEAD, key=bytes(16))
    data = table.header().pack(table.key)
    assert drops(table.core.receive(table.peer, data, 0, 84)) == []
    assert drops(table.core.receive(table.peer, data, 0, 84)) == ["replay"]


# ---- numbers that pass the end of 32 bits


def test_a_clients_numbers_may_pass_32_bits(guarded):
    step = 1 << 20
    for number in range(step, WRAP, step):
        guarded.core.receive(
            guarded.peer, guarded.header(MessageType.ACK, pkt_no=number).pack(guarded.key), 0, 64
        )
    for number in (WRAP - 1, WRAP + 1, WRAP, WRAP + 2):
        [place] = guarded.say(seq=0, right=False, pkt_no=number % WRAP)
        assert place.number == number
    for number in (WRAP - 1, WRAP, WRAP + 2, 5 - step):
        assert drops(guarded.say(seq=0, pkt_no=number % WRAP)) == ["replay"]


def test_the_servers_numbers_may_pass_32_bits(make_table):
    table = make_table(protect=CRC, server_pkt_no=WRAP - 2)
    for seq in range(3):
        table.say(seq=seq)
    table.core.running(table.func, 0, 0)  # takes two
    sent = table.core.finished(table.func, 0, 200, 0, sent=False)
    assert [each.number for each in sent] == [WRAP + 1, WRAP + 2]
    assert [int.from_bytes(each.header[52:56], "little") for each in sent] == [1, 2]
    assert all(isinstance(each, Send) for each in sent)


@given(st.integers(0, 2**40), st.lists(st.integers(-2000, 2000), max_size=40))
def test_replay_knows_what_it_has_seen_wherever_the_numbers_are(start, steps):
    replay, seen, highest = Replay(start), set(), start
    for step in steps:
        number = max(0, start + step)
        fresh = number >= 1 and number not in seen and number > highest - 1024
        assert replay.is_new(nearest(number % WRAP, highest)) == fresh
        if fresh:
            seen.add(number)
            highest = max(highest, number)


# ---- front ends


@pytest.fixture
def make_client(nic, site):
    """Makes clients that protect what they say."""
    made = []

    class Guarded(nic.Raw):
        """A client by hand, with a guard."""

        want, guard, highest, host = 0, None, 0, "127.0.0.1"

        def __init__(self, kind, host=None):
            if host is None:
                super().__init__(site, kind)
                return
            self._site, self.kind, self.stream = site, kind, kind != "udp"
            how = socket.SOCK_STREAM if self.stream else socket.SOCK_DGRAM
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.socket = socket.socket(family, how)
            self.socket.settimeout(nic.PATIENCE_S)
            self.socket.connect(socket.getaddrinfo(host, site.port, type=how)[0][4])
            self.pkt_no, self.key, self.below, self.next_id = 0, None, 1, 1

        def greet(self, segment=256, cookie=bytes(16)):
            key_id = "default" if site.key else ""
            public = x25519.public_key(PRIVATE) if self.want & AEAD else bytes(32)
            self.said = Hello(
                bytes(16), "m", "", segment, 64, cookie, self.want, key_id, public
            ).message(site.key)
            self.put(self.said)
            return self.get()

        def open(self, want=0, segment=256):
            self.want = want
            header, payload = self.greet(segment)
            if header.status == WireStatus.COOKIE:
                header, payload = self.greet(segment, parse_cookie(payload, bytes(16)))
            if header.status != WireStatus.OK:
                return header.status
            payload = payload[:-MAC_BYTES]
            opened = Opened.parse(payload, bytes(16))
            self.session, self.func_id, self.opened = header.session, header.func_id, opened
            self.keys = None
            if site.key:
                encrypts = opened.protect == AEAD
                shared = x25519.shared_secret(PRIVATE, opened.public) if encrypts else b""
                self.keys = session_keys(site.key, shared, self.said[:-MAC_BYTES], payload)
            self.key = self.keys and self.keys.tag_to_server
            self.guard = client_guard(opened.protect, self.keys)
            sizes = [tuple(s.bytes for s in kind) for kind in (opened.inputs, opened.outputs)]
            self.plan, self.back = (nic.SegmentPlan(each, opened.segment) for each in sizes)
            return header.status

        def sealed(self, req_id, seq):
            """A segment as it is sent."""
            header = self.header(MessageType.REQ, req_id, seq, add=self.opened.protect)
            place = self.plan.place(seq)
            tensor = self.request_of(req_id)[place.tensor]
            payload = tensor[place.offset : place.offset + place.length].tobytes()
            data = header.pack(self.key)
            if self.guard:
                data, payload = self.guard.seal(data, self.pkt_no, payload)
            return data + payload

        def get(self):
            if self.stream:
                head = self._read(64)
                said = int.from_bytes(head[22:24], "little")
                rest = self._read(said + behind(int.from_bytes(head[4:6], "little")))
            else:
                data = self.socket.recv(1 << 16)
                head, rest = data[:64], data[64:]
            header = parse(head + rest)
            if header.type == MessageType.RESP:
                assert header.flags & (AEAD | CRC) == self.opened.protect
                check_tag(header, head, self.keys and self.keys.tag_to_client)
                self.highest = nearest(header.pkt_no, self.highest)
                if self.guard:
                    opened = self.guard.open(head, self.highest, rest)
                    assert opened is not None
                    if self.opened.protect == AEAD and opened:
                        assert opened not in rest
                    rest = opened
            return header, rest

        def asks(self, req_id, order=None):
            for seq in order or range(self.plan.count):
                self.put(self.sealed(req_id, seq))

        def is_answered(self, req_id):
            return self.answers(1) == {req_id: self.expected(req_id)}

    def make(*args):
        made.append(Guarded(*args))
        return made[-1]

    yield make
    for client in made:
        client.socket.close()


@needs_cipher
def test_what_a_stream_is_sent_takes_no_place_of_datagrams_that_are_not_sent_yet(
    site, make_client, nic
):
    site.serve(key=KEY.hex(), unix=str(site.folder / "nic.stream"))
    puppet = site.puppet(outputs=[("b", "uint8", [1 << 14])])
    clients = {7: make_client("udp"), 8: make_client("unix")}
    for client, segment in zip(clients.values(), (17_000, 256), strict=True):
        assert client.open(AEAD, segment) == WireStatus.OK
    for value, client in clients.items():
        client.asks(1)
        [entry] = puppet.batch()
        puppet.results[entry] = value
    os.kill(site.front, signal.SIGSTOP)  # it takes in both batches at once, then
    for _ in clients:
        puppet.done(WireStatus.OK)
    os.kill(site.front, signal.SIGCONT)
    for value, client in clients.items():
        assert client.answers(1) == {1: [bytes([value]) * (1 << 14)]}


INPUTS = [("a", "uint8", [1000]), ("c", "uint8", [0]), ("d", "float32", [3])]
OUTPUTS = [("b", "uint8", [700]), ("e", "uint8", [0])]
GUARDED = {
    "crc": (CRC, None),
    "crc-keyed": (CRC, KEY.hex()),
    "aead": (AEAD, KEY.hex()),
}
needs_cipher_for_aead = [
    pytest.param(*GUARDED[name], id=name, marks=[needs_cipher] * (name == "aead"))
    for name in GUARDED
]


@pytest.fixture
def serve(site):
    """Start a front end and a worker."""

    def start(**options):
        site.serve(**options)
        site.worker(inputs=INPUTS, outputs=OUTPUTS)

    return start


@pytest.mark.parametrize("kind", ["udp", "tcp", "unix"])
@pytest.mark.parametrize(("want", "key"), needs_cipher_for_aead)
def test_protected_requests_are_answered(site, serve, make_client, kind, want, key):
    serve(key=key, unix=str(site.folder / "nic.stream"))
    client = make_client(kind)
    assert client.open(want) == WireStatus.OK
    assert client.opened.protect == want
    for req_id in range(1, 9):
        client.asks(req_id)
    assert client.answers(8) == {i: client.expected(i) for i in range(1, 9)}
    assert set(site.executions().values()) == {1}


@pytest.mark.parametrize(("want", "key"), needs_cipher_for_aead)
@pytest.mark.parametrize("mixed", [False, True], ids=["alone", "beside"])
def test_segments_may_come_in_any_order_and_many_at_once(serve, make_client, want, key, mixed):
    serve(key=key)
    client, other = make_client("udp"), make_client("udp")
    client.open(want)
    other.open(0, 300)  # whose datagrams are as long as others' with a tag
    last = client.plan.count
    orders = [range(last), range(last - 1, -1, -1), [1, 0, *range(2, last)]]
    for req_id, order in enumerate(orders, 1):
        client.asks(req_id, list(order))
        if mixed:
            other.asks(req_id)
    assert client.answers(3) == {i: client.expected(i) for i in (1, 2, 3)}
    if mixed:
        assert other.answers(3) == {i: other.expected(i) for i in (1, 2, 3)}


@pytest.mark.parametrize(("want", "key"), needs_cipher_for_aead)
def test_datagrams_that_the_kernel_merges_are_taken_apart(site, make_client, want, key):
    site.serve(key=key)
    site.worker(inputs=[("a", "uint8", [2400])], outputs=OUTPUTS)
    client = make_client("udp")
    client.open(want, 300 + behind(want))
    for req_id in range(1, 9):
        train = [client.sealed(req_id, seq) for seq in range(client.plan.count)]
        size = len(train[0])
        assert {len(each) for each in train} == {size}
        cut = (socket.IPPROTO_UDP, UDP_SEGMENT, struct.pack("=H", size))
        client.socket.sendmsg([b"".join(train)], [cut])
        assert client.is_answered(req_id)
    assert set(site.executions().values()) == {1}
    assert site.look()["stats"]["placed_segments"] >= 40


@pytest.mark.parametrize(("want", "key"), needs_cipher_for_aead)
@pytest.mark.parametrize("at", [64, -1])
def test_a_payload_that_was_changed_on_its_way_counts_for_nothing(
    site, serve, make_client, want, key, at
):
    serve(key=key)
    client = make_client("udp")
    client.open(want)
    client.asks(1, [1, 2])
    wrong = bytearray(client.sealed(1, 0))
    wrong[at] ^= 0x80
    client.put(bytes(wrong))
    reason = "aead" if want == AEAD else "crc"
    site_until(lambda: site.dropped(reason) == 1)
    client.asks(1, range(3, client.plan.count))
    have = b""
    while have != bytes([(1 << client.plan.count) - 2]):  # the first one is asked for
        header, have = client.get()
        assert header.type == MessageType.SACK
    assert site.executions() == {}
    client.put(client.sealed(1, 0))
    while header.type != MessageType.RESP:
        header, _ = client.get()
    assert site.executions() == {1: 1}
    # A later one of the same number of the request, wrong or right, changes nothing.
    client.put(client.sealed(1, 0))
    site_until(lambda: site.dropped("duplicate") >= 1)
    assert site.executions() == {1: 1}


def site_until(condition):
    """Wait for a condition."""
    import time

    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@needs_cipher
def test_what_is_repeated_is_encrypted_anew(serve, make_client):
    serve(key=KEY.hex())
    client = make_client("udp")
    client.open(AEAD)
    client.asks(1)
    seen = {}
    count = client.back.count
    while len(seen) < count:
        header, payload = client.get()
        seen[header.pkt_no] = header.seq, payload
    while len(seen) < 2 * count:
        client.control(MessageType.QUERY, 1, b"\0")  # what may be on its way is not sent again
        client.socket.settimeout(0.05)
        try:
            header, payload = client.get()
        except TimeoutError:
            continue
        if header.type == MessageType.RESP:
            assert header.pkt_no not in seen
            seen[header.pkt_no] = header.seq, payload
    assert len(set(seen.values())) == count


@needs_cipher
@pytest.mark.parametrize(
    ("settings", "want", "status"),
    [
        ({}, AEAD, WireStatus.CANNOT_ENCRYPT),
        ({"key": KEY.hex(), "encrypt": True}, 0, WireStatus.MUST_ENCRYPT),
        ({"key": KEY.hex(), "encrypt": True}, CRC, WireStatus.MUST_ENCRYPT),
        ({"key": KEY.hex(), "encrypt": True}, AEAD | CRC, WireStatus.OK),
        ({"key": KEY.hex()}, 0, WireStatus.OK),
    ],
)
@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_sessions_that_cannot_be_are_refused(serve, make_client, kind, settings, want, status):
    serve(**settings)
    client = make_client(kind)
    assert client.open(want) == status
    if status == WireStatus.OK:
        client.asks(1)
        assert client.is_answered(1)


def test_who_is_to_encrypt_and_cannot_says_so(built, tmp_path):
    with pytest.raises(ValueError, match="cannot be encrypted: there is no key"):
        FrontEnd(Settings(attach=tmp_path / "a", port=0, encrypt=True))


# ---- clients


@pytest.fixture
def lossless(make_service):
    """A service that gives its input back, cut in two, and how to ask it."""

    def make(**settings):
        service = make_service(**settings)
        shape = (40_001,)

        def infer(inputs, outputs):
            for to in outputs:
                to[:] = inputs[0]

        service.serve(
            "same", inputs=[("uint8", shape)], outputs=[("uint8", shape)] * 2, infer=infer
        )
        return service

    return make


def array_of(number):
    return (np.arange(40_001) * (number + 1) % 251).astype(np.uint8)


@pytest.mark.parametrize("scheme", ["udp", "tcp", "unix"])
@pytest.mark.parametrize(
    "how",
    [{"crc": True}, pytest.param({"encrypt": True, "key": KEY}, marks=needs_cipher, id="aead")],
)
def test_a_client_protects_what_it_is_told_to(lossless, monkeypatch, scheme, how):
    from shunter.nic_frontend.client import session as sessions

    monkeypatch.setattr(sessions, "segment_of", lambda _: 1408)  # 29 segments, as on a network
    service = lossless(key=how.get("key"))
    with Client(service.url(scheme), timeout_s=60, **how) as client:
        asked = [array_of(i) for i in range(12)]
        for array, answers in zip(asked, client.infer_many("same", asked), strict=True):
            assert all((answer == array).all() for answer in answers)
        assert client.model("same").native.protect == (AEAD if "encrypt" in how else CRC)
    stats = service.front_end.path.stats()
    assert stats.get("drop_aead", 0) == stats.get("drop_crc", 0) == 0


def ack_of(opening, way, *, changed=(), **changes):
    """The answer of a server that agrees to ``way``, ``changes`` and all. ``changed``: after its
    MAC was made."""
    said = opening.next(0)[:-MAC_BYTES]
    hello = Hello.parse(said[64:] + bytes(MAC_BYTES))
    specs = (TensorSpec("a", "uint8", (4,)),)
    encrypts = hello.want & AEAD
    public = x25519.public_key(PRIVATE) if encrypts else bytes(32)
    opened = Opened(hello.nonce, bytes(16), 256, 4, specs, specs, way, public=public)
    opened = replace(opened, **changes)
    shared = x25519.shared_secret(PRIVATE, hello.public) if encrypts else b""
    keys = session_keys(KEY, shared, said, opened.pack())
    head = hello_ack(WireStatus.OK, len(opened.pack()) + MAC_BYTES, 0, 7, 1, 4)
    mac = hello_ack_mac(keys, head)
    return head + replace(opened, **dict(changed)).pack() + mac, keys


def opening_of(want):
    return Opening(Hello(bytes(16), "m", want=want), SharedKey("k", KEY), stream=False)


@needs_cipher
@pytest.mark.parametrize("want", [0, CRC, AEAD])
def test_a_server_that_protects_otherwise_is_not_believed(want):
    for way in {0, CRC, AEAD, AEAD | CRC} - {want}:
        opening = opening_of(want)
        with pytest.raises(AuthenticationError, match="does not protect"):
            opening.receive(ack_of(opening, way)[0], 0)


@needs_cipher
@pytest.mark.parametrize(
    "changed",
    [
        {"protect": 0},
        {"outputs": (TensorSpec("a", "int16", (4,)),)},
        {"rights": 0},
        {"segment": 255},
        {"server_nonce": bytes(15) + b"1"},
        {"public": x25519.public_key(bytes(range(2, 34)))},
    ],
    ids=str,
)
def test_who_changes_the_answer_on_the_way_is_noticed(changed):
    opening = opening_of(AEAD)
    datagram, _ = ack_of(opening, AEAD, changed=changed.items())
    with pytest.raises(AuthenticationError, match="another key"):
        opening.receive(datagram, 0)


@needs_cipher
def test_the_keys_of_an_encrypted_session_are_of_it_alone():
    """Who gets the shared secret later, and has heard all, does not have them."""
    opening = opening_of(AEAD)
    datagram, keys = ack_of(opening, AEAD)
    assert opening.receive(datagram, 0).keys == keys
    hello = opening._hello.message(None)[:-MAC_BYTES]
    without = session_keys(KEY, b"", hello, datagram[64:-MAC_BYTES])
    assert without.payload_to_server != keys.payload_to_server
    others = opening_of(AEAD)
    assert others._hello.public != opening._hello.public


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["udp", "stream"])
@pytest.mark.parametrize(
    ("protect", "tag"),
    [(CRC, None), (CRC, bytes(16)), pytest.param(AEAD, bytes(16), marks=needs_cipher)],
)
def test_an_answer_that_was_changed_is_asked_for_again(built, protect, tag, kind):
    back = tag and bytes(range(1, 17))
    keys = Keys(tag or b"", back or b"", bytes(16), bytes(range(16)), b"")
    server = Guard(protect, back, keys.payload_to_client, keys.payload_to_server)
    ours, theirs = socket.socketpair(socket.AF_UNIX, kind)
    request, memory = np.frombuffer(b"abcd", np.uint8), np.full(12, 0xAA, np.uint8)
    output = memory[4:8]
    with ours, theirs:
        theirs.settimeout(60)
        ours.setblocking(False)
        client = NativeClient(
            ours.fileno(), 7, 1, (4,), (4,), 256, 4, pkt_no=WRAP - 1, protect=protect,
            keys=tag and keys,
            stream=kind == socket.SOCK_STREAM,
        )
        assert client.begin([request.ctypes.data], [output.ctypes.data]) == 1
        sent = theirs.recv(64 + 4 + behind(protect))
        assert sent[52:56] == bytes(4)  # the low bits of its number
        check_tag(parse(sent), sent, tag)
        assert server.open(sent[:64], WRAP, sent[64:]) == b"abcd"

        def answer(number, sealed_as=None, damaged=False, **changes):
            header = Header(
                type=MessageType.RESP, flags=protect | Flags.LAST, req_id=1, func_id=1,
                session=7, length=4, total=4, status=200, credit=5, pkt_no=number % WRAP,
            )  # fmt: skip
            packed = header._replace(**changes).pack(back)
            head, body = server.seal(packed, number if sealed_as is None else sealed_as, b"efgh")
            theirs.send(head + (bytes(body[:-1] + b"!") if damaged else bytes(body)))
            return client.poll(0)

        assert answer(1, damaged=True) == []
        if protect == AEAD:
            assert answer(1, sealed_as=2) == []
        plain = Header(
            type=MessageType.RESP, flags=Flags.LAST, req_id=1, func_id=1, session=7, length=4,
            total=4, status=200, pkt_no=1,
        ).pack(back)  # fmt: skip
        theirs.send(plain + b"efgh")  # not protected at all
        assert client.poll(0) == []
        if kind == socket.SOCK_DGRAM:  # on a stream one waits longer
            while not select.select([theirs], [], [], 0)[0]:
                assert client.poll(client.due_ns()) == []
            asked = theirs.recv(1 << 16)
            assert (asked[3], asked[52:56]) == (MessageType.QUERY, b"\1\0\0\0")
        assert answer(3) == [(1, WireStatus.OK)]
        assert bytes(memory) == b"\xaa" * 4 + b"efgh" + b"\xaa" * 4
        client.close()


# ---- IPv6


def has_ipv6():
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="there is no IPv6 here")
@pytest.mark.parametrize(("host", "way"), [("::", "::1"), ("::", "127.0.0.1"), ("::1", "::1")])
@pytest.mark.parametrize("kind", ["udp", "tcp"])
def test_ipv6_is_served(serve, make_client, kind, host, way):
    serve(host=host)
    client = make_client(kind, way)
    assert client.open(CRC, segment=1408) == WireStatus.OK
    client.asks(1)
    assert client.is_answered(1)
    plain = make_client(kind, way)  # whose answers come from the worker
    plain.open(0, segment=1408)
    plain.asks(1)
    assert plain.is_answered(1)
