"""Who may send and who gets an entry, where there are more sessions than entries: both cores."""

import pytest

from oracle.core import REST_NS, SPARE_NS, Drop, Place, Ready, Send
from oracle.credit import MOST_PLANS, MOST_PROMISE_NS
from oracle.sessions import PROMISE_NS, Session
from oracle.silence import AWAKE_NS
from shunter.nic_frontend.wire.header import Header, parse
from shunter.nic_frontend.wire.layout import WINDOW, Flags, MessageType, WireStatus

FUNC = 7
MS = 1_000_000


class Town:
    """A function with few entries and many sessions, whose requests are one segment."""

    def __init__(self, core, entries, **options):
        self.core, self.now, self.numbers = core, 0, {}
        self.below, self.granted = {}, {}
        self.options = {"window": WINDOW, "stream": False, **options}
        core.add_function(FUNC, (4,), (4,), entries)

    def come(self, *names, **more):
        for name in names:
            peer = self.peer(name)
            self.core.add_session(Session(name, FUNC, peer, 4, **self.options, **more), self.now)
            self.numbers[name], self.below[name] = 0, 1

    def peer(self, name):
        family = 0 if self.options["stream"] else 2
        return bytes([family, 0, name]).ljust(64, b"\0")

    def _say(self, name, **fields):
        self.numbers[name] += 1
        header = Header(
            func_id=FUNC, session=name, credit=self.below[name], pkt_no=self.numbers[name], **fields
        )
        data = header.pack() + bytes(header.length)
        actions = self.core.receive(self.peer(name), data, self.now)
        if any(isinstance(action, Place) for action in actions):
            actions += self.core.accept(data, self.now)
        return actions

    def ask(self, name, req_id, **more):
        """A whole request; the entry that can run, or why it cannot."""
        actions = self._say(
            name, type=MessageType.REQ, flags=Flags.LAST, req_id=req_id, length=4, total=4, **more
        )
        ready = [a.entry for a in actions if isinstance(a, Ready)]
        why = [a.reason for a in actions if isinstance(a, Drop)]
        return ready[0] if ready else why[0], told(actions)

    def have(self, name, below, *, more=False):
        """Everything below is done; whether it wants to send more."""
        self.below[name] = below
        flags = Flags.ACK_REQ if more else 0
        return told(self._say(name, type=MessageType.ACK, flags=flags))

    def run(self, entry):
        """It runs, and its answer is sent; whom that tells what."""
        whom = self.core.running(FUNC, entry, self.now)
        return whom, told(self.core.finished(FUNC, entry, 200, self.now, sent=whom.direct))

    def wait(self, ns):
        self.now += ns
        return told(self.core.tick(self.now))


def told(actions):
    """CREDIT messages: to whom, about which request, and the grant."""
    headers = [parse(a.header, 64 + len(a.payload)) for a in actions if isinstance(a, Send)
               and a.entry < 0]  # fmt: skip
    return [(h.session, h.req_id, h.credit) for h in headers if h.type == MessageType.CREDIT]


@pytest.fixture
def make_town(core):
    return lambda entries=2, **options: Town(core, entries, **options)


def test_credit_is_divided_among_those_who_speak(make_town):
    town = make_town(entries=12)
    town.come(*range(1, 7))
    town.have(1, 1)
    assert town.core.grant(1) == 12  # it was the first
    town.come(7)
    assert town.core.grant(7) == 12 // 7
    town.wait(AWAKE_NS + 1)
    town.have(7, 1)
    assert town.core.grant(7) == 12
    town.have(6, 1)
    assert town.core.grant(6) == 6


def test_an_answer_brings_credit_for_the_request_that_takes_its_entry(make_town):
    town = make_town(entries=2)
    town.come(1)
    assert [town.ask(1, n)[0] for n in (1, 2)] == [0, 1]
    assert town.core.grant(1) == 2
    whom, _ = town.run(0)
    assert (whom.credit, whom.asks) == (3, False)
    town.below[1] = 2
    assert town.ask(1, 3) == (0, [])
    assert town.core.free_entries(FUNC) == 0


def test_the_front_ends_own_answers_bring_credit_when_they_are_sent(make_town):
    town = make_town(entries=2, stream=True)
    town.come(1)
    for n in (1, 2):
        town.ask(1, n)
    assert town.core.running(FUNC, 0, 0).credit == 2
    [answer] = town.core.finished(FUNC, 0, 200, 0, sent=False)
    assert parse(answer.header, 68).credit == 3


def test_an_error_brings_credit_too(make_town):
    town = make_town(entries=1)
    town.come(1)
    town.ask(1, 1)
    town.core.running(FUNC, 0, 0)
    [error] = town.core.finished(FUNC, 0, 500, 0, sent=False)
    assert parse(error.header).credit == 2


def test_who_never_says_what_it_has_gets_no_more_than_twice_its_share(make_town):
    town = make_town(entries=40)
    town.come(*range(1, 11))
    asked = 0
    while asked < town.core.grant(10):
        asked += 1
        entry, _ = town.ask(10, asked)
        town.run(entry)
    assert asked == 2 * 4


def test_no_request_takes_the_place_of_one_that_is_not_done(make_town):
    town = make_town(entries=200)
    town.come(1)
    for n in range(1, WINDOW + 1):
        town.run(town.ask(1, n)[0])
    assert town.core.grant(1) == WINDOW
    assert town.ask(1, WINDOW + 1)[0] == "credit"
    town.below[1] = 2
    assert town.ask(1, WINDOW + 1)[0] == WINDOW
    town.below[1] = WINDOW + 2
    town.have(1, WINDOW + 2)
    assert town.core.free_entries(FUNC) == 200


def test_who_was_refused_is_told_when_there_is_room_in_the_order_of_the_refusals(make_town):
    town = make_town(entries=2)
    town.come(1, 2, 3, 4)
    assert [town.ask(n, 1)[0] for n in (1, 2, 3, 4)] == [0, 1, "full", "full"]
    whom, _ = town.run(0)
    assert whom.asks and whom.credit == 2  # what it had; no more for it, while others wait
    assert town.have(1, 2) == [(3, 1, 1)]
    town.run(1)
    assert town.have(2, 2) == [(4, 1, 1)]
    assert [town.ask(n, 1)[0] for n in (4, 3)] == [0, 1]


def test_room_is_kept_for_who_was_told_of_it(make_town):
    town = make_town(entries=1)
    town.come(1, 2, 3)
    assert [town.ask(n, 1)[0] for n in (1, 2)] == [0, "full"]
    town.run(0)
    assert town.have(1, 2) == [(2, 1, 1)]
    assert town.core.free_entries(FUNC) == 1
    assert town.ask(3, 1)[0] == "full"
    assert town.ask(2, 1)[0] == 0


def test_what_gives_an_entry_back_does_not_take_it_from_who_waits(make_town):
    town = make_town(entries=1)
    town.come(1, 2)
    town.ask(1, 1)
    town.run(0)
    town.ask(2, 1)
    town.below[1] = 2
    assert town.ask(1, 2) == ("full", [(2, 1, 1)])


def test_room_that_is_not_used_goes_to_the_next(make_town):
    town = make_town(entries=1)
    town.come(1, 2, 3)
    assert [town.ask(n, 1)[0] for n in (1, 2, 3)] == [0, "full", "full"]
    town.run(0)
    assert town.have(1, 2) == [(2, 1, 1)]
    assert town.core.is_pressed()
    assert town.wait(PROMISE_NS) == []
    assert town.wait(1) == [(3, 1, 1)]
    assert town.wait(PROMISE_NS + 1) == []
    assert not town.core.is_pressed()
    assert town.ask(1, 2)[0] == 0


def test_who_asks_and_has_no_credit_is_answered_and_told_when_it_has_some(make_town):
    town = make_town(entries=1)
    town.come(1)
    town.ask(1, 1)
    town.come(2)
    assert town.have(2, 1, more=True) == [(2, 0, 0)]
    town.run(0)
    assert town.have(1, 2) == [(2, 0, 1)]
    assert town.ask(2, 1)[0] == 0


def test_who_is_done_and_waits_hears_once_and_when_it_asks_again(make_town):
    town = make_town(entries=1)
    town.come(1, 2)
    town.ask(1, 1)
    town.ask(2, 1)
    town.run(0)
    assert town.have(1, 2, more=True) == [(2, 1, 1)]
    assert town.have(1, 2, more=True) == [(1, 0, 1)]
    town.run(town.ask(2, 1)[0])
    assert town.have(2, 2) == [(1, 0, 2)]


@pytest.mark.parametrize("how", ["died", "failed", "expired", "leaves", "cancelled"])
def test_whatever_frees_an_entry_is_heard_by_who_waits(make_town, how):
    town = make_town(entries=1)
    town.come(1, 2)
    assert [town.ask(n, 1)[0] for n in (1, 2)] == [0, "full"]
    if how in ("died", "failed"):
        town.core.running(FUNC, 0, 0)
    if how == "died":
        found = town.core.worker_died(FUNC, 0, 0)
    elif how == "failed":
        found = town.core.finished(FUNC, 0, 500, 0, sent=False)
    elif how == "expired":
        found = town.core.expired(FUNC, 0, 0)
    elif how == "leaves":
        found = town.core.remove_session(1, 0)
    else:
        found = town._say(1, type=MessageType.CANCEL, req_id=1)
    assert told(found) == [(2, 1, 1)]


def test_what_ran_for_nobody_makes_room_too(make_town):
    town = make_town(entries=1)
    town.come(1, 2)
    town.ask(1, 1)
    town.core.running(FUNC, 0, 0)
    town.core.remove_session(1, 0)
    assert town.ask(2, 1)[0] == "full"
    assert told(town.core.finished(FUNC, 0, 200, 0, sent=True)) == [(2, 1, 1)]


def test_answers_ask_to_be_acknowledged_while_somebody_waits(make_town):
    town = make_town(entries=2, stream=True)
    town.come(1, 2)
    for n in (1, 2):
        town.ask(1, n)
    flags = []
    for entry in (0, 1):
        town.core.running(FUNC, entry, 0)
        [answer] = town.core.finished(FUNC, entry, 200, 0, sent=False)
        flags.append(parse(answer.header, 68).flags)
        town.ask(2, 1)
    assert flags == [Flags.LAST, Flags.LAST | Flags.ACK_REQ]


def test_answers_of_who_is_silent_are_given_up_when_others_wait(make_town):
    town = make_town(entries=2)
    town.come(1, 2, 3)
    for name in (1, 2):
        town.run(town.ask(name, 1)[0])
    assert town.wait(SPARE_NS) == []
    town.have(2, 1)  # it may lack the answer
    assert town.ask(3, 1)[0] == "full"
    assert town.wait(1) == [(3, 1, 1)]
    assert town.core.free_entries(FUNC) == 1
    asked = town._say(1, type=MessageType.REQ, flags=Flags.LAST | Flags.ACK_REQ, req_id=1, length=4,
                      total=4)  # fmt: skip
    status = [parse(a.header).status for a in asked if isinstance(a, Send)]
    assert status == [WireStatus.LOST_ANSWER]


def test_answers_are_kept_for_long_when_nobody_waits(make_town):
    town = make_town(entries=1)
    town.come(1)
    town.run(town.ask(1, 1)[0])
    town.wait(REST_NS)
    assert town.core.free_entries(FUNC) == 0
    town.wait(1)
    assert town.core.free_entries(FUNC) == 1


def test_many_sessions_have_their_turns_however_few_entries_there_are(make_town):
    """Everybody asks again as soon as it may; nobody is left behind, and no entry is idle."""
    town, sessions, rounds = make_town(entries=3), range(1, 12), 40
    town.come(*sessions)
    next_id, served, may = dict.fromkeys(sessions, 1), dict.fromkeys(sessions, 0), list(sessions)
    for _ in range(rounds * len(sessions)):
        ready = []
        for name in may:
            entry, _ = town.ask(name, next_id[name])
            if entry != "full":
                ready.append((name, entry))
        may = []
        for name, entry in ready:
            whom, _ = town.run(entry)
            assert (whom.session, whom.req_id) == (name, next_id[name])
            served[name] += 1
            next_id[name] += 1
            may += [to for to, _, _ in town.have(name, next_id[name], more=True) if to != name]
            if town.core.grant(name) >= next_id[name]:
                may.append(name)
            town.now += MS
        assert may  # at once, by no timer
    assert max(served.values()) - min(served.values()) <= 2


def test_the_load_is_what_may_be_on_its_way(make_town):
    town = make_town(entries=4)
    town.come(1, 2, 3)
    town.run(town.ask(1, 1)[0])
    town.have(1, 2)
    grants = [town.core.grant(n) for n in (1, 2, 3)]
    assert town.core.load(FUNC) == (3, sum(grants) - 1)
    town.core.remove_session(1, 0)
    assert town.core.load(FUNC) == (2, sum(grants[1:]))


# ---- several addresses, and promises that are of no use


def test_an_address_with_many_sessions_gets_no_more_turns_than_another(make_town):
    town = make_town(entries=2)
    many, one = range(1, 20), 20
    town.come(*many)
    town.come(one, origin=1)
    running = [town.ask(name, 1)[0] for name in (1, 2)]
    for name in many[2:]:
        assert town.ask(name, 1)[0] == "full"
    assert town.ask(one, 1)[0] == "full"
    heard = []
    for name, entry in zip((1, 2), running, strict=True):
        town.run(entry)
        heard += [to for to, _, _ in town.have(name, 2)]
    assert heard == [3, one]


def test_who_lets_promises_lapse_holds_one_entry_at_most(make_town):
    """The one who uses its own is served at once, however many sessions the other has."""
    town = make_town(entries=4)
    greedy, honest = range(1, 60), 60
    town.come(*greedy)
    town.come(honest, origin=1)
    used = [town.ask(name, 1)[0] for name in greedy[:4]]
    for name in greedy[4:]:
        assert town.ask(name, 1)[0] == "full"
    for name, entry in zip(greedy, used, strict=False):
        town.run(entry)
        town.have(name, 2)
    for _ in range(3):
        town.wait(PROMISE_NS + 1)
    for n in range(1, 40):
        entry, _ = town.ask(honest, n)
        assert entry != "full"
        town.run(entry)
        town.have(honest, n + 1)
        town.wait(MS)
        if n % 10 == 0:
            town.wait(PROMISE_NS + 1)


def test_who_uses_what_is_kept_for_it_is_trusted_with_more_again(make_town):
    town = make_town(entries=2)
    town.come(*range(1, 10))
    entries = [town.ask(name, 1)[0] for name in range(1, 10)][:2]
    for name, entry in zip((1, 2), entries, strict=True):
        town.run(entry)
        town.have(name, 2)
    assert [to for to, _, _ in town.wait(PROMISE_NS + 1)] == [5]  # for 3 and 4 in vain
    entry, found = town.ask(5, 1)
    assert [to for to, _, _ in found] == []
    assert [to for to, _, _ in town.wait(1)] == [6]
    town.run(entry)
    assert town.have(5, 2) == [(7, 1, 1)]  # two at once


def test_room_is_kept_longer_for_one_whose_requests_take_longer(make_town):
    town = make_town(entries=1)
    town.come(1, 2, 3)
    town.now = MS
    assert [town.ask(n, 1)[0] for n in (1, 2)] == [0, "full"]
    town.run(0)
    assert town.have(1, 2) == [(2, 1, 1)]
    trip = 2 * PROMISE_NS
    town.wait(PROMISE_NS + 1)
    assert town.ask(3, 1)[0] == 0
    town.wait(trip - PROMISE_NS - 1)
    assert town.ask(2, 1)[0] == "full"
    town.run(0)
    assert town.have(3, 2) == [(2, 1, 1)]
    town.wait(trip)
    assert town.core.is_pressed()  # there is no other's promise
    assert town.ask(2, 1)[0] == 0


def test_no_patience_is_without_end(make_town):
    town = make_town(entries=1)
    town.come(1, 2)
    town.now = MS
    town.ask(1, 1)
    for _ in range(2):
        assert town.ask(2, 1)[0] == "full"
        if town.core.grant(1) == 1:
            town.run(0)
            assert town.have(1, 2) == [(2, 1, 1)]
        town.wait(100 * PROMISE_NS)
        if not town.core.is_pressed():
            assert town.ask(1, 2)[0] == 0
    town.run(0)
    assert town.have(1, 3) == [(2, 1, 1)]
    town.wait(MOST_PROMISE_NS)
    assert town.core.is_pressed()
    town.wait(1)
    assert not town.core.is_pressed()


def test_credit_is_divided_among_addresses(make_town):
    town = make_town(entries=12)
    town.come(*range(1, 7))
    town.come(7, origin=1)
    assert town.core.grant(7) == 6
    town.wait(AWAKE_NS + 1)
    town.have(7, 1)
    assert town.core.grant(7) == 12


def test_who_cancels_what_was_refused_waits_no_more(make_town):
    town = make_town(entries=1)
    town.come(1, 2, 3)
    assert [town.ask(n, 1)[0] for n in (1, 2, 3)] == [0, "full", "full"]
    town._say(2, type=MessageType.CANCEL, req_id=1)
    town.run(0)
    assert town.have(1, 2) == [(3, 1, 1)]
    assert told(town._say(3, type=MessageType.CANCEL, req_id=1)) == []
    assert not town.core.is_pressed()


def test_who_has_a_promise_and_wants_something_else_gets_credit_for_it(make_town):
    town = make_town(entries=1)
    town.come(1, 2)
    assert [town.ask(n, 1)[0] for n in (1, 2)] == [0, "full"]
    town.run(0)
    assert town.have(1, 2) == [(2, 1, 1)]
    assert town.have(2, 2, more=True) == [(2, 0, 2)]
    assert town.ask(2, 2)[0] == 0


def test_plans_of_few_segment_sizes_are_kept(both):
    core, _ = both()
    function = core.add_function(FUNC, (4096,), (4,), 1)
    first = function.plan(function.inputs, 256)
    for size in range(257, 257 + 2 * MOST_PLANS):
        function.plan(function.inputs, size)
        assert function.plan(function.inputs, 256) is first
    assert len(function.plans) == MOST_PLANS
