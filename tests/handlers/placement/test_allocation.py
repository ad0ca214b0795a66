"""What a worker does with memory that a batch has freed."""

import json
import os
import subprocess
import sys

import pytest

from shunter.handlers.placement import allocation

PAGES_OF_A_BATCH = """
import json, os, resource, sys, threading
from shunter.handlers.placement import allocation

has_settings = allocation.start_anew_if_wanted()
import torch
torch.set_num_threads(1)

def batch():
    return torch.empty(64 << 20, dtype=torch.uint8).fill_(1)  # freed at once

def faults():
    batch()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    batch()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

found = {"faults": faults(), "argv": sys.argv[1:], "before": resident()}
found["kept"] = has_settings
found["inherited"] = sorted(set(os.environ) & {"GLIBC_TUNABLES", "SHUNTER_KEEP_MEMORY"})
thread = threading.Thread(target=lambda: found.update(of_a_thread=faults()))
thread.start()
thread.join()
allocation.give_back()
found["after"] = resident()
print(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, True),
        ({"SHUNTER_KEEP_MEMORY": "1"}, True),
        ({"SHUNTER_KEEP_MEMORY": "0"}, False),
        ({"LD_PRELOAD": "libtcmalloc.so"}, False),
        ({"LD_PRELOAD": ""}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.check=3"}, False),
        ({"SHUNTER_KEEP_MEMORY": "started-anew"}, False),
        ({"MALLOC_ARENA_MAX": "2"}, False),
    ],
)
def test_what_a_user_has_set_stays(environ, expected):
    assert allocation.is_wanted(environ) is expected


def run(tmp_path, **variables):
    script = tmp_path / "script.py"
    script.write_text(PAGES_OF_A_BATCH)
    plain = {k: v for k, v in os.environ.items() if k not in ("GLIBC_TUNABLES", "LD_PRELOAD")}
    done = subprocess.run(
        [sys.executable, str(script), "an argument"],
        capture_output=True,
        text=True,
        check=True,
        env={**plain, **variables},
    )
    return json.loads(done.stdout)


def test_the_next_batch_finds_its_pages_in_place(tmp_path):
    kept, plain = run(tmp_path), run(tmp_path, SHUNTER_KEEP_MEMORY="0")
    assert kept["argv"] == plain["argv"] == ["an argument"]
    # Pages of 4 KiB, or of 2 MiB on some hosts.
    assert plain["faults"] >= 32
    assert kept["faults"] < plain["faults"] / 4
    assert kept["of_a_thread"] < plain["faults"] / 4


def test_what_a_handler_starts_does_not_inherit_it(tmp_path):
    found = run(tmp_path)
    assert (found["kept"], found["inherited"]) == (True, [])


def test_it_is_tried_once_even_where_the_settings_do_not_arrive(tmp_path):
    found = run(tmp_path, SHUNTER_KEEP_MEMORY="started-anew")
    assert found["kept"] is False


def test_a_program_that_cannot_be_started_goes_on_as_it_is(monkeypatch, capsys):
    monkeypatch.setattr(allocation.sys, "executable", "/nonexistent/python")
    for name in [*os.environ]:
        if name in ("GLIBC_TUNABLES", "LD_PRELOAD", "SHUNTER_KEEP_MEMORY") or "MALLOC_" in name:
            monkeypatch.delenv(name)
    assert allocation.start_anew_if_wanted() is False
    assert "No such file" in capsys.readouterr().out


def test_what_loading_left_is_given_back(tmp_path):
    found = run(tmp_path)
    assert found["after"] < found["before"] - (32 << 20)
