"""A thread that works in turns: nobody is in another's, and everybody gets one."""

import random
import threading

import pytest

from shunter.nic_frontend.turns import Turns

PATIENCE_S = 60


class Work:
    """What a turn does: it waits until it is interrupted."""

    def __init__(self):
        self.interrupted = threading.Event()
        self.is_in, self.turns, self.error = False, 0, None
        self.began = threading.Event()
        self.thread = Turns(self.turn, self.tell)

    def turn(self):
        assert not self.is_in
        self.is_in = True
        self.turns += 1
        self.began.set()
        assert self.interrupted.wait(PATIENCE_S)
        self.is_in = False
        if self.error:
            raise self.error

    def tell(self, wanted):
        self.interrupted.set() if wanted else self.interrupted.clear()


@pytest.fixture
def work():
    made = Work()
    yield made
    made.thread.end()


def test_between_two_turns_nothing_goes_on_and_then_it_does_again(work):
    work.thread.begin()
    assert work.began.wait(PATIENCE_S)
    with work.thread.between():
        assert not work.is_in
        before = work.turns
        with work.thread.between():  # also when it is there already
            assert not work.is_in
        assert not work.is_in and work.turns == before
        work.began.clear()
    assert work.began.wait(PATIENCE_S)
    assert work.turns == before + 1


def test_without_a_thread_nobody_is_waited_for(work):
    with work.thread.between():
        assert work.turns == 0
    work.thread.begin()
    assert work.began.wait(PATIENCE_S)
    work.thread.end()
    with work.thread.between():
        assert not work.is_in
    work.thread.begin()  # and it can go on
    work.thread.end()


def test_many_come_one_after_the_other_and_the_thread_has_its_turns(work):
    inside, seen, failures = [], [], []
    work.thread.begin()

    def come(seed):
        chance = random.Random(seed)
        for _ in range(200):
            with work.thread.between():
                inside.append(seed)
                if work.is_in or inside != [seed]:
                    failures.append(list(inside))
                if chance.random() < 0.3:
                    with work.thread.between():
                        failures.extend([] if inside == [seed] else [list(inside)])
                inside.remove(seed)
            seen.append(seed)

    threads = [threading.Thread(target=come, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not failures and len(seen) == 800
    work.began.clear()
    with work.thread.between():  # a turn before this, or after it
        pass
    assert work.began.wait(PATIENCE_S)


def test_what_a_turn_raises_is_told_and_the_next_one_does_not_wait_for_it(work):
    work.error = OSError("it failed")
    work.thread.begin()
    assert work.began.wait(PATIENCE_S)
    work.thread.check()
    with work.thread.between():
        pass
    work.thread.end()
    with pytest.raises(OSError, match="it failed"):
        work.thread.check()
    with work.thread.between():
        assert work.turns == 1
