"""Which memory clients share with workers, and when its number is another's."""

import math
import os

import pytest

from shunter.batching.queue.native import REGIONS
from shunter.batching.queue.regions import BYTES, FEW_BYTES, MANY, MOST_BYTES, Regions, window_of
from shunter.batching.queue.shared_memory import is_sealed

EACH, WINDOW = 192, 4


class Worker:
    """Hears what a worker would."""

    def __init__(self):
        self.said = []
        self.bytes = {}

    def tell(self, content, descriptors=()):
        self.said.append(content)
        for each in descriptors:
            self.bytes[content["region"]] = os.pread(each, 1, 0)
            with pytest.raises(OSError, match="Bad file"):
                os.write(each, b"x")


def make(regions, session, workers=()):
    """One, into which its client has written the number of the session."""
    region, memory = regions.make(EACH, WINDOW, math.inf)
    assert is_sealed(memory, region.bytes) and region.bytes == WINDOW * EACH
    with pytest.raises(PermissionError):
        os.ftruncate(memory, 1)
    with pytest.raises(PermissionError):
        os.ftruncate(memory, 1 << 20)
    os.pwrite(memory, bytes([session]), 0)
    os.close(memory)
    regions.share(region, session, workers)
    return region


@pytest.mark.parametrize(
    ("each", "window", "expected"),
    [
        (64, 64, 64),
        (192, 5, 5),
        (BYTES // 4, 64, 4),
        (BYTES + 64, 64, 1),
        (MOST_BYTES, 64, 1),
        (MOST_BYTES + 64, 64, 0),
        (0, 64, 0),
    ],
)
def test_a_window_is_as_long_as_its_memory_may_be(each, window, expected):
    assert window_of(each, window) == expected


def test_from_many_sessions_on_each_has_less():
    each = FEW_BYTES // 2
    windows = [window_of(each, 64, others) for others in (0, MANY - 2, MANY - 1, REGIONS)]
    assert windows == [BYTES // each, BYTES // each, 2, 2]
    assert window_of(BYTES, 64, MANY) == 1


def test_a_number_is_anothers_when_no_worker_has_its_memory_any_more(open_descriptors):
    regions, workers = Regions(), {0: Worker(), 3: Worker()}
    before = open_descriptors()
    for session in range(1, REGIONS):
        assert make(regions, session, workers.values()).number == session
    assert regions.make(EACH, WINDOW, math.inf) is None
    assert all(w.bytes == {n: bytes([n]) for n in range(1, REGIONS)} for w in workers.values())

    regions.let_go(lambda session: session != 7, workers)
    assert [w.said[-1] for w in workers.values()] == [{"unmap": 7}] * 2
    assert regions.make(EACH, WINDOW, math.inf) is None
    regions.let_go(lambda session: session != 7, workers)  # said once
    assert [w.said.count({"unmap": 7}) for w in workers.values()] == [1, 1]
    regions.unmapped(7, 3)
    regions.unmapped(8, 0)  # nobody has asked for that
    regions.unmapped("7", 0)
    assert regions.make(EACH, WINDOW, math.inf) is None
    regions.left(0)
    assert make(regions, 77, workers.values()).number == 7
    regions.close()
    assert open_descriptors() == before


def test_a_worker_that_comes_later_gets_what_is_in_use():
    regions, first, second = Regions(), Worker(), Worker()
    make(regions, 1, [first])
    make(regions, 2, [first])
    regions.let_go(lambda session: session == 2, {0: first})
    regions.tell(second)
    assert second.bytes == {2: b"\x02"}
    regions.unmapped(1, 0)
    assert len(regions) == 1
    regions.close()


def test_there_is_none_without_memory_and_nothing_is_left_of_one_that_nobody_heard_of(
    open_descriptors,
):
    regions, before = Regions(), open_descriptors()
    assert regions.make(EACH, WINDOW, WINDOW * EACH - 1) is None
    region, memory = regions.make(EACH, WINDOW, WINDOW * EACH)
    regions.discard(region)
    os.close(memory)
    assert len(regions) == 0 and open_descriptors() == before


