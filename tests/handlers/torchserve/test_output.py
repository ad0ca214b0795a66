import copy
import io
import logging
import os
import pickle
import subprocess
import sys
import threading
import time

import pytest

from shunter.handlers.torchserve import output
from shunter.handlers.torchserve.output import LINES, LineHandler, LineWriter


class Stream(io.StringIO):
    """Counts writes, and tells a waiting test of each."""

    def __init__(self):
        super().__init__()
        self.writes = []
        self.written = threading.Event()

    def write(self, text):
        self.writes.append(text)
        self.written.set()
        return len(text)


@pytest.fixture
def stream():
    return Stream()


def test_lines_added_are_written_together_by_the_next_flush(stream):
    lines = LineWriter(stream, interval=3600)
    lines.add("a")
    lines.add("b")
    assert stream.writes == []
    lines.flush()
    lines.flush()
    assert stream.writes == ["a\nb\n"]


def test_an_urgent_line_is_written_at_once_and_in_order(stream):
    lines = LineWriter(stream, interval=3600)
    lines.add("a")
    lines.write("b")
    lines.write("c")
    assert stream.writes == ["a\nb\n", "c\n"]


def test_lines_are_written_although_nobody_flushes(stream):
    lines = LineWriter(stream, interval=0.001)
    for round_ in range(3):
        stream.written.clear()
        lines.add(f"line {round_}")
        assert stream.written.wait(30)
    lines.flush()
    assert "".join(stream.writes) == "line 0\nline 1\nline 2\n"


def test_a_reply_takes_what_is_pending_and_log_lines_leave_without_it(stream):
    lines = LineWriter(stream, interval=3600)
    lines.for_replies = True
    assert lines.for_reply() == ""
    lines.add("a")
    lines.write("log")
    lines.add("b")
    assert lines.for_reply() == "a\nb"
    assert lines.for_reply() == ""
    lines.add("c")
    lines.flush()
    assert stream.writes == ["log\n", "c\n"]


def test_where_replies_take_nothing_lines_are_written(stream):
    lines = LineWriter(stream, interval=3600)
    lines.add("a")
    assert lines.for_reply() == ""
    lines.flush()
    assert stream.writes == ["a\n"]


def test_what_is_too_long_for_a_reply_is_written(stream, monkeypatch):
    monkeypatch.setattr(output, "MAX_IN_REPLY", 4)
    lines = LineWriter(stream, interval=3600)
    lines.for_replies = True
    lines.add("ab")
    lines.add("cd")
    assert lines.for_reply() == ""
    assert stream.writes == ["ab\ncd\n"]


def test_the_late_writer_leaves_new_lines_to_the_reply(stream, monkeypatch):
    asleep, awake = threading.Event(), threading.Event()
    interval, others = 1.25, time.sleep

    def sleep(seconds):
        if seconds != interval:  # of another thread: the module is everybody's
            return others(seconds)
        asleep.set()
        return awake.wait(30)

    monkeypatch.setattr(output.time, "sleep", sleep)
    lines = LineWriter(stream, interval=interval)
    lines.for_replies = True
    lines.add("of an earlier batch")
    asleep.wait(30)
    lines.add("new")
    awake.set()
    assert stream.written.wait(30)
    assert stream.writes[0] == "of an earlier batch\n"


def test_no_line_is_lost_or_doubled_between_threads(stream):
    lines = LineWriter(stream, interval=0.0005)

    def work(name):
        for number in range(500):
            (lines.write if number % 50 == 0 else lines.add)(f"{name} {number}")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines.flush()
    written = "".join(stream.writes).splitlines()
    for name in range(4):
        own = [line for line in written if line.startswith(f"{name} ")]
        assert own == [f"{name} {number}" for number in range(500)]


def test_too_many_pending_lines_are_written_by_who_adds_them(stream, monkeypatch):
    monkeypatch.setattr(output, "MAX_PENDING", 10)
    lines = LineWriter(stream, interval=3600)
    for number in range(11):
        lines.add(str(number))
    assert len("".join(stream.writes).splitlines()) == 11


def test_a_character_that_the_locale_lacks_costs_no_line():
    raw = io.BytesIO()
    lines = LineWriter(io.TextIOWrapper(raw, encoding="ascii"), interval=3600)
    lines.add("before")
    lines.write("é\ud800")
    assert raw.getvalue() == b"before\n\\xe9\\ud800\n"


def test_lines_that_nobody_can_read_are_forgotten(stream):
    lines = LineWriter(stream, interval=3600)
    stream.write = lambda text: (_ for _ in ()).throw(BrokenPipeError())
    lines.add("a")
    lines.write("b")
    del stream.write
    lines.write("c")
    assert stream.writes == ["c\n"]


def test_a_copied_or_pickled_writer_is_the_writer_of_its_process():
    assert copy.deepcopy(LINES) is LINES
    assert pickle.loads(pickle.dumps(LINES)) is LINES


def test_log_records_leave_at_once_and_metric_records_later(stream, monkeypatch):
    monkeypatch.setattr(sys, "stdout", stream)
    lines = LineWriter(interval=3600)
    handler = LineHandler(lines)
    handler.setFormatter(logging.Formatter("%(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    monkeypatch.undo()  # as if redirected later
    logger.info("[METRICS]a")
    assert stream.writes == []
    logger.info("count %d", 3)
    logger.info("[METRICS]b")
    handler.flush()
    assert stream.writes == ["[METRICS]a\ncount 3\n", "[METRICS]b\n"]


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_pending_lines_are_written_when_the_process_exits():
    code = """
from shunter.handlers.torchserve.output import LINES
LINES._interval = 3600
LINES.add("last")
print("first")
"""
    assert run_python(code) == ["first", "last"]


def test_a_forked_child_writes_its_own_lines_once_and_at_once():
    code = """
import os, warnings
warnings.simplefilter("ignore")
from shunter.handlers.torchserve.output import LINES
LINES.add("parent")
child = os.fork()
if child == 0:
    LINES.add("child")
    os._exit(0)
os.waitpid(child, 0)
"""
    assert sorted(run_python(code)) == ["child", "parent"]
