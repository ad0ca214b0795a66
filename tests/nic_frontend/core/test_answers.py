"""Answers go as the path takes them, and again only when they must be lost."""

import pytest

from oracle.core import IDLE_NS, REST_NS, Send
from oracle.sessions import Session
from shunter.batching.queue.native import PEER_BYTES
from shunter.nic_frontend.wire.header import parse
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus

MS = 1_000_000
SEGMENT = 1408
"""Of datagrams of 1472 bytes: ten are what may be on its way to a client that nobody knows."""
ASK = Flags.ACK_REQ
FAR, NEAR, NEAR_6, MAPPED = (
    address.ljust(PEER_BYTES, b"\0")
    for address in (
        b"\2\0\0\1\x0a\0\0\1",
        b"\2\0\0\1\x7f\0\0\1",
        b"\n\0\0\1".ljust(23, b"\0") + b"\1",
        b"\n\0\0\1".ljust(18, b"\0") + b"\xff\xff\x7f\0\0\1",
    )
)


def parts(actions):
    """Segments of answers that are sent, and whether they ask to be acknowledged."""
    found = [a for a in actions if isinstance(a, Send) and a.entry >= 0]
    sent = [parse(a.header, 64 + int.from_bytes(a.header[22:24], "little")) for a in found]
    return [(header.seq, bool(header.flags & ASK)) for header in sent]


def seqs(actions):
    return [seq for seq, _ in parts(actions)]


def bits(*have):
    return sum(1 << seq for seq in have).to_bytes(8, "little")


@pytest.fixture
def serve(make_table):
    """A session with an answer of so many segments that has just been sent as far as it goes."""

    def make(count, **more):
        table = make_table(
            inputs=(8,), outputs=(count * SEGMENT,), segment=SEGMENT, peer=FAR, **more
        )
        table.now = MS
        table.whole()
        table.whom = table.core.running(table.func, 0, table.now)
        table.sent = table.core.finished(table.func, 0, 200, table.now, sent=table.whom.direct)
        return table

    return make


def has(table, *have, flags=0, **more):
    return table.say(MessageType.QUERY, payload=bits(*have), flags=flags, **more)


@pytest.mark.parametrize(("count", "direct"), [(1, True), (10, True), (11, False)])
def test_a_worker_sends_what_the_path_takes_at_once(serve, count, direct):
    table = serve(count)
    assert table.whom.direct == direct
    assert len(table.sent) == (0 if direct else 10)


def test_answers_that_run_together_are_direct_as_long_as_the_path_takes_them_all(make_table):
    table = make_table(inputs=(8,), outputs=(4 * SEGMENT,), segment=SEGMENT, peer=FAR)
    for req_id in (1, 2, 3):
        table.whole(req_id)
    direct = [table.core.running(table.func, entry, 0).direct for entry in range(3)]
    assert direct == [True, True, False]
    table.core.returned(table.func, 0, 0)
    assert table.core.running(table.func, 0, 0).direct


@pytest.mark.parametrize("peer", [NEAR, NEAR_6, MAPPED])
def test_all_of_it_goes_at_once_to_this_host(make_table, peer):
    table = make_table(inputs=(8,), outputs=(60 * SEGMENT,), segment=SEGMENT, peer=FAR)
    other = Session(table.session + 1, table.func, peer, SEGMENT, 4)
    table.core.add_session(other, 0)
    table.say(session=other.id, peer=peer)
    assert table.core.running(table.func, 0, 1).direct


def test_a_large_answer_goes_as_it_is_acknowledged(serve):
    table = serve(60)
    assert seqs(table.sent) == list(range(10))
    assert parts(table.sent)[-1] == (9, True)
    assert sum(asks for _, asks in parts(table.sent)) > 3
    table.now += 20 * MS
    more = seqs(has(table, 0, 1, 2, 3))
    assert more[0] == 10 and len(more) >= 4
    have = set(range(4))
    for _ in range(40):
        table.now += 20 * MS
        have |= set(range(4, max(more) + 1)) if more else set()
        more = seqs([*has(table, *have), *table.core.tick(table.now)]) or more
    assert max(more) == 59


def test_more_goes_when_its_time_has_come(serve):
    """Pacing: the core says that it wants to be called."""
    table = serve(60)
    table.now += 100 * MS
    acknowledged = has(table, *range(10))
    sent = len(seqs(acknowledged))
    assert sent == 10 and table.core.is_pressed()
    table.now += MS
    assert seqs(table.core.tick(table.now)) == []
    times = 0
    while sent < 20:
        table.now += MS
        times += 1
        sent += len(seqs(table.core.tick(table.now)))
    assert 25 < times < 60  # half a window in half a round trip, a little faster
    table.say(MessageType.ACK, credit=2)
    assert not table.core.is_pressed()


def test_what_may_be_on_its_way_is_not_sent_again(serve):
    table = serve(4)
    for _ in range(10):
        table.now += MS
        assert seqs(has(table, flags=ASK)) == []
    table.now += 2 * MS
    assert seqs(has(table, 0, flags=ASK)) == [1, 2, 3]
    assert seqs(has(table, 0, flags=ASK)) == []


def test_who_asks_and_asks_gets_it_less_and_less_often(serve):
    table, sent = serve(10), 0
    for _ in range(10_000):
        table.now += MS // 10
        sent += len(seqs(has(table, flags=ASK)))
    assert 0 < sent < 80, "a second of questions brings what some windows hold"


def test_a_request_that_comes_again_does_not_bring_its_answer(serve):
    table = serve(4)
    table.now += 100 * MS
    for _ in range(5):
        assert seqs(table.say(add=ASK)) == []


def test_who_never_gets_it_is_told_in_the_end(serve):
    """And does not keep the entry for ever."""
    table = serve(4)
    told = []
    for _ in range(5000):
        table.now += 20 * MS
        table.core.tick(table.now)
        told = has(table, flags=ASK)
        if not seqs(told) and told and isinstance(told[0], Send):
            break
    header = parse(told[0].header, 64)
    assert (header.type, header.status) == (MessageType.ERROR, WireStatus.LOST_ANSWER)
    assert IDLE_NS < table.now < IDLE_NS + 2 * REST_NS


def test_what_others_overtook_is_sent_again_at_once(serve):
    table = serve(40)
    table.now += MS
    again = seqs(has(table, *range(1, 10)))
    assert again[0] == 0 and table.core.is_open(table.session)


def test_an_answer_that_is_there_makes_room_for_the_next(make_table):
    table = make_table(inputs=(8,), outputs=(20 * SEGMENT,), segment=SEGMENT, peer=FAR)
    for req_id in (1, 2):
        table.whole(req_id)
        table.core.running(table.func, req_id - 1, 0)
    first = table.core.finished(table.func, 0, 200, 0, sent=False)
    assert len(first) == 10
    assert table.core.finished(table.func, 1, 200, 0, sent=False) == []
    table.now = 50 * MS
    sent = table.say(MessageType.ACK, credit=2)
    assert seqs(sent) == list(range(len(sent))) and len(sent) == 10


def test_a_request_says_that_it_is_there_to_who_asks(make_table):
    """So that what waits for a worker does not keep its client from sending more."""
    table = make_table()
    for seq in range(3):
        said = table.say(seq=seq, add=ASK)
    [sack] = [a for a in said if isinstance(a, Send)]
    assert parse(sack.header, 65).type == MessageType.SACK and sack.payload == b"\7"
