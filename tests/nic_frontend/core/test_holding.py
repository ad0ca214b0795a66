"""What strict requests hold, by tables: the same for the Python core and the C core."""

import pytest

from oracle.core import IDLE_NS, LONGEST_NS, RECEIVE_NS, SLOWEST_NS, STALL_NS, Defaults, Ready
from oracle.holding import Hold, Holds
from oracle.native_core import NativeCore
from oracle.sessions import Session
from shunter.batching.page.layout import HOLDER_FIELDS, HOLDER_SIZE
from shunter.batching.page.slices import EVERY, read_slices
from shunter.handlers.queue.loaded_model import place_of
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus

SLOT, SLICES = 70, 1 << 575 | 1 << 63 | 0b101
WORD = (1 << 64) - 1
K = {name: placed.offset // 8 for name, placed in HOLDER_FIELDS.items()}


class Line:
    """A holder's line, as a reader sees it."""

    def __init__(self):
        self.words = memoryview(bytearray(HOLDER_SIZE)).cast("q")

    def __getattr__(self, name):
        return self.words[K[name]] & WORD

    @property
    def mask(self):
        slices = read_slices(self.words, K["hold_slices"])
        assert (slices == 0) == (self.hold_number == 0)
        return slices

    @property
    def slots(self):
        words = [self.words[K["hold_models"] + n] & WORD for n in range(2)]
        return {
            64 * n + bit for n, word in enumerate(words) for bit in range(64) if word >> bit & 1
        }


@pytest.fixture
def line():
    return Line()


@pytest.fixture
def held(make_table, line):
    """A table whose strict requests hold."""
    return place(make_table(), line)


def place(table, line, now=1, *, proven=True):
    if proven:
        table.prove()
    table.core.set_hold(table.func, SLOT, SLICES, now)
    table.core.hold_at(line.words, now)
    table.now = now
    return table


def other_function(table, func, slot, slices):
    """Another function with a session; its number."""
    table.core.add_function(func, (1,), (1,), 4)
    table.core.set_hold(func, slot, slices, table.now)
    table.core.add_session(Session(table.session + func, func, table.peer, 4, 4), table.now)
    return table.session + func


def ask(table, func, session, req_id=1):
    """A whole request of one byte."""
    fields = {"func_id": func, "session": session, "count": 1, "length": 1, "total": 1}
    at = {"req_id": req_id - table.base, "credit": 1 - table.base}
    return table.say(flags=Flags.LAST, **at, **fields)


def test_the_header_of_a_strict_request_holds_and_its_end_does_not(held, line):
    held.now = 7
    held.say(seq=0)
    assert (line.mask, line.slots) == (SLICES, {SLOT})
    since = line.hold_since_ns, line.hold_progress_ns, line.holder_heartbeat_ns
    assert since == (7, 7, 7)
    held.now = 8
    held.say(seq=1)
    held.say(seq=2)
    assert (line.mask, line.hold_since_ns, line.hold_progress_ns) == (SLICES, 7, 7)
    held.core.running(held.func, 0, 9)
    assert (line.mask, line.hold_since_ns, line.hold_progress_ns) == (SLICES, 7, 9)
    held.core.finished(held.func, 0, 200, 10, sent=True)
    assert (line.mask, line.slots) == (0, set())
    assert (line.hold_since_ns, line.hold_progress_ns) == (7, 10)


@pytest.mark.parametrize(("of_model", "priority"), [(0, 2), (1, 0), (1, 2)])
def test_best_effort_holds_nothing(held, line, of_model, priority):
    held.core.set_defaults(held.func, Defaults(priority=of_model))
    held.whole(priority=priority)
    held.core.running(held.func, 0, 9)
    held.core.finished(held.func, 0, 200, 10, sent=True)
    assert (line.hold_since_ns, line.hold_progress_ns, line.mask) == (0, 0, 0)


def test_it_holds_until_the_last_of_several_is_done(held, line):
    for req_id in (1, 2):
        held.whole(req_id)
    held.whole(3, priority=2)
    for entry in range(3):
        held.core.running(held.func, entry, 2)
    held.core.finished(held.func, 0, 200, 3, sent=True)
    assert line.mask == SLICES
    held.core.finished(held.func, 1, 500, 4, sent=True)
    assert line.mask == 0


def forget_the_session(table):
    table.core.remove_session(table.session, table.now)


def end(how):
    """What makes a request run."""

    def ends(table):
        table.whole()
        table.core.running(table.func, 0, table.now)
        how(table)

    return ends


ENDS = {
    "cancelled in parts": lambda t: (t.say(seq=0), t.say(MessageType.CANCEL)),
    "cancelled": lambda t: (t.whole(), t.say(MessageType.CANCEL)),
    "too late": lambda t: (t.whole(), t.core.expired(t.func, 0, t.now)),
    "given up": lambda t: (
        t.whole(),
        t.core.finished(t.func, 0, WireStatus.NO_WORKER, t.now, sent=False),
    ),
    "done before it is answered": lambda t: (
        t.whole(),
        t.say(MessageType.ACK, credit=2),
    ),
    "forgotten while it runs": end(lambda t: t.say(MessageType.ACK, credit=2)),
    "its session ends in parts": lambda t: (t.say(seq=0), forget_the_session(t)),
    "its session ends": lambda t: (t.whole(), forget_the_session(t)),
    "its session ends while it runs": end(forget_the_session),
    "its client is silent": lambda t: (t.whole(), t.core.tick(t.now + IDLE_NS + 1)),
    "never complete": lambda t: (t.say(seq=0), t.core.tick(t.now + RECEIVE_NS + 1)),
    "it fails": end(lambda t: t.core.finished(t.func, 0, 500, t.now, sent=False)),
    "its worker dies": end(lambda t: t.core.worker_died(t.func, 0, t.now)),
    "the workers go": lambda t: (t.whole(), t.core.set_hold(t.func, SLOT, 0, t.now)),
    "the page goes": lambda t: (t.whole(), t.core.hold_at(None, t.now)),
}


@pytest.mark.parametrize("how", ENDS)
def test_it_holds_nothing_however_it_ends(held, line, how):
    ENDS[how](held)
    assert line.hold_since_ns == 1  # it did
    assert (line.mask, line.slots) == (0, set())


def test_what_is_wrong_holds_nothing(held, line):
    held.say_wrong(total=11)
    held.say(req_id=2, func_id=held.func + 1)
    held.say(req_id=3, flags=Flags.PAYLOAD_CRC)
    held.say(req_id=100)
    assert line.hold_since_ns == 0


def test_what_nobody_has_room_for_holds_nothing(make_table, line):
    table = place(make_table(entries=1), line)
    table.whole(1, priority=2)
    table.say(req_id=2, seq=0)
    assert line.hold_since_ns == 0


@pytest.mark.parametrize("how", ["worker_died", "returned"])
def test_what_runs_again_still_holds(held, line, how):
    held.whole(flags=Flags.IDEMPOTENT)
    held.core.running(held.func, 0, 2)
    getattr(held.core, how)(held.func, 0, 3)
    assert (line.mask, line.hold_progress_ns) == (SLICES, 3)
    held.core.running(held.func, 0, 4)
    held.core.finished(held.func, 0, 200, 5, sent=True)
    assert line.mask == 0


@pytest.mark.parametrize("stream", [False, True], ids=["datagrams", "stream"])
def test_who_sends_no_more_holds_only_for_a_while(make_table, line, stream):
    table = place(make_table(stream=stream), line)
    table.say(seq=0)
    table.core.tick(1 + STALL_NS)
    assert line.mask == SLICES
    table.core.tick(2 + STALL_NS)
    assert line.mask == 0
    table.now = 3 + STALL_NS
    table.say(seq=1)
    assert line.mask == 0  # it has shown that it is slow
    table.say(seq=2)
    assert (line.mask, line.hold_since_ns) == (SLICES, 3 + STALL_NS)
    table.core.tick(3 + 2 * STALL_NS)
    assert line.mask == SLICES  # it is here


def test_who_sends_bit_by_bit_holds_only_for_a_while(make_table, line):
    table = place(make_table(inputs=(4000,)), line)
    table.say(seq=0)
    for seq in (1, 2):
        table.now += STALL_NS // 2
        table.core.tick(table.now)
        assert line.mask == SLICES
        table.say(seq=seq)
    table.now += 4 * 4 * SLOWEST_NS
    table.core.tick(table.now)
    assert line.mask == 0
    assert table.core.free_entries(table.func) == 3  # it may still come


@pytest.mark.parametrize(("segment", "most_ns"), [(4000, 1000 * 640_000), (60_000, LONGEST_NS)])
def test_a_request_that_comes_fast_enough_holds_but_not_for_ever(
    make_table, line, segment, most_ns
):
    table = place(make_table(inputs=(1000 * segment,), segment=segment), line)
    begun = table.now
    for seq in range(999):
        table.say(seq=seq)
        table.now += segment * SLOWEST_NS
        table.core.tick(table.now)
        assert (line.mask == SLICES) is (table.now - begun <= most_ns), seq


def test_a_place_that_was_slow_is_not_for_its_next_request(held, line):
    held.say(seq=0)
    held.core.tick(held.now + RECEIVE_NS + 1)
    held.now += 2 * RECEIVE_NS
    held.whole()  # which is believed again
    held.core.expired(held.func, 1, held.now)
    assert line.mask == 0
    held.say(req_id=2, seq=0)
    assert (line.mask, line.hold_since_ns) == (SLICES, held.now)


BEFORE = {
    "nothing": lambda t: None,
    "one that stalled": lambda t: (t.say(), t.core.tick(t.now + STALL_NS + 1)),
    "one that was given up": lambda t: (t.say(), t.core.tick(t.now + RECEIVE_NS + 1)),
    "one that was cancelled in parts": lambda t: (t.say(), t.say(MessageType.CANCEL)),
    "one that was done in parts": lambda t: (t.say(), t.say(MessageType.ACK, credit=2)),
}


@pytest.mark.parametrize("before", BEFORE)
def test_first_segments_alone_hold_nothing(make_table, line, before):
    """A trickle of them would hold the best-effort work of the machine."""
    table = place(make_table(), line, proven=before != "nothing")
    BEFORE[before](table)
    table.now += 2 * RECEIVE_NS
    for req_id in (2, 3):
        table.say(req_id=req_id, seq=0)
        assert line.mask == 0
    table.say(req_id=2, seq=1)
    (ready,) = [a for a in table.say(req_id=2, seq=2) if isinstance(a, Ready)]
    assert line.mask == SLICES  # it is here
    table.core.running(table.func, ready.entry, table.now)
    table.core.finished(table.func, ready.entry, 200, table.now, sent=True)
    assert line.mask == 0
    table.say(req_id=4, seq=0)
    assert line.mask == SLICES  # and so is believed


@pytest.mark.parametrize("priority", [0, 1, 2])
def test_without_the_right_all_is_best_effort(make_table, line, priority):
    table = place(make_table(strict=False), line)
    table.core.set_defaults(table.func, Defaults(slo_ns=5, timeout_ns=1000))
    (ready,) = [a for a in table.whole(priority=priority) if isinstance(a, Ready)]
    assert (ready.priority, ready.deadline_ns) == (1, table.now + 1000)
    assert line.hold_since_ns == 0


def test_several_functions_hold_together_each_as_long_as_it_wants(held, line):
    session = other_function(held, 9, 3, 0b110)
    held.now = 2
    held.whole()
    held.now = 3
    ask(held, 9, session)
    assert (line.mask, line.slots) == (SLICES | 0b110, {SLOT, 3})
    assert (line.hold_since_ns, line.hold_progress_ns) == (3, 3)
    held.core.expired(held.func, 0, 4)
    assert (line.mask, line.slots) == (0b110, {3})
    held.core.expired(9, 0, 5)
    assert (line.mask, line.slots) == (0, set())
    assert line.hold_since_ns == 3


def test_a_hold_within_another_is_no_newer(held, line):
    session = other_function(held, 9, 3, 0b100)
    held.now = 2
    held.whole()
    held.now = 3
    ask(held, 9, session)
    assert (line.mask, line.hold_since_ns, line.hold_progress_ns) == (SLICES, 2, 3)


def test_who_has_no_slot_says_no_models(held, line):
    session = other_function(held, 9, -1, 0b110)
    held.whole()
    ask(held, 9, session)
    assert (line.mask, line.slots) == (SLICES | 0b110, set())
    held.core.expired(9, 0, 5)
    assert (line.mask, line.slots) == (SLICES, {SLOT})


def test_a_function_without_slices_holds_nothing_until_it_has_some(make_table, line):
    table = make_table()
    table.core.hold_at(line.words, 1)
    table.whole()
    assert line.hold_since_ns == 0
    table.core.set_hold(table.func, SLOT, 0b11, 2)
    assert (line.mask, line.slots, line.hold_since_ns) == (0b11, {SLOT}, 2)
    table.core.set_hold(table.func, 4, 0b1100, 3)
    assert (line.mask, line.slots) == (0b1100, {4})
    table.core.set_hold(table.func, 4, 0b1100, 4)
    assert line.hold_progress_ns == 3


def test_what_moves_is_not_let_go_meanwhile(held, line):
    held.now = 2
    held.whole()
    number = line.hold_number
    held.core.set_hold(held.func, 4, SLICES, 3)
    assert (line.hold_number, line.hold_since_ns, line.slots) == (number, 2, {4})
    held.core.set_hold(held.func, 4, 0b111, 4)
    assert (line.hold_number, line.hold_since_ns, line.mask) == (number + 1, 4, 0b111)
    held.core.set_hold(held.func, 4, 0b11, 5)
    assert (line.hold_number, line.hold_since_ns, line.mask) == (number + 2, 4, 0b11)


def test_another_page_is_told_what_is_held_and_the_last_one_let_go(held, line):
    held.whole()
    other = Line()
    held.core.hold_at(other.words, 5)
    assert (line.mask, line.slots) == (0, set())
    assert (other.mask, other.slots, other.hold_since_ns) == (SLICES, {SLOT}, 5)
    held.core.hold_at(None, 6)
    assert (other.mask, other.slots) == (0, set())
    held.core.expired(held.func, 0, 7)  # nobody is told
    held.whole(2)
    assert (line.mask, other.mask) == (0, 0)


def test_it_says_at_every_tick_that_it_lives(held, line):
    for now in (5, 9):
        held.core.tick(now)
        assert line.holder_heartbeat_ns == now


def test_only_slots_of_the_page_are_taken(core):
    core.add_function(1, (1,), (1,), 1)
    if isinstance(core, NativeCore):  # of the other, Attach is the judge
        for slot in (-2, 128):
            with pytest.raises(OSError, match="Invalid"):
                core.set_hold(1, slot, 1, 1)
    core.set_hold(1, 127, 1, 1)


def test_the_mask_is_raised_last_and_lowered_first():
    stores = []

    class Recorder:
        def __setitem__(self, index, value):
            stores.append((index, value))

    holds, models = Holds(), [K["hold_models"], K["hold_models"] + 1]
    holds.of[1] = Hold(slot=2, slices=1 | 1 << 512)
    holds.write_to(Recorder(), 5)
    stores.clear()
    holds.count(1, 1, 6)
    assert [index for index, _ in stores] == [
        *(K["holder_heartbeat_ns"], *models, K["hold_since_ns"], K["hold_progress_ns"]),
        *(K["hold_slices"], K["hold_slices"] + 8, K["hold_number"]),
    ]
    stores.clear()
    holds.count(1, 1, 7)
    holds.count(1, -1, 8)
    assert stores == []  # only the first and the last are told
    holds.count(1, -1, 9)
    assert [index for index, _ in stores] == [
        *(K["hold_number"], K["hold_slices"], K["hold_slices"] + 8),
        *models,
    ]


@pytest.mark.parametrize(("slot", "slices"), [(3, 0b11), (2, 0b110), (3, 0b110 | 1 << 512)])
def test_no_store_lets_go_of_what_is_held_before_and_after(slot, slices):
    class Watched(Line):
        def __setitem__(self, index, value):
            self.words[index] = value
            if watched:
                assert read_slices(self.words, K["hold_slices"]) & 0b10
                assert self.slots and self.hold_number

    watched, line, holds = False, Watched(), Holds()
    holds.of[1] = Hold(slot=2, slices=0b11)
    holds.write_to(line, 5)
    holds.count(1, 1, 6)
    watched = True
    holds.place(1, slot, slices, 7)
    assert (line.mask, line.slots) == (slices, {slot})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (-1, 0)),
        ({"SHUNTER_SLOT": "3", "SHUNTER_SLICES": "0x1f"}, (3, 31)),
        ({"SHUNTER_SLOT": "127", "SHUNTER_SLICES": hex(EVERY)}, (127, EVERY)),
        ({"SHUNTER_SLOT": "128", "SHUNTER_SLICES": hex(EVERY + 1)}, (-1, 0)),
        ({"SHUNTER_SLOT": "-1", "SHUNTER_SLICES": "-0x1"}, (-1, 0)),
        ({"SHUNTER_SLOT": "x", "SHUNTER_SLICES": "all"}, (-1, 0)),
        ({"SHUNTER_SLOT": "3", "SHUNTER_SLICES": "0x1", "SHUNTER_PREEMPTIBLE": "1"}, (3, 0)),
        ({"SHUNTER_SLOT": "3", "SHUNTER_SLICES": "0x1", "SHUNTER_PREEMPTIBLE": "0"}, (3, 1)),
    ],
)
def test_a_worker_takes_its_place_from_its_server(environ, expected):
    assert place_of(environ) == expected
