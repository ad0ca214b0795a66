import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching import holds
from shunter.batching.control_page import ControlPage
from shunter.batching.holds import STALE_NS, NoHolderError, claim, held
from shunter.batching.layout import HEADER_SIZE, HOLDER_COUNT, HOLDER_FIELDS

ME = os.getpid()
NOW = 10**12
EVERY = (1 << 64) - 1


def word(page, index, name):
    return page.words[(HEADER_SIZE + index * 128 + HOLDER_FIELDS[name].offset) // 8]


def test_nothing_is_held_on_a_new_page(page):
    assert held(page, EVERY, NOW) == 0


def test_a_raised_mask_holds_its_slices_until_it_is_lowered(page):
    holder = claim(page, ME, NOW)
    holder.raise_mask(0b0110, NOW)
    assert held(page, EVERY, NOW) == 0b0110
    assert held(page, 0b0100, NOW) == 0b0100
    assert held(page, 0b1001, NOW) == 0
    holder.lower_mask(0b0010, NOW)
    assert held(page, EVERY, NOW) == 0b0100
    holder.lower_mask(EVERY, NOW)
    assert held(page, EVERY, NOW) == 0


def test_the_masks_of_all_holders_count_together(page, page_path):
    with ControlPage.attach(page_path) as other:
        first, second = claim(page, ME, NOW), claim(other, ME, NOW)
        assert first.index != second.index
        first.raise_mask(0b011, NOW)
        second.raise_mask(0b110, NOW)
        assert held(page, EVERY, NOW) == 0b111
        first.lower_mask(0b011, NOW)
        assert held(page, EVERY, NOW) == 0b110


def test_every_slice_up_to_the_sign_bit_can_be_held(page):
    holder = claim(page, ME, NOW)
    holder.raise_mask(1 << 63 | 1, NOW)
    assert held(page, EVERY, NOW) == 1 << 63 | 1
    assert word(page, holder.index, "hold_mask") == 1 - 2**63
    with pytest.raises(ValueError, match="bits 0 to 63"):
        holder.raise_mask(1 << 64, NOW)


def test_the_start_of_a_hold_is_kept_while_it_grows(page):
    holder = claim(page, ME, NOW)
    holder.raise_mask(1, NOW + 1)
    holder.raise_mask(2, NOW + 2)
    assert word(page, holder.index, "hold_since_ns") == NOW + 1
    holder.lower_mask(3, NOW + 3)
    holder.raise_mask(1, NOW + 4)
    assert word(page, holder.index, "hold_since_ns") == NOW + 4


@pytest.mark.parametrize("away", [STALE_NS + 1, -STALE_NS - 1])
def test_a_holder_with_an_old_or_impossible_heartbeat_is_ignored(page, away):
    holder = claim(page, ME, NOW)
    holder.raise_mask(1, NOW)
    assert held(page, 1, NOW + away) == 0
    holder.heartbeat(NOW + away)
    assert held(page, 1, NOW + away) == 1


def test_all_lines_can_be_taken_and_given_back(page):
    holders = [claim(page, ME, NOW) for _ in range(HOLDER_COUNT)]
    assert [holder.index for holder in holders] == list(range(HOLDER_COUNT))
    with pytest.raises(NoHolderError):
        claim(page, ME, NOW)
    holders[5].raise_mask(1, NOW)
    holders[5].release()
    assert held(page, EVERY, NOW) == 0
    assert word(page, 5, "holder_pid") == 0
    assert claim(page, ME, NOW).index == 5


CHILD = """
import os, sys, time
from pathlib import Path
from shunter.batching.control_page import ControlPage
from shunter.batching.holds import claim
page = ControlPage.attach(Path(sys.argv[1]))
claim(page, os.getpid(), int(sys.argv[2])).raise_mask(1, int(sys.argv[2]))
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
        assert mine.index == 1
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert held(page, EVERY, NOW) == 0
    again = claim(page, ME, NOW)
    assert again.index == 0
    assert held(page, EVERY, NOW) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, EVERY)), max_size=20))
def test_held_is_what_was_raised_and_not_lowered(steps):
    class Words(dict):
        def __missing__(self, key):
            return 0

    class Page:
        words = Words()

    page = Page()
    holder = holds.Holder(page, 0, ME, NOW)
    expected = 0
    for raised, mask in steps:
        if raised:
            holder.raise_mask(mask, NOW)
            expected |= mask
        else:
            holder.lower_mask(mask, NOW)
            expected &= ~mask
        assert held(page, EVERY, NOW) == expected
