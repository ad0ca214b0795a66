"""What happened in a host of ours, and why: remembered, written, and told by programs beside it."""

import json
import logging
import time

import pytest

from shunter.plugins import events
from shunter.plugins.cli.observe.events import line
from shunter.plugins.supervised import Supervised

HOST = logging.getLogger("shunter.triton")


def texts(recorder, after=0):
    return [(each["level"], each["about"], each["text"]) for each in recorder.after(after)]


def test_what_is_told_and_what_code_of_ours_warns_of_is_remembered():
    events.tell(logging.INFO, "nobody", "listens")
    with events.recorded({}) as recorder:
        events.tell(logging.INFO, "m/1.0", "generation 2 serves")
        HOST.info("of no interest")
        HOST.warning("a worker of %s was refused: %s", "m", "no room")
        HOST.error("it ended")
        assert texts(recorder) == [
            ("info", "m/1.0", "generation 2 serves"),
            ("warning", "server", "a worker of m was refused: no room"),
            ("error", "server", "it ended"),
        ]
        assert texts(recorder, 2) == [("error", "server", "it ended")]
    HOST.error("it is over")
    assert [each["number"] for each in recorder.after()] == [1, 2, 3]


def test_the_oldest_are_forgotten():
    with events.recorded({}) as recorder:
        for number in range(events.KEPT + 3):
            events.tell(logging.INFO, "m/1.0", str(number))
    kept = recorder.after()
    assert len(kept) == events.KEPT and kept[0]["number"] == 4


@pytest.mark.parametrize("folder", ["", "missing"])
def test_each_is_written_where_there_is_room(tmp_path, folder):
    path = tmp_path / folder / "events.jsonl"
    with events.recorded({events.VARIABLE: str(path)}) as recorder:
        events.tell(logging.INFO, "m/1.0", "one")
        if not folder:
            path.rename(tmp_path / "moved")
        events.tell(logging.INFO, "m/1.0", "two")
    assert len(recorder.after()) == 2
    if not folder:
        assert json.loads(path.read_text(encoding="utf-8")) == recorder.after()[1]


def test_counters_are_told_by_what_they_grew():
    with events.recorded({}) as recorder:
        tallies = events.Tallies({"expired": "requests were dropped"})
        for count in (0, 3, 3, 5, 1):  # at last they began anew
            tallies.look("m/1.0", {"expired": count, "answered": 9})
    assert [each["text"].split()[0] for each in recorder.after()] == ["3", "2", "1"]


def test_lines_of_programs_beside_it_are_told_and_logged(tmp_path):
    said = "import sys; print('WARNING it is full', file=sys.stderr); sys.stdin.read()"
    log = tmp_path / "log"
    with events.recorded({}) as recorder:
        program = Supervised("helper", ["-c", said], log, time.monotonic_ns)
        program.look()
        while not recorder.after():
            time.sleep(0.01)
        program.close()
    assert texts(recorder)[0] == ("warning", "helper", "it is full")
    assert log.read_text(encoding="utf-8") == "WARNING it is full\n"


def test_one_for_people():
    told = {"unix_ms": 0, "level": "error", "about": "m/1.0", "text": "[it] ended"}
    assert line(told).plain.endswith("m/1.0: [it] ended")
