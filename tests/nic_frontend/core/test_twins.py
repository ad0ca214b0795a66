"""The C core does what the Python core does, whatever comes; `make fuzz` has many more examples."""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from oracle.core import Place, Ready, Withdraw
from oracle.series import Part, Unwanted
from oracle.sessions import CallState, Session, keys_of
from shunter.batching.page.layout import HOLDER_FIELDS, HOLDER_SIZE
from shunter.batching.page.slices import read_slices
from shunter.batching.queue.layout import PARTS_AHEAD
from shunter.nic_frontend.server.model_policy import Defaults, Runs
from shunter.nic_frontend.wire.header import Header, behind, unpack
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus

FUZZ = settings.get_current_profile_name() == "fuzz"
RUNNERS = (9, 15, 21, 23, 33, 35, 45)
"""Seeds of worlds in which many batches run; how many others hypothesis happens to find varies."""
EXAMPLES, DATAGRAMS = (1200, 200_000) if FUZZ else (60, 10_000)
"""Stories, and at least so many datagrams in all of them together."""
STEPS = 300
FUNC, ENTRIES = 3, 5
SESSIONS = 6
PEERS = [bytes([2, 0, 0, n]).ljust(64, b"\0") for n in range(SESSIONS)]
KEY = bytes(range(16))
KEYS = [None, KEY, None, KEY, KEY, None]
STRICT = [True, True, True, False, True, True]
PROTECT = [0, 0, Flags.PAYLOAD_CRC, Flags.PAYLOAD_AEAD, Flags.PAYLOAD_AEAD, 0]
STREAM = [False, False, False, False, True, True]
SHARES, REGION, REGION_BYTES = 5, 2, 1000
"""The session whose requests lie in shared memory; a request takes 128 bytes of it."""
SIZES = {"inputs": (9, 4), "outputs": (7,)}
SEGMENT = 4
RUNS = {"inputs": (70,), "outputs": (23,)}
"""Most bytes of a packed function's requests and answers."""
ROWS, LEAST_REQUEST, LEAST_ANSWER = 3, 9, 2
FIELDS = list(Header._fields)
EDGES = [0, 1, 2, 3, 4, 5, 63, 64, 65, 127, 255, 256, 65535, 1 << 31, (1 << 32) - 1, 1 << 63]
WIDTHS = {"magic": 16, "version": 8, "type": 8, "flags": 16, "words": 8, "priority": 8}
WIDTHS |= {"req_id": 64, "func_id": 16, "seq": 16, "count": 16, "length": 16, "status": 16}
NEEDING = {CallState.RECEIVING, CallState.RX_COMPLETE, CallState.RUNNING, CallState.FORGOTTEN}
"""Whose input is needed."""
WIDTHS |= {"tensor": 8, "reserved": 8, "tag": 64}


class World:
    """A pair of cores and the clients of some sessions; every step goes to both."""

    entries, least = ENTRIES, LEAST_REQUEST
    times = (10, 10**6, 4 * 10**6, 10**9, 31 * 10**9, 70 * 10**9)

    def __init__(self, pair, seed):
        self.pair, self.random = pair, random.Random(seed)
        self.now = 1
        self.datagrams = self.held = self.let_gone = self.shared = self.runs = 0
        self.packed = self.is_packed(seed)
        self.sizes = RUNS if self.packed else SIZES
        self.numbers = [0] * SESSIONS
        self.ready, self.running = set(), set()
        self.holds = {}
        """Entries with parts of their input in memory, and of which request."""
        self.awaited = []
        self.lines = [memoryview(bytearray(HOLDER_SIZE)).cast("q") for _ in pair]
        self.is_shown = True
        self.slot, self.slices = 70, 1 << 570 | 1 << 63 | 3
        for core, line in zip(pair, self.lines, strict=True):
            core.add_function(FUNC, self.sizes["inputs"], self.sizes["outputs"], self.entries)
            if self.packed:
                core.set_runs(FUNC, self.runs_of())
            core.set_defaults(FUNC, Defaults(1, 7_000, 12_000))
            core.set_hold(FUNC, self.slot, self.slices, self.now)
            core.hold_at(line, self.now)
        for n in range(SESSIONS):
            self.open(n)

    @staticmethod
    def is_packed(seed):
        return seed % 2

    def runs_of(self):
        return Runs(ROWS, LEAST_REQUEST, LEAST_ANSWER)

    def window(self, n):
        return 2 + n

    def shares(self, n):
        return n == SHARES

    def open(self, n):
        options = SEGMENT, self.window(n), keys_of(KEYS[n]), STREAM[n], PROTECT[n]
        for core in self.pair:
            session = Session(0x10000 + n, FUNC, PEERS[n], *options)
            session.pkt_no = 2**32 - 20
            session.origin, session.may_be_strict, session.key = n % 2, STRICT[n], n % 3
            if self.shares(n):
                session.region, session.region_bytes = REGION, REGION_BYTES
            core.add_session(session, self.now)
        self.numbers[n] = 0

    def both(self, name, *args, **kwargs):
        found = [getattr(core, name)(*args, **kwargs) for core in self.pair]
        assert found[0] == found[1], (name, found)
        self.look_at_inputs()
        for action in found[0]:
            if isinstance(action, Ready):
                self.ready.add(action.entry)
                self.runs += self.packed
                assert 1 <= action.rows <= (ROWS if self.packed else 1)
                assert not self.packed or self.least <= action.bytes <= RUNS["inputs"][0]
            elif isinstance(action, Withdraw):
                self.ready.discard(action.entry)
            elif isinstance(action, Place):
                owner = self.needed()[action.entry]
                assert self.holds.get(action.entry, owner) == owner, "parts of two requests"
                assert 0 <= action.entry < self.entries
                if action.region:
                    assert (action.region, action.length) == (REGION, 0)
                    assert action.offset + 128 <= REGION_BYTES
                    self.shared += 1
                else:
                    size = self.sizes["inputs"][action.tensor]
                    assert action.offset + action.length <= size
                assert action.entry not in self.ready | self.running
        free = {core.free_entries(FUNC) for core in self.pair}
        grants = [[core.grant(0x10000 + n) for core in self.pair] for n in range(SESSIONS)]
        assert len(free) == 1 and all(a == b for a, b in grants)
        return found[0]

    def needed(self):
        """Entries whose input somebody needs: session and request."""
        found = [
            (number, call)
            for number, session in self.pair[0].sessions.items()
            for call in session.calls
        ]
        series = (self.pair[0].functions[FUNC].series or {}).values()
        found += [(each.session, each.call) for each in series]
        return {
            call.entry: (number, call.req_id) for number, call in found if call.state in NEEDING
        }

    def look_at_inputs(self):
        """C has let go of exactly what nobody needs any more."""
        needed = self.needed()
        gone, self.pair[1].let_gone = self.pair[1].let_gone, []
        for func_id, entry in gone:
            holder = self.holds.pop(entry, None)
            assert func_id == FUNC and (holder is None or needed.get(entry) != holder)
            self.let_gone += 1
        for entry, request in self.holds.items():
            assert needed.get(entry) == request, "nobody needs it, and it is kept"

    def accept(self, header):
        """The payload has come: it is kept in its entry from now on."""
        if self.pair[1].awaits(header):
            told = unpack(header)
            calls = self.pair[0].sessions[told.session].calls
            [entry] = [call.entry for call in calls if call.req_id == told.req_id]
            self.holds[entry] = told.session, told.req_id
        self.both("accept", header, self.now)

    def header(self):
        n = self.random.randrange(SESSIONS)
        self.numbers[n] += 1
        seq = self.random.randrange(4)
        parts = [(0, 0, 4, 9), (0, 4, 4, 9), (0, 8, 1, 9), (1, 0, 4, 4)]
        tensor, offset, length, total = parts[seq]
        count, rows = len(parts), 0
        done = max(0, self.pair[0].grant(0x10000 + n) - self.random.randrange(6))
        req_id = done + self.random.randrange(4)
        if self.packed:
            other = self.random.random() < 0.1
            which = self.random.randrange(8) if other else req_id % 5
            tensor, rows = 0, [1, 1, 1, 2, 3, 0, 4, 1][which]
            total = [9, 12, 9, 17, 13, 70, 8, 71][which]
            count = -(-total // SEGMENT)
            seq = self.random.randrange(count)
            offset = seq * SEGMENT
            length = min(SEGMENT, total - offset)
        if self.shares(n):
            tensor = seq = length = 0
            total *= self.packed
            count, offset = 1, self.random.choice([0, 1, 128, 872, 873, 999, 1 << 31])
        kind = self.random.choices(
            [MessageType.REQ, MessageType.ACK, MessageType.CANCEL, MessageType.QUERY], [20, 1, 1, 1]
        )[0]
        flags = Flags.LAST if seq == count - 1 else 0
        for flag in (Flags.ACK_REQ, Flags.IDEMPOTENT, Flags.RETRANS):
            flags |= flag * (self.random.random() < 0.2)
        is_request = kind == MessageType.REQ
        flags |= PROTECT[n] if is_request else 0
        header = Header(
            type=kind,
            flags=flags,
            priority=self.random.randrange(3),
            req_id=req_id,
            func_id=FUNC,
            seq=seq,
            count=count,
            length=length if is_request else self.random.randrange(3),
            total=total,
            offset=offset,
            session=0x10000 + n,
            deadline_us=self.random.choice([0, 0, 10]),
            credit=max(0, done - self.random.randrange(4)),
            status=rows,
            tensor=tensor,
            pkt_no=max(1, self.numbers[n] - self.random.choice([0, 0, 0, 0, 1, 5])),
        )
        return header, n

    def datagram(self):
        header, n = self.header()
        if self.random.random() < 0.3:
            for _ in range(self.random.randrange(1, 3)):
                field = self.random.choice(FIELDS)
                value = self.random.choice([*EDGES, self.random.getrandbits(64)])
                value &= (1 << WIDTHS.get(field, 32)) - 1
                header = header._replace(**{field: value})
        data = bytearray(header.pack(KEYS[n] if self.random.random() < 0.95 else None))
        data += bytes(self.random.getrandbits(8) for _ in range(min(header.length, 300)))
        length = 64 + header.length + behind(header.flags)
        length = length if self.random.random() < 0.97 else self.random.randrange(70)
        if self.random.random() < 0.05:
            data[self.random.randrange(64)] ^= 1 << self.random.randrange(8)
        peer = PEERS[n if self.random.random() < 0.97 else self.random.randrange(SESSIONS)]
        found = self.both("receive", peer, bytes(data[:length]), self.now, length)
        self.datagrams += 1
        if any(isinstance(action, Place) for action in found):
            self.awaited.append(bytes(data[:64]))
        if self.awaited and self.random.random() < 0.9:  # or it comes later, or was wrong
            at = self.random.choice([-1, -1, -1, self.random.randrange(len(self.awaited))])
            self.accept(self.awaited.pop(at))

    def work(self):
        if self.ready and self.random.random() < 0.6:
            entry = self.random.choice(sorted(self.ready))
            self.ready.remove(entry)
            if self.random.random() < 0.1:
                self.both("expired", FUNC, entry, self.now)
                return
            self.running.add(entry)
            whom = [core.running(FUNC, entry, self.now) for core in self.pair]
            assert whom[0] == whom[1]
        elif self.running:
            entry = self.random.choice(sorted(self.running))
            self.running.remove(entry)
            how = self.random.randrange(8)
            if how == 0:
                self.both("worker_died", FUNC, entry, self.now)
            elif how == 1:
                self.both("returned", FUNC, entry, self.now)
            else:
                status = 200 if how > 2 else 500
                size = self.random.choice([2, 4, 5, 23, 23, 1, 24]) if self.packed else 0
                sent = how % 2 == 0
                self.both("finished", FUNC, entry, status, self.now, sent=sent, size=size)

    def pass_time(self):
        self.now += self.random.choice(self.times)
        # Sessions end in an order that does not matter; one at a time is enough to see them equal.
        found = [sorted(core.tick(self.now), key=repr) for core in self.pair]
        assert found[0] == found[1]
        for action in found[0]:
            if isinstance(action, Withdraw):
                self.ready.discard(action.entry)
        self.look_at_inputs()

    def end(self):
        """All sessions leave, and what runs has run."""
        for n in range(SESSIONS):
            if self.pair[0].is_open(0x10000 + n):
                self.both("remove_session", 0x10000 + n, self.now)
        for entry in sorted(self.running):
            size = LEAST_ANSWER * self.packed
            self.both("finished", FUNC, entry, 200, self.now, sent=True, size=size)
        assert not self.holds

    def leave_and_come(self):
        if self.random.random() < 0.2:
            self.both("remove_key", self.random.randrange(3), self.now)
        n = self.random.randrange(SESSIONS)
        if self.pair[0].is_open(0x10000 + n):  # and not only there until what it asked for has run
            self.both("remove_session", 0x10000 + n, self.now)
        if 0x10000 + n not in self.pair[0].sessions and not self.running:
            self.open(n)

    def move(self):
        """The function's workers come or go, or the page of their server does."""
        if self.random.random() < 0.8:
            self.slot = self.random.choice([-1, 0, 63, 64, 127])
            self.slices = self.random.choice([0, 1, 6, 1 << 63, 1 << 64, 1 << 575 | 1])
            for core in self.pair:
                core.set_hold(FUNC, self.slot, self.slices, self.now)
        else:
            self.is_shown = not self.is_shown
            for core, line in zip(self.pair, self.lines, strict=True):
                core.hold_at(line if self.is_shown else None, self.now)

    def look_at_what_is_held(self):
        """Both say the same of it, and it is what the requests hold that there are."""
        python = self.pair[0]
        assert self.lines[0].tobytes() == self.lines[1].tobytes()
        calls = [call for session in python.sessions.values() for call in session.calls]
        calls += [each.call for each in (python.functions[FUNC].series or {}).values()]
        strict = sum(call.holds for call in calls)
        assert python.holds.of[FUNC].strict == strict
        holds = strict and self.slices and self.is_shown
        found = read_slices(self.lines[0], HOLDER_FIELDS["hold_slices"].offset // 8)
        assert found == (self.slices if holds else 0)
        assert bool(self.lines[0][HOLDER_FIELDS["hold_number"].offset // 8]) == (found != 0)
        models = self.lines[0].tobytes()[HOLDER_FIELDS["hold_models"].offset :][:16]
        named = 1 << self.slot if holds and self.slot >= 0 else 0
        assert int.from_bytes(models, "little") == named
        self.held += bool(holds)

    def step(self):
        kinds = [self.datagram, self.work, self.pass_time, self.leave_and_come, self.move]
        self.random.choices(kinds, [30, 12, 1, 0.3, 0.3])[0]()
        self.look_at_what_is_held()


def test_both_cores_say_the_same(both, capsys):
    sent = held = let_gone = shared = runs = 0

    @settings(max_examples=EXAMPLES)
    @given(st.integers(0, 2**32))
    def say_the_same(seed):
        nonlocal sent, held, let_gone, shared, runs
        world = World(both(), seed)
        for _ in range(STEPS):
            world.step()
        world.end()
        let_gone += world.let_gone
        shared += world.shared
        runs += world.runs
        sent += world.datagrams
        held += world.held

    for seed in RUNNERS:
        say_the_same = example(seed)(say_the_same)
    say_the_same()
    assert sent >= DATAGRAMS
    assert 0 < held < EXAMPLES * STEPS
    assert let_gone > EXAMPLES and shared > EXAMPLES / 10 and runs > EXAMPLES / 2
    if FUZZ:
        with capsys.disabled():
            print(f"\n{sent} datagrams through both cores")


class Streams(World):
    """Answers come in parts; of each entry that runs it is known what its worker was told."""

    entries, least = 12, SEGMENT
    times = (10, 10**6, 10**6, 2 * 10**6, 4 * 10**6, 10**9, 2 * 10**9, 4 * 10**9)

    def __init__(self, pair, seed):
        self.places, self.over, self.unwanted = {}, set(), set()
        self.begun = {}
        """The last stream of each session."""
        self.parts = self.remembered = 0
        super().__init__(pair, seed)

    @staticmethod
    def is_packed(seed):
        return 1

    def runs_of(self):
        return Runs(ROWS, SEGMENT, LEAST_ANSWER, 1, 3 * 10**9)

    def window(self, n):
        return (2, 64, 7, 64, 16, 64)[n]

    def shares(self, n):
        return False

    def both(self, name, *args, **kwargs):
        found = super().both(name, *args, **kwargs)
        self.heed(found)
        return found

    def heed(self, actions):
        """What the worker is told makes sense."""
        for action in actions:
            if isinstance(action, Ready) and not action.returned:
                self.places[action.entry] = []
            elif isinstance(action, Part):
                places = self.places[action.entry]
                places.append(action.place)
                assert action.entry in self.running and action.entry not in self.over
                assert len(places) <= PARTS_AHEAD
                assert action.place not in self.ready | self.running | self.holds.keys()
            elif isinstance(action, Unwanted):
                assert action.entry in self.running
                self.unwanted.add(action.entry)
        taken = [place for entry in self.running - self.over for place in self.places[entry]]
        assert len(set(taken)) == len(taken), "a place of two parts"

    def header(self):
        header, n = super().header()
        if header.type in (MessageType.CANCEL, MessageType.QUERY) and self.random.random() < 0.5:
            header = header._replace(req_id=self.begun.get(n, header.req_id))
        if session := self.pair[0].sessions.get(0x10000 + n):
            upto = max(session.asked, session.done) + self.random.choice([0, 1, 1, 1, 1, 1, 1, 2])
            credit = session.done + 1 + self.random.choice([0, 0, 1, 1, 2])
            header = header._replace(credit=credit)
            if header.type == MessageType.REQ:
                header = header._replace(req_id=upto)
        if header.type != MessageType.REQ:
            stays = self.random.random() < 0.95
            return header._replace(flags=header.flags & ~(Flags.LAST * stays)), n
        if self.random.random() < 0.9:  # in one segment
            status = self.random.randrange(1, 4)
            header = header._replace(seq=0, count=1, length=SEGMENT, total=SEGMENT, offset=0)
            header = header._replace(status=status, flags=header.flags | Flags.LAST)
        if self.random.random() < 0.8:
            stream, part = self.next(n)
            header = header._replace(
                flags=header.flags & ~Flags.IDEMPOTENT | Flags.NEXT | Flags.LAST,
                **dict.fromkeys(("seq", "length", "status", "tensor"), 0),
                count=1, total=max(0, part), offset=stream,
            )
        return header, n

    def next(self, n):
        """A part to ask for, of the stream of a session."""
        series = self.pair[0].functions[FUNC].series.values()
        live = [each for each in series if each.session == 0x10000 + n]
        if not live or self.random.random() < 0.05:
            return self.begun.get(n, 1), self.random.randrange(1, 10)
        one = self.random.choice(live)
        far = self.random.choices([0, 60, 64], [20, 1, 1])[0]
        other = one.written + self.random.randrange(-8, 5) + far
        return one.call.req_id, self.random.choices([one.asked + 1, other], [2, 1])[0]

    def datagram(self):
        for n in range(SESSIONS):
            if 0x10000 + n not in self.pair[0].sessions and self.random.random() < 0.1:
                self.open(n)
        super().datagram()

    def work(self):
        for _ in range(self.random.randrange(4)):
            self.work_once()

    def work_once(self):
        self.remembered += sum(len(s.unwanted) for s in self.pair[0].sessions.values())
        entry = self.random.choice(sorted(self.running) or [None])
        if entry is None or self.random.random() < 0.2:
            self.begin()
        elif self.random.random() < 0.03:
            self.over.add(entry)
            status = self.random.choice([WireStatus.END, WireStatus.TOO_SLOW])
            self.both("parts_over", FUNC, entry, self.now, status)
        elif entry not in self.over and self.places[entry] and self.random.random() < 0.8:
            self.places[entry].pop(0)
            self.parts += 1
            size = self.random.choice([2, 4, 5, 23, 23, 7, 24, 1])
            self.both("part", FUNC, entry, size, self.now)
        elif self.random.random() < (0.5 if entry in self.unwanted else 0.05):
            self.finish(entry)

    def begin(self):
        if self.ready:
            entry = self.random.choice(sorted(self.ready))
            self.ready.remove(entry)
            if self.random.random() < 0.05:
                self.both("expired", FUNC, entry, self.now)
                return
            self.running.add(entry)
            whom = [core.running(FUNC, entry, self.now) for core in self.pair]
            assert whom[0] == whom[1] and not whom[0].direct
            self.begun[whom[0].session - 0x10000] = whom[0].req_id
            found = [core._taken() for core in self.pair]
            assert found[0] == found[1]
            self.heed(found[0])

    def finish(self, entry):
        self.running.remove(entry)
        was_over = entry in self.over
        self.over.discard(entry)
        self.unwanted.discard(entry)
        how = self.random.randrange(8)
        if how == 0:
            self.both("worker_died", FUNC, entry, self.now)
        elif how == 1 and not was_over:
            self.both("returned", FUNC, entry, self.now)
        else:
            status = 200 if how > 2 else 500
            self.both("finished", FUNC, entry, status, self.now, sent=False, size=2)


def test_both_cores_say_the_same_of_answers_in_parts(both, capsys):
    sent = parts = remembered = 0

    @settings(max_examples=EXAMPLES)
    @given(st.integers(0, 2**32))
    def say_the_same(seed):
        nonlocal sent, parts, remembered
        world = Streams(both(), seed)
        for _ in range(STEPS):
            world.step()
        world.end()
        sent += world.datagrams
        parts += world.parts
        remembered += world.remembered

    say_the_same()
    assert sent >= DATAGRAMS
    assert parts > 2 * EXAMPLES and remembered > EXAMPLES
    if FUZZ:
        with capsys.disabled():
            print(f"\n{sent} datagrams and {parts} parts through both cores")


def test_both_refuse_the_same_registrations(both):
    python, c = both()
    for core in (python, c):
        core.add_function(1, (1 << 20,), (1,), 2)
        session = Session(5, 1, PEERS[0], 300, 4)
        with pytest.raises((OSError, ValueError)):
            core.add_session(session, 0)


@pytest.mark.parametrize(("size", "protect"), [(127, 0), (0, 0), (128, Flags.PAYLOAD_CRC)])
def test_both_refuse_the_same_shared_memory(both, size, protect):
    for core in both():
        core.add_function(1, (9, 4), (1,), 2)
        session = Session(5, 1, PEERS[0], 300, 4, None, True, protect)
        session.region, session.region_bytes = 1, size
        with pytest.raises((OSError, ValueError)):
            core.add_session(session, 0)
