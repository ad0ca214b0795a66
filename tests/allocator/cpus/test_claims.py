"""Claims between real processes. The kernel keeps the locks, so the CPUs may be fictitious."""

import os
import subprocess
import sys

import pytest

from shunter.allocator.cpus import claims as claims_module
from shunter.allocator.cpus.claims import LANES, CoreClaims, claims_path
from shunter.allocator.cpus.topology import Cpu, Topology

CLAIM = """
import os, sys
from pathlib import Path
from shunter.allocator.cpus.topology import Cpu, Topology
from shunter.allocator.cpus.claims import CoreClaims

path, cpus, threads, *share_with = sys.argv[1:]
claims = CoreClaims(Path(path))
topology = Topology(tuple(Cpu(cpu, cpu) for cpu in range(int(cpus))))
print("ready", flush=True)
for line in sys.stdin:
    if line == "claim\\n":
        cores = claims.claim(topology, int(threads), [int(pid) for pid in share_with])
        print("none" if cores is None else ",".join(map(str, cores)), flush=True)
    elif line == "close\\n":
        claims.close()
        print("closed", flush=True)
    elif line == "fork\\n":
        child = os.fork()
        if child == 0:
            claims.close()
            os._exit(0)
        os.waitpid(child, 0)
        os.spawnlp(os.P_WAIT, "true", "true")
        print("forked", flush=True)
    elif line == "choose for ever\\n":
        with claims._choosing():
            print("choosing", flush=True)
            sys.stdin.read()
    elif line == "orphan\\n":
        # A child that outlives its worker, as a handler may start one.
        child = os.fork()
        if child == 0:
            os.close(1)
            sys.stdin.read()
            os._exit(0)
        print("forked", flush=True)
"""


class Claimant:
    """A process that claims when it is told to."""

    def __init__(self, path, cpus, threads, share_with):
        command = [sys.executable, "-c", CLAIM, str(path), str(cpus), str(threads)]
        self.process = subprocess.Popen(
            [*command, *map(str, share_with)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self):
        return self.process.pid

    def tell(self, word):
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def hear(self):
        return self.process.stdout.readline().strip()

    def ask(self, word):
        self.tell(word)
        return self.hear()

    def claim(self):
        return cores_of(self.ask("claim"))

    def kill(self):
        self.process.kill()
        self.process.wait()


def cores_of(text):
    return None if text == "none" else {int(core) for core in text.split(",")}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "cores"


@pytest.fixture
def start(path):
    started = []

    def start(cpus=4, threads=2, share_with=()):
        claimant = Claimant(path, cpus, threads, share_with)
        started.append(claimant)
        assert claimant.hear() == "ready"
        return claimant

    yield start
    for claimant in started:
        claimant.kill()
        claimant.process.stdin.close()
        claimant.process.stdout.close()


def test_processes_that_claim_at_the_same_moment_never_overlap(start):
    claimants = [start(cpus=16, threads=3) for _ in range(6)]
    for claimant in claimants:
        claimant.tell("claim")
    found = [cores_of(claimant.hear()) for claimant in claimants]
    given = [cores for cores in found if cores is not None]
    # Five times three of sixteen; who comes last gets none.
    assert len(given) == 5
    assert len(set.union(*given)) == 15


@pytest.mark.parametrize("way", ["kill", "close"])
def test_the_cores_of_a_process_that_ends_are_free_again(start, way):
    first, second = start(), start(threads=3)
    assert first.claim() == {0, 1}
    assert second.claim() is None
    if way == "kill":
        first.kill()
    else:
        first.ask("close")
    assert second.claim() == {0, 1, 2}


def test_a_worker_may_share_with_those_it_replaces_and_with_nobody_else(start):
    replaced, stranger = start(), start(threads=1)
    assert replaced.claim() == {0, 1}
    assert stranger.claim() == {2}
    new = start(threads=3, share_with=[replaced.pid])
    assert new.claim() == {0, 1, 3}
    # And nobody may share with the new one because he may with the old one.
    assert start(threads=1, share_with=[replaced.pid]).claim() is None
    replaced.kill()
    assert start(threads=1, share_with=[replaced.pid]).claim() is None
    assert start(threads=1, share_with=[new.pid]).claim() == {0}


def test_a_shared_core_has_all_its_holders(start, path):
    first = start(cpus=1, threads=1)
    assert first.claim() == {0}
    second = start(cpus=1, threads=1, share_with=[first.pid])
    assert second.claim() == {0}
    claims = CoreClaims(path)
    assert claims.holders(0) == {first.pid, second.pid}
    assert claims.holders(1) == set()
    claims.close()


def test_a_core_that_too_many_share_is_full(start):
    pids = []
    for _ in range(LANES):
        claimant = start(cpus=1, threads=1, share_with=pids)
        assert claimant.claim() == {0}
        pids.append(claimant.pid)
    assert start(cpus=1, threads=1, share_with=pids).claim() is None


def test_children_of_a_worker_neither_take_nor_lose_its_cores(start):
    worker, other = start(), start(threads=3)
    assert worker.claim() == {0, 1}
    assert worker.ask("fork") == "forked"
    assert other.claim() is None


def test_a_child_that_outlives_its_worker_holds_no_cores(start):
    worker, other = start(), start(threads=4)
    assert worker.claim() == {0, 1}
    assert worker.ask("orphan") == "forked"
    worker.kill()
    assert other.claim() == {0, 1, 2, 3}


def test_who_has_been_stopped_while_choosing_does_not_stop_others_for_ever(
    start, path, monkeypatch
):
    monkeypatch.setattr(claims_module, "WAIT_S", 0.0)
    stopped = start()
    assert stopped.ask("choose for ever") == "choosing"
    claims = CoreClaims(path)
    with pytest.raises(TimeoutError, match=f"process {stopped.pid} has been choosing cores"):
        claims.hold([0])
    stopped.kill()
    claims.hold([0])
    claims.close()


def test_a_link_is_refused(path, tmp_path):
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        CoreClaims(path)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_another_user_is_refused(path):
    path.touch()
    os.chown(path, 65534, -1)
    with pytest.raises(PermissionError, match="belongs to another user"):
        CoreClaims(path)


def test_the_file_is_for_its_user_only_and_stays_empty(path):
    claims = CoreClaims(path)
    assert claims.claim(Topology((Cpu(0, 0),)), 1) == (0,)
    claims.close()
    found = path.stat()
    assert (found.st_mode & 0o777, found.st_size) == (0o600, 0)


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({}, "/dev/shm/shunter-7-cores"),
        ({"SHUNTER_RUNTIME_DIR": "/s", "XDG_RUNTIME_DIR": "/r"}, "/dev/shm/shunter-7-cores"),
        ({"SHUNTER_CORE_CLAIMS": ""}, "/dev/shm/shunter-7-cores"),
        ({"SHUNTER_CORE_CLAIMS": "/a/cores"}, "/a/cores"),
    ],
)
def test_all_workers_of_a_user_look_in_the_same_place(environ, path):
    assert str(claims_path(environ, 7)) == path
