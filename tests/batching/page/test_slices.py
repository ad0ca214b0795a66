"""Sets of slices, and hold words that tell them: every interleaving of a change with a reader."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.page.hold_words import held_here, stores
from shunter.batching.page.layout import CPU_SLICES, DEVICE_COUNT, DEVICE_SLICES, HOLDER_SIZE
from shunter.batching.page.slices import (
    ALL_CPUS,
    ALL_DEVICES,
    EVERY,
    bits,
    has_device,
    of_cpus,
    of_device,
    read_slices,
    words_of,
)

CPUS = st.lists(st.integers(0, CPU_SLICES - 1), max_size=8)
SETS = st.integers(0, EVERY)


@given(CPUS)
def test_cpus_have_bits_of_their_own(cpus):
    assert list(bits(of_cpus(cpus))) == sorted(set(cpus))
    assert not has_device(of_cpus(cpus))


def test_devices_have_bits_of_their_own():
    parts = list(itertools.product(range(DEVICE_COUNT), range(DEVICE_SLICES)))
    union = 0
    for device, part in parts:
        slices = of_device(device, part, 1)
        assert slices and not slices & (union | ALL_CPUS)
        assert slices & of_device(device) == slices
        union |= slices
    assert union == ALL_DEVICES


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        ((0, 0, 4), (0, 4, 4), False),  # two instances of half a GPU
        ((0, 0, 4), (0,), True),  # an instance and the GPU that it is a part of
        ((0, 4, 4), (1, 4, 4), False),
        ((7,), (8,), True),  # beyond the last bit: every device
        ((8,), (9,), True),
        ((-1,), (0,), True),
        ((1, 0, 9), (1, 7, 1), True),  # no place that there is: the whole device
    ],
)
def test_parts_of_devices_overlap_where_they_may_share_anything(one, other, overlap):
    assert bool(of_device(*one) & of_device(*other)) is overlap


@pytest.mark.parametrize("cpus", [[512], [3, 8191], [-1]])
def test_cpus_beyond_the_last_bit_stand_for_all(cpus):
    assert of_cpus(cpus) == ALL_CPUS


@given(SETS)
def test_sets_come_back_from_words(slices):
    words = memoryview(bytearray(8 * 9)).cast("q")
    for i, word in enumerate(words_of(slices)):
        words[i] = word
    assert read_slices(words, 0) == slices


# ---- hold words


class Line:
    """A holder's line between whose loads stores of its owner happen."""

    def __init__(self):
        self.words = memoryview(bytearray(HOLDER_SIZE)).cast("q")
        self.pending, self.pause = [], lambda: 0
        self.said = []

    def store(self, count):
        for at, word in self.pending[:count]:
            self.words[at] = word
        del self.pending[:count]

    def __getitem__(self, index):
        if isinstance(index, int):
            self.store(self.pause())
            return self.words[index]
        copy = []  # word by word, as slow as it can be
        for at in range(index.start, index.stop):
            self.store(self.pause())
            copy.append(self.words[at])
        return memoryview(b"".join(word.to_bytes(8, "little", signed=True) for word in copy))


def told(line, changes):
    """A line into which the stores of all changes are to go."""
    before, found = 0, []
    for number, after in enumerate(changes, 1):
        found += stores(before, after, number)
        before = after
    line.pending = found
    return line


@given(SETS, SETS)
def test_a_change_ends_with_what_it_says(before, after):
    line = told(Line(), [before, after])
    line.store(99)
    assert held_here(line.words, 0, EVERY) == after
    assert read_slices(line.words, line.words.shape[0] - 9) == after


@given(SETS, SETS)
def test_a_writer_that_ends_at_any_store_leaves_nothing_that_neither_set_has(before, after):
    whole = len(told(Line(), [before]).pending)
    for more in range(len(stores(before, after, 2)) + 1):
        line = told(Line(), [before, after])
        line.store(whole + more)
        found = held_here(line.words, 0, EVERY)
        assert found & ~(before | after) == 0
        assert found & before & after == before & after


@pytest.mark.parametrize(
    ("place", "next_place"), list(itertools.permutations([0, 63, 64, 511, 512, 575], 2))
)
def test_who_asks_for_both_never_misses_a_hold_that_moves_between_them(place, next_place):
    one, other = 1 << place, 1 << next_place
    length = len(stores(one, other, 2))
    # All ways to put the stores of one change between the loads of a reader.
    for cuts in itertools.combinations_with_replacement(range(13), length):
        line = told(Line(), [one])
        line.store(99)
        line.pending = stores(one, other, 2)
        loads = itertools.count()

        def pause(loads=loads, cuts=cuts):
            load = next(loads)
            return sum(cut == load for cut in cuts)

        line.pause = pause
        assert held_here(line, 0, one | other) & (one | other), cuts


def test_seeded_changes_beside_a_reader():
    for seed in range(3000):
        rng = random.Random(seed)
        always = 1 << rng.randrange(576)  # held all the time, whatever else is
        never = 1 << rng.randrange(576)
        never = 0 if never == always else never
        asked = rng.getrandbits(576) | always | never
        changes = [(rng.getrandbits(576) | always) & ~never for _ in range(5)]
        line = told(Line(), changes)
        line.store(len(stores(0, changes[0], 1)))
        line.pause = lambda rng=rng: rng.choice([0, 0, 0, 1, 1, 4, 20])
        found = held_here(line, 0, asked)
        assert found & always, seed
        assert not found & never, seed


def test_one_of_two_that_hold_in_turns_is_always_seen():
    """No slice is held all the time, but one of those asked for is."""
    for seed in range(3000):
        rng = random.Random(seed)
        places = rng.sample(range(576), 6)
        asked = sum(1 << place for place in places)
        changes = [1 << rng.choice(places) for _ in range(8)]
        line = told(Line(), changes)
        line.store(len(stores(0, changes[0], 1)))
        line.pause = lambda rng=rng: rng.choice([0, 0, 1, 2, 3])
        assert held_here(line, 0, asked), seed
