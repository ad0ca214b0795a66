"""The pool in which payloads land: no byte is given to two at once, and every block comes back."""

import mmap
import os
import random
import subprocess
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from shunter.batching.queue.landing import QUIET_NS, LandingPool, blocks_for
from shunter.batching.queue.layout import BLOCK
from shunter.batching.queue.shared_memory import Mapping

HERE = Path(__file__).parent
NONE = -1
ALIGN = 64


@pytest.fixture(scope="module")
def program(compile_c):
    """landing_events.c under the sanitizers: what the pool says to events."""
    found = compile_c(HERE / "landing_events.c", ["landing"])

    def run(events, most):
        text = "\n".join(" ".join(map(str, event)) for event in events)
        done = subprocess.run(
            [str(found), str(most)], input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return [tuple(map(int, line.split())) for line in done.stdout.splitlines()]

    return run


class Pool:
    """What the pool should do, by lists; and whose every byte is."""

    def __init__(self, most):
        self.most, self.blocks = most, 0
        self.free, self.references = [], {}
        self.slots = [[NONE, 0] for _ in range(3)]
        self.kept = []
        """Block, begin and end of what somebody refers to."""

    def event(self, kind, *numbers):
        """What is given."""
        return getattr(self, f"_{kind}")(*numbers) or 0

    def _G(self, blocks):
        blocks = min(blocks, self.most)
        self.free += range(blocks - 1, self.blocks - 1, -1)  # the first is used first
        self.blocks = max(self.blocks, blocks)

    def _H(self, blocks):
        while self.blocks > blocks and self.blocks - 1 not in self.references:
            self.blocks -= 1
        self.free = [block for block in self.free if block < self.blocks]
        return self.blocks

    def _T(self):
        if not self.free:
            return NONE
        block = self.free.pop()
        assert block not in self.references
        self.references[block] = 1
        return block

    def _R(self, block):
        self.references[block] += 1

    def _U(self, block):
        self.references[block] -= 1
        if not self.references[block]:
            del self.references[block]
            self.free.append(block)

    def _L(self, slot):
        if self.slots[slot][0] != NONE:
            self._U(self.slots[slot][0])
        self.slots[slot][0] = NONE

    def _S(self, slot, size):
        it = self.slots[slot]
        if it[0] != NONE and self.references[it[0]] == 1:
            it[1] = 0
        if (0 if it[0] == NONE else max(0, BLOCK - it[1])) < size:
            self._L(slot)
            it[:] = self._T(), 0
        return NONE if it[0] == NONE else it[0] * BLOCK + it[1]

    def _V(self, slot, size):
        at = self._S(slot, size)
        if at == NONE:
            return at
        it = self.slots[slot]
        assert it[1] % ALIGN == 0 and it[1] + size <= BLOCK
        it[1] += -(-size // ALIGN) * ALIGN
        begin = at % BLOCK
        for block, first, last in self.kept:
            assert block != it[0] or last <= begin or begin + size <= first
        return at

    def numbers(self):
        """How many are free, and whether that is little."""
        return len(self.free), int(len(self.free) <= self.blocks // 4)


class Story:
    """Payloads that come into slots, stay and go; told to the model as they are made up."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.most = self.random.choice([1, 2, 5, 12])
        self.pool, self.events, self.said = Pool(self.most), [], []
        for _ in range(200):
            kinds = [self.lands, self.leaves, self.grows, self.peeks, self.takes, self.lets_go]
            self.random.choices([*kinds, self.shrinks], [12, 9, 1, 2, 1, 0.5, 0.5])[0]()

    def say(self, kind, *numbers):
        given = self.pool.event(kind, *numbers)
        self.events.append((kind, *numbers))
        self.said.append((given, *self.pool.numbers()))
        return given

    def size(self):
        return self.random.choice([0, 1, 64, 100, 848, 9000, 32_768, 32_769, BLOCK - 1, BLOCK])

    def lands(self):
        slot, size = self.random.randrange(3), self.size()
        at = self.say("V", slot, size)
        if at != NONE and size and self.random.random() < 0.8:  # else nobody wants it
            block, begin = divmod(at, BLOCK)
            self.say("R", block)
            self.pool.kept.append((block, begin, begin + size))

    def leaves(self):
        if self.pool.kept:
            kept = self.pool.kept.pop(self.random.randrange(len(self.pool.kept)))
            self.say("U", kept[0])

    def grows(self):
        self.say("G", self.random.randrange(self.most + 3))

    def shrinks(self):
        self.say("H", self.random.randrange(self.most + 1))

    def peeks(self):
        self.say("S", self.random.randrange(3), self.size())

    def takes(self):
        block = self.say("T")
        if block != NONE:
            self.pool.kept.append((block, 0, BLOCK))

    def lets_go(self):
        self.say("L", self.random.randrange(3))

    def ends(self):
        """Everybody lets go."""
        for block, *_ in self.pool.kept:
            self.say("U", block)
        self.pool.kept = []
        for slot in range(3):
            self.say("L", slot)


@settings(max_examples=150, phases=[Phase.generate])
@given(st.integers(0, 2**32))
def test_no_byte_is_given_to_two_and_every_block_comes_back(program, seed):
    story = Story(seed)
    story.ends()
    assert sorted(story.pool.free) == list(range(story.pool.blocks))
    assert program(story.events, story.most) == story.said


def test_the_block_that_was_free_last_is_used_first(program):
    events = [("G", 4), ("T",), ("T",), ("U", 0), ("T",), ("U", 1), ("U", 0), ("T",), ("T",)]
    given = [line[0] for line in program(events, 4)]
    assert [given[i] for i in (1, 2, 4, 7, 8)] == [0, 1, 0, 0, 1]


def test_a_pool_without_blocks_gives_none_and_grows_only_to_its_end(program):
    events = [("T",), ("V", 0, 5), ("G", 9), ("T",), ("T",), ("T",), ("G", 1), ("G", 2)]
    given = program(events, 2)
    assert given == [(-1, 0, 1), (-1, 0, 1), (0, 2, 0), (0, 1, 0), (1, 0, 1), (-1, 0, 1),
                     (0, 0, 1), (0, 0, 1)]  # fmt: skip


def test_a_slot_goes_on_in_its_block_while_somebody_keeps_a_part_of_it(program):
    events = [("G", 2), ("V", 0, 100), ("R", 0), ("V", 0, 100), ("U", 0), ("V", 0, 1)]
    given = [line[0] for line in program(events, 2)]
    # Behind what is kept, at the next cache line; from the beginning when nobody keeps anything.
    assert [given[1], given[3], given[5]] == [0, 128, 0]


# ---- its memory


def test_it_takes_memory_only_as_it_grows():
    with LandingPool(8 * BLOCK, lambda: 1 << 40) as pool:
        assert (pool.most, pool.blocks) == (8, 0)
        assert pool.grow(3) == 3 and os.fstat(pool.descriptor).st_size == 3 * BLOCK
        assert pool.grow(20) == 8 and pool.grow(1) == 8
        assert os.fstat(pool.descriptor).st_size == 8 * BLOCK


def test_what_it_cannot_have_is_said(caplog):
    with LandingPool(8 * BLOCK, lambda: 1 << 40) as pool:
        pool.grow(8)
        assert not caplog.records
        pool.grow(4)
        assert (pool.blocks, pool.wanted) == (8, 12)
        assert "8 blocks of the 12" in caplog.text
        pool.need_less(4)
        assert pool.wanted == 8 and pool.grow(0) == 8 and len(caplog.records) == 1


def test_what_is_not_needed_for_a_while_is_given_back():
    asked = []

    def shrink(blocks):
        asked.append(blocks)
        return max(blocks, kept)

    with LandingPool(8 * BLOCK, lambda: 1 << 40) as pool:
        pool.grow(2)
        pool.grow(6)
        pool.mapping.bytes[1] = pool.mapping.bytes[7 * BLOCK] = 1
        used = lambda: os.fstat(pool.descriptor).st_blocks * 512  # noqa: E731
        assert used() == 8 * BLOCK
        pool.need_less(6)
        kept = 5  # somebody still has the fifth
        for now_ns in (1, 1 + QUIET_NS):
            pool.give_back(now_ns, shrink)
        assert not asked and pool.blocks == 8
        pool.give_back(2 + QUIET_NS, shrink)
        assert asked == [2] and pool.blocks == 5 and used() == 5 * BLOCK
        pool.grow(1)  # it needs none of the host's
        assert pool.blocks == 5
        kept = 0
        pool.give_back(3 + 2 * QUIET_NS, shrink)
        assert asked == [2, 3] and pool.blocks == 3 and used() == 3 * BLOCK
        assert pool.mapping.bytes[1] == 1 and pool.mapping.bytes[7 * BLOCK] == 0
        pool.give_back(4 + 9 * QUIET_NS, shrink)
        assert pool.grow(5) == 8 and used() == 8 * BLOCK and len(asked) == 2


def test_there_is_no_memory_for_it():
    with LandingPool(8 * BLOCK, lambda: 2 * BLOCK) as pool:
        assert pool.grow(2) == 2
        with pytest.raises(OSError, match="no memory"):
            pool.grow(3)
        assert pool.blocks == 2


def test_readers_see_what_lands_and_cannot_write():
    with LandingPool(4 * BLOCK, lambda: 1 << 40) as pool:
        pool.grow(4)
        with Mapping(pool.reader, 4 * BLOCK, writable=False) as seen:
            pool.mapping.bytes[3 * BLOCK + 5] = 77
            assert seen.bytes[3 * BLOCK + 5] == 77
        for access in (mmap.PROT_WRITE, mmap.PROT_READ | mmap.PROT_WRITE):
            with pytest.raises(PermissionError):
                mmap.mmap(pool.reader, BLOCK, prot=access)
        with pytest.raises(PermissionError):
            os.ftruncate(pool.descriptor, BLOCK)


@given(st.integers(1, 5000), st.integers(0, 1 << 22))
def test_there_are_blocks_for_all_that_a_queue_holds(entries, size):
    assert blocks_for(entries, size) * BLOCK * 4 >= entries * size * 5
