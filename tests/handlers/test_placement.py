import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shunter.handlers.placement import (
    MAX_CPU,
    Placement,
    PlacementError,
    format_cpu_list,
    parse_cpu_list,
    read_placement,
)

ABSENT = next(cpu for cpu in range(MAX_CPU, 0, -1) if cpu >= (os.cpu_count() or 1))


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0", (0,)),
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("8,0-3\n", (0, 1, 2, 3, 8)),
        (" 1 , 1-2 ", (1, 2)),
        (f"{MAX_CPU}", (MAX_CPU,)),
    ],
)
def test_a_cpu_list_is_read(text, cpus):
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "''"),
        ("0,,1", "''"),
        ("a", "'a'"),
        ("-1", "'-1'"),
        ("1-", "'1-'"),
        ("3-1", "'3-1'"),
        ("0-7:2", "'0-7:2'"),
        ("٣", "'٣'"),
        ("0-999999999", "999999999"),
    ],
)
def test_a_bad_cpu_list_is_refused_with_the_part_that_is_bad(text, part):
    with pytest.raises(PlacementError) as caught:
        parse_cpu_list(text)
    assert part in str(caught.value)
    assert repr(text) in str(caught.value)


@settings(deadline=None, database=None)
@given(st.sets(st.integers(0, MAX_CPU), min_size=1))
def test_a_formatted_cpu_list_reads_back(cpus):
    assert parse_cpu_list(format_cpu_list(cpus)) == tuple(sorted(cpus))


def test_a_formatted_cpu_list_is_short():
    assert format_cpu_list([8, 3, 2, 1, 0]) == "0-3,8"
    assert format_cpu_list([]) == ""
    with pytest.raises(PlacementError, match="CPU -1"):
        format_cpu_list([-1])


def test_a_placement_is_read_from_the_environment():
    assert read_placement({}) == Placement()
    assert read_placement({"SHUNTER_CORES": "", "SHUNTER_THREADS": ""}) == Placement()
    environ = {"SHUNTER_CORES": "0-1", "SHUNTER_THREADS": "2", "SHUNTER_SCHED": "idle"}
    assert read_placement(environ) == Placement((0, 1), 2, "idle")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHUNTER_CORES", "x"),
        ("SHUNTER_THREADS", "0"),
        ("SHUNTER_THREADS", "-1"),
        ("SHUNTER_THREADS", "two"),
        ("SHUNTER_THREADS", "1000000"),
        ("SHUNTER_THREADS", "9" * 5000),
        ("SHUNTER_SCHED", "batch"),
    ],
)
def test_a_bad_variable_is_refused_by_name_and_value(name, value):
    with pytest.raises(PlacementError) as caught:
        read_placement({name: value})
    assert name in str(caught.value)
    assert value in str(caught.value)


def run(code, **variables):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        env={**os.environ, **variables},
    )


APPLY = """
import os
from shunter.handlers.placement import *
apply_placement(read_placement(os.environ))
print(format_cpu_list(os.sched_getaffinity(0)), os.sched_getscheduler(0),
      os.environ.get("OMP_NUM_THREADS"), os.environ.get("MKL_NUM_THREADS"))
"""


def test_a_process_takes_its_place():
    core = min(os.sched_getaffinity(0))
    done = run(APPLY, SHUNTER_CORES=str(core), SHUNTER_THREADS="3", SHUNTER_SCHED="idle")
    assert done.stdout.split() == [str(core), str(os.SCHED_IDLE), "3", "3"], done.stderr


def test_without_variables_a_process_stays_where_it_is():
    done = run(APPLY, OMP_NUM_THREADS="7", MKL_NUM_THREADS="7")
    here = format_cpu_list(os.sched_getaffinity(0))
    assert done.stdout.split() == [here, str(os.sched_getscheduler(0)), "7", "7"], done.stderr


@pytest.mark.parametrize("partly", [False, True])
def test_a_worker_whose_cores_are_not_there_says_so_and_exits(partly):
    core = min(os.sched_getaffinity(0))
    cores = f"{core},{ABSENT}" if partly else str(ABSENT)
    done = subprocess.run(
        [sys.executable, "-m", "shunter.handlers.worker", "--sock-type", "tcp", "--port", "1"],
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
        env={**os.environ, "SHUNTER_CORES": cores},
    )
    assert done.returncode == 1
    assert f"SHUNTER_CORES={cores}: CPU {ABSENT} is not available" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
