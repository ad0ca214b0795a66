"""How many sessions there may be, whose place a new one takes, and who is told that it has none."""

import numpy as np
import pytest

from oracle.core import MOST_UNKNOWN, UNKNOWN_NS, Drop, Send, Withdraw
from oracle.sessions import Session
from oracle.silence import AWAKE_NS, IDLE_NS, MOST_LOOKS, REST_NS
from shunter.nic_frontend.client import Session as Client
from shunter.nic_frontend.client import UnreachableError
from shunter.nic_frontend.wire.header import Header, parse
from shunter.nic_frontend.wire.layout import OF_CLIENT, Flags, MessageType, WireStatus

FUNC = 7
PEER = bytes([2]).ljust(64, b"\0")


class Hall:
    """Room for five sessions, three of them on streams."""

    def __init__(self, core):
        self.core, self.now, self.ids, self.said = core, 0, [], 0
        core.add_function(FUNC, (4,), (4,), 4)
        core.limit(5, 3)

    def come(self, *origins, stream=False):
        for origin in origins:
            number = len(self.ids) + 1
            peer = bytes(2 if stream is False else 0 for _ in range(2)).ljust(64, b"\0")
            session = Session(number, FUNC, peer, 4, 4, stream=stream, origin=origin)
            self.core.add_session(session, self.now)
            self.ids.append(number)
            self.now += 1

    @property
    def open(self):
        return [number for number in self.ids if self.core.is_open(number)]

    def speak(self, number, stream=False):
        peer = bytes(2 if stream is False else 0 for _ in range(2)).ljust(64, b"\0")
        self.said += 1
        header = Header(type=MessageType.ACK, session=number, pkt_no=self.said, credit=1)
        self.core.receive(peer, header.pack(), self.now)
        self.now += 1

    def wait(self, ns):
        self.now += ns
        self.core.tick(self.now)


@pytest.fixture
def hall(core):
    return Hall(core)


def test_who_takes_all_keeps_nobody_out(hall):
    hall.come(1, 1, 1, 1, 1)
    hall.speak(1)
    hall.come(2)
    assert hall.open == [1, 3, 4, 5, 6]  # the longest silent of the greedy
    hall.come(2)
    assert hall.open == [1, 4, 5, 6, 7]
    with pytest.raises(OSError, match="session"):
        hall.come(2)  # three of five would be more than the others have then
    with pytest.raises(OSError, match="session"):
        hall.come(1)
    assert hall.open == [1, 4, 5, 6, 7]


def test_who_rests_gives_way_to_its_like(hall):
    hall.come(1, 1, 1, 2, 3)
    hall.wait(REST_NS - 6)
    with pytest.raises(OSError, match="session"):
        hall.come(1)
    hall.wait(5)
    hall.speak(1)
    hall.come(1)
    assert hall.open == [1, 3, 4, 5, 6]


def test_who_rests_gives_way_to_who_has_less(hall):
    hall.come(1, 2, 3, 4, 5)
    with pytest.raises(OSError, match="session"):
        hall.come(6)
    hall.wait(REST_NS)
    for number in (1, 2, 4, 5):
        hall.speak(number)
    hall.come(6)
    assert hall.open == [1, 2, 4, 5, 6]
    with pytest.raises(OSError, match="session"):
        hall.come(7)


def test_of_streams_there_may_be_fewer(hall):
    hall.come(1)
    hall.come(2, 2, 2, stream=True)
    hall.come(3, stream=True)
    assert hall.open == [1, 3, 4, 5]
    with pytest.raises(OSError, match="session"):
        hall.come(2, stream=True)
    hall.come(3)
    assert hall.open == [1, 3, 4, 5, 6]


def test_whoever_is_in_front_the_one_who_has_most_gives_way(hall):
    """Silent sessions of others that do not give way are not even looked at."""
    hall.core.limit(3 * MOST_LOOKS, 3)
    hall.come(*range(10, 10 + 2 * MOST_LOOKS))
    hall.come(1, 1, 1, stream=True)
    streams = hall.ids[-3:]
    hall.come(2, stream=True)
    assert not hall.core.is_open(streams[0])
    hall.core.limit(2 * MOST_LOOKS + 3, 3)
    hall.wait(AWAKE_NS + 1)
    hall.come(3)
    assert [hall.core.is_open(number) for number in streams] == [False, False, True]


def test_who_rests_on_a_stream_is_found_behind_who_rests_on_none(hall):
    hall.core.limit(3 * MOST_LOOKS, 3)
    hall.come(*range(10, 10 + 2 * MOST_LOOKS))
    hall.come(1, 2, 3, stream=True)
    hall.wait(REST_NS)
    hall.come(4, stream=True)
    assert not hall.core.is_open(hall.ids[-4])

def test_there_is_room_again_when_sessions_end(hall):
    hall.come(1, 1, 1, 1, 1)
    hall.core.remove_session(2, hall.now)
    hall.come(1)
    hall.wait(AWAKE_NS)
    hall.speak(3)
    hall.wait(IDLE_NS - 1)
    assert hall.open == [3]
    hall.come(1, 1, 1, 1)
    assert len(hall.open) == 5


def test_who_ends_with_the_one_that_makes_room_is_offered_none(core):
    """Both have been silent for too long at the same look."""
    core.add_function(FUNC, (4,), (4,), 1)
    for number in (1, 2):
        core.add_session(Session(number, FUNC, PEER, 4, 4, origin=number), 0)
    for number in (1, 2):
        fields = {"flags": Flags.LAST, "req_id": 1, "func_id": FUNC, "length": 4, "total": 4}
        header = Header(type=MessageType.REQ, session=number, credit=1, pkt_no=1, **fields)
        data = header.pack() + bytes(4)
        core.receive(PEER, data, 0)
        core.accept(data, 0)
    assert core.tick(IDLE_NS + 1) == [Withdraw(FUNC, 0)]
    assert not core.is_open(1) and not core.is_open(2)


# ---- no such session


def say(core, kind, now=0, flags=0, peer=PEER, session=99):
    header = Header(type=kind, session=session, req_id=3, pkt_no=1, flags=flags)
    return core.receive(peer, header.pack(), now)


@pytest.mark.parametrize(
    ("kind", "flags", "is_told"),
    [
        (MessageType.REQ, 0, True),
        (MessageType.QUERY, 0, True),
        (MessageType.ACK, Flags.ACK_REQ, True),
        (MessageType.ACK, 0, True),
        (MessageType.ACK, Flags.LAST, False),
        (MessageType.CANCEL, 0, False),
        (MessageType.RESP, 0, False),
        (MessageType.ERROR, 0, False),
        (MessageType.CREDIT, 0, False),
    ],
)
def test_who_has_no_session_is_told_so_with_a_header_alone(core, kind, flags, is_told):
    dropped, *answers = say(core, kind, flags=flags)
    assert dropped == Drop("session" if kind in OF_CLIENT else "direction")
    assert len(answers) == is_told
    for answer in answers:
        header = parse(answer.header)
        assert (answer.peer, answer.payload, answer.entry) == (PEER, b"", -1)
        assert (header.type, header.status) == (MessageType.ERROR, WireStatus.UNKNOWN_SESSION)
        assert (header.session, header.req_id) == (99, 3)


def test_a_session_that_has_ended_is_none(hall):
    hall.come(1)
    hall.core.remove_session(1, 0)
    assert isinstance(say(hall.core, MessageType.ACK, session=1)[-1], Send)


def test_few_are_told_at_once_and_streams_not(core):
    answers = [len(say(core, MessageType.REQ)) - 1 for _ in range(MOST_UNKNOWN + 5)]
    assert answers == [1] * MOST_UNKNOWN + [0] * 5
    assert len(say(core, MessageType.REQ, now=UNKNOWN_NS - 1)) == 1
    assert len(say(core, MessageType.REQ, now=UNKNOWN_NS)) == 2
    assert len(say(core, MessageType.REQ, now=UNKNOWN_NS, peer=bytes(64))) == 1


# ---- the front end


def test_one_address_does_not_keep_another_out(make_service, double):
    service = make_service()
    service.serve("double", **double)
    service.front_end.path.limit(3, 3)
    request = np.array([1, 2, 3], np.float32)
    greedy = [Client(service.url(), "double") for _ in range(3)]
    with pytest.raises(UnreachableError):
        Client(service.url(), "double", timeout_s=0.3)
    with Client(service.url("unix"), "double") as other:
        assert other.infer([request])[0].tolist() == [2, 4, 6]
        assert service.front_end.path.sessions() == 3
        # Who had to go opens another, if it has something to ask, when there is room.
        greedy[1].close()
        assert greedy[0].infer([request], idempotent=True)[0].tolist() == [2, 4, 6]
    for each in greedy:
        each.close()
