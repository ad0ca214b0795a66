"""A node keeps Ray's processes running, and leaves none behind; a script stands for Ray."""

import sys
import threading
import time

import psutil
import pytest

from shunter.plugins.ray import node
from shunter.plugins.ray.node import Node, NodeSpec

STARTS = """
import subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf])
with open(sys.argv[1], "a") as pids:
    print(child.pid, file=pids, flush=True)
{then}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a node whose first process starts one that is deaf to SIGTERM, and does ``then``."""
    pids = tmp_path / "pids"
    pids.touch()
    started = []

    def start(then):
        script = STARTS.format(then=then)
        monkeypatch.setattr(node, "command", lambda _: [sys.executable, "-c", script, str(pids)])
        monkeypatch.setattr(node, "FIRST_PAUSE_S", 0.01)
        running = Node(NodeSpec(str(tmp_path), "node-1", "127.0.0.1:1"))
        thread = threading.Thread(target=running.run)
        started.append((running, thread))
        thread.start()
        return running, thread, lambda: [int(each) for each in pids.read_text().split()]

    yield start
    for running, thread in started:
        running.stop()
        thread.join()


def until(holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_nothing_is_left_of_a_node_that_is_stopped(run):
    running, thread, pids = run("time.sleep(600)")
    until(pids)
    [child] = pids()
    assert not is_gone(child)
    running.stop()
    thread.join(60)
    until(lambda: is_gone(child))


def test_nothing_is_left_of_what_ended_by_itself_and_is_started_again(run):
    _, _, pids = run("sys.exit()")
    until(lambda: len(pids()) > 2)
    first, second, *_ = pids()
    until(lambda: is_gone(first) and is_gone(second))
