"""What the front end does with datagrams: the same tables for the Python core and the C core."""

import pytest

from oracle.core import (
    GAP_NS,
    IDLE_NS,
    RECEIVE_NS,
    REST_NS,
    SEGMENT_NS,
    Defaults,
    Drop,
    Hello,
    Place,
    Ready,
    Send,
    Withdraw,
)
from oracle.sessions import NEXT, CallState, Session
from shunter.nic_frontend.wire.header import Header, nearest, parse
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus
from shunter.nic_frontend.wire.siphash import siphash24

KEY = bytes(range(16))
SECOND = 1_000_000_000
LATE_NS = 12_000_000
"""What was sent so long ago, on a way that nobody has measured, is lost if it is not there."""


def headers(actions):
    """Type, request and status of what is sent."""
    sent = [parse(a.header, 64 + parse_length(a)) for a in actions if isinstance(a, Send)]
    return [(MessageType(h.type), h.req_id, h.status) for h in sent]


def parse_length(send):
    return int.from_bytes(send.header[22:24], "little")


def drops(actions):
    return [a.reason for a in actions if isinstance(a, Drop)]


def test_segments_land_where_the_registration_says_and_the_last_makes_it_ready(table):
    assert table.say(seq=0) == [Place(0, 0, 0, 4)]
    assert table.say(seq=2) == [Place(0, 0, 8, 2)]
    assert table.say(seq=1) == [Place(0, 0, 4, 4), Ready(table.func, 0, 0, 0)]


def test_several_tensors_are_placed_each_in_its_own(make_table):
    table = make_table(inputs=(5, 0, 3), outputs=(1,))
    found = [table.say(seq=seq)[0] for seq in range(3)]
    assert found == [Place(0, 0, 0, 4), Place(0, 0, 4, 1), Place(0, 2, 0, 3)]


def test_a_request_without_a_byte_is_one_segment(make_table):
    table = make_table(inputs=(0,), outputs=(0,))
    assert table.say() == [Place(0, 0, 0, 0), Ready(table.func, 0, 0, 0)]


def test_an_answer_is_sent_in_segments_and_again_for_who_lacks_some(table):
    table.whole()
    whom = table.core.running(table.func, 0, 0)
    assert (whom.req_id, whom.session, whom.peer, whom.segment) == (
        *(1, table.session, table.peer, 4),
    )
    sent = table.core.finished(table.func, 0, 200, 0, sent=False)
    places = [(s.entry, s.tensor, s.offset, parse_length(s)) for s in sent]
    assert places == [(0, 0, 0, 4), (0, 0, 4, 2)]
    assert [parse(s.header, 64 + parse_length(s)).flags for s in sent] == [0, Flags.LAST]
    assert table.say(MessageType.QUERY, payload=b"\1") == []  # it may be on its way
    table.now = LATE_NS
    again = table.say(MessageType.QUERY, payload=b"\1")
    assert [(s.entry, s.offset) for s in again] == [(0, 4)]


def test_numbers_of_datagrams_are_never_used_twice(table):
    table.whole()
    first = table.core.running(table.func, 0, 0).pkt_no  # two are kept for the worker
    sent = table.core.finished(table.func, 0, 200, 0, sent=False)
    numbers = [parse(s.header, 64 + parse_length(s)).pkt_no for s in sent]
    assert numbers == [first + 2, first + 3]


def test_what_the_worker_has_sent_is_kept_and_not_sent_again(table):
    table.whole()
    table.core.running(table.func, 0, 0)
    assert table.core.finished(table.func, 0, 200, 0, sent=True) == []
    asked = table.say(seq=2, flags=Flags.LAST | Flags.RETRANS | Flags.ACK_REQ)
    assert drops(asked) == ["duplicate"]
    assert headers(asked) == [(MessageType.SACK, 1, CallState.TX_COMPLETE)]
    table.now = LATE_NS
    asked = table.say(MessageType.QUERY, payload=b"\0", flags=Flags.ACK_REQ)
    assert headers(asked) == [(MessageType.RESP, 1, 200)] * 2


@pytest.mark.parametrize(
    ("state", "expected"),
    [("receiving", 1), ("waiting", 2), ("running", 3)],
)
def test_who_asks_early_is_told_how_it_stands(table, state, expected):
    table.say(seq=0)
    table.say(seq=2)
    if state != "receiving":
        table.say(seq=1)
    if state == "running":
        table.core.running(table.func, 0, 0)
    asked = table.say(seq=2, flags=Flags.LAST | Flags.ACK_REQ)
    assert headers(asked) == [(MessageType.SACK, 1, expected)]
    assert asked[-1].payload == (b"\5" if state == "receiving" else b"\7")


STANDS = {
    "receiving": (MessageType.SACK, CallState.RECEIVING, b"\1"),
    "waiting": (MessageType.SACK, CallState.RX_COMPLETE, b"\7"),
    "running": (MessageType.SACK, CallState.RUNNING, b"\7"),
    "failed": (MessageType.ERROR, 500, b""),
    "cancelled": (MessageType.ERROR, WireStatus.CANCELLED, b""),
    "lost": (MessageType.ERROR, WireStatus.LOST_ANSWER, b""),
    "unknown": (MessageType.SACK, CallState.RECEIVING, b""),
    "not granted": (MessageType.ERROR, WireStatus.RETRY_LATER, b""),
}


def stand(table, state):
    """Bring the request to a state; its number."""
    core, func = table.core, table.func
    if state in ("unknown", "not granted"):
        return {"unknown": 2, "not granted": 5}[state]
    if state == "receiving":
        table.say(seq=0)
    else:
        table.whole()
    if state in ("running", "failed", "lost"):
        core.running(func, 0, 0)
    if state == "failed":
        core.finished(func, 0, 500, 0, sent=False)
    if state == "cancelled":
        table.say(MessageType.CANCEL)
    if state == "lost":
        core.finished(func, 0, 200, 0, sent=True)
        core.tick(REST_NS + 1)
    return 1


@pytest.mark.parametrize("stream", [False, True], ids=["datagrams", "stream"])
@pytest.mark.parametrize("state", STANDS)
def test_who_asks_by_a_header_is_told_how_it_stands(make_table, state, stream):
    table = make_table(stream=stream)
    req_id = stand(table, state)
    free = table.core.free_entries(table.func)
    asked = table.say(MessageType.QUERY, req_id, payload=b"\0", flags=Flags.ACK_REQ)
    kind, status, payload = STANDS[state]
    assert headers(asked) == [(kind, req_id, status)] and asked[-1].payload == payload
    assert drops(asked) == (["credit"] if state == "not granted" else [])
    assert table.core.free_entries(table.func) == free  # a question takes nothing


def test_who_asks_where_there_is_no_room_is_told_to_ask_later(make_table):
    table = make_table(entries=1)
    table.core.add_session(Session(9, table.func, table.other_peer, 4, 4), 0)
    table.whole()  # the other one was granted a request when there was room
    asked = table.say(
        MessageType.QUERY, peer=table.other_peer, session=9, flags=Flags.ACK_REQ
    )
    assert drops(asked) == ["full"]
    assert headers(asked) == [(MessageType.ERROR, 1, WireStatus.RETRY_LATER)]


def test_what_is_over_is_not_asked_about(table):
    table.whole()
    table.say(MessageType.ACK, credit=2)
    for req_id in (0, 1):
        assert drops(table.say(MessageType.QUERY, req_id, flags=Flags.ACK_REQ)) == ["sack"]


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        (False, [(MessageType.RESP, 1, 200)] * 2),
        (True, [(MessageType.SACK, 1, CallState.TX_COMPLETE)]),
    ],
)
def test_an_answer_is_repeated_for_who_asks_but_not_on_a_stream(make_table, stream, told):
    table = make_table(stream=stream)
    table.whole()
    table.core.running(table.func, 0, 0)
    table.core.finished(table.func, 0, 200, 0, sent=True)
    table.now = LATE_NS
    assert headers(table.say(MessageType.QUERY, payload=b"\0", flags=Flags.ACK_REQ)) == told


def test_a_request_runs_once_however_often_it_comes(table):
    ready = [a for _ in range(3) for a in table.whole() if isinstance(a, Ready)]
    assert len(ready) == 1
    table.core.running(table.func, 0, 0)
    assert drops(table.whole()) == ["duplicate"]
    table.core.finished(table.func, 0, 200, 0, sent=True)
    assert drops(table.whole()) == ["duplicate"]
    table.say(MessageType.ACK, credit=2)
    assert drops(table.whole()) == ["old"]


def test_a_datagram_that_the_network_doubles_is_dropped(table):
    header = table.header()
    data = header.pack()
    assert table.core.receive(table.peer, data, 0, 64 + header.length) == [Place(0, 0, 0, 4)]
    assert drops(table.core.receive(table.peer, data, 0, 64 + header.length)) == ["replay"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"magic": 1}, "magic"),
        ({"version": 1}, "version"),
        ({"type": 0}, "type"),
        ({"type": 11}, "type"),
        ({"flags": 256}, "flags"),
        ({"words": 9}, "words"),
        ({"reserved": 1}, "reserved"),
        ({"session": 1}, "session"),
        ({"func_id": 8}, "func_id"),
        ({"tag": 1}, "tag"),
        ({"flags": Flags.HDR_TAG}, "tag"),
        ({"pkt_no": 0}, "replay"),
        ({"req_id": 0}, "old"),
        ({"req_id": 5}, "credit"),
        ({"req_id": 1 << 63}, "credit"),
        ({"seq": 1}, "sizes"),
        ({"seq": 65535}, "sizes"),
        ({"count": 2}, "sizes"),
        ({"count": 65535}, "sizes"),
        ({"length": 5}, "sizes"),
        ({"offset": 4}, "sizes"),
        ({"offset": 0xFFFFFFFF}, "sizes"),
        ({"total": 11}, "sizes"),
        ({"tensor": 1}, "sizes"),
        ({"tensor": 255}, "sizes"),
        ({"type": MessageType.RESP}, "direction"),
        ({"type": MessageType.CREDIT}, "direction"),
        ({"type": MessageType.HELLO_ACK}, "direction"),
        ({"type": MessageType.ERROR}, "direction"),
        ({"type": MessageType.CANCEL}, "cancel"),
        ({"type": MessageType.SACK}, "direction"),
        ({"type": MessageType.QUERY}, "sack"),
    ],
    ids=str,
)
def test_a_header_that_says_something_wrong_writes_nothing(table, changes, reason):
    actions = table.say_wrong(**changes)
    assert drops(actions) == [reason]
    assert not [a for a in actions if isinstance(a, Place | Ready)]
    assert table.core.free_entries(table.func) == 4


def test_a_datagram_whose_length_is_another_is_dropped(table):
    data = table.header().pack()
    for length in (64, 67, 69, 65507):
        assert drops(table.core.receive(table.peer, data, 0, length)) == ["length"]
    for length in (0, 1, 63):
        assert drops(table.core.receive(table.peer, data, 0, length)) == ["short"]


def test_another_sender_cannot_speak_for_a_session(table):
    assert drops(table.say(peer=table.other_peer)) == ["peer"]


def test_a_hello_is_handed_up(table):
    assert table.say(MessageType.HELLO) == [Hello()]


def test_wrong_sizes_are_answered_once(table):
    assert headers(table.say(total=11)) == [(MessageType.ERROR, 1, WireStatus.BAD_REQUEST)]
    assert headers(table.say(total=11)) == []
    assert headers(table.say(flags=Flags.ACK_REQ)) == [
        (MessageType.ERROR, 1, WireStatus.BAD_REQUEST)
    ]


# ---- credit


def test_more_than_was_granted_is_refused_from_the_last_header_alone(table):
    assert table.core.grant(table.session) == 4
    assert headers(table.say(req_id=5, seq=0)) == []
    refused = table.say(req_id=5, seq=2)
    assert headers(refused) == [(MessageType.ERROR, 5, WireStatus.RETRY_LATER)]
    assert table.core.free_entries(table.func) == 4


def test_what_is_done_makes_room_and_raises_the_grant(table):
    for req_id in (1, 2):
        table.whole(req_id)
        table.core.running(table.func, req_id - 1, 0)
        table.core.finished(table.func, req_id - 1, 200, 0, sent=True)
    assert table.core.free_entries(table.func) == 2
    table.say(MessageType.ACK, credit=3)
    assert (table.core.free_entries(table.func), table.core.grant(table.session)) == (4, 6)


@pytest.mark.parametrize("credit", [0, 1, 1000, 0xFFFFFFFF, 0x80000000])
def test_an_acknowledgement_of_what_was_never_granted_frees_no_more_than_there_is(table, credit):
    table.whole(1)
    table.say(MessageType.ACK, credit=credit)
    assert table.core.grant(table.session) <= 4 + 4
    assert table.core.free_entries(table.func) <= 4


def test_a_full_queue_grants_nothing_and_loses_nothing(make_table):
    table = make_table(entries=2, window=4)
    assert table.core.grant(table.session) == 2
    table.whole(1)
    table.whole(2)
    assert drops(table.say(req_id=3)) == ["credit"]
    table.core.running(table.func, 0, 0)
    table.core.finished(table.func, 0, 200, 0, sent=True)
    table.say(MessageType.ACK, credit=2)
    assert table.core.grant(table.session) == 3
    assert table.whole(3)[-1] == Ready(table.func, 0, 0, 0)


def test_who_asks_for_credit_is_told(table):
    asked = table.say(MessageType.ACK, flags=Flags.ACK_REQ)
    assert headers(asked) == [(MessageType.CREDIT, 0, 0)]
    assert parse(asked[0].header).credit == 4


def test_numbers_pass_the_end_of_32_bits():
    assert [nearest(n, 2**32 - 1) for n in (0xFFFFFFFE, 0, 3)] == [2**32 - 2, 2**32, 2**32 + 3]
    assert nearest(0xFFFFFFFF, 3) == 0


# ---- time


def test_a_gap_is_asked_for_after_a_while(table):
    table.say(seq=0)
    table.say(seq=2)
    assert table.core.tick(GAP_NS) == []
    asked = table.core.tick(GAP_NS + 1)
    assert headers(asked) == [(MessageType.SACK, 1, CallState.RECEIVING)]
    assert asked[0].payload == b"\5"
    assert table.core.tick(GAP_NS + 2) == []


def test_a_stream_may_be_slow_and_is_asked_for_nothing(make_table):
    table = make_table(stream=True)
    table.say(seq=0)
    for now in (GAP_NS + 1, RECEIVE_NS + 1, IDLE_NS):
        assert table.core.tick(now) == []
        assert table.core.free_entries(table.func) == 3
    assert table.core.tick(IDLE_NS + 1) == []
    assert table.core.free_entries(table.func) == 4


@pytest.mark.parametrize("stream", [False, True], ids=["datagrams", "stream"])
def test_a_request_that_comes_bit_by_bit_gives_way_to_who_waits(make_table, stream):
    table = make_table(stream=stream, entries=1)
    other = Session(table.session + 1, table.func, table.other_peer, 4, 4, origin=1)
    table.core.add_session(other, 0)
    fields = {"func_id": table.func, "seq": 2, "count": 3, "length": 2, "total": 10, "offset": 8}
    header = Header(
        type=MessageType.REQ, flags=Flags.LAST, req_id=1, session=other.id, pkt_no=1, **fields
    )
    table.say(seq=0)
    latest = RECEIVE_NS + 3 * SEGMENT_NS
    table.now = RECEIVE_NS
    table.say(seq=1)
    table.core.tick(latest + 1)
    assert table.core.free_entries(table.func) == 0  # nobody wants it
    refused = table.core.receive(table.other_peer, header.pack() + bytes(2), latest)
    assert drops(refused) == ["full"]
    table.core.tick(latest)
    assert table.core.free_entries(table.func) == 0
    told = table.core.tick(latest + 1)
    assert [(kind, req_id) for kind, req_id, _ in headers(told)] == [(MessageType.CREDIT, 1)]


@pytest.mark.parametrize("stream", [False, True], ids=["datagrams", "stream"])
def test_who_has_sent_all_on_a_stream_is_told_at_once_what_was_refused(make_table, stream):
    table = make_table(stream=stream)
    table.say(seq=1)
    told = [(MessageType.SACK, 1, CallState.RECEIVING)] if stream else []
    assert headers(table.say(seq=2, flags=Flags.LAST)) == told


def test_a_stream_that_says_nothing_ends_unless_it_waits(make_table):
    table = make_table(stream=True)
    table.whole()
    for n in (2, 4):
        table.core.tick(n * IDLE_NS)
        assert table.core.is_open(table.session)
    table.core.running(table.func, 0, 5 * IDLE_NS)
    table.core.tick(6 * IDLE_NS)
    assert table.core.is_open(table.session)
    table.core.finished(table.func, 0, 200, 6 * IDLE_NS, sent=True)
    table.core.tick(7 * IDLE_NS)
    assert table.core.is_open(table.session)
    table.core.tick(7 * IDLE_NS + 1)
    assert not table.core.is_open(table.session)


def test_what_is_never_complete_is_forgotten_and_can_come_again(table):
    table.say(seq=0)
    table.core.tick(RECEIVE_NS + 1)
    assert table.core.free_entries(table.func) == 4
    table.now = RECEIVE_NS + 2
    assert isinstance(table.whole()[-1], Ready)


def test_an_answer_is_kept_for_a_while_and_then_said_to_be_lost(table):
    table.whole()
    table.core.running(table.func, 0, 0)
    table.core.finished(table.func, 0, 200, 0, sent=True)
    table.core.tick(REST_NS)
    assert table.core.free_entries(table.func) == 3
    table.core.tick(REST_NS + 1)
    assert table.core.free_entries(table.func) == 4
    asked = table.say(seq=2, flags=Flags.LAST | Flags.ACK_REQ)
    assert headers(asked) == [(MessageType.ERROR, 1, WireStatus.LOST_ANSWER)]


def test_a_silent_session_ends(table):
    table.whole()
    assert table.core.tick(IDLE_NS + 1) == [Withdraw(table.func, 0)]
    assert drops(table.say()) == ["session"]
    assert table.core.free_entries(table.func) == 4


# ---- ends


def test_a_deadline_counts_from_the_arrival(table):
    table.now = SECOND
    assert table.whole(deadline_us=50)[-1] == Ready(table.func, 0, 0, SECOND + 50_000)
    late = table.core.expired(table.func, 0, SECOND + 50_000)
    assert headers(late) == [(MessageType.ERROR, 1, WireStatus.TOO_LATE)]
    assert table.core.free_entries(table.func) == 4


@pytest.mark.parametrize(
    ("given", "of_model", "expected"),
    [(0, 0, 0), (0, 1, 1), (1, 0, 0), (1, 1, 0), (2, 0, 1), (2, 1, 1), (255, 0, 1)],
)
def test_there_are_two_classes_of_which_the_model_names_the_default(
    table, given, of_model, expected
):
    table.core.set_defaults(table.func, Defaults(priority=of_model))
    assert table.whole(priority=given)[-1].priority == expected


@pytest.mark.parametrize(
    ("defaults", "priority", "deadline_us", "expected_us"),
    [
        (Defaults(slo_ns=40_000), 0, 0, 40),
        (Defaults(slo_ns=40_000), 0, 50, 50),
        (Defaults(slo_ns=40_000), 0, 30, 30),
        (Defaults(slo_ns=40_000), 2, 0, 0),  # it is of strict requests
        (Defaults(slo_ns=40_000), 2, 50, 50),
        (Defaults(1, slo_ns=40_000), 0, 0, 0),
        (Defaults(1, slo_ns=40_000), 1, 0, 40),
        (Defaults(timeout_ns=45_000), 0, 0, 45),
        (Defaults(timeout_ns=45_000), 2, 0, 45),
        (Defaults(timeout_ns=45_000), 0, 50, 45),
        (Defaults(timeout_ns=45_000), 0, 30, 30),
        (Defaults(slo_ns=40_000, timeout_ns=45_000), 0, 0, 40),
        (Defaults(slo_ns=90_000, timeout_ns=45_000), 0, 0, 45),
        (Defaults(slo_ns=86_400_000_000_000), 0, 0, 86_400_000_000),
    ],
)
def test_who_states_no_deadline_has_the_model_s(
    table, defaults, priority, deadline_us, expected_us
):
    table.now = SECOND
    table.core.set_defaults(table.func, defaults)
    ready = table.whole(priority=priority, deadline_us=deadline_us)[-1]
    assert ready.deadline_ns == (SECOND + 1000 * expected_us if expected_us else 0)


def test_a_request_has_the_defaults_of_its_arrival(table):
    table.core.set_defaults(table.func, Defaults(slo_ns=40_000))
    table.say(seq=0)
    table.now = 10_000
    table.core.set_defaults(table.func, Defaults(1, slo_ns=70_000))
    table.say(seq=1)
    assert table.say(seq=2)[-1] == Ready(table.func, 0, 0, 40_000)
    assert table.whole(2)[-1] == Ready(table.func, 1, 1, 0)


def test_a_request_that_is_cancelled_in_time_does_not_run(table):
    table.whole()
    assert table.say(MessageType.CANCEL) == [Withdraw(table.func, 0)]
    assert table.core.free_entries(table.func) == 4
    assert drops(table.say(MessageType.CANCEL)) == ["cancel"]


def test_a_running_one_is_not_cancelled(table):
    table.whole()
    table.core.running(table.func, 0, 0)
    assert drops(table.say(MessageType.CANCEL)) == ["cancel"]


def test_a_worker_that_dies_is_answered_for(table):
    table.whole()
    table.core.running(table.func, 0, 0)
    died = table.core.worker_died(table.func, 0, 0)
    assert headers(died) == [(MessageType.ERROR, 1, WireStatus.WORKER_DIED)]
    assert table.core.free_entries(table.func) == 4


def test_what_may_run_twice_is_tried_once_more(table):
    table.whole(flags=Flags.IDEMPOTENT)
    table.core.running(table.func, 0, 0)
    assert table.core.worker_died(table.func, 0, 0) == [Ready(table.func, 0, 0, 0, again=True)]
    table.core.running(table.func, 0, 0)
    died = table.core.worker_died(table.func, 0, 0)
    assert headers(died) == [(MessageType.ERROR, 1, WireStatus.WORKER_DIED)]


def test_what_was_not_begun_runs_elsewhere_as_often_as_needed(table):
    table.whole()
    for _ in range(5):
        table.core.running(table.func, 0, 0)
        returned = Ready(table.func, 0, 0, 0, returned=True)
        assert table.core.returned(table.func, 0, 0) == [returned]


def test_a_client_that_leaves_while_its_request_runs_holds_the_entry_until_it_has_run(table):
    table.whole()
    table.core.running(table.func, 0, 0)
    assert table.core.remove_session(table.session, 0) == []
    assert table.core.free_entries(table.func) == 3
    assert drops(table.say(req_id=2)) == ["session"]
    assert table.core.finished(table.func, 0, 200, 0, sent=True) == []
    assert table.core.free_entries(table.func) == 4


def test_the_table_of_states_ends_everywhere():
    assert set(NEXT) == set(CallState)
    for state in CallState:
        seen, front = {state}, {state}
        while front:
            front = {n for s in front for n in NEXT[s]} - seen
            seen |= front
        assert CallState.FREE in seen


# ---- tags


def test_a_tag_must_be_right(make_table):
    table = make_table(key=KEY)
    assert table.say() == [Place(0, 0, 0, 4)]
    table.key = bytes(16)
    assert drops(table.say(seq=1)) == ["tag"]
    table.key = None
    assert drops(table.say(seq=1)) == ["tag"]


def test_answers_carry_a_tag(make_table):
    table = make_table(key=KEY)
    table.whole()
    table.core.running(table.func, 0, 0)
    for sent in table.core.finished(table.func, 0, 200, 0, sent=False):
        header = parse(sent.header, 64 + parse_length(sent))
        assert header.flags & Flags.HDR_TAG
        assert header.tag == siphash24(table.keys.tag_to_client, sent.header[:56])


def said_by_the_server(table):
    """One of everything that a server says, as it leaves."""
    said = table.say(seq=0) + table.say(seq=0, flags=Flags.ACK_REQ)  # SACK
    said += table.say(MessageType.ACK, 0, flags=Flags.ACK_REQ)  # CREDIT
    said += table.say(seq=1) + table.say(seq=2)
    table.core.running(table.func, 0, 0)
    said += table.core.finished(table.func, 0, 200, 0, sent=False)  # RESP
    said += table.say_wrong(req_id=2, total=99)  # ERROR
    return [action for action in said if isinstance(action, Send)]


@pytest.mark.parametrize("key", [None, KEY], ids=["no key", "key"])
def test_what_the_server_says_does_nothing_when_somebody_sends_it_back(make_table, key):
    """Its SACK once said that all below its own credit were done."""
    table = make_table(key=key, inputs=(10,), outputs=(6,))
    said = said_by_the_server(table)
    kinds = {action.header[3] for action in said}
    assert kinds >= {MessageType.SACK, MessageType.CREDIT, MessageType.RESP}
    for req_id in (3, 4):
        table.whole(req_id)
    before = table.core.load(table.func), table.core.free_entries(table.func)
    table.pkt_no += 50  # numbers that the client has not used yet: they must not be used up
    for action in said:
        length = int.from_bytes(action.header[22:24], "little")
        data = action.header + action.payload.ljust(length, b"\0")
        number = table.pkt_no.to_bytes(4, "little")
        for each in (data, data[:52] + number + data[56:]):
            assert drops(table.core.receive(table.peer, each, table.now)) == ["direction"]
    assert (table.core.load(table.func), table.core.free_entries(table.func)) == before
    table.pkt_no -= 1
    assert not drops(table.say(MessageType.ACK, 0, flags=Flags.ACK_REQ))


def test_each_direction_has_a_key_of_its_own(make_table):
    table = make_table(key=KEY)
    table.key = table.keys.tag_to_client
    assert drops(table.say()) == ["tag"]


@pytest.mark.parametrize("stream", [False, True])
def test_workers_get_only_the_key_that_they_need(make_table, stream):
    table = make_table(key=KEY, stream=stream)
    table.whole()
    whom = table.core.running(table.func, 0, 0)
    assert whom.key == (None if stream else table.keys.tag_to_client)


def test_a_datagram_that_is_said_again_with_its_tag_is_dropped(make_table):
    table = make_table(key=KEY)
    data = table.header().pack(KEY)
    table.core.receive(table.peer, data, 0, 68)
    assert drops(table.core.receive(table.peer, data, 0, 68)) == ["replay"]


def test_siphash_is_the_published_one():
    data = bytes(range(15))
    assert siphash24(bytes(range(16)), data) == 0xA129CA6149BE45E5
    assert siphash24(bytes(range(16)), b"") == 0x726FDB47DD0E0E31


def test_a_header_reads_as_it_was_written():
    header = Header(type=1, req_id=2**63, length=3, pkt_no=2**32 - 1, crc=5)
    assert parse(header.pack() + b"abc") == header


def test_a_session_that_is_ended_frees_everything_and_is_known_no_more(table):
    table.whole(1)
    free = table.core.free_entries(table.func)
    ended = table.say(MessageType.ACK, flags=Flags.LAST, credit=1)
    assert [type(action).__name__ for action in ended] == ["Withdraw"]
    assert table.core.free_entries(table.func) == free + 1
    assert drops(table.say(MessageType.ACK, flags=Flags.ACK_REQ)) == ["session"]


def test_a_request_may_take_its_time_as_long_as_segments_come(table):
    table.say(seq=0)
    free = table.core.free_entries(table.func)
    table.now = 1_500_000_000
    table.say(seq=1)
    table.core.tick(3_000_000_000)
    assert table.core.free_entries(table.func) == free
    table.core.tick(3_600_000_000)
    assert table.core.free_entries(table.func) == free + 1
