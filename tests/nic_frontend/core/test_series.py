"""Answers in parts, by both cores: datagrams are lost, doubled and out of order, clients leave and
workers die. A client never sees a part that is not the one that it asked for."""

import os
import random
import subprocess
import sys

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from oracle.core import Ready, Send, Withdraw
from oracle.native_core import NativeCore
from oracle.series import Part, Unwanted
from oracle.sessions import Session
from shunter.nic_frontend.library import VARIABLE, library
from shunter.nic_frontend.server.model_policy import Runs
from shunter.nic_frontend.wire.header import Header, parse
from shunter.nic_frontend.wire.layout import Flags, MessageType, WireStatus

FUNC, ENTRIES, WINDOW, AHEAD = 3, 16, 64, 8
SECOND = 1_000_000_000
IDLE_NS = 10 * SECOND
SIZE = 40
PEERS = [bytes([2, 0, 0, n]).ljust(64, b"\0") for n in range(3)]
FINAL = {WireStatus.END, WireStatus.WORKER_DIED, WireStatus.HANDLER_FAILED}


class Client:
    """A session that streams, as far as the core can see."""

    def __init__(self, number, stream):
        self.id, self.peer, self.stream = 0x10000 + number, PEERS[number], stream
        self.last = self.pkt_no = 0
        self.asked = {}
        """By request: the request that is answered in parts, and the part; 0: itself."""
        self.open, self.refused, self.streams = set(), set(), {}
        """Requests without an answer; of each stream what is known of it."""

    def header(self, req_id, **fields):
        self.pkt_no += 1
        below = min(self.open, default=self.last + 1)
        base = {"type": MessageType.REQ, "func_id": FUNC, "session": self.id, "count": 1}
        told = {"req_id": req_id, "pkt_no": self.pkt_no, "credit": below} | base | fields
        return Header(**told).pack()

    def begin(self):
        self.last += 1
        self.asked[self.last] = (self.last, 0)
        self.open.add(self.last)
        known = {"under_way": False, "asked": 0, "got": 0, "status": None, "again": []}
        self.streams[self.last] = known
        return self.say(self.last)

    def next(self, req_id):
        self.last += 1
        stream = self.streams[req_id]
        part = min(stream["again"], default=0)
        if part:
            stream["again"].remove(part)
        else:
            stream["asked"] = part = stream["asked"] + 1
        self.asked[self.last] = (req_id, part)
        self.open.add(self.last)
        return self.say(self.last)

    def say(self, req_id):
        """The request, also again."""
        stream, part = self.asked[req_id]
        if part:
            flags = Flags.NEXT | Flags.LAST | Flags.ACK_REQ
            return self.header(req_id, total=part, offset=stream, flags=flags)
        flags = Flags.LAST | Flags.ACK_REQ
        return self.header(req_id, total=SIZE, length=SIZE, status=1, flags=flags)


class World:
    """Some clients, a worker for each stream, and what is on its way between them."""

    make_core = NativeCore

    def __init__(self, seed=0, clients=2, entries=ENTRIES, workers=ENTRIES):
        """``workers``: streams that run at once."""
        self.random, self.now = random.Random(seed), SECOND
        self.core = self.make_core()
        self.core.add_function(FUNC, (SIZE,), (SIZE,), entries)
        self.core.set_runs(FUNC, Runs(1, 1, 1, 1, IDLE_NS))
        self.clients = [Client(n, n == 1) for n in range(clients)]
        for client in self.clients:
            session = Session(client.id, FUNC, client.peer, 64, WINDOW, None, client.stream, 0)
            self.core.add_session(session, self.now)
        self.ways = {client.id: [] for client in self.clients}
        self.ready, self.running, self.written = [], {}, {}
        self.places, self.unwanted, self.ended = {}, set(), {}
        self.workers, self.yet, self.over = workers, 0, set()

    def client(self, session):
        return next((c for c in self.clients if c.id == session), None)

    def send(self, client, datagram):
        self.ways[client.id].append(datagram)

    def arrive(self, client, datagram):
        actions = self.core.receive(client.peer, datagram, self.now, 64 + parse_length(datagram))
        self.act(actions)
        if self.core.awaits(datagram):
            self.act(self.core.accept(datagram, self.now))

    def act(self, actions):
        for action in actions:
            if isinstance(action, Ready):
                self.ready.append(action.entry)
                if not action.returned:
                    self.places[action.entry] = []
            elif isinstance(action, Withdraw):
                self.ready = [e for e in self.ready if e != action.entry]
            elif isinstance(action, Part):
                assert len(self.places[action.entry]) < AHEAD and action.entry not in self.over
                self.places[action.entry].append(action.place)
            elif isinstance(action, Unwanted):
                self.unwanted.add(action.entry)
            elif isinstance(action, Send):
                self.answered(action)

    def answered(self, action):
        header = parse(action.header, 64 + parse_length(action.header))
        client = self.client(action.session)
        if client is None or header.req_id not in client.asked:
            assert client is None or header.type != MessageType.RESP
            return
        stream, part = client.asked[header.req_id]
        known = client.streams[stream]
        if header.type == MessageType.RESP:
            content = self.written[action.entry]
            assert content == (client.id, stream, part), "a part that was not asked for"
            assert header.total == part % SIZE + 1
        if header.type == MessageType.CREDIT or header.req_id not in client.open:
            return
        if header.type == MessageType.RESP:
            known["got"] += 1
        elif header.type != MessageType.ERROR or header.status == WireStatus.RETRY_LATER:
            if header.type == MessageType.ERROR:
                client.refused.add(header.req_id)
            return
        elif header.status == WireStatus.NOT_YET:
            self.yet += 1
            known["again"].append(part)
        elif part == 0:
            known["under_way"] = header.status == WireStatus.UNDER_WAY
            known["status"] = None if known["under_way"] else header.status
        elif known["status"] is None and part == self.ended.get((client.id, stream), (0,))[0] + 1:
            known["status"] = header.status
        if header.status == WireStatus.END:
            total, status = self.ended[client.id, stream]
            assert part > total and status == WireStatus.END
        client.open.discard(header.req_id)

    # ---- what a worker does

    def run(self):
        if self.ready and len(self.running) < self.workers:
            entry = self.ready.pop(0)
            length = self.random.choice([0, 1, 5, 200])
            whom = self.core.running(FUNC, entry, self.now)
            self.act(self.core._taken())
            assert not whom.direct
            self.running[entry] = [whom.session, whom.req_id, 0, length]

    def write(self, entry):
        session, req_id, number, length = self.running[entry]
        is_at_end = entry in self.unwanted or number == length
        if is_at_end and entry not in self.over | self.unwanted and self.random.random() < 0.5:
            self.ended[session, req_id] = number, WireStatus.END
            self.over.add(entry)
            self.places[entry] = []
            self.act(self.core.parts_over(FUNC, entry, self.now))
        elif is_at_end:
            self.finish(entry, WireStatus.OK)
        elif self.places[entry]:
            place = self.places[entry].pop(0)
            self.running[entry][2] = number = number + 1
            self.written[place] = (session, req_id, number)
            self.act(self.core.part(FUNC, entry, number % SIZE + 1, self.now))

    def finish(self, entry, status):
        session, req_id, number, _ = self.running.pop(entry)
        ok = status == WireStatus.OK or entry in self.over
        self.over.discard(entry)
        self.ended[session, req_id] = number, WireStatus.END if ok else status
        self.unwanted.discard(entry)
        if status == WireStatus.WORKER_DIED:
            self.act(self.core.worker_died(FUNC, entry, self.now))
        else:
            self.act(self.core.finished(FUNC, entry, status, self.now, sent=False))


def parse_length(datagram):
    return int.from_bytes(datagram[22:24], "little")


class Story(World):
    """Anything may happen next."""

    def step(self):
        kinds = [self.begins, self.asks, self.says_again, self.comes, self.run, self.writes]
        kinds += [self.fails, self.cancels, self.passes]
        self.random.choices(kinds, [1, 8, 4, 20, 3, 10, 0.2, 0.2, 3])[0]()

    def begins(self):
        client = self.random.choice(self.clients)
        may = self.core.grant(client.id)
        if client.last < may and len(client.streams) < 12:
            self.send(client, client.begin())

    def _under_way(self, client):
        return [
            req_id
            for req_id, known in client.streams.items()
            if known["under_way"]
            and (known["status"] is None or (known["again"] and known["status"] in FINAL))
        ]

    def asks(self):
        client = self.random.choice(self.clients)
        streams = self._under_way(client)
        if streams and client.last < self.core.grant(client.id):
            req_id = self.random.choice(streams)
            known = client.streams[req_id]
            if known["again"] or (known["status"] is None and known["asked"] - known["got"] < 8):
                self.send(client, client.next(req_id))

    def says_again(self):
        client = self.random.choice(self.clients)
        if again := sorted(client.refused & client.open if client.stream else client.open):
            req_id = self.random.choice(again)
            client.refused.discard(req_id)
            if client.stream:
                self.send(client, client.say(req_id))
                return
            fields = {"type": MessageType.QUERY, "flags": Flags.ACK_REQ, "count": 0}
            again = client.header(req_id, **fields)
            self.send(client, self.random.choice([again, client.say(req_id)]))

    def comes(self):
        client = self.random.choice(self.clients)
        way = self.ways[client.id]
        if way:
            at = 0 if client.stream else self.random.randrange(min(4, len(way)))
            datagram = way.pop(at)
            if client.stream or self.random.random() > 0.2:
                self.arrive(client, datagram)
                if not client.stream and self.random.random() < 0.1:
                    self.arrive(client, datagram)

    def writes(self):
        if self.running:
            self.write(self.random.choice(sorted(self.running)))

    def fails(self):
        if self.running:
            entry = self.random.choice(sorted(self.running))
            status = self.random.choice([WireStatus.WORKER_DIED, WireStatus.HANDLER_FAILED])
            self.finish(entry, status)

    def cancels(self):
        client = self.random.choice(self.clients)
        if streams := self._under_way(client):
            req_id = self.random.choice(streams)
            client.streams[req_id]["status"] = WireStatus.CANCELLED
            self.arrive(client, client.header(req_id, type=MessageType.CANCEL))

    def passes(self):
        self.now += self.random.choice([1, 1_000_000, 20_000_000])
        self.act(self.core.tick(self.now))

    def drain(self):
        """Nothing is lost any more: everything ends."""
        for _ in range(4000):
            for client in self.clients:
                again = client.refused & client.open if client.stream else client.open
                for req_id in sorted(again):
                    query = {"type": MessageType.QUERY, "flags": Flags.ACK_REQ, "count": 0}
                    self.send(client, client.header(req_id, **query))
                    self.send(client, client.say(req_id))
                client.refused.clear()
                for req_id in self._under_way(client):
                    known = client.streams[req_id]
                    is_granted = client.last < self.core.grant(client.id)
                    if (known["again"] or known["asked"] == known["got"]) and is_granted:
                        self.send(client, client.next(req_id))
                for datagram in self.ways[client.id]:
                    self.arrive(client, datagram)
                self.ways[client.id] = []
                ack = client.header(0, type=MessageType.ACK, flags=Flags.ACK_REQ, count=0)
                self.arrive(client, ack)
            self.run()
            for entry in list(self.running):
                self.write(entry)
            self.now += 50_000_000
            self.act(self.core.tick(self.now))
            if self.is_over():
                return
        raise AssertionError("it never ends")

    def is_over(self):
        known = [each for client in self.clients for each in client.streams.values()]
        over = all(each["status"] is not None for each in known)
        over = over and not any(self._under_way(client) for client in self.clients)
        return over and not self.running and not any(c.open for c in self.clients)


pytestmark = pytest.mark.skipif(library() is None, reason="the C library is not built")


@pytest.fixture(params=["python", "c"], scope="module", autouse=True)
def which(request, python_core):
    """One core, in turn."""
    World.make_core = python_core if request.param == "python" else NativeCore
    return request.param


@settings(max_examples=60, deadline=None, phases=[Phase.generate])
@given(st.integers(0, 2**32), st.sampled_from([4, ENTRIES]), st.sampled_from([1, 2, ENTRIES]))
def test_every_part_is_the_one_that_was_asked_for_and_every_stream_ends(seed, entries, workers):
    story = Story(seed, entries=entries, workers=workers)
    for _ in range(400):
        story.step()
    story.drain()
    for client in story.clients:
        for req_id, known in client.streams.items():
            if known["status"] == WireStatus.END:
                assert known["got"] == story.ended[client.id, req_id][0]
    for client in story.clients:
        client.asked = {}
        story.act(story.core.remove_session(client.id, story.now))
    assert story.core.free_entries(FUNC) == entries
    story.core.close()


@settings(max_examples=30, deadline=None, phases=[Phase.generate])
@given(st.integers(0, 2**32))
def test_sessions_that_leave_in_the_midst_give_everything_back(seed):
    story = Story(seed, clients=3)
    for _ in range(300):
        story.step()
    for client in list(story.clients):
        story.clients.remove(client)
        story.act(story.core.remove_session(client.id, story.now))
    assert set(story.running) == story.unwanted
    assert not story.ready
    for entry in list(story.running):
        story.write(entry)
    assert story.core.free_entries(FUNC) == ENTRIES
    story.core.close()


def one(length=3, entries=ENTRIES):
    """A stream that is under way, of which nothing was asked yet."""
    world = World(clients=1, entries=entries)
    client = world.clients[0]
    world.arrive(client, client.begin())
    world.run()
    [entry] = world.running
    world.running[entry][3] = length
    assert client.streams[1]["under_way"]
    return world, client, entry


def ask(world, client, count=1):
    for _ in range(count):
        world.arrive(client, client.next(1))


def test_parts_come_in_order_and_the_end_after_them():
    world, client, entry = one()
    ask(world, client, 5)
    assert len(world.places[entry]) == 5
    for _ in range(4):
        world.write(entry)
    known = client.streams[1]
    assert (known["asked"], known["got"], known["status"]) == (5, 3, WireStatus.END)
    assert client.open == set()


def test_parts_that_are_asked_for_out_of_order_are_those_that_were_asked_for():
    world, client, entry = one()
    first, second = client.next(1), client.next(1)
    world.arrive(client, second)
    for _ in range(3):
        world.write(entry)
    assert client.streams[1]["got"] == 1 and client.open == {2}
    world.arrive(client, first)
    assert client.streams[1]["got"] == 2 and not client.open


def test_one_of_a_batch_is_over_before_it_has_run():
    world, client, entry = one(1)
    ask(world, client, 3)
    world.write(entry)
    world.ended[client.id, 1] = (1, WireStatus.END)
    for _ in range(2):
        world.act(world.core.parts_over(FUNC, entry, world.now))
    known = client.streams[1]
    assert (known["got"], known["status"], client.open) == (1, WireStatus.END, set())
    ask(world, client)
    assert not client.open  # it is told to who asks later, too
    assert world.core.part(FUNC, entry, 9, world.now) == []
    ack = client.header(0, type=MessageType.ACK, flags=Flags.ACK_REQ, count=0)
    world.arrive(client, ack)
    assert world.core.free_entries(FUNC) == ENTRIES - 1  # of the request, which runs
    world.act(world.core.worker_died(FUNC, entry, world.now))
    assert world.core.free_entries(FUNC) == ENTRIES


def test_of_one_that_was_too_slow_it_is_said_behind_the_parts_that_it_has():
    world, client, entry = one(200)
    ask(world, client)
    world.write(entry)
    world.ended[client.id, 1] = (1, WireStatus.TOO_SLOW)
    world.act(world.core.parts_over(FUNC, entry, world.now, WireStatus.TOO_SLOW))
    ask(world, client)
    known = client.streams[1]
    assert (known["got"], known["status"], client.open) == (1, WireStatus.TOO_SLOW, set())
    world.act(world.core.worker_died(FUNC, entry, world.now))
    assert known["status"] == WireStatus.TOO_SLOW


def test_the_end_is_told_also_to_who_asks_after_it():
    world, client, entry = one(0)
    world.write(entry)
    assert world.core.free_entries(FUNC) == ENTRIES - 1  # until it is told
    ask(world, client)
    assert client.streams[1]["status"] == WireStatus.END
    assert world.core.free_entries(FUNC) == ENTRIES


def test_of_parts_that_are_unknown_nobody_says_that_they_are_the_end():
    world, client, entry = one(0)
    world.write(entry)
    ask(world, client)
    client.streams[1]["status"] = None
    world.ended[client.id, 1] = (1, WireStatus.LOST_ANSWER)
    ask(world, client)
    assert client.streams[1]["status"] == WireStatus.LOST_ANSWER


def test_a_worker_gets_only_so_many_places():
    world, client, entry = one(200)
    ask(world, client, AHEAD + 3)
    assert len(world.places[entry]) == AHEAD
    world.write(entry)
    assert len(world.places[entry]) == AHEAD


def test_a_stream_of_more_parts_than_the_window_has_requests():
    world, client, entry = one(500, entries=4)
    while client.streams[1]["status"] is None:
        if not client.open:
            ask(world, client)
        world.write(entry) if entry in world.running else None
    assert client.streams[1]["got"] == 500


def test_who_asks_for_nothing_loses_the_stream_and_the_worker_is_told():
    world, client, entry = one()
    world.now += IDLE_NS + 1
    world.act(world.core.tick(world.now))
    assert world.unwanted == {entry}
    world.ended[client.id, 1] = (0, None)
    ask(world, client)
    assert client.streams[1]["status"] == WireStatus.LOST_ANSWER
    world.write(entry)
    assert world.core.free_entries(FUNC) == ENTRIES


def test_who_waits_for_a_slow_worker_loses_nothing():
    world, client, entry = one()
    ask(world, client)
    world.now += IDLE_NS + 1
    world.act(world.core.tick(world.now))
    assert not world.unwanted
    world.write(entry)
    assert client.streams[1]["got"] == 1


def test_what_a_worker_had_not_begun_runs_elsewhere_with_the_same_places():
    world, client, entry = one()
    ask(world, client, 2)
    places = list(world.places[entry])
    assert len(places) == 2
    del world.running[entry]
    world.act(world.core.returned(FUNC, entry, world.now))
    assert world.ready == [entry] and world.places[entry] == places
    world.run()
    world.running[entry][3] = 1
    world.write(entry)
    world.write(entry)
    assert client.streams[1]["status"] == WireStatus.END


def test_streams_leave_room_for_their_parts():
    world = World(clients=1, entries=4)
    client = world.clients[0]
    for _ in range(3):
        world.arrive(client, client.begin())
    assert [client.streams[n]["status"] for n in (1, 2, 3)] == [
        *(None, None),
        WireStatus.WOULD_BE_LATE,
    ]


@pytest.mark.parametrize("wrong", [{"total": 0}, {"total": 70}, {"total": 1}, {"count": 2}])
def test_what_cannot_be_asked_is_refused(wrong):
    world, client, _ = one()
    ask(world, client)
    client.last += 1
    client.asked[client.last], client.open = (1, 99), client.open | {client.last}
    fields = {"offset": 1, "total": 2, "flags": Flags.NEXT | Flags.LAST, **wrong}
    actions = world.core.receive(client.peer, client.header(client.last, **fields), world.now, 64)
    [sent] = [parse(a.header, 64) for a in actions if isinstance(a, Send)]
    assert sent.status == WireStatus.BAD_REQUEST


def test_the_same_under_the_sanitizers(sanitized, which):
    if which != "c":
        return
    path, environment = sanitized
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        # The library for these keeps what comes in parts for longer.
        [*command, "-k", "not sanitizers and not python and not part_came"],
        env={**os.environ, **environment, VARIABLE: path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout + done.stderr


def test_a_stream_that_was_given_up_before_it_came_is_not_run():
    world = World(clients=1)
    [client] = world.clients
    request, given_up = client.begin(), client.last
    cancel = client.header(given_up, type=MessageType.CANCEL)
    for datagram in (cancel, request):
        world.core.receive(client.peer, datagram, world.now, 64 + parse_length(datagram))
    [refused] = [
        header.status
        for action in world.core.accept(request, world.now)
        if isinstance(action, Send) and (header := parse(action.header)).req_id == given_up
    ]
    assert refused == WireStatus.CANCELLED
    assert not world.ready
    world.arrive(client, client.begin())
    assert len(world.ready) == 1


def say(world, client, req_id, **fields):
    """A datagram of a client; the errors that answer it, by request."""
    datagram = client.header(req_id, **fields)
    actions = world.core.receive(client.peer, datagram, world.now, 64 + parse_length(datagram))
    if world.core.awaits(datagram):
        actions += world.core.accept(datagram, world.now)
    world.act(actions)
    sent = [parse(each.header) for each in actions if isinstance(each, Send) and each.entry < 0]
    return {each.req_id: each.status for each in sent if each.type == MessageType.ERROR}


def test_a_cancel_of_what_is_done_does_not_make_another_forgotten():
    world = World(clients=1)
    [client] = world.clients
    for _ in range(WINDOW):
        client.last += 1  # nothing of these, which are done, has ever come
        ack = {"type": MessageType.ACK, "flags": Flags.ACK_REQ, "count": 0}
        say(world, client, 0, credit=client.last + 1, **ack)
    request, given_up = client.begin(), client.last
    say(world, client, given_up, type=MessageType.CANCEL, credit=given_up)
    say(world, client, given_up - WINDOW, type=MessageType.CANCEL, credit=given_up)
    world.arrive(client, request)
    assert client.streams[given_up]["status"] == WireStatus.CANCELLED and not world.ready


def test_one_of_which_a_part_came_and_was_forgotten_can_be_given_up_too():
    world = World(clients=1)
    [client] = world.clients
    request, given_up = client.begin(), client.last
    world.core.receive(client.peer, request, world.now, 64 + SIZE)  # its payload was wrong
    world.now += 3 * SECOND
    world.act(world.core.tick(world.now))
    assert world.core.free_entries(FUNC) == ENTRIES
    say(world, client, given_up, type=MessageType.CANCEL)
    world.arrive(client, client.say(given_up))
    assert client.streams[given_up]["status"] == WireStatus.CANCELLED and not world.ready


def test_who_asks_for_what_is_there_takes_nothing_from_who_asks_far_ahead():
    world, client, entry = one(1)
    next_of = {"flags": Flags.NEXT | Flags.LAST, "offset": 1}
    client.asked |= {2: (1, WINDOW), 3: (1, WINDOW + 1), 4: (1, 1)}
    client.open, client.last = {2, 3, 4}, 4
    assert say(world, client, 2, total=WINDOW, **next_of) == {}
    world.write(entry)  # nobody has asked for it
    assert say(world, client, 3, total=WINDOW + 1, **next_of) == {}
    assert say(world, client, 4, total=1, **next_of) == {}
    assert client.open == {2, 3}
    world.ended[client.id, 1] = (1, WireStatus.END)
    statuses = [
        parse(each.header).status
        for each in world.core.finished(FUNC, entry, 200, world.now, sent=False)
        if isinstance(each, Send)
    ]
    assert statuses == [WireStatus.END] * 2
