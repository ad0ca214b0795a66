"""A benchmark that ends leaves nothing running, whatever ended it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
PATIENCE_S = 120
SERVER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
"""In a session of its own, as servers are, and with an ear only for SIGKILL."""
BENCHMARK = f"""
import os, subprocess, sys, time
from common import Parser

Parser("A benchmark.").arguments()
launcher = "import subprocess, sys; subprocess.run([sys.executable, '-c', {SERVER!r}])"
server = subprocess.Popen([sys.executable, "-c", launcher], start_new_session=True)
print(os.environ["SHUNTER_BENCH_RUN"], flush=True)
try:
    time.sleep(600)
finally:
    print("ends in order", flush=True)
    if "--hang" in os.environ.get("HOW", ""):
        time.sleep(600)
    os.killpg(server.pid, 9)
"""


class Benchmark:
    """One whose server runs."""

    def __init__(self, guard, how=""):
        self._marked = guard.marked
        self.process = subprocess.Popen(
            [sys.executable, "-c", BENCHMARK],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(BENCH), "HOW": how},
        )
        self.mark = self.process.stdout.readline().strip()
        self.wait(lambda: len(self.left()) == 2, "launcher and server run")

    def left(self):
        return self._marked(self.mark)

    @staticmethod
    def wait(condition, what):
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, what
            time.sleep(0.01)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):  # the guard may end it first
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(script):
    started = []

    def start(how=""):
        started.append(Benchmark(script("guard"), how))
        return started[-1]

    yield start
    for each in started:
        each.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_benchmark_in_order(start, number):
    benchmark = start()
    benchmark.process.send_signal(number)
    assert benchmark.process.wait(PATIENCE_S) == 128 + number
    assert benchmark.process.stdout.read() == "ends in order\n"
    benchmark.wait(lambda: not benchmark.left(), "nothing is left")


def test_a_killed_benchmark_leaves_nothing(start):
    benchmark = start()
    benchmark.process.kill()
    benchmark.process.wait(PATIENCE_S)
    benchmark.wait(lambda: not benchmark.left(), "nothing is left")


def test_a_second_signal_ends_what_does_not_end_in_order(start):
    benchmark = start("--hang")
    benchmark.process.terminate()
    assert benchmark.process.stdout.readline() == "ends in order\n"
    benchmark.process.terminate()
    assert benchmark.process.wait(PATIENCE_S) == -signal.SIGTERM
    benchmark.wait(lambda: not benchmark.left(), "nothing is left")


def test_only_what_a_run_started_bears_its_mark(start):
    first, second = start(), start()
    assert not set(first.left()) & set(second.left())
    first.process.kill()
    first.wait(lambda: not first.left(), "nothing is left of the first")
    assert len(second.left()) == 2
