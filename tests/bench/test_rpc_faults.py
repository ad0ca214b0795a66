"""What is killed is there, and a run that proves nothing fails."""

import os
import subprocess
import sys

import pytest


def test_only_a_process_that_there_is_may_be_killed(script):
    living = script("rpc.sides").living
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    assert living([0, ended.pid]) == 0  # 0 would be all of ours
    assert living([0, ended.pid, os.getpid()]) == os.getpid()


def test_who_is_killed_is_waited_for(script, monkeypatch):
    sides = script("rpc.sides")
    monkeypatch.setattr(sides.time, "sleep", lambda _: None)
    looks = iter([0, 0, 7])
    assert sides.wait_for(lambda: next(looks)) == 7
    monkeypatch.setattr(sides, "OPEN_S", -1)
    with pytest.raises(RuntimeError, match="not started in time"):
        sides.wait_for(lambda: 0)


def test_too_few_requests_are_no_result(script):
    enough = script("rpc_faults").enough
    assert enough({"requests": 100}) == {"requests": 100}
    with pytest.raises(RuntimeError, match="only 99 requests"):
        enough({"requests": 99})
