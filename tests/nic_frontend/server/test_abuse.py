"""Clients that mean no good: what they send is dropped, counted, and harms nobody."""

import secrets
from collections import Counter

import numpy as np
import pytest

from shunter.nic_frontend.wire.header import Header
from shunter.nic_frontend.wire.hello import Hello, parse_cookie
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus

KEY = bytes(range(32)).hex()
RUBBISH = b"\xee" * 256
ENTRY, SEGMENT = 1024, 256
SMALL = {"queue_bytes": 8 * (ENTRY + 512)}
"""Queues of eight entries."""

WRONG = [
    ({"magic": 1}, "magic"),
    ({"version": 1}, "version"),
    ({"type": 0}, "type"),
    ({"type": 77}, "type"),
    ({"flags": 1 << 8}, "flags"),
    ({"words": 9}, "words"),
    ({"reserved": 1}, "reserved"),
    ({"length": 255}, "length"),
    ({"length": 65535}, "length"),
    ({"flags": Flags.PAYLOAD_AEAD}, "length"),
    ({"session": 0}, "session"),
    ({"func_id": 999}, "func_id"),
    ({"req_id": 0}, "old"),
    ({"req_id": 11}, "credit"),  # two of eight are about to be answered
    ({"req_id": 1 << 63}, "credit"),
    ({"seq": 3}, "sizes"),
    ({"seq": 65535}, "sizes"),
    ({"count": 1}, "sizes"),
    ({"count": 65535}, "sizes"),
    ({"offset": 0}, "sizes"),
    ({"offset": 1024}, "sizes"),
    ({"offset": 0xFFFFFFFF}, "sizes"),
    ({"total": 0xFFFFFFFF}, "sizes"),
    ({"tensor": 1}, "sizes"),
    ({"tensor": 255}, "sizes"),
    ({"seq": 0, "offset": 0}, "duplicate"),
    ({"req_id": 1}, "duplicate"),
    ({"type": MessageType.RESP}, "direction"),
    ({"type": MessageType.ERROR}, "direction"),
    ({"type": MessageType.CANCEL, "req_id": 1}, "cancel"),
    ({"type": MessageType.SACK}, "direction"),
    ({"type": MessageType.QUERY}, "sack"),
    ({"pkt_no": 0}, "replay"),
    ({"pkt_no": 1}, "replay"),
    ({"pkt_no": 0xFFFFFFFF}, "replay"),
]
"""Of the third segment of request 4, and why it is dropped."""


def drops(site):
    """Why, and how often, datagrams were dropped."""
    stats = site.look()["stats"]
    return Counter(
        {k.removeprefix("drop_"): n for k, n in stats.items() if k.startswith("drop_") and n}
    )


def settle(nic, site, expected):
    """Wait until everything that was sent has been looked at."""
    total = sum(expected.values())
    nic.until(lambda: sum(drops(site).values()) >= total, "all are dropped")
    assert drops(site) == expected


class Scene:
    """Three requests that run or wait, and half of a fourth."""

    def __init__(self, site, nic, key):
        site.serve(key=key, **SMALL)
        self.puppet = site.puppet()
        self.client = site.client()
        for name in (1, 2, 3):
            self.client.ask(name)
        for seq in (0, 1):
            self.client.segment(4, seq)
        nic.until(lambda: site.function()["free"] == 4)
        self.client.next_id = 5

    def known(self):
        """All that has come: three entries and a half."""
        return [self.puppet.pieces(entry) for entry in range(4)]

    def finish(self):
        """The rest of the fourth comes, and all are answered."""
        for seq in (2, 3):
            self.client.segment(4, seq)
        for entry in range(4):
            assert self.puppet.batch() == [entry]
            expected = self.client.request_of(entry + 1)[0]
            assert np.array_equal(self.puppet.requests()[0], [expected])
            self.puppet.done(WireStatus.OK)
        assert sorted(self.client.answers(4)) == [1, 2, 3, 4]


@pytest.mark.parametrize("key", [None, KEY], ids=["open", "keyed"])
def test_a_wrong_header_is_counted_and_writes_nothing_that_is_known(abused_site, nic, key):
    site = abused_site
    scene = Scene(site, nic, key)
    before, expected = scene.known(), Counter()
    for changes, reason in WRONG:
        header = scene.client.header(MessageType.REQ, 4, 2)._replace(**changes)
        scene.client.put(header.pack(scene.client.key) + RUBBISH)
        expected[reason] += 1
    settle(nic, site, expected)
    assert scene.known() == before
    assert site.function()["free"] == 4
    scene.finish()


def test_a_datagram_that_is_longer_than_it_says_goes_nowhere(abused_site, nic):
    site = abused_site
    scene = Scene(site, nic, None)
    before = scene.known()
    header = scene.client.header(MessageType.REQ, 4, 2)
    for length in (0, 1, 63):
        scene.client.put(header.pack()[:length])
    for behind in (0, 255, 257, 1400, 60_000):
        scene.client.put(header.pack() + b"\xee" * behind)
    scene.client.put(header._replace(length=60_000).pack() + b"\xee" * 60_000)
    settle(nic, site, Counter(short=3, length=5, sizes=1))
    assert scene.known() == before
    scene.finish()


def test_a_replayed_datagram_does_nothing(site, nic):
    site.serve(key=KEY)
    site.worker()
    client = site.client()
    datagrams, put = [], client.put
    client.put = lambda data: (datagrams.append(data), put(data))
    asked = client.ask(5)
    assert client.answers(1) == {asked: client.expected(5)}
    for data in datagrams:
        put(data)
    settle(nic, site, Counter(replay=len(datagrams)))
    assert client.is_quiet()
    assert site.executions() == {5: 1}


@pytest.mark.parametrize("forgery", ["key", "bit", "none"])
def test_a_forged_tag_is_dropped(patient_site, nic, forgery):
    site = patient_site
    scene = Scene(site, nic, KEY)
    before = scene.known()
    header = scene.client.header(MessageType.REQ, 4, 2)
    if forgery == "key":
        data = header.pack(secrets.token_bytes(16))
    elif forgery == "none":
        data = header.pack()
    else:
        data = bytearray(header.pack(scene.client.key))
        data[48] ^= 1
    scene.client.put(bytes(data) + RUBBISH)
    settle(nic, site, Counter(tag=1))
    assert scene.known() == before
    scene.finish()


def test_nobody_speaks_for_the_session_of_another(patient_site, nic):
    site = patient_site
    scene = Scene(site, nic, None)
    other = site.stranger()
    other.put(scene.client.header(MessageType.REQ, 4, 2).pack() + RUBBISH)
    other.put(scene.client.header(MessageType.CANCEL, 1).pack())
    settle(nic, site, Counter(peer=2))
    assert other.is_quiet()
    scene.finish()


def test_credit_is_kept_to_whatever_a_client_says(site, nic):
    site.serve(**SMALL)
    puppet = site.puppet()
    client = site.client()
    assert client.grant == 8
    for req_id in range(1, 41):
        client.ask(req_id=req_id)
    # Only the last segment of a request that is refused is answered.
    assert client.answers(32) == dict.fromkeys(range(9, 41), WireStatus.RETRY_LATER)
    assert drops(site).keys() <= {"credit", "full"} and drops(site).total() == 4 * 32
    assert site.function()["free"] == 0
    for below in (2**32 - 1, 2**31, 1000, 0):  # done, says it, what was never granted
        client.acknowledge(below)
    nic.until(lambda: site.look()["stats"]["requests"] == 8)
    for credit in range(8):
        client.ask(req_id=1000 + credit)
    assert set(client.answers(8).values()) == {WireStatus.RETRY_LATER}
    while site.function()["free"] < 8:
        if puppet.batch(0.02):
            puppet.done(WireStatus.OK)
    assert site.look()["stats"]["requests"] == 8


def test_a_full_queue_grants_nothing_and_loses_nothing(site, nic):
    site.serve(**SMALL)
    puppet = site.puppet()
    first, second = site.client(), None
    for name in range(8):
        first.ask(name)
    nic.until(lambda: site.function()["free"] == 0)
    second = site.client()
    assert second.grant == 0
    refused = second.ask(99)
    assert second.answers(1) == {refused: WireStatus.RETRY_LATER}
    for _ in range(8):
        assert len(puppet.batch()) == 1
        puppet.done(WireStatus.OK)
    assert sorted(first.answers(8)) == list(range(1, 9))
    first.acknowledge(9)
    nic.until(lambda: site.function()["free"] == 8)
    second.acknowledge(1, add=Flags.ACK_REQ)
    header, _ = second.get()
    assert header.type == MessageType.CREDIT and header.credit >= 1
    asked = second.ask(99, req_id=refused)
    assert puppet.names(puppet.batch()) == [99]
    puppet.done(WireStatus.OK)
    assert list(second.answers(1)) == [asked]


def test_entries_go_from_hand_to_hand_where_there_are_few(site, nic):
    site.serve(**SMALL)
    site.hold()
    site.worker(batch=1)
    first, second = site.client(), site.client()
    for name in range(8):
        first.ask(name)
    nic.until(lambda: (at := site.function())["free"] == 0 and at["waiting"] == 6)
    refused = second.ask(99)
    assert second.answers(1) == {refused: WireStatus.RETRY_LATER}
    site.go_on()
    flags = [first.get()[0].flags for _ in range(2 * 8)]  # two segments each
    # Two were given before, without knowing of the second client; it is at the end of the row.
    # The last segment of an answer asks.
    assert [bool(each & Flags.ACK_REQ) for each in flags] == [False] * 4 + [False, True] * 6
    first.acknowledge(4)
    told, _ = second.get()
    assert (told.type, told.req_id) == (MessageType.CREDIT, refused)
    second.ask(99, req_id=refused)
    assert second.answers(1) == {refused: second.expected(99)}


def repeated(client, req_id, name):
    """Ask for an answer once more: whether it came, whole and right."""
    client.ask(name, req_id=req_id, add=Flags.RETRANS | Flags.ACK_REQ)  # it has run
    client.control(MessageType.QUERY, req_id, b"\0")
    patience = client.socket.gettimeout()
    client.socket.settimeout(0.1)
    try:
        return client.answers(1) == {req_id: client.expected(name)}
    except TimeoutError:
        return False
    finally:
        client.socket.settimeout(patience)


def test_what_comes_several_times_runs_once(site, nic):
    site.serve()
    site.worker()
    client = site.client()
    names = range(10, 30)
    for req_id, name in enumerate(names, 1):
        for _ in range(3):
            client.ask(name, req_id=req_id)
    assert client.answers(20) == {i: client.expected(n) for i, n in enumerate(names, 1)}
    nic.until(lambda: repeated(client, 1, 10))  # what may be on its way is not sent again
    assert site.executions() == dict.fromkeys(names, 1)


# ---- addresses that are not known


def test_a_stranger_gets_no_more_bytes_than_it_sent(abused_site, nic):
    site = abused_site
    site.serve()
    site.puppet()
    stranger = site.stranger()
    hello = 64 + Hello.BYTES
    said = [
        *(Header(type=kind, session=5, pkt_no=1).pack() for kind in MessageType),
        *(Header(type=MessageType.HELLO, length=n).pack() + bytes(n) for n in (1, Hello.BYTES - 1)),
        *(bytes(n) for n in (0, 1, 63, 64, 1400)),
    ]
    for data in said:
        stranger.put(data)
    for kind in (MessageType.REQ, MessageType.ACK, MessageType.QUERY):
        header, _ = stranger.get()
        assert (header.type, header.status) == (MessageType.ERROR, WireStatus.UNKNOWN_SESSION), kind
        assert (header.session, header.length) == (5, 0)
    assert stranger.is_quiet()
    for cookie in (bytes(16), bytes(15) + b"1", secrets.token_bytes(16)):
        stranger.hello(cookie=cookie)
        data = stranger.socket.recv(1 << 16)
        assert len(data) <= hello
    stranger.hello(model="nobody")
    assert len(stranger.socket.recv(1 << 16)) <= hello
    assert site.look()["sessions"] == 0


def test_a_cookie_is_of_its_address(site):
    site.serve()
    site.puppet()
    one, other = site.stranger(), site.stranger()
    nonce = one.hello()
    payload = one.get()[1]
    cookie = parse_cookie(payload, nonce)
    other.hello(cookie=cookie)
    assert other.get()[0].status == WireStatus.COOKIE
    one.hello(cookie=cookie)
    assert one.get()[0].status == WireStatus.OK


def test_a_model_that_nobody_has_is_unknown(site):
    site.serve()
    stranger = site.stranger()
    nonce = stranger.hello(model="nobody")
    cookie = parse_cookie(stranger.get()[1], nonce)
    stranger.hello(model="nobody", cookie=cookie)
    assert stranger.get()[0].status == WireStatus.UNKNOWN_FUNCTION


def test_tensors_of_too_many_segments_are_refused(site):
    site.serve()
    site.puppet(inputs=[("a", "uint8", [1 << 20])])
    stranger = site.stranger()
    nonce = stranger.hello()
    cookie = parse_cookie(stranger.get()[1], nonce)
    stranger.hello(cookie=cookie, segment=256)
    assert stranger.get()[0].status == WireStatus.TOO_LARGE


def test_time_is_not_wasted_on_a_flood(site):
    """Everybody else is served while somebody sends rubbish."""
    site.serve()
    site.worker()
    client, flooder = site.client(), site.stranger()
    for name in range(40):
        for _ in range(50):  # as much as surely fits into the socket's buffer
            flooder.put(secrets.token_bytes(100))
        asked = client.ask(name)
        assert client.answers(1) == {asked: client.expected(name)}
