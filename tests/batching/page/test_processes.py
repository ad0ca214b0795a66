import os
import subprocess
import sys

import pytest

from shunter.batching.page import processes
from shunter.batching.page.processes import is_alive, is_locked, try_lock, unlock


@pytest.fixture
def child(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, cwd=tmp_path
    )
    yield process
    process.kill()
    process.communicate()


def test_this_process_and_its_children_live(child):
    assert is_alive(os.getpid())
    assert is_alive(child.pid)


@pytest.mark.parametrize("pid", [0, -1, 2**31 - 1, 2**62])
def test_pids_that_cannot_be_are_dead(pid):
    assert not is_alive(pid)


def test_a_killed_process_is_dead_before_and_after_it_is_reaped(child):
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(child.pid)
    child.wait()
    assert not is_alive(child.pid)


def test_a_process_that_hides_its_state_is_asked_by_a_signal(child, monkeypatch):
    def refuse(*args):
        raise PermissionError

    monkeypatch.setattr("builtins.open", refuse)
    assert is_alive(child.pid)
    assert not is_alive(2**31 - 1)


@pytest.fixture
def two_openings(tmp_path):
    path = tmp_path / "file"
    path.touch()
    descriptors = [os.open(path, os.O_RDWR) for _ in range(2)]
    yield descriptors
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_locked_range_is_refused_to_others_and_the_rest_is_not(two_openings):
    first, second = two_openings
    assert try_lock(first, 128, 128)
    assert not try_lock(second, 0, 129)
    assert try_lock(second, 0, 128)
    assert is_locked(second, 128, 128)
    assert not is_locked(first, 128, 128)
    unlock(first, 128, 128)
    assert try_lock(second, 128, 128)


def test_closing_a_file_lets_go(two_openings, tmp_path):
    _, second = two_openings
    third = os.open(tmp_path / "file", os.O_RDWR)
    assert try_lock(third, 0, 0)
    assert is_locked(second, 5, 1)
    os.close(third)
    assert not is_locked(second, 5, 1)


def test_an_error_that_is_no_conflict_is_raised(tmp_path):
    reader, writer = os.pipe()
    try:
        with pytest.raises(OSError):
            try_lock(writer, -1, 1)
    finally:
        os.close(reader)
        os.close(writer)


def test_unlocking_a_closed_file_does_no_harm():
    unlock(-1, 0, 1)


def test_the_structure_passed_to_the_kernel_has_its_size():
    assert processes._FLOCK.size == 32
