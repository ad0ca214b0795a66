"""Handlers that yield: what becomes a part of whose answer, and what is wrong of whom."""

import contextlib
import os
import random
import threading
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_front import PackedFront

from shunter.batching.queue.layout import EntryStatus
from shunter.batching.queue.native import FrontEndError
from shunter.batching.queue.native_parts import LONGEST_SLEEP_NS, PartsEnd
from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec
from shunter.handlers.queue import streaming
from shunter.handlers.queue.streaming import StreamingQueueWorker
from shunter.handlers.queue.tensor_config import UNPADDED, USUAL_BACKLOG, Backlog

OK, BAD, FAILED = EntryStatus.OK, EntryStatus.BAD_REQUEST, EntryStatus.HANDLER_FAILED
IDS = TensorSpec("ids", "int64", (ANY,))
SUM = TensorSpec("sum", "int64", ())
TEXT = TensorSpec("text", BYTES, ())
REQUESTS, PLACES, OVER, LATE = 3, 8, 1 << 63, 1 << 62


class Stories:
    """Runs handlers on requests 0 to 2, each of which has places for all of its parts, or, where
    ``given`` says so, for the first ones."""

    def __init__(self):
        self.made = []

    def __call__(self, infer, output=SUM, unwanted=(), given=None, backlog=USUAL_BACKLOG):
        front = PackedFront([IDS], [output], REQUESTS * (1 + PLACES), part=50, streamed=True)
        self.made.append(front)
        what = front.end, infer, front.attach, UNPADDED, None, backlog
        self.made.append(StreamingQueueWorker(*what))
        self.words, self.queue = words, queue = front.queue.words, front.queue
        for entry in range(REQUESTS):
            front.ask(entry, [entry, 1])
            for number in range(PLACES):
                place = REQUESTS + entry * PLACES + number
                words[queue.entry(entry, "entry_places") + number] = place
            words[queue.entry(entry, "entry_given")] = (given or {}).get(entry, PLACES)
            words[queue.entry(entry, "entry_unwanted")] = entry in unwanted
        statuses = front.run(self.made[-1], *range(REQUESTS))
        said = [self.said(entry) for entry in range(REQUESTS)]
        parts = [
            [
                front.answer(REQUESTS + entry * PLACES + number)[1][0].tolist()
                for number in range(said[entry] & (LATE - 1))
            ]
            for entry in range(REQUESTS)
        ]
        self.late = [bool(each & LATE) for each in said]
        return statuses, parts, [bool(each & OVER) for each in said]

    def said(self, entry):
        """What the worker has said of the parts of a request."""
        return self.words[self.queue.entry(entry, "entry_parts")]

    def give(self, entry, places=PLACES):
        """Its client asks for more."""
        self.words[self.queue.entry(entry, "entry_given")] = places
        os.eventfd_write(self.made[-2]._bells[0], 1)

    def close(self):
        for each in reversed(self.made):
            each.close()


@pytest.fixture
def run():
    made = Stories()
    yield made
    made.close()


def test_what_is_yielded_becomes_a_part_of_each(run):
    def infer(batch):
        for number in range(3):
            yield torch.tensor([10 * i + number for i in range(3)])

    assert run(infer) == ([OK] * 3, [[0, 1, 2], [10, 11, 12], [20, 21, 22]], [False] * 3)


def test_a_handler_may_yield_nothing(run):
    assert run(lambda batch: iter(())) == ([OK] * 3, [[], [], []], [False] * 3)


def test_one_that_returns_gives_one_part(run):
    assert run(lambda batch: torch.tensor([1, 2, 3]))[:2] == ([OK] * 3, [[1], [2], [3]])


def test_some_have_no_part(run):
    def infer(batch):
        yield [torch.tensor(1), None, torch.tensor(3)]
        yield [None, None, torch.tensor(4)]
        yield [None, None, None]

    assert run(infer)[:2] == ([OK] * 3, [[1], [], [3, 4]])


@pytest.mark.parametrize(
    "wrong",
    [
        torch.tensor([1, 2]),
        torch.tensor(1),
        [torch.tensor(1)] * 2,
        [torch.tensor([1])] * 3,
        None,
        ValueError("in the middle"),
    ],
)
def test_what_goes_wrong_is_an_error_after_the_parts_before(run, wrong):
    closed = []

    def infer(batch):
        try:
            yield torch.tensor([1, 2, 3])
            if isinstance(wrong, Exception):
                raise wrong
            yield wrong
            yield torch.tensor([4, 5, 6])
        finally:
            closed.append(True)

    assert run(infer)[:2] == ([FAILED] * 3, [[1], [2], [3]])
    assert closed == [True]


def test_one_is_over_with_what_is_yielded_next(run):
    seen = []

    def infer(batch):
        batch.end(1)
        yield torch.tensor([1, 2, 3])
        seen.append(set(batch.ended))
        batch.end(2)
        yield [torch.tensor(4), torch.tensor(5), None]
        yield torch.tensor([7, 8, 9])
        with pytest.raises(IndexError):
            batch.end(3)
        raise ValueError("it fails for who is not over")

    assert run(infer)[1:] == ([[1, 4, 7], [2], [3]], [False, True, True])
    assert seen == [{1}]


def test_a_handler_is_closed_when_nobody_is_left(run):
    closed = []

    def infer(batch):
        batch.refuse(0)
        batch.end(2)
        try:
            while True:
                yield torch.tensor([1, 2, 3])
        finally:
            closed.append(set(batch.unwanted))

    statuses, parts, over = run(infer, unwanted=(1,))
    assert (statuses, parts, over) == ([BAD, OK, OK], [[], [], [3]], [False, False, True])
    assert closed == [{1}]


def test_texts_in_parts(run):
    def infer(batch):
        yield ["a", None, "c"]
        batch.end(0)
        yield ["", "b", None]

    statuses, parts, over = run(infer, TEXT)
    assert (statuses, over) == ([OK] * 3, [True, False, False])
    assert parts == [[b"a", b""], [b"b"], [b"c"]]


def test_a_part_that_is_too_long_fails_only_its_own(run):
    def infer(batch):
        yield ["a", "b" * (1 << 15), "c"]
        yield ["d", "e", "f"]

    statuses, parts, _ = run(infer, TEXT)
    assert statuses == [OK, FAILED, OK]
    assert parts == [[b"a", b"d"], [], [b"c", b"f"]]


def counted(number):
    return [10 * i + number for i in range(3)]


def steps(run, seen, n=PLACES):
    """Yields the same tensor again and again; ``seen``: what it finds of parts before each step."""

    def infer(batch):
        tensor = torch.empty(3, dtype=torch.int64)
        for number in range(n):
            seen.append(([run.said(entry) for entry in range(3)], set(batch.unwanted)))
            yield tensor.copy_(torch.tensor(counted(number)))
            tensor.fill_(-1)

    return infer


WHOLE = [list(range(10 * i, 10 * i + PLACES)) for i in range(3)]


@pytest.mark.parametrize("most", [0, 1 << 20], ids=["none kept", "all kept"])
def test_who_does_not_read_holds_nobody_up_and_is_let_go(run, most):
    seen = []
    found = run(steps(run, seen), given={1: 2}, backlog=Backlog(most, 30))
    # They hear of their end before the batch ends where something was still kept.
    assert found[:2] == ([OK] * 3, [WHOLE[0], WHOLE[1][:2], WHOLE[2]])
    assert run.late == [False, True, False] and found[2][1]
    assert [said[0] for said, _ in seen] == list(range(PLACES))
    if most:
        assert found[2] == [True] * 3
    else:
        assert seen[-1][1] == {1}  # it is said to the handler, too


def test_what_was_kept_goes_when_there_are_places(run):
    seen = []

    def infer(batch):
        for number, found in enumerate(steps(run, seen)(batch)):
            if number == 6:
                run.give(1)
            yield found

    found = run(infer, given={1: 2}, backlog=Backlog(1 << 20, 0))
    assert found[:2] == ([OK] * 3, WHOLE) and run.late == [False] * 3
    assert [said[1] for said, _ in seen] == [0, 1, 2, 2, 2, 2, 2, PLACES - 1]


def test_others_wait_for_who_is_a_little_behind(run):
    seen = []

    def infer(batch):
        threading.Timer(0.1, run.give, [1]).start()
        yield from steps(run, seen)(batch)

    found = run(infer, given={1: 2}, backlog=Backlog(0, 100_000))
    assert found[:2] == ([OK] * 3, WHOLE) and run.late == [False] * 3
    assert [said for said, _ in seen] == [[n] * 3 for n in range(PLACES)]


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_kept_goes_after_the_handler_has_ended(run, fails):
    def infer(batch):
        yield from steps(run, [])(batch)
        run.give(1)
        if fails:
            raise OSError("at its end")

    statuses, parts, over = run(infer, given={1: 2}, backlog=Backlog(1 << 20, 0))
    assert (statuses, parts) == ([FAILED if fails else OK] * 3, WHOLE)
    assert over == [not fails] * 3 and run.late == [False] * 3


def test_when_all_are_behind_the_handler_waits_and_nobody_is_let_go(run):
    seen, given, slept = [], dict.fromkeys(range(3), 2), []

    def infer(batch):
        batch.refuse(0)
        yield from steps(run, seen)(batch)

    def sleep(*how_long):
        # All ask for more at one moment: one of them alone would leave the others behind.
        slept.append(how_long)
        if len(slept) == 3:
            for entry in range(3):
                run.give(entry)

    with mock.patch.object(PartsEnd, "sleep", sleep):
        found = run(infer, given=given, backlog=Backlog(1 << 20, 0))
    assert found[:2] == ([BAD, OK, OK], [[], *WHOLE[1:]])
    assert [said[1] for said, _ in seen] == list(range(PLACES))


class Times:
    """A story in which all clients of a batch ask for one more part from time to time, and others
    wait for the worker from one time to another; time passes only while it sleeps."""

    def __init__(self, asks, waits):
        """``asks``: times, ascending; ``waits``: pairs of times, ascending and apart."""
        self.now, self.asks, self.waits, self.parts = 1, asks, waits, 0

    def __enter__(self):
        self.run = Stories()
        clock = SimpleNamespace(monotonic_ns=lambda: self.now)
        self._stack = contextlib.ExitStack()
        self._stack.callback(self.run.close)
        self._stack.enter_context(mock.patch.object(streaming, "time", clock))
        sleep = lambda _, sleeping, most_ns: self.pass_time(most_ns)  # noqa: E731
        self._stack.enter_context(mock.patch.object(PartsEnd, "sleep", sleep))
        return self

    def __exit__(self, *_):
        self._stack.close()

    def pass_time(self, most_ns):
        assert most_ns > 0
        self.now += min(most_ns, LONGEST_SLEEP_NS, *(at - self.now for at in self.asks[:1]))
        while self.asks and self.asks[0] <= self.now:
            self.asks.pop(0)
            self.parts += 1
            for entry in range(REQUESTS):
                self.run.give(entry, min(self.parts, PLACES))
        self.look()

    def look(self):
        since = next((a for a, b in self.waits if a <= self.now < b), 0)
        self.run.words[self.run.queue.front_end("front_end_since_ns")] = since

    def __call__(self, n, stall_ms):
        """A handler of so many steps; what came of it."""

        def infer(batch):
            self.look()
            yield from steps(self.run, [], n)(batch)

        given = dict.fromkeys(range(REQUESTS), 0)
        return self.run(infer, given=given, backlog=Backlog(0, 0, stall_ms))


SECOND = 1_000_000_000


def times_of(seed, most, longest):
    """So many times, ascending, with up to that long between them."""
    chosen, now = random.Random(seed), 1
    return [now := now + chosen.randrange(1, longest) for _ in range(most)]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 50, 3000, 30_000]), st.integers(0, PLACES - 1))
def test_who_reads_nothing_or_sips_does_not_keep_the_worker_from_others_for_ever(
    seed, stall_ms, sips
):
    begin, *asks = times_of(seed, 1 + sips, 3 * (stall_ms + 10) * SECOND // 1000)
    with Times(asks, [(begin, 1 << 60)]) as times:
        times(1 << 30, stall_ms)
        assert times.run.late == [True] * REQUESTS
        most_ns = begin + stall_ms * SECOND // 1000  # and a quarter of the time it may always be
        assert times.now <= 4 * most_ns // 3 + 2 * LONGEST_SLEEP_NS


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([0, 50, 3000]), st.integers(0, 6))
def test_while_nobody_waits_for_the_worker_it_waits_for_its_clients_for_as_long_as_it_takes(
    seed, stall_ms, waits
):
    asks = times_of(seed, PLACES, 200 * SECOND)
    ends = times_of(seed + 1, 2 * waits, stall_ms * SECOND // 7000 + 2)
    ends = [at + i // 2 * 50 * SECOND for i, at in enumerate(ends)]
    pairs = list(zip(ends[::2], ends[1::2], strict=True)) if stall_ms else []
    with Times(asks, pairs) as times:
        assert times(PLACES, stall_ms)[:2] == ([OK] * REQUESTS, WHOLE)
        assert times.run.late == [False] * REQUESTS


def test_who_is_a_little_slower_than_the_handler_may_be_so_though_others_wait():
    def story(works_ns):
        asks = [n * (works_ns + 90_000_000) + 90_000_000 for n in range(PLACES)]
        with Times(asks, [(1, 1 << 60)]) as times:

            def infer(batch):
                times.look()
                for found in steps(times.run, [])(batch):
                    yield found
                    until = times.now + works_ns
                    while times.now < until:
                        times.pass_time(until - times.now)

            given = dict.fromkeys(range(REQUESTS), 0)
            times.run(infer, given=given, backlog=Backlog(0, 0, 200))
            return times.run.late

    assert story(300_000_000) == [False] * REQUESTS
    assert story(0) == [True] * REQUESTS


def test_who_has_ended_and_does_not_read_is_let_go(run):
    def infer(batch):
        for number, found in enumerate(steps(run, [])(batch)):
            if number == 4:
                batch.end(1)
            yield found

    found = run(infer, given={1: 2}, backlog=Backlog(1 << 20, 20))
    assert found[1] == [WHOLE[0], WHOLE[1][:2], WHOLE[2]] and run.late == [False, True, False]


def test_a_kept_part_that_is_too_long_fails_only_its_own(run):
    def infer(batch):
        yield ["a", "b", "c"]
        yield ["d", "e" * (1 << 15), "f"]
        run.give(1)
        yield ["g", "h", "i"]

    statuses, parts, _ = run(infer, TEXT, given={1: 1}, backlog=Backlog(1 << 20, 0))
    assert statuses == [OK, FAILED, OK]
    assert parts == [[b"a", b"d", b"g"], [b"b"], [b"c", b"f", b"i"]]


def test_what_the_front_end_says_of_places_is_no_failure_of_the_handler(run):
    def infer(batch):
        run.words[run.queue.entry(1, "entry_places")] = 1 << 20
        yield torch.tensor([1, 2, 3])

    with pytest.raises(FrontEndError, match="the place of a part"):
        run(infer)
