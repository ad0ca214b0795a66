import os
import signal
import subprocess
import sys

from shunter.batching.page.layout import RUNNER_COUNT, RunnerState
from shunter.batching.page.runners import claim, read_runners

ME = os.getpid()
NOW = 10**12


def test_a_line_says_what_its_worker_says(page):
    runner = claim(page, ME, NOW)
    runner.set("runner_slot", 3)
    runner.add("preemptions", 2)
    runner.add("preemptions", 1)
    runner.enter(RunnerState.PARKED, NOW + 5)
    [line] = read_runners(page)
    assert (line.runner_pid, line.runner_slot, line.preemptions) == (ME, 3, 3)
    assert (line.runner_state, line.runner_since_ns) == (RunnerState.PARKED, NOW + 5)
    assert line.runner_heartbeat_ns == NOW + 5
    assert runner.get("preemptions") == 3


def test_more_workers_than_lines_are_not_seen(page):
    runners = [claim(page, ME, NOW) for _ in range(RUNNER_COUNT + 1)]
    runners[-1].set("batches", 7)
    assert runners[-1].get("batches") == 7
    assert [line.batches for line in read_runners(page)] == [0] * RUNNER_COUNT


CHILD = """
import os, sys, time
from pathlib import Path
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.runners import claim
page = ControlPage.attach(Path(sys.argv[1]))
runner = claim(page, os.getpid(), 1)
runner.set("drops", 9)
print("claimed", flush=True)
time.sleep(600)
"""


def test_a_killed_workers_line_is_free_and_begins_anew(page, page_path, tmp_path):
    command = [sys.executable, "-c", CHILD, str(page_path)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path)
    try:
        assert child.stdout.readline() == b"claimed\n"
        assert [line.drops for line in read_runners(page)] == [9]
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    assert read_runners(page) == []
    claim(page, ME, NOW)
    assert [(line.runner_pid, line.drops) for line in read_runners(page)] == [(ME, 0)]
