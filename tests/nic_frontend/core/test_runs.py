"""Requests and answers of a packed function: each has a length of its own."""

import errno

import pytest

from oracle.core import Drop, Place, Ready, Send
from oracle.sessions import Session
from shunter.nic_frontend.server.model_policy import Runs
from shunter.nic_frontend.wire.header import Header, unpack
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus

FUNC, SESSION = 7, 0xABCD0001
PEER = bytes([2, 0, 0, 9]).ljust(64, b"\0")
MOST, ANSWER, SEGMENT = 40, 20, 8
RUNS = Runs(rows=3, least_request=5, least_answer=2)
STATUS = {"status": 1}


class Packed:
    """A session of such a function."""

    def __init__(self, core, *, stream=False, region=0, window=4):
        self.core, self.pkt_no, self.now = core, 0, 0
        self.region = region
        core.add_function(FUNC, (MOST,), (ANSWER,), 4)
        core.set_runs(FUNC, RUNS)
        session = Session(SESSION, FUNC, PEER, SEGMENT, window, stream=stream)
        session.region, session.region_bytes = region, 1000
        core.add_session(session, 0)

    def header(self, total, seq=0, req_id=1, rows=1, **more):
        self.pkt_no += 1
        count = -(-total // SEGMENT)
        fields = {"flags": Flags.LAST if seq == count - 1 else 0, "seq": seq, "count": count}
        fields |= {"offset": seq * SEGMENT, "length": min(SEGMENT, total - seq * SEGMENT)}
        fields |= {"type": MessageType.REQ, "req_id": req_id, "func_id": FUNC, "status": rows}
        fields |= {"session": SESSION, "total": total, "credit": 1, "pkt_no": self.pkt_no}
        return Header(**{**fields, **more})

    def say(self, total, seq=0, **more):
        """The actions, with those of the payload when it has a place."""
        header = self.header(total, seq, **more)
        data = header.pack()
        found = self.core.receive(PEER, data, self.now, 64 + header.length)
        if any(isinstance(each, Place) for each in found):
            found += self.core.accept(data, self.now)
        return found

    def whole(self, total, **more):
        for seq in range(-(-total // SEGMENT)):
            found = self.say(total, seq, **more)
        [ready] = [each for each in found if isinstance(each, Ready)]
        return ready

    def answered(self, entry, size, status=200, *, sent=False):
        self.core.running(FUNC, entry, self.now)
        return self.core.finished(FUNC, entry, status, self.now, sent=sent, size=size)


def parts(actions):
    """Of answers: sequence, count, length, offset and total of each segment."""
    headers = [unpack(each.header) for each in actions if isinstance(each, Send)]
    return [(h.seq, h.count, h.length, h.offset, h.total) for h in headers]


def status_of(actions):
    """Of the error that a client is told."""
    [send] = [each for each in actions if isinstance(each, Send)]
    header = unpack(send.header)
    assert header.type == MessageType.ERROR
    return header.status


@pytest.mark.parametrize("total", [5, 8, 9, 16, 33, 40])
def test_a_request_is_complete_when_all_of_its_length_is_here(core, total):
    packed = Packed(core)
    assert (ready := packed.whole(total, rows=2)).bytes == total
    assert ready.rows == 2 and core.free_entries(FUNC) == 3


def test_segments_come_in_any_order(core):
    packed = Packed(core)
    found = [packed.say(33, seq) for seq in (4, 0, 3, 1)]
    assert not any(isinstance(each, Ready) for actions in found for each in actions)
    assert [each.bytes for each in packed.say(33, 2) if isinstance(each, Ready)] == [33]


WRONG = {
    "too short": {"total": 4},
    "too long": {"total": 41, "count": 6},
    "no rows": {"rows": 0},
    "too many rows": {"rows": 4},
    "another tensor": {"tensor": 1},
    "too many segments": {"count": 4},
    "behind the last": {"seq": 3, "length": 0},
    "elsewhere": {"offset": 1},
    "too little": {"length": 7},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_refused_at_once(core, wrong):
    packed = Packed(core)
    found = packed.say(**{"total": 20, **wrong})
    assert found[0] == Drop("sizes") and status_of(found[1:]) == WireStatus.BAD_REQUEST
    assert core.free_entries(FUNC) == 4
    assert packed.whole(20, req_id=2).bytes == 20  # others go on


@pytest.mark.parametrize("other", [{"total": 24}, {"total": 19}, {"rows": 2}])
def test_all_segments_say_the_same(core, other):
    packed = Packed(core)
    packed.say(20, 0)
    assert packed.say(**{"total": 20, "seq": 1, **other}) == [Drop("sizes")]
    packed.say(20, 1)
    assert isinstance(packed.say(20, 2)[0], Place)


def test_a_payload_of_what_has_another_length_now_does_not_count(core):
    """It had a place, and its request was given up before it came."""
    packed = Packed(core)
    late = packed.header(40, 4)
    core.receive(PEER, late.pack(), 0, 64 + late.length)
    packed.now = 3 * 10**9
    core.tick(packed.now)
    assert core.free_entries(FUNC) == 4
    first = packed.header(9, 0)
    core.receive(PEER, first.pack(), packed.now, 64 + first.length)
    assert core.accept(late.pack(), packed.now) == []
    core.accept(first.pack(), packed.now)
    [ready] = [each for each in packed.say(9, 1) if isinstance(each, Ready)]
    assert ready.bytes == 9


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("size", [2, 8, 9, 20])
def test_an_answer_has_a_length_of_its_own(core, size, stream):
    packed = Packed(core, stream=stream)
    ready = packed.whole(30)
    count = -(-size // SEGMENT)
    wanted = [(s, count, min(8, size - 8 * s), 8 * s, size) for s in range(count)]
    assert parts(packed.answered(ready.entry, size)) == wanted


@pytest.mark.parametrize("size", [0, 1, 21, (1 << 32) - 1])
def test_an_answer_that_cannot_be_is_the_servers_fault(core, size):
    packed = Packed(core)
    ready = packed.whole(30)
    assert status_of(packed.answered(ready.entry, size)) == WireStatus.HANDLER_FAILED
    assert core.free_entries(FUNC) == 4


def test_what_is_lost_of_an_answer_is_sent_again(core):
    packed = Packed(core)
    ready = packed.whole(9)
    packed.answered(ready.entry, 20, sent=True)
    packed.now += 10**9
    packed.pkt_no += 1
    ask = Header(
        type=MessageType.QUERY, flags=Flags.ACK_REQ, req_id=1, func_id=FUNC, session=SESSION,
        credit=1, pkt_no=packed.pkt_no, length=1,
    )  # fmt: skip
    found = core.receive(PEER, ask.pack() + bytes([0b10]), packed.now, 65)
    assert [seq for seq, *_ in parts(found)] == [0, 2]


def test_a_request_that_runs_again_is_the_same(core):
    packed = Packed(core)
    ready = packed.whole(17, rows=3, flags=Flags.IDEMPOTENT)
    core.running(FUNC, ready.entry, 0)
    [again] = core.worker_died(FUNC, ready.entry, 0)
    assert (again.bytes, again.rows, again.again) == (17, 3, True)
    core.running(FUNC, ready.entry, 0)
    [back] = core.returned(FUNC, ready.entry, 0)
    assert (back.bytes, back.rows, back.returned) == (17, 3, True)


def test_a_run_may_lie_in_shared_memory(core):
    packed = Packed(core, stream=True, region=2, window=8)
    shared = {"count": 1, "length": 0, "flags": Flags.LAST}
    [place, ready] = packed.say(33, offset=64, rows=2, **shared)
    assert (place.region, place.offset, place.length) == (2, 64, 0)
    assert (ready.bytes, ready.rows) == (33, 2)
    for req_id, wrong in enumerate(({"offset": 1000 - 63}, {"total": 41}, {"count": 2}), 2):
        found = packed.say(**{"total": 33, "req_id": req_id, **shared, **wrong})
        assert found[0] == Drop("sizes")


def test_rows_may_become_others_and_nothing_else(both):
    _, c = both()
    packed = Packed(c)
    c.set_runs(FUNC, RUNS._replace(rows=5))
    assert packed.whole(20, rows=5).rows == 5
    for wrong, number in (
        (RUNS._replace(least_request=6), errno.EBUSY),
        (RUNS._replace(rows=0), errno.EINVAL),
        (RUNS._replace(least_answer=ANSWER + 1), errno.EINVAL),
    ):
        with pytest.raises(OSError) as found:
            c.set_runs(FUNC, wrong)
        assert found.value.errno == number
    c.add_function(8, (4, 4), (4,), 2)
    with pytest.raises(OSError):
        c.set_runs(8, RUNS)
