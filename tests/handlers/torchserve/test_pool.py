"""Models of several seats in one process, over the sockets of their servers."""

import contextlib
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from ts.context import Context  # noqa: F401 - a worker needs TorchServe

from shunter.batching.page.control_page import ControlPage
from shunter.handlers.placement.placement import PlacementError
from shunter.handlers.pool import seat
from shunter.handlers.pool.handover import TUNABLES, UNBEGUN
from shunter.handlers.sample import Sample
from shunter.handlers.torchserve.pool import part, worker
from shunter.handlers.torchserve.pool.pooled import is_resident
from shunter.nic_frontend import build
from shunter.plugins.host import WorkerFailed
from shunter.plugins.torchserve.archives import UnpackedModel
from shunter.plugins.torchserve.worker_client import ModelWorker

HANDLER = """
import os
import sys
import threading
import time

import torch
from model import Net


class Handler:
    def initialize(self, context):
        self.model = Net().eval()
        self.folder = os.getcwd()
        {load}

    def handle(self, data, context):
        asked = bytes(data[0]["body"]).decode()
        if asked == "fail":
            raise ValueError("as asked")
        if asked == "exit":
            sys.exit(3)
        if asked == "thread" and not hasattr(self, "own"):
            self.own = threading.Thread(target=time.sleep, args=(600,), daemon=True, name="late")
            self.own.start()
        if asked == "kill":
            os.kill(os.getpid(), 9)
        if asked.startswith("fork "):
            child = os.fork()
            if not child:
                time.sleep(600)
                os._exit(0)
            with open(asked.split()[1], "w") as file:
                file.write(str(child))
        if asked.startswith("until "):
            gate, x = asked.split()[1], torch.linspace(-1, 1, 256)
            open(gate + ".reached", "w").close()
            with torch.inference_mode():
                while not os.path.exists(gate):
                    time.sleep(0.001)
                    self.model(x)
        if asked.startswith("/"):
            open(asked, "w").close()
            time.sleep(600)
        with torch.no_grad():
            answer = float(self.model(torch.linspace(-1, 1, 256)).sum())
        said = [answer, os.getpid(), os.getcwd() == self.folder, os.environ.get("MINE")]
        return [said for _ in data]
"""
MODEL = """
import torch


class Net(torch.nn.Sequential):
    def __init__(self):
        torch.manual_seed({seed})
        super().__init__(*(torch.nn.Linear(256, 256) for _ in range(2)))
"""
PATIENCE_S = 60


def wait_until(what, condition):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Worker(ModelWorker):
    """A worker of a server of this test."""

    def ask(self, body="x"):
        """What the handler answers."""
        self.run([Sample(body.encode())])
        return self.answer

    def _answers(self):
        found, goes_on = super()._answers()
        if found:
            self.answer = found[0][1]
        return found, goes_on

    def send(self, body):
        """A batch whose answer nobody waits for."""
        from shunter.plugins.torchserve.worker_messages import batch_message

        self._send(batch_message([Sample(body.encode())]))

    def status(self):
        """Of its end, when it comes."""
        wait_until("the seat ends", lambda: self._end() is not None)
        return self._end().si_status

    def is_a_seat(self):
        return "shunter-seat" in Path(f"/proc/{self.pid}/cmdline").read_bytes().decode()


class Site:
    """A server's runtime folder, and its workers."""

    def __init__(self, folder):
        self.folder, self.runtime = folder, folder / "run"
        self.runtime.mkdir(parents=True)
        self.workers = []

    def start(self, name, seed, load="pass", **variables):
        """A worker of an archive."""
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir()
            (folder / "handler.py").write_text(HANDLER.format(load=load))
            (folder / "model.py").write_text(MODEL.format(seed=seed))
        model = UnpackedModel(name, folder, "handler.py", {})
        variables = {
            "SHUNTER_POOL": "0",
            "SHUNTER_RUNTIME": str(self.runtime),
            "SHUNTER_POOL_HOT_MB": "64",
            "SHUNTER_POOL_PATIENCE_S": "20",
            "MINE": name,
            **variables,
        }
        worker = Worker(model, threads=1, variables=variables)
        self.workers.append(worker)
        return worker.start()

    def weights(self):
        return len(list((self.runtime / "weights").glob("*.safetensors")))

    def close(self):
        for each in self.workers:
            each.close()


@pytest.fixture(scope="module", autouse=True)
def program():
    """The seat, as it is built from these sources."""
    try:
        assert build.ensure_seat() == seat.PROGRAM
    except build.BuildError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """With models a and b, which stay."""
    found = Site(tmp_path_factory.mktemp("site"))
    try:
        found.a, found.b = found.start("a", 1), found.start("b", 2)
        found.answers = found.a.ask(), found.b.ask()
        yield found
    finally:
        found.close()


def facts(answer):
    return json.loads(answer)


@pytest.fixture
def unharmed(site):
    """Afterwards a and b answer as before, from the same process."""
    yield
    assert (site.a.ask(), site.b.ask()) == site.answers


def test_two_archives_with_equal_names_have_a_process_together(site, unharmed):
    a, b = map(facts, site.answers)
    assert a[0] != b[0] and a[1] == b[1]
    assert (a[2:], b[2:]) == ([True, "a"], [True, "b"])
    assert site.a.is_a_seat() and a[1] not in (site.a.pid, site.b.pid)
    assert psutil.Process(a[1]).ppid() not in (site.a.pid, os.getpid())
    assert site.weights() == 2


def test_a_handler_that_fails_or_ends_harms_nobody_else(site, unharmed):
    other = site.start("c", 3)
    with pytest.raises(WorkerFailed, match="answered 503"):
        other.ask("fail")
    assert facts(other.ask())[3] == "c"
    with pytest.raises(WorkerFailed):
        other.ask("exit")
    assert other.status() == 3


def test_a_model_that_does_not_load_is_refused_and_said_why(site, unharmed):
    with pytest.raises(WorkerFailed, match="no good") as failed:
        site.start("bad", 4, "raise ValueError('no good')")
    assert any("ValueError: no good" in line for line in failed.value.lines)
    assert site.workers.pop()._process is None


def test_one_that_cannot_be_shared_has_a_process_of_its_own(site, unharmed):
    starts = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    own = site.start("own", 5, starts)
    assert facts(own.ask())[1] == own.pid
    assert not own.is_a_seat()
    assert "it has threads of its own" in (own._folder / "log").read_text()
    again = site.start("own", 5)
    assert facts(again.ask())[1] == again.pid


def test_one_that_begins_threads_later_has_a_process_of_its_own_the_next_time(site, unharmed):
    late = site.start("late", 5)
    for _ in range(2):
        assert facts(late.ask("thread"))[1] == site_pid(site)
    told = (late._folder / "log").read_text()
    late.close()
    assert told.count("The next worker of the model has a process of its own") == 1
    assert "it has threads of its own: late" in told
    again = site.start("late", 5)
    assert facts(again.ask())[1] == again.pid


def test_a_seat_that_is_killed_while_it_is_idle_takes_its_model_with_it(site, unharmed):
    other = site.start("d", 6)
    mapped = mapped_weights(site)
    os.kill(other.pid, signal.SIGKILL)
    wait_until("its weights are free", lambda: mapped_weights(site) == mapped - 1)


def site_pid(site):
    return facts(site.answers[0])[1]


def mapped_weights(site):
    maps = Path(f"/proc/{site_pid(site)}/maps").read_text().splitlines()
    return len({line.split()[-1] for line in maps if ".safetensors" in line})


def test_its_process_copies_past_the_cache(site):
    variables = Path(f"/proc/{site_pid(site)}/environ").read_bytes().split(b"\0")
    assert "=".join(TUNABLES).encode() in variables


def test_it_starts_with_the_variables_of_its_first_model_and_each_handler_sees_its_own(site):
    variables = Path(f"/proc/{site_pid(site)}/environ").read_bytes().split(b"\0")
    assert b"MINE=a" in variables
    assert [facts(each)[3] for each in site.answers] == ["a", "b"]


@pytest.fixture
def alone(tmp_path):
    """A server whose pool process a test may harm."""
    found = Site(tmp_path / "alone")
    try:
        found.cpu = min(os.sched_getaffinity(0))
        cores = {"SHUNTER_POOL_CORES": str(found.cpu)}
        cores["SHUNTER_CORE_CLAIMS"] = str(tmp_path / "claims")
        found.a, found.b = found.start("a", 1, **cores), found.start("b", 2)
        found.process = psutil.Process(facts(found.a.ask())[1])
        yield found
    finally:
        found.close()


def ended(process):
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it was buried between the two
        return True


def test_the_process_ends_with_the_batch_that_is_given_up_and_its_seats_come_back(alone, site):
    assert alone.process.pid != site_pid(site), "another server has another process"
    gate = alone.folder / "running"
    alone.a.send(str(gate))
    wait_until("the batch runs", gate.exists)
    os.kill(alone.a.pid, signal.SIGKILL)
    assert alone.b.status() == UNBEGUN
    wait_until("the process ends", lambda: ended(alone.process))
    c = alone.start("c", 3)
    assert facts(c.ask())[1] not in (alone.process.pid, c.pid)
    c.close()
    alone.workers.remove(c)


def test_who_takes_no_seat_any_more_is_ended_and_its_seats_know_whose_batch_ran(alone):
    gate = alone.folder / "running"
    alone.a.send(str(gate))
    wait_until("the batch runs", gate.exists)
    os.kill(alone.process.pid, signal.SIGSTOP)
    c = alone.start("c", 3, SHUNTER_POOL_PATIENCE_S="5")  # a new process has three times that
    assert (alone.a.status(), alone.b.status()) == (1, UNBEGUN)
    assert facts(c.ask())[1] != alone.process.pid
    assert ended(alone.process)


def test_the_process_outlives_a_worker_that_is_killed_while_it_loads(alone):
    gate = alone.folder / "gate"
    load = (
        f"open('{gate}.reached', 'w').close();"
        f"[time.sleep(0.01) for _ in iter(lambda: os.path.exists('{gate}'), True)]"
    )
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(alone.start, "slow", 3, load)
        try:
            wait_until("it loads", Path(f"{gate}.reached").exists)
            os.kill(alone.workers[-1].pid, signal.SIGKILL)
            time.sleep(1)  # by then it would have ended
        finally:
            gate.touch()
        with contextlib.suppress(WorkerFailed):  # or it had answered before it was heard of
            slow.result()
    again = alone.start("slow", 3)  # it was not for what it did that it went
    assert {facts(each.ask())[1] for each in (alone.a, alone.b, again)} == {alone.process.pid}


@pytest.fixture
def forked(alone):
    """What a handler has forked without another program outlives the pool process."""
    file = alone.folder / "child"
    alone.a.ask(f"fork {file}")
    child = psutil.Process(int(file.read_text()))
    yield alone
    assert not ended(child)
    child.kill()


def test_a_child_that_was_forked_does_not_hide_that_the_process_is_gone(forked):
    forked.process.kill()
    assert forked.a.status() in (1, UNBEGUN)  # its batch may be answered and not be over yet
    assert forked.b.status() == UNBEGUN
    assert facts(forked.start("c", 3).ask())[1] != forked.process.pid


def test_a_child_that_was_forked_keeps_nobody_waiting_when_the_process_has_ended(forked):
    for each in (forked.a, forked.b):
        os.kill(each.pid, signal.SIGKILL)
    wait_until("the process ends", lambda: ended(forked.process))
    assert facts(forked.start("c", 3).ask())[1] != forked.process.pid


@pytest.fixture
def passed(alone):
    """Models a and b, and one whose batches stand still for theirs."""
    now_ns = time.monotonic_ns()
    path = alone.runtime / "control"
    with ControlPage.create(path, owner_pid=os.getpid(), created_unix_ns=1, now_ns=now_ns) as page:
        page.write_bounds(2_000_000, 3_600_000_000)  # it does not lose patience on a busy host
        alone.low = alone.start(
            "low", 5, SHUNTER_PREEMPTIBLE="1", SHUNTER_CLASS="best_effort", SHUNTER_SLOT="1"
        )
        alone.gate = alone.folder / "gate"
        yield alone


@pytest.fixture
def standing(passed):
    """Its batch, which goes on until the gate is open."""
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(passed.low.ask, f"until {passed.gate}")
        try:
            wait_until("the batch runs", Path(f"{passed.gate}.reached").exists)
            yield batch
        finally:
            passed.gate.touch()


def test_strict_batches_run_in_the_midst_of_one_that_stands_still(passed, standing):
    before = facts(passed.b.ask())
    for _ in range(3):
        assert facts(passed.a.ask())[1:] == [passed.process.pid, True, "a"]
        with pytest.raises(WorkerFailed, match="answered 503"):
            passed.a.ask("fail")
        assert facts(passed.b.ask()) == before
    assert not standing.done()
    passed.gate.touch()
    answer = facts(standing.result(PATIENCE_S))
    assert answer == facts(passed.low.ask()) and answer[1:] == [passed.process.pid, True, "low"]


def test_seats_come_and_go_while_a_batch_stands_still(passed, standing):
    passed.a.close()
    with pytest.raises(WorkerFailed):
        passed.b.ask("exit")
    assert passed.b.status() == 3 and not standing.done()
    with ThreadPoolExecutor(1) as pool:
        comes = pool.submit(passed.start, "c", 3)
        wait_until("its seat", lambda: len(passed.workers) == 4 and passed.workers[-1]._process)
        passed.gate.touch()
        assert facts(comes.result(PATIENCE_S).ask())[3] == "c"
    assert facts(standing.result(PATIENCE_S))[3] == "low"


def test_what_stood_still_had_begun_when_the_process_goes(passed, standing):
    passed.a.send("kill")
    assert (passed.a.status(), passed.low.status(), passed.b.status()) == (1, 1, UNBEGUN)
    with pytest.raises(WorkerFailed):
        standing.result(PATIENCE_S)


def test_the_process_keeps_to_its_cores_and_goes_with_its_last_seat(alone):
    assert alone.process.cpu_affinity() == [alone.cpu]
    alone.a.close()
    alone.b.close()
    wait_until("the process ends", lambda: ended(alone.process))
    assert not (alone.runtime / "p.0").exists()


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SHUNTER_POOL": "64"}, "SHUNTER_POOL='64'; allowed: 0 to 63"),
        ({"SHUNTER_POOL": "x"}, "allowed: 0 to 63"),
        ({"SHUNTER_POOL": "1"}, "it belongs to no server"),
        ({"SHUNTER_POOL": "1", "SHUNTER_RUNTIME": "/nowhere"}, "there is no /none; `make library`"),
    ],
)
def test_why_a_worker_has_a_process_of_its_own(variables, words, monkeypatch, capsys):
    monkeypatch.setattr(seat, "PROGRAM", Path("/none"))
    seat.take_if_wanted("module", variables)
    assert words in capsys.readouterr().out
    assert "SHUNTER_POOL" not in variables


def test_a_process_forgets_the_model_of_the_seat_that_has_started_it(monkeypatch, tmp_path):
    runtime, folder = tmp_path / "run", tmp_path / "model"
    for each in (runtime, folder):
        each.mkdir()
    monkeypatch.chdir(folder)
    environ = {
        "SHUNTER_RUNTIME": str(runtime),
        "SHUNTER_THREADS": "7",
        "SHUNTER_PREEMPTIBLE": "1",
        "PYTHONPATH": os.pathsep.join([str(folder), "/packages", str(folder / "lib")]),
        "OTHER": "x",
    }
    path = ["", str(folder), "/packages", str(folder / "lib")]
    worker.be_nobodys(environ, path)
    assert path == ["", "/packages"]
    assert environ == {"SHUNTER_RUNTIME": str(runtime), "PYTHONPATH": "/packages", "OTHER": "x"}
    assert Path.cwd() == runtime


@pytest.mark.parametrize(
    ("environ", "threads"),
    [
        ({}, 8),
        ({"SHUNTER_POOL_WORKERS": "3"}, 2),
        ({"SHUNTER_POOL_WORKERS": "30"}, 1),
        ({"SHUNTER_POOL_WORKERS": "3", "SHUNTER_POOL_THREADS": "0"}, 2),
        ({"SHUNTER_POOL_WORKERS": "3", "SHUNTER_POOL_THREADS": "5"}, 5),
    ],
)
def test_threads_are_those_that_are_said_or_a_share_of_the_cpus(environ, threads, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert part.threads_of(environ) == threads


@pytest.mark.parametrize(
    ("environ", "cores", "threads"),
    [
        ({}, "", 8),
        ({"SHUNTER_POOL_CORES": "auto", "SHUNTER_POOL_WORKERS": "2"}, "auto", 4),
        ({"SHUNTER_POOL_CORES": "0-3"}, "0-3", 4),
        ({"SHUNTER_POOL_CORES": "0-4", "SHUNTER_POOL_WORKERS": "2"}, "0-1", 2),
        (
            {"SHUNTER_POOL_CORES": "0-4", "SHUNTER_POOL_WORKERS": "2", "SHUNTER_POOL": "1"},
            *("2-4", 3),
        ),
        ({"SHUNTER_POOL_CORES": "5", "SHUNTER_POOL_WORKERS": "2", "SHUNTER_POOL": "0"}, "5", 1),
        ({"SHUNTER_POOL_CORES": "0-3", "SHUNTER_POOL_THREADS": "1"}, "0-3", 1),
    ],
)
def test_cores_of_the_pool_are_divided_among_its_processes(environ, cores, threads, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert (part.cores_of(environ), part.threads_of(environ)) == (cores, threads)


def test_cores_of_the_pool_that_make_no_sense_are_refused():
    with pytest.raises(PlacementError, match="SHUNTER_POOL_CORES"):
        part.cores_of({"SHUNTER_POOL_CORES": "3-1"})


@pytest.mark.parametrize(
    ("config", "resident"),
    [
        ("shunter: {resident: true}", True),
        ("shunter: {resident: false}", False),
        ("shunter: [", False),
        ("", False),
    ],
)
def test_the_archive_says_whether_its_weights_stay(tmp_path, config, resident):
    assert not is_resident(tmp_path)
    (tmp_path / "MAR-INF").mkdir()
    (tmp_path / "MAR-INF/MANIFEST.json").write_text('{"model": {"configFile": "c.yaml"}}')
    assert not is_resident(tmp_path)
    (tmp_path / "c.yaml").write_text(config)
    assert is_resident(tmp_path) is resident


@pytest.mark.parametrize(
    ("workers", "said", "places", "hot"),
    [
        ("", "", 1, 4e9),
        ("2", "", 1, 2e9),
        ("2", "3", 1, 3e6),
        ("2", "", 2, 4e9),
        ("3", "", 2, 2e9),
        ("1", "", 8, 4e9),
        ("2", "", 0, 2e9),
    ],
)
def test_hot_memory_is_what_is_said_or_a_share_of_what_is_free(workers, said, places, hot):
    """``places``: GPUs."""
    environ = {"SHUNTER_POOL_WORKERS": workers, "SHUNTER_POOL_HOT_MB": said}
    assert part.hot_bytes(environ, 8e9, places) == hot
