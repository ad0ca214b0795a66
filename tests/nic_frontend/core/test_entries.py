"""Entries: given out in ring order, and those that wait, against naive models."""

from hypothesis import given
from hypothesis import strategies as st

from oracle.entries import EntryRing, Waiting, WaitingEntries

SIZES = st.integers(1, 12)


@given(SIZES, st.lists(st.one_of(st.none(), st.integers(0, 11)), max_size=80))
def test_entries_are_given_out_in_ring_order(size, events):
    """None takes one, a number gives one back."""
    ring, used, after = EntryRing(size), set(), 0
    for event in events:
        if event is None:
            free = [(after + i) % size for i in range(size) if (after + i) % size not in used]
            expected = free[0] if free else None
            assert ring.peek() == expected == ring.take()
            if expected is not None:
                used.add(expected)
                after = (expected + 1) % size
        elif event in used:
            used.remove(event)
            ring.give_back(event)
        assert ring.free == size - len(used)


def test_a_full_ring_gives_nothing():
    ring = EntryRing(2)
    assert [ring.take() for _ in range(3)] == [0, 1, None]
    ring.give_back(0)
    assert (ring.take(), ring.free) == (0, 0)


class Naive:
    """What waits, as a list."""

    def __init__(self):
        self.row = []

    def take(self, most):
        if self.row[0].alone:
            found = [self.row[0]]
        else:
            urgent = [w for w in self.row if w.deadline_ns]
            urgent.sort(key=lambda w: (w.deadline_ns, w.number))
            found = (urgent + [w for w in self.row if not w.deadline_ns])[:most]
        self.row = [w for w in self.row if w not in found]
        return [w.entry for w in found]


@st.composite
def histories(draw):
    size = draw(SIZES)
    kinds = st.sampled_from(["add", "back", "remove", "take", "overdue"])
    steps = st.tuples(kinds, st.integers(0, size - 1), st.integers(0, 20), st.booleans())
    return draw(st.lists(steps, max_size=60))


@given(histories())
def test_what_waits_leaves_as_in_a_list(steps):
    waiting, naive = WaitingEntries(), Naive()
    for now, (kind, entry, number, alone) in enumerate(steps):
        is_there = entry in [w.entry for w in naive.row]
        if kind in ("add", "back") and not is_there:
            came = now if kind == "add" else now - number - 0.5  # it had waited before
            each = Waiting(entry, now, number and now + number, alone, came)
            waiting.add(each)
            earlier = [i for i, w in enumerate(naive.row) if w.alone or w.number <= came]
            naive.row.insert(0 if alone else max(earlier, default=-1) + 1, each)
        elif kind == "remove":
            assert waiting.remove(entry) == is_there
            naive.row = [w for w in naive.row if w.entry != entry]
        elif kind == "take" and naive.row:
            assert waiting.take(number + 1) == naive.take(number + 1)
        elif kind == "overdue":
            late = [w for w in naive.row if w.deadline_ns and w.deadline_ns <= now]
            late.sort(key=lambda w: (w.deadline_ns, w.number))
            gone = []
            while (first := waiting.earliest()) and first.deadline_ns <= now:
                waiting.remove(first.entry)
                gone.append(first.entry)
            assert gone == [w.entry for w in late]
            naive.row = [w for w in naive.row if w not in late]
        assert len(waiting) == len(naive.row)
        assert waiting.oldest_ns == (naive.row[0].arrival_ns if naive.row else None)
        deadlines = [w.deadline_ns for w in naive.row if w.deadline_ns]
        assert waiting.tightest_ns() == min(deadlines, default=None)


def test_a_batch_is_of_so_many_rows_and_none_overtakes_what_does_not_fit():
    waiting = WaitingEntries()
    for entry, rows in enumerate((2, 3, 4, 1, 9, 1)):
        waiting.add(Waiting(entry, 0, 0, number=entry, rows=rows))
    assert waiting.rows == 20
    assert waiting.take(4, shared=True) == [0]  # beside others
    assert [waiting.take(8) for _ in range(3)] == [[1, 2, 3], [4], [5]]  # 9 rows: one request
    waiting.add(Waiting(7, 0, 0, rows=9))
    assert waiting.take(8, shared=True) == []


def test_without_deadlines_a_batch_is_in_the_order_of_arrivals():
    waiting = WaitingEntries()
    for number, entry in enumerate((2, 0, 3)):
        waiting.add(Waiting(entry, 0, 0, number=number))
    assert waiting.take(2) == [2, 0] and waiting.take(8) == [3] and waiting.take(1) == []


def test_a_batch_begins_with_the_earliest_deadline():
    waiting = WaitingEntries()
    for number, (entry, deadline) in enumerate([(1, 0), (2, 90), (3, 70), (4, 80), (6, 70)]):
        waiting.add(Waiting(entry, 0, deadline, number=number))
    assert [waiting.take(2), waiting.take(3)] == [[3, 6], [4, 2, 1]]


def test_what_may_have_killed_a_worker_runs_alone():
    waiting = WaitingEntries()
    for entry, alone in ((1, False), (2, True), (3, False)):
        waiting.add(Waiting(entry, 0, 0, alone))
    assert [waiting.take(8) for _ in range(2)] == [[2], [1, 3]]


def test_what_comes_back_has_its_place_again():
    waiting = WaitingEntries()
    for entry, number in ((6, 6), (4, 4), (0, 2), (2, 3)):
        waiting.add(Waiting(entry, 0, 0, number=number))
    assert waiting.take(4) == [0, 2, 4, 6]
