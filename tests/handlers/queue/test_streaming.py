"""Handlers that yield: what becomes a part of whose answer, and what is wrong of whom."""

import pytest
import torch
from packed_front import PackedFront

from shunter.batching.queue.layout import EntryStatus
from shunter.batching.queue.tensor_spec import ANY, BYTES, TensorSpec
from shunter.handlers.queue.streaming import StreamingQueueWorker
from shunter.handlers.queue.tensor_config import UNPADDED

OK, BAD, FAILED = EntryStatus.OK, EntryStatus.BAD_REQUEST, EntryStatus.HANDLER_FAILED
IDS = TensorSpec("ids", "int64", (ANY,))
SUM = TensorSpec("sum", "int64", ())
TEXT = TensorSpec("text", BYTES, ())
REQUESTS, PLACES, OVER = 3, 8, 1 << 63


@pytest.fixture
def run():
    """Runs a handler on requests 0 to 2, of which each has places for all of its parts."""
    made = []

    def build(infer, output=SUM, unwanted=()):
        front = PackedFront([IDS], [output], REQUESTS * (1 + PLACES), part=50, streamed=True)
        made.append(front)
        made.append(StreamingQueueWorker(front.end, infer, front.attach, UNPADDED, None))
        words, queue = front.queue.words, front.queue
        for entry in range(REQUESTS):
            front.ask(entry, [entry, 1])
            for number in range(PLACES):
                place = REQUESTS + entry * PLACES + number
                words[queue.entry(entry, "entry_places") + number] = place
            words[queue.entry(entry, "entry_given")] = PLACES
            words[queue.entry(entry, "entry_unwanted")] = entry in unwanted
        statuses = front.run(made[-1], *range(REQUESTS))
        said = [words[queue.entry(entry, "entry_parts")] for entry in range(REQUESTS)]
        parts = [
            [
                front.answer(REQUESTS + entry * PLACES + number)[1][0].tolist()
                for number in range(said[entry] & (OVER - 1))
            ]
            for entry in range(REQUESTS)
        ]
        return statuses, parts, [bool(each & OVER) for each in said]

    yield build
    for each in reversed(made):
        each.close()


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
