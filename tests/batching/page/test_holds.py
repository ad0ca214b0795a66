import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.page import holds
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.holds import (
    MAX_HOLD_NS,
    STALE_NS,
    NoHolderError,
    claim,
    held,
    holding_models,
    is_raised,
    progress_ns,
    since_ns,
)
from shunter.batching.page.layout import HEADER_SIZE, HOLDER_COUNT, HOLDER_FIELDS, PAGE_SIZE
from shunter.batching.page.slices import EVERY, of_device

ME = os.getpid()
NOW = 10**12


def word(page, index, name):
    return page.words[(HEADER_SIZE + index * 128 + HOLDER_FIELDS[name].offset) // 8]


def test_nothing_is_held_on_a_new_page(page):
    assert held(page, EVERY, NOW) == 0


def test_what_a_holder_says_holds_until_it_says_otherwise(page):
    holder = claim(page, ME, NOW)
    holder.hold(0b0110, 1, NOW)
    assert held(page, EVERY, NOW) == 0b0110
    assert held(page, 0b0100, NOW) == 0b0100
    assert held(page, 0b1001, NOW) == 0
    holder.hold(0b0100, 1, NOW)
    assert held(page, EVERY, NOW) == 0b0100
    holder.hold(0, 0, NOW)
    assert held(page, EVERY, NOW) == 0
    assert not is_raised(page, EVERY)


def test_the_masks_of_all_holders_count_together(page, page_path):
    with ControlPage.attach(page_path) as other:
        first, second = claim(page, ME, NOW), claim(other, ME, NOW)
        assert (first.index, second.index) == (1, 2)
        first.hold(0b011, 1, NOW)
        second.hold(0b110, 1, NOW)
        assert held(page, EVERY, NOW) == 0b111
        first.hold(0, 0, NOW)
        assert held(page, EVERY, NOW) == 0b110
        assert is_raised(page, 0b010)
        assert not is_raised(page, 0b001)


def test_every_slice_up_to_the_last_can_be_held(page):
    holder = claim(page, ME, NOW)
    slices = 1 | 1 << 63 | 1 << 511 | of_device(7)
    holder.hold(slices, 1 << 127 | 1, NOW)
    assert held(page, EVERY, NOW) == slices
    assert word(page, holder.index, "hold_slices") == 1 - 2**63
    assert holding_models(page, NOW) == 1 << 127 | 1
    with pytest.raises(ValueError, match="bits 0 to 575"):
        holder.hold(1 << 576, 1, NOW)
    assert held(page, EVERY, NOW) == slices


def test_cpus_and_devices_that_once_had_one_bit_have_their_own(page):
    holder = claim(page, ME, NOW)
    holder.hold(1, 1, NOW)  # CPU 0
    assert held(page, 1 << 48, NOW) == 0
    holder.hold(of_device(0, 0, 1), 1, NOW)
    assert not is_raised(page, of_device(0, 1, 1) | of_device(1))
    assert is_raised(page, of_device(0))


@pytest.mark.parametrize(
    ("models", "beside", "counts"),
    [
        (0b001, 0b000, True),
        (0b001, 0b001, False),
        (0b011, 0b001, True),
        (0b011, 0b111, False),
        (0b100, 0b011, True),
        (1 << 100, 1 << 100, False),
        (1 << 100 | 1, 1 << 100, True),
        (0, (1 << 128) - 1, True),  # who holds is not known
    ],
)
def test_a_holder_counts_unless_one_may_run_beside_all_its_models(page, models, beside, counts):
    holder = claim(page, ME, NOW)
    holder.hold(1, models, NOW)
    assert held(page, 1, NOW, beside=beside) == int(counts)


def test_a_hold_is_as_new_as_the_newest_of_its_slices(page):
    holder = claim(page, ME, NOW)
    holder.hold(1, 1, NOW + 1)
    assert since_ns(page, 1) == NOW + 1
    holder.hold(3, 1, NOW + 2)
    assert since_ns(page, 2) == NOW + 2
    holder.hold(2, 3, NOW + 3)
    assert since_ns(page, 2) == NOW + 2
    holder.hold(0, 0, NOW + 3)
    assert since_ns(page, 3) == 0
    holder.hold(1, 1, NOW + 4)
    assert since_ns(page, 3) == NOW + 4
    holder.progress(NOW + 9)
    assert (since_ns(page, 3), progress_ns(page)) == (NOW + 4, NOW + 9)


@pytest.mark.parametrize("away", [STALE_NS + 1, -STALE_NS - 1])
def test_a_holder_with_an_old_or_impossible_heartbeat_is_ignored(page, away):
    holder = claim(page, ME, NOW)
    holder.hold(1, 1, NOW)
    holder.progress(NOW + away)
    assert held(page, 1, NOW + away) == 0
    assert holding_models(page, NOW + away) == 0
    holder.heartbeat(NOW + away)
    assert held(page, 1, NOW + away) == 1


def test_a_hold_without_progress_ends(page):
    holder = claim(page, ME, NOW)
    holder.hold(1, 1, NOW)
    for step in range(1, 9):
        now = NOW + step * 10**9
        holder.heartbeat(now)
        holder.progress(now)
        assert held(page, 1, now) == 1
    later = now + MAX_HOLD_NS + 1
    holder.heartbeat(later)
    assert held(page, 1, later) == 0
    assert held(page, 1, later, max_hold_ns=MAX_HOLD_NS + 1) == 1
    holder.hold(0, 0, later)
    holder.hold(1, 1, later)
    assert held(page, 1, later) == 1


def test_all_lines_but_the_servers_can_be_taken_and_given_back(page):
    holders = [claim(page, ME, NOW) for _ in range(HOLDER_COUNT - 1)]
    assert [holder.index for holder in holders] == list(range(1, HOLDER_COUNT))
    with pytest.raises(NoHolderError):
        claim(page, ME, NOW)
    holders[5].hold(1, 1, NOW)
    holders[5].release()
    assert held(page, EVERY, NOW) == 0
    assert word(page, 6, "holder_pid") == 0
    assert claim(page, ME, NOW).index == 6


CHILD = """
import os, sys, time
from pathlib import Path
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.holds import claim
page = ControlPage.attach(Path(sys.argv[1]))
claim(page, os.getpid(), int(sys.argv[2])).hold(1, 1, int(sys.argv[2]))
print("held", flush=True)
time.sleep(600)
"""


def test_a_killed_holder_lets_go_and_its_line_can_be_claimed_again(page, page_path, tmp_path):
    command = [sys.executable, "-c", CHILD, str(page_path), str(NOW)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path)
    try:
        assert child.stdout.readline() == b"held\n"
        assert held(page, EVERY, NOW) == 1
        mine = claim(page, ME, NOW)
        assert mine.index == 2
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert held(page, EVERY, NOW) == 0
    again = claim(page, ME, NOW)
    assert again.index == 1
    assert held(page, EVERY, NOW) == 0


@pytest.mark.parametrize("number", [0, 1, 7])
def test_a_line_that_was_left_in_the_midst_of_a_change_is_cleared(page, number):
    holder = claim(page, ME, NOW)
    holder.hold(EVERY, 1, NOW)
    at = (HEADER_SIZE + holder.index * 128) // 8
    page.words[at + HOLDER_FIELDS["hold_number"].offset // 8] = number
    page.unlock(HEADER_SIZE + holder.index * 128)  # as the kernel does for one that is killed
    again = claim(page, ME, NOW)
    assert again.index == holder.index
    again.hold(1 << 512, 1, NOW)
    assert held(page, EVERY, NOW) == 1 << 512


@given(st.lists(st.tuples(st.integers(0, EVERY), st.integers(0, (1 << 128) - 1)), max_size=20))
def test_held_is_what_was_said_last(steps):
    class Page:
        words = memoryview(bytearray(PAGE_SIZE)).cast("q")

    page = Page()
    holder = holds.Holder(page, 1, ME, NOW)
    for slices, models in steps:
        holder.hold(slices, models, NOW)
        assert held(page, EVERY, NOW) == slices
        assert holding_models(page, NOW) == (models if slices else 0)
