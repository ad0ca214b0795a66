import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shunter.allocator.cpus.claims import CoreClaims
from shunter.allocator.cpus.cpu_list import MAX_CPU
from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.cpus.topology import Topology
from shunter.handlers.placement import placement
from shunter.handlers.placement.gentle import can_return_from_idle
from shunter.handlers.placement.placement import (
    Place,
    Placement,
    PlacementError,
    read_placement,
)

ABSENT = next(cpu for cpu in range(MAX_CPU, 0, -1) if cpu >= (os.cpu_count() or 1))
HERE = sorted(os.sched_getaffinity(0))
needs_two_cpus = pytest.mark.skipif(
    len(HERE) < 2 or read_topology().limited, reason="needs two CPUs of its own"
)


def test_a_placement_is_read_from_the_environment():
    assert read_placement({}) == Placement()
    names = ("CORES", "THREADS", "SCHED", "SHARE_WITH", "GENTLE", "PATIENCE_S")
    assert read_placement({f"SHUNTER_{name}": "" for name in names}) == Placement()
    environ = {"SHUNTER_CORES": "0-1", "SHUNTER_THREADS": "2", "SHUNTER_SCHED": "idle"}
    expected = Placement(cores=(0, 1), threads=2, scheduling="idle")
    assert read_placement(environ) == expected
    environ = {"SHUNTER_CORES": "auto", "SHUNTER_THREADS": "8192", "SHUNTER_SHARE_WITH": "7,65"}
    expected = Placement(choose=True, threads=8192, share_with=(7, 65), gentle=True)
    assert read_placement({**environ, "SHUNTER_GENTLE": "1"}) == expected
    assert read_placement({**environ, "SHUNTER_GENTLE": "early"}) == expected
    assert read_placement({"SHUNTER_PATIENCE_S": "2.5"}) == Placement(patience_s=2.5)


@pytest.mark.parametrize(
    ("startup", "given", "patience_s"),
    [("120", "", 15), ("2147483647", "", 15), ("60", "", 7.5), ("0", "", 0), ("8", "20", 20)],
)
def test_a_load_is_an_ordinary_one_long_before_its_time_is_over(startup, given, patience_s):
    environ = {"SHUNTER_STARTUP_TIMEOUT_S": startup, "SHUNTER_PATIENCE_S": given}
    assert read_placement(environ).patience_s == patience_s


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SHUNTER_CORES", "x"),
        ("SHUNTER_THREADS", "0"),
        ("SHUNTER_THREADS", "-1"),
        ("SHUNTER_THREADS", "two"),
        ("SHUNTER_THREADS", "8193"),
        ("SHUNTER_THREADS", "1000000"),
        ("SHUNTER_THREADS", "00000100000"),
        ("SHUNTER_THREADS", "9" * 5000),
        ("SHUNTER_THREADS", "٣"),
        ("SHUNTER_SCHED", "batch"),
        ("SHUNTER_PATIENCE_S", "-1"),
        ("SHUNTER_PATIENCE_S", "1e3"),
        ("SHUNTER_PATIENCE_S", "nan"),
        ("SHUNTER_PATIENCE_S", "٣"),
        ("SHUNTER_STARTUP_TIMEOUT_S", "-1"),
        ("SHUNTER_SHARE_WITH", "1,,2"),
        ("SHUNTER_SHARE_WITH", "1;2"),
        ("SHUNTER_SHARE_WITH", "-1"),
        ("SHUNTER_SHARE_WITH", "9" * 5000),
    ],
)
def test_a_bad_variable_is_refused_by_name_and_value(name, value):
    with pytest.raises(PlacementError) as caught:
        read_placement({name: value})
    assert name in str(caught.value)
    assert value in str(caught.value)


def test_who_chooses_cores_must_know_how_many():
    with pytest.raises(PlacementError, match="SHUNTER_CORES=auto needs SHUNTER_THREADS"):
        read_placement({"SHUNTER_CORES": "auto"})


STATE = """
import json, os
from shunter.handlers.placement import gentle, placement

def say(*more):
    place = sorted(os.sched_getaffinity(0)), os.sched_getscheduler(0)
    print(json.dumps([*place, *more]), flush=True)

def take():
    return placement.Place(placement.read_placement(os.environ), os.environ)
"""


def run(code, **variables):
    """What a new process says, line by line."""
    environ = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    done = subprocess.run(
        [sys.executable, "-c", STATE + code],
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
        env={**environ, "SHUNTER_PATIENCE_S": "3600", **variables},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    return [json.loads(line) if line.startswith("[") else line for line in lines]


LIBRARIES = "take(); say([os.environ.get(name) for name in placement.LIBRARY_VARIABLES])"


def test_a_process_takes_its_place():
    core = HERE[-1]
    variables = {"SHUNTER_CORES": str(core), "SHUNTER_THREADS": "3", "SHUNTER_SCHED": "idle"}
    assert run(LIBRARIES, **variables) == [[[core], os.SCHED_IDLE, ["3"] * 4]]


@pytest.mark.parametrize(
    ("variables", "spins"),
    [
        ({"SHUNTER_SCHED": "idle"}, "10000"),
        ({"SHUNTER_SCHED": "idle", "GOMP_SPINCOUNT": "7"}, "7"),
        ({"SHUNTER_SCHED": "idle", "OMP_WAIT_POLICY": "active"}, None),
        ({"SHUNTER_SCHED": "other"}, None),
        ({}, None),
    ],
)
def test_threads_of_best_effort_do_not_spin_for_long_unless_they_are_told_to(variables, spins):
    assert run("take(); say(os.environ.get('GOMP_SPINCOUNT'))", **variables)[0][-1] == spins


def test_without_variables_a_process_stays_where_it_is():
    found = run(LIBRARIES, OMP_NUM_THREADS="7")
    assert found == [[HERE, os.sched_getscheduler(0), ["7", None, None, None]]]


@needs_two_cpus
def test_torch_starts_with_the_threads_it_was_given():
    code = """
import sys
take()
assert "torch" not in sys.modules
import torch
say(torch.get_num_threads())
"""
    assert run(code, SHUNTER_THREADS="1")[0][-1] == 1
    assert run(code)[0][-1] > 1


@needs_two_cpus
def test_workers_that_choose_get_as_many_cpus_as_threads_and_never_the_same(tmp_path):
    code = """
import subprocess, sys
everywhere = os.sched_getaffinity(0)
place = take()
say()
os.sched_setaffinity(0, everywhere)
if len(sys.argv) < 2:
    subprocess.run([sys.executable, "-c", sys.orig_argv[2], "second"], check=True)
"""
    (one, _), (other, _) = run(
        code,
        SHUNTER_CORES="auto",
        SHUNTER_THREADS="1",
        SHUNTER_CORE_CLAIMS=str(tmp_path / "claims"),
    )
    assert len(one) == len(other) == 1
    assert one != other


@pytest.mark.parametrize("folder", ["", "missing"])
def test_a_worker_that_finds_no_cores_says_why_and_runs_anywhere(tmp_path, folder):
    threads = str(len(HERE) + 1) if not folder else "1"
    said, state = run(
        "place = take(); place.settle(); say()",
        SHUNTER_CORES="auto",
        SHUNTER_THREADS=threads,
        SHUNTER_CORE_CLAIMS=str(tmp_path / folder / "claims"),
    )
    reason = "No such file" if folder else f"no NUMA node has {threads} CPUs"
    if not read_topology().limited:
        assert said.startswith("Model worker is not pinned: ")
        assert reason in said
    assert state == [HERE, os.sched_getscheduler(0)]


def test_a_worker_runs_anywhere_where_another_one_chooses_for_ever(tmp_path):
    """Also when that one was stopped after this one has found no cores."""
    code = """
class Stopped:
    def claim(self, *given):
        raise TimeoutError("process 7 has been choosing cores")

place = take()
place._lacks_cores, place._claims = True, Stopped()
place.settle()
say()
"""
    said, state = run(
        code,
        SHUNTER_CORES="auto",
        SHUNTER_THREADS=str(len(HERE) + 1),
        SHUNTER_CORE_CLAIMS=str(tmp_path / "claims"),
    )
    assert "Model worker is not pinned: process 7 has been choosing cores" in said
    assert state == [HERE, os.sched_getscheduler(0)]


@needs_two_cpus
def test_cores_that_get_free_while_the_model_loads_are_taken_by_all_threads(tmp_path):
    code = """
import sys, threading
place = take()
say()
loaded, found = threading.Event(), []
thread = threading.Thread(
    target=lambda: loaded.wait() and found.append(sorted(os.sched_getaffinity(0)))
)
thread.start()
sys.stdin.readline()
place.settle()
loaded.set()
thread.join()
say(found[0])
"""
    claims = CoreClaims(tmp_path / "claims")
    claims.hold(HERE)
    with subprocess.Popen(
        [sys.executable, "-c", STATE + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "SHUNTER_CORES": "auto",
            "SHUNTER_THREADS": "1",
            "SHUNTER_CORE_CLAIMS": str(tmp_path / "claims"),
        },
    ) as worker:
        assert json.loads(worker.stdout.readline())[0] == HERE
        claims.close()
        out, _ = worker.communicate("loaded\n", timeout=300)
    mine, _, of_thread = json.loads(out)
    assert len(mine) == 1 and of_thread == mine


@needs_two_cpus
@pytest.mark.parametrize("cores", ["auto", str(HERE[0])])
def test_who_chose_for_long_keeps_nobody_from_his_cores_once_he_is_done(tmp_path, cores):
    code = """
import sys
from shunter.allocator.cpus import claims
claims.WAIT_S = 0.0
place = take()
say()
sys.stdin.readline()
place.settle()
say()
sys.stdin.readline()
"""
    path = tmp_path / "claims"
    environ = {
        "SHUNTER_CORES": cores,
        "SHUNTER_THREADS": "1",
        "SHUNTER_CORE_CLAIMS": str(path),
    }
    with path.open("wb") as choosing:
        fcntl.lockf(choosing, fcntl.LOCK_EX, 1)
        worker = subprocess.Popen(
            [sys.executable, "-c", STATE + code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environ},
        )
        assert json.loads(worker.stdout.readline())[0] == (HERE if cores == "auto" else HERE[:1])
    with worker:
        worker.stdin.write("loaded\n")
        worker.stdin.flush()
        (mine,), _ = json.loads(worker.stdout.readline())
        claims = CoreClaims(path)
        assert claims.holders(mine) == {worker.pid}
        claims.close()


@needs_two_cpus
def test_cores_that_an_operator_chose_are_not_given_to_others(tmp_path):
    code = """
import subprocess, sys
place = take()
if os.environ["SHUNTER_CORES"] != "auto":
    everywhere = lambda: os.sched_setaffinity(0, ALL)
    again = {**os.environ, "SHUNTER_CORES": "auto"}
    command = [sys.executable, "-c", sys.orig_argv[2]]
    subprocess.run(command, check=True, env=again, preexec_fn=everywhere)
say()
"""
    given = HERE[0]
    chosen, first = run(
        f"ALL = {HERE}\n" + code,
        SHUNTER_CORES=str(given),
        SHUNTER_THREADS="1",
        SHUNTER_CORE_CLAIMS=str(tmp_path / "claims"),
    )
    assert first[0] == [given]
    assert len(chosen[0]) == 1 and chosen[0] != [given]


@pytest.mark.skipif(not can_return_from_idle(), reason="needs CAP_SYS_NICE")
@needs_two_cpus
@pytest.mark.parametrize(("binding", "where"), [({}, HERE), ({"OMP_PROC_BIND": "true"}, HERE[:1])])
def test_a_gentle_load_may_be_anywhere_near_unless_libraries_bind_their_threads(
    tmp_path, binding, where
):
    (loading, loaded) = run(
        "place = take(); say(); place.settle(); say()",
        SHUNTER_CORES=str(HERE[0]),
        SHUNTER_THREADS="1",
        SHUNTER_GENTLE="1",
        SHUNTER_CORE_CLAIMS=str(tmp_path / "claims"),
        **binding,
    )
    assert loading == [where, os.SCHED_IDLE]
    assert loaded == [HERE[:1], os.SCHED_OTHER]


def test_under_a_quota_nobody_is_pinned(monkeypatch, capsys, tmp_path):
    limited = Topology(read_topology().cpus, 0.5)
    monkeypatch.setattr(placement, "read_topology", lambda: limited)
    environ = {"SHUNTER_CORE_CLAIMS": str(tmp_path / "claims")}
    Place(Placement(choose=True, threads=1), environ)
    assert sorted(os.sched_getaffinity(0)) == HERE
    assert "a quota of 0.5 CPUs on" in capsys.readouterr().out
    assert environ["OMP_NUM_THREADS"] == "1"
    assert list(tmp_path.iterdir()) == []


GENTLY = """
placement.loading.can_return_from_idle = lambda: PERMITTED
place = take()
say()
place.settle()
place.settle()
say()
"""


@pytest.mark.skipif(not can_return_from_idle(), reason="needs CAP_SYS_NICE")
def test_a_gentle_worker_takes_what_nobody_wants_until_its_model_is_loaded():
    found = run(GENTLY.replace("PERMITTED", "True"), SHUNTER_GENTLE="1")
    assert found == [[HERE, os.SCHED_IDLE], [HERE, os.SCHED_OTHER]]


def test_without_the_privilege_a_gentle_worker_loads_as_others_do():
    found = run(GENTLY.replace("PERMITTED", "False"), SHUNTER_GENTLE="1", SHUNTER_THREADS="2")
    assert found == [[HERE, os.SCHED_OTHER]] * 2


def test_a_best_effort_worker_stays_behind_the_others_after_its_load():
    found = run(GENTLY.replace("PERMITTED", "True"), SHUNTER_GENTLE="1", SHUNTER_SCHED="idle")
    assert found == [[HERE, os.SCHED_IDLE]] * 2


IMPATIENT = """
import threading
place = take()
stop = threading.Event()
while PERMITTED and os.sched_getscheduler(0) != os.SCHED_OTHER:
    pass
library = threading.Thread(target=stop.wait)
library.start()
def classes():
    return [os.sched_getscheduler(thread) for thread in (0, library.native_id)]
loading = classes()
place.settle()
say(*loading, *classes())
stop.set()
"""


@pytest.mark.skipif(not can_return_from_idle(), reason="needs CAP_SYS_NICE")
def test_best_effort_that_a_busy_host_lets_wait_loads_as_others_do_and_then_steps_back():
    code = IMPATIENT.replace("PERMITTED", "True")
    [found] = run(code, SHUNTER_SCHED="idle", SHUNTER_PATIENCE_S="0.01")
    idle, other = os.SCHED_IDLE, os.SCHED_OTHER
    assert found[2:] == [other, other, idle, idle]


def test_best_effort_that_cannot_come_back_stays_behind():
    code = "gentle.can_return_from_idle = lambda: False\n" + IMPATIENT.replace("PERMITTED", "False")
    [found] = run(code, SHUNTER_SCHED="idle", SHUNTER_PATIENCE_S="0.01")
    assert found[2:] == [os.SCHED_IDLE] * 4


@pytest.mark.parametrize("partly", [False, True])
def test_a_worker_whose_cores_are_not_there_says_so_and_exits(partly):
    cores = f"{HERE[0]},{ABSENT}" if partly else str(ABSENT)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "shunter.handlers.torchserve.worker",
            "--sock-type",
            "tcp",
            "--port",
            "1",
        ],
        capture_output=True,
        check=False,
        text=True,
        timeout=300,
        env={**os.environ, "SHUNTER_CORES": cores},
    )
    assert done.returncode == 1
    assert f"SHUNTER_CORES={cores}: CPU {ABSENT} is not available" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.fixture
def idle_cgroup():
    """A cgroup of the test's own, where the kernel lets one be made."""
    roots = [Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")]
    for root in (root for root in roots if (root / "cgroup.procs").exists()):
        group = root / f"shunter-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("needs the right to make a cgroup")


def test_a_best_effort_worker_moves_to_the_cgroup_that_it_is_told(idle_cgroup):
    code = "take(); say(open('/proc/self/cgroup').read())"
    found = run(code, SHUNTER_SCHED="idle", SHUNTER_IDLE_CGROUP=str(idle_cgroup))
    assert f"/{idle_cgroup.name}\n" in found[0][-1]
    assert found[0][1] == os.SCHED_IDLE
    assert idle_cgroup.name not in run(code, SHUNTER_IDLE_CGROUP=str(idle_cgroup))[0][-1]


def test_a_cgroup_that_cannot_be_joined_is_an_error(tmp_path):
    code = """
try:
    take()
except placement.PlacementError as error:
    print(error)
"""
    found = run(code, SHUNTER_SCHED="idle", SHUNTER_IDLE_CGROUP=str(tmp_path / "none"))
    assert str(found[0]).startswith(f"SHUNTER_IDLE_CGROUP={tmp_path / 'none'}: ")
