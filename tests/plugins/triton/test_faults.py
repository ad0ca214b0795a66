"""What goes wrong between a host, its workers and the backend, with fakes of both."""

import json
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import ClassVar

import pytest

from shunter.allocator.planning.configuration import parse_configuration
from shunter.batching.page.layout import ChangeState
from shunter.batching.page.records import Commands, GroupCommands, SlotChange, SlotCommands
from shunter.batching.queue.attach import receive, send
from shunter.plugins.host import HostError, WorkerFailed
from shunter.plugins.record import RecordedModel
from shunter.plugins.slot_writer import ServerPage
from shunter.plugins.triton import backend, generation, layout, packed, reception
from shunter.plugins.triton.backend import Backend, BackendGone, NoBackend
from shunter.plugins.triton.generation import Generation
from shunter.plugins.triton.installation import Installation
from shunter.plugins.triton.layout import Kind
from shunter.plugins.triton.packed import ARCHIVE, PackedWorkers
from shunter.plugins.triton.reception import Reception
from shunter.plugins.triton.repository import Repository
from shunter.plugins.triton.served import Served, identity_of
from shunter.plugins.triton.serving import known, loading, taking_over
from shunter.plugins.triton.serving.control import Control
from shunter.plugins.triton.serving.host import TritonHost
from shunter.plugins.triton.serving.process import TritonProcess
from shunter.plugins.triton.serving.surroundings import logged_in

PATIENCE_S = 60
TENSORS = {
    "inputs": [{"name": "x", "dtype": "float32", "shape": [4]}],
    "outputs": [{"name": "y", "dtype": "float32", "shape": [4]}],
}


def wait_until(told):
    end = time.monotonic() + PATIENCE_S
    while not told():
        assert time.monotonic() < end
        time.sleep(0.005)


class FakeBackend:
    """It answers each message as ``answers`` says, in turn, for as long as there are some."""

    def __init__(self, at, *answers):
        self.answers, self.told = list(answers), []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(at))
        self._listener.listen()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        while self.answers:
            connection = self._listener.accept()[0]
            with connection:
                connection.send(connection.recv(1 << 16))  # hello
                while data := connection.recv(1 << 16):
                    self.told.append(Kind(int.from_bytes(data[:8], "little") & 0xFF))
                    answers = self.answers.pop(0) if self.answers else []
                    for each in answers:
                        connection.send(each)
                    if not answers:
                        break
        self._listener.close()


def reply(number=0):
    return layout.pack("reply", number=number)


def listed(*pids):
    return [reply(1), layout.pack("state", model="m", version=1, loaded=1, pids=pids)]


@pytest.mark.parametrize("answers", [[], [reply(1)[:-1]], [reply(1), b"short"]])
def test_a_cut_answer_is_that_of_a_backend_that_is_gone(tmp_path, answers):
    FakeBackend(tmp_path / "at", answers)
    with Backend(tmp_path / "at") as asked:
        with pytest.raises(BackendGone):
            asked.functions()
        with pytest.raises(BackendGone):
            asked.functions()  # nothing of the first answer is read later


def test_a_backend_that_is_slow_is_not_one_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(backend, "ANSWER_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(str(tmp_path / "at"))
        silent.listen()
        with pytest.raises(BackendGone) as raised:
            Backend(tmp_path / "at")
        assert not isinstance(raised.value, NoBackend)
    for path in ("at", "none"):
        with pytest.raises(NoBackend):
            Backend(tmp_path / path)


def test_workers_are_drained_though_the_backend_does_not_answer_at_first(tmp_path):
    fake = FakeBackend(tmp_path / "at", [], listed(7), [reply()], listed())
    generation.drain(tmp_path / "at", "m", 1, [7])
    assert fake.told == [Kind.LIST, Kind.LIST, Kind.DRAIN, Kind.LIST]


class FakeWorker:
    """One that loads when it is let."""

    def __init__(self, runtime):
        self._runtime, self.threads, self.pid, self.is_dead = runtime, 1, os.getpid(), False
        self.closed = False

    def start(self):
        self._runtime.starting.set()
        assert self._runtime.may_start.wait(PATIENCE_S)
        if self._runtime.fails:
            raise WorkerFailed("it does not load", ["ImportError: no such", "of a handler"])
        return self

    def failure(self):
        return WorkerFailed("the worker ended with signal 9", ["its last words"])

    def kill(self):
        """There is no process yet."""

    def close(self):
        self.is_dead = self.closed = True


class FakeRuntime:
    """Archives are JSON files: name, version, config."""

    def __init__(self):
        self.starting, self.may_start, self.fails = threading.Event(), threading.Event(), False
        self.may_start.set()
        self.workers, self.on_worker = [], lambda: None

    def unpack(self, archive, folder):
        said = json.loads(archive.read_text())
        return Model(said["name"], said["version"], said["config"])

    def worker(self, model, **given):
        self.on_worker()
        self.given = given
        self.workers.append(FakeWorker(self))
        return self.workers[-1]


@dataclass(frozen=True)
class Model:
    """As a runtime unpacks it."""

    name: str
    version: str
    config: dict
    environment: dict = field(default_factory=dict)

    @property
    def section(self):
        return self.config["shunter"]


def made(runtime, refusals=()):
    found = Generation(Model("m", "1", {}), (), (), {}, runtime)
    found.refusals = dict(refusals)
    found.places = [generation.Place(0, 1, 1, "", worker=FakeWorker(runtime))]
    return found


def test_a_refusal_is_of_its_process_only(tmp_path):
    FakeBackend(tmp_path / "at", listed(), listed(os.getpid()))
    made(FakeRuntime(), {1: ("m", "another's")}).wait_attached(tmp_path / "at")
    FakeBackend(tmp_path / "again", listed())
    with pytest.raises(HostError, match="did not attach: its own"):
        made(FakeRuntime(), {os.getpid(): ("m", "its own")}).wait_attached(tmp_path / "again")


def test_a_backend_that_does_not_answer_has_no_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(generation, "ATTACH_S", 0.1)
    FakeBackend(tmp_path / "at", *[[] for _ in range(1000)])
    with pytest.raises(HostError, match=r"did not attach: 0\.1 s"):
        made(FakeRuntime()).wait_attached(tmp_path / "at")


def test_a_worker_that_starts_after_the_end_is_ended():
    runtime = FakeRuntime()
    runtime.may_start.clear()
    found = made(runtime)
    found.configuration = (SimpleNamespace(threads=1, batch=1, instances=1),)
    found.cores = ("",)
    failed = []

    def start():
        try:
            found.start()
        except HostError as error:
            failed.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    assert runtime.starting.wait(PATIENCE_S)
    found.close()
    runtime.may_start.set()
    thread.join(PATIENCE_S)
    assert failed and all(each.closed for each in runtime.workers)


def test_versions_of_a_model_have_one_configuration(tmp_path):
    found = Repository(tmp_path)
    found.write("m", 1, "text")
    found.write("m", 2, "text")
    with pytest.raises(HostError, match="not those of its other version"):
        found.write("m", 3, "other")
    assert sorted(each.name for each in (tmp_path / "m").iterdir()) == ["1", "2", "config.pbtxt"]
    for version in (1, 2):
        found.remove("m", version)
    assert not list(tmp_path.iterdir())


# ---- reception


ATTACH = {"model": "m", "version": "1", **TENSORS, "batch": 1, "pid": 1}


@pytest.fixture
def door(tmp_path):
    found = Reception(tmp_path / "attach", tmp_path / "backend", lambda: 1e12)
    found.start()
    yield found
    found.close()


def knock(door, **changes):
    found = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    found.settimeout(PATIENCE_S)
    found.connect(str(door.path))
    send(found, {"attach": ATTACH | changes})
    return found


def test_no_worker_ends_the_reception_of_others(door, tmp_path):
    wrong = [{"response_timeout_s": each} for each in (1e12, float("nan"), "soon")]
    wrong += [{"version": "9" * 21}, {"model": 7}, {"batch": 2**70}]
    fake = FakeBackend(tmp_path / "backend", *[[] for _ in range(9)])
    for each in wrong:
        with knock(door, **each) as worker:
            assert "refused" in receive(worker)[0]
    assert fake.told == []
    with knock(door) as worker, pytest.raises(EOFError):
        receive(worker)  # what the backend has made of it is not known: it comes again
    assert fake.told == [Kind.WORKER]


def test_who_does_not_say_who_he_is_is_let_go(door, monkeypatch):
    monkeypatch.setattr(reception, "GREET_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.settimeout(PATIENCE_S)
        silent.connect(str(door.path))
        assert silent.recv(1) == b""


# ---- the host


@pytest.fixture
def site(tmp_path):
    (tmp_path / "store").mkdir()
    for name in "abc":
        said = {"name": name, "version": "1", "config": {"shunter": {"tensors": TENSORS}}}
        (tmp_path / f"store/{name}.mar").write_text(json.dumps(said))
    runtime, page = FakeRuntime(), ServerPage(tmp_path / "page", os.getpid(), "Triton")
    host = TritonHost(tmp_path / "store", tmp_path, runtime, os.getpid, page)
    calls = []
    host.repository._call = calls.append
    yield SimpleNamespace(host=host, runtime=runtime, calls=calls, folder=tmp_path)
    host.close()
    page.close()


def recorded(*names):
    return [RecordedModel(f"{name}.mar", name, 1, "1x1x1", [""]) for name in names]


def test_a_host_that_ends_while_it_takes_over_has_recorded_all(site):
    host, saved = site.host, []
    host._states = lambda: {(n, 1): {"loaded": 1, "pids": {}} for n in "abc"}
    host.saved = lambda: saved.append(host.records())

    def lose():  # the workers of b
        site.runtime.fails = len(site.runtime.workers) == 1

    site.runtime.on_worker = lose
    models = recorded("a", "b", "c")
    models.append(RecordedModel("gone.mar", "gone", 1, "1x1x1", [""]))
    host.take_over(models)
    wanted = [(each.name, each.configuration) for each in models]
    for each in saved:
        assert sorted((m.name, m.configuration) for m in each) == sorted(wanted)
    assert len(saved) >= 3
    assert [bool(each.problem) for each in host.served] == [False, True, False]


def test_what_was_not_loaded_when_a_host_takes_over_comes_all_the_same(site, monkeypatch):
    """And workers that do not come at once are started again."""
    monkeypatch.setattr(taking_over, "FIRST_PAUSE_S", 0)
    host, runtime = site.host, site.runtime
    host._states = lambda: {("a", 1): {"loaded": 1, "pids": {}}}
    (host.repository.folder / "b/1").mkdir(parents=True)  # its load was under way
    models = [*recorded("a", "b"), RecordedModel("c.mar", "c", 1, "", [], auto=False)]
    runtime.fails = True
    host.take_over(models)
    a, b, c = host.served
    assert [each.is_late for each in (a, b, c)] == [False, True, True]
    assert host.records() == models and "it does not load" in b.problem
    assert [each.auto for each in (a, b, c)] == [True, True, False]
    runtime.fails = False

    def both():
        host.look_after()
        return a.workers and b.workers and not b.problem

    wait_until(both)
    assert (b.problem, c.workers) == ("", None)
    assert [each.auto for each in host.records()] == [True, True, False]
    site.calls.clear()
    host.load_late(b)
    assert site.calls == ["/v2/repository/models/b/load"]
    assert not (host.repository.folder / "c").exists()


def test_a_version_that_the_server_refuses_leaves_the_others_as_they_were(site):
    host = site.host
    host.load("a.mar")
    second = {"name": "a", "version": "2", "config": {"shunter": {"tensors": TENSORS}}}
    (site.folder / "store/a2.mar").write_text(json.dumps(second))
    folder, calls = host.repository.folder / "a", []

    def call(path):
        calls.append(sorted(each.name for each in folder.iterdir() if each.is_dir()))
        if len(calls) == 1:
            raise HostError("Triton answered 400")

    host.repository._call = call
    with pytest.raises(HostError, match="answered 400"):
        host.load("a2.mar")
    assert calls == [["1", "2"], ["1"]]  # once more, without it
    assert [each.version for each in host.served] == ["1"]


def test_that_a_user_has_set_a_configuration_is_recorded(site):
    host, saved = site.host, []
    host.load("a.mar")
    host.saved = lambda: saved.append(host.records())
    host.start_generation("a", parse_configuration("2x1x1"))
    [record] = saved[-1]
    assert (record.configuration, record.auto) == ("2x1x1", False)


def test_a_model_that_was_retired_is_not_brought_back_by_the_controller(site):
    """Nor by one of its changes that waits until the workers have ended."""
    host, runtime = site.host, site.runtime
    host.load("a.mar")
    [served] = host.served
    assert served.auto
    failed = []

    def reconfigure():
        try:
            host.reconfigure(served, parse_configuration("1x1x1"), [""])
        except HostError as error:
            failed.append(str(error))

    with served.lock:
        waiting = threading.Thread(target=reconfigure)
        waiting.start()
        host.retire("a")
    waiting.join(PATIENCE_S)
    reconfigure()
    assert failed == ["auto is false"] * 2 and not served.workers and len(runtime.workers) == 1
    assert [each.auto for each in host.records()] == [False]
    host.start_generation("a", parse_configuration("1x1x1"))
    assert served.workers


def test_a_configuration_on_a_device_is_refused_before_anything_is_started(site):
    """Its workers would run elsewhere, and the controller would ask for it for ever."""
    site.host.load("a.mar")
    [served] = site.host.served
    control = Control(site.host, None, site.folder / "log")
    slot = SlotCommands(wanted_request=7, wanted_groups=1)
    for device, state in (("MIG-1", ChangeState.UNDONE), ("", ChangeState.SERVES)):
        group = GroupCommands(wanted_instances=1, wanted_threads=1, wanted_device=device)
        control._change(served, Commands(slot, (group,)))
        assert served.change == SlotChange(7, state)
        assert len(site.runtime.workers) == (1 if device else 2)
    control.close()


def test_an_archive_elsewhere_is_refused_with_where_it_belongs(site):
    for archive in (str(site.folder / "store/a.mar"), "https://there/a.mar", "../store/a.mar"):
        with pytest.raises(HostError, match="by their names in its model store, which is"):
            site.host.load(archive)


def test_a_model_without_its_version_is_the_newest_one(site):
    second = {"name": "a", "version": "12.1", "config": {"shunter": {"tensors": TENSORS}}}
    (site.folder / "store/a2.mar").write_text(json.dumps(second))
    site.host.load("a.mar")
    site.host.load("a2.mar")
    site.host.unload("a")
    assert [each.title for each in site.host.served] == ["a/1"]
    with pytest.raises(HostError, match="no model a/12; there are: a/1"):
        site.host.retire("a/12")


def test_why_a_worker_did_not_load_or_was_lost_is_in_log_and_status(site, tmp_path):
    host, log = site.host, tmp_path / "server.log"
    host.load("a.mar")
    [served] = host.served
    site.runtime.fails = True
    with logged_in(log):
        with pytest.raises(HostError, match=r"(?s)a did not load: it does.*ImportError: no s"):
            host.start_generation("a", parse_configuration("2x1x1"))
        said = log.read_text()
        assert said.count("it does not load\n  ImportError: no such\n  of a handler") == 1
        assert identity_of(served, 0).last_change == (
            "generation 2 was undone: workers of model a did not load: it does not load; the log "
            "says why"
        )
        site.runtime.workers[0].is_dead = True
        host.look_after()
        assert "ended with signal 9\n  its last words" in log.read_text()
    assert identity_of(served, 0).problem == "the worker ended with signal 9"


def test_a_worker_that_was_lost_loads_behind_nobody(site):
    """It is missed, perhaps as the only one: only those that come beside others are gentle."""
    host, runtime = site.host, site.runtime
    host.load("a.mar")
    host.load("b.mar")
    assert runtime.given["variables"]["SHUNTER_GENTLE"] == "1"
    [served] = [each for each in host.served if each.name == "a"]
    lose(site, served)
    wait_until(lambda: served.workers.pids)
    assert "SHUNTER_GENTLE" not in runtime.given["variables"]


class HangingWorker(FakeWorker):
    """It loads until it is killed."""

    def __init__(self, runtime):
        super().__init__(runtime)
        self.killed = threading.Event()

    def start(self):
        self._runtime.hanging.append(self)
        assert self.killed.wait(PATIENCE_S)
        raise WorkerFailed("it was killed", [])

    def kill(self):
        self.killed.set()


def lose(site, served):
    """All its workers, which are started again at once."""
    for place in served.workers.places:
        place.worker.is_dead, place.pause_s = True, 0
    site.host.look_after()


def test_workers_that_hang_in_their_load_are_waited_for_by_no_other_model(site):
    host, runtime, worker = site.host, site.runtime, site.runtime.worker
    for name in "abc":
        host.load(f"{name}.mar")
    host.start_generation("b", parse_configuration("9x1x1"))
    a, b, c = host.served
    runtime.hanging = []

    def made(model, **given):
        return HangingWorker(runtime) if model.name == "b" else worker(model, **given)

    runtime.worker = made
    lose(site, b)
    wait_until(lambda: len(runtime.hanging) == 9)
    lose(site, c)
    wait_until(lambda: c.workers.pids)
    host.unload("c")
    killed = []
    [first] = a.workers.places
    first.worker.close = lambda: killed.extend(each.killed.is_set() for each in runtime.hanging)
    host.changes.close(host.served)
    assert killed == [True] * 9  # before anything else is waited for


def test_a_worker_whose_process_begins_while_it_is_ended_is_not_waited_for(site):
    site.host.load("a.mar")
    [served] = site.host.served
    site.runtime.hanging, kills, worker = [], [], HangingWorker(site.runtime)

    def kill():
        kills.append(1)
        if len(kills) > 1:  # the first time there is no process
            worker.killed.set()

    worker.kill = kill
    site.runtime.worker = lambda model, **given: worker
    lose(site, served)
    wait_until(lambda: site.runtime.hanging)
    site.host.unload("a")
    assert worker.killed.is_set() and not site.host.served


def test_limits_of_an_archive_reach_its_workers_and_the_backend(site):
    limits = {"jobQueueSize": 7, "startupTimeout": 9, "clientTimeoutInMills": 5}
    config = {**limits, "shunter": {"tensors": TENSORS}}
    said = {"name": "m", "version": "1", "config": config}
    (site.folder / "store/m.mar").write_text(json.dumps(said))
    site.host.load("m.mar")
    [served] = site.host.served
    assert site.runtime.given["load_s"] == 9
    assert site.runtime.given["variables"]["SHUNTER_CLIENT_TIMEOUT_NS"] == "5000000"
    assert site.host.reception.capacities == {("m", 1): 7}
    assert identity_of(served, 100).queue_capacity == 7
    site.host.unload("m")
    assert site.host.reception.capacities == {}


def test_what_the_backend_does_not_say_is_not_forgotten(site, monkeypatch):
    monkeypatch.setattr(backend, "ANSWER_S", 0.05)
    FakeBackend(site.host.backend_at, [])
    with pytest.raises(HostError, match="does not answer"):
        site.host.take_over(recorded("a"))


def test_a_server_that_starts_again_is_given_models_with_workers_only(site):
    host = site.host
    for name in "ab":
        host.load(f"{name}.mar")
    host.retire("b")
    folder = host.repository.folder
    assert host.names() == ["a"] and not (folder / "b").exists()
    site.calls.clear()
    [late] = [each for each in host.served if each.is_late]
    host.load_late(late)
    assert site.calls == ["/v2/repository/models/b/load"] and (folder / "b/1").is_dir()
    host.load_late(late)
    assert len(site.calls) == 1


def versions(site, *numbers):
    """Archives of ``a`` beside its first; of what the server is told, and what it finds then."""
    for number in numbers:
        said = {"name": "a", "version": str(number), "config": {"shunter": {"tensors": TENSORS}}}
        (site.folder / f"store/a{number}.mar").write_text(json.dumps(said))
    folder, told = site.host.repository.folder / "a", []

    def call(path):
        found = [each.name for each in folder.iterdir() if each.is_dir()]
        told.append((path.rpartition("/")[2], sorted(found)))

    site.host.repository._call = call
    return told


def test_a_version_whose_workers_do_not_come_takes_no_other_with_it(site):
    """The server would wait for its workers, and refuse the whole name."""
    told, loaded, worker = versions(site, 2), threading.Event(), site.runtime.worker

    def failing():
        assert loaded.wait(PATIENCE_S)
        raise WorkerFailed("it does not load", [])

    def made(model, **given):
        found = worker(model, **given)
        if model.version == "2":
            found.start = failing
        return found

    site.runtime.worker = made
    said = []

    def note(archive, error):
        said.append((archive, error is None))
        loaded.set()

    site.host.load_all([("a.mar", None), ("a2.mar", None)], note)
    assert said == [("a.mar", True), ("a2.mar", False)]
    assert told == [("load", ["1"])] and [each.title for each in site.host.served] == ["a/1"]


def test_a_server_that_starts_again_finds_no_version_whose_workers_are_still_coming(site):
    versions(site, 2)
    site.host.load("a.mar")
    found = []
    site.runtime.on_worker = lambda: found.append(
        (site.host.names(), [each.name for each in (site.host.repository.folder / "a").glob("?")])
    )
    site.host.load("a2.mar")
    assert found == [(["a"], ["1"])]


def test_versions_without_workers_are_set_aside_when_others_come_and_go(site):
    host, told = site.host, versions(site, 2, 3)
    for archive in ("a.mar", "a2.mar"):
        host.load(archive)
    first, second = host.served
    host.retire("a/2")
    told.clear()
    host.load("a3.mar")
    assert told == [("load", ["1", "3"])] and second.is_late
    host.start_generation("a/2", parse_configuration("1x1x1"))
    host.load_late(second)
    assert told[1:] == [("load", ["1", "2", "3"])] and not second.is_late
    for version in "23":
        host.retire(f"a/{version}")
    host.unload("a/1")
    assert told[2:] == [("unload", ["1"])]
    assert all(each.is_late for each in host.served) and first not in host.served


def test_a_version_whose_worker_hangs_is_set_aside_where_the_server_has_it_not(site):
    host, told = site.host, versions(site, 2, 3)
    for archive in ("a.mar", "a2.mar"):
        host.load(archive)
    told.clear()
    host._known._states = lambda: {("a", 1): {"loaded": 1, "pids": {}}, ("a", 2): {"pids": {7: 0}}}
    host.load("a3.mar")  # while the server starts, all those that live may attach yet
    host.repository.is_ready = lambda path: True
    host.unload("a/3")
    assert told == [("load", ["1", "2", "3"]), ("load", ["2"])]


def test_what_a_server_gave_up_at_its_start_is_loaded_when_its_workers_are_there(site):
    host, told = site.host, versions(site)
    host.load("a.mar")
    [served] = host.served
    told.clear()
    state = {"loaded": 0, "pids": {7: 0}}
    host._known._states = lambda: {("a", 1): state}
    host.load_late(served)
    assert told == []  # the server starts yet, and may wait for just these workers
    host.repository.is_ready = lambda path: True
    for state["loaded"], state["pids"] in ((1, {7: 0}), (0, {}), (0, {7: 0})):
        host.load_late(served)
    assert told == [("load", ["1"])] and not served.is_late
    told.clear()

    def refuse(path):
        raise HostError("Triton answered 400")

    host.repository._call = refuse
    with pytest.raises(HostError):
        host.load_late(served)
    assert served.is_late and host.names() == []


class Looks:
    """Each later than it is waited; ``m`` has two versions, which may have workers there or not."""

    def __init__(self):
        self._versions = [Served("m", v, str(v), None, None, None, 1) for v in (1, 2)]
        self._overlooked, self._now = known.Overlooked(), 0

    def __call__(self, *loaded, pid=1, later=known.OVERLOOKED_NS + 1):
        """``loaded`` of each version; None: it has no workers."""
        self._now += later
        found = {("m", at + 1): n for at, n in enumerate(loaded) if n is not None}
        states = {key: {"loaded": n, "pids": {7: 0}} for key, n in found.items()}
        found = self._overlooked.look(self._versions, states, pid, self._now)
        return [each.key[1] for each in found]


def test_a_version_is_overlooked_that_has_workers_for_long_in_a_server_that_gave_it_up():
    look = Looks()
    assert look(1, None) == []  # it waits for workers of the second one ...
    assert look(0, None) == look(0, None, later=1) == []  # ... and gives up both
    assert look(0, None) == [1]
    assert look(0, 0) == [1] and look(0, 0) == [1, 2]
    assert look() == look(0, None, pid=2) == []  # another server: from the beginning
    assert look(0, None, pid=2) == [1]


def test_a_version_that_somebody_else_unloads_is_not_overlooked():
    look = Looks()
    assert look(1, 1) == look(0, 1) == look(0, 0) == look(0, 0) == []
    assert look() == look(0, 0, pid=2) == []
    assert look(0, 0, pid=2) == [1, 2]


def test_a_version_that_is_set_aside_still_says_what_its_others_must_be(site):
    versions(site, 2)
    other = {"inputs": TENSORS["inputs"], "outputs": TENSORS["inputs"]}
    said = {"name": "a", "version": "2", "config": {"shunter": {"tensors": other}}}
    (site.folder / "store/a2.mar").write_text(json.dumps(said))
    site.host.load("a.mar")
    site.host.retire("a")
    assert site.host.names() == []
    with pytest.raises(HostError, match="not those of its other version"):
        site.host.load("a2.mar")
    assert len(site.runtime.workers) == 1


def test_a_model_that_could_not_be_unloaded_stays_whole(site):
    host = site.host
    host.load("a.mar")

    def dead(path):
        raise HostError("no Triton answers")

    host.repository._call = dead
    with pytest.raises(HostError, match="no Triton answers"):
        host.unload("a")
    assert (host.repository.folder / "a/1").is_dir() and len(host.served) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"jobQueueSize": 0},
        {"startupTimeout": "soon"},
        {"batchSize": "many"},
        {"maxBatchDelay": "long"},
        {"responseTimeout": "late"},
    ]
    + [{"shunter": {"slo_ms": each}} for each in ("abc", "nan", "1e30")],
)
def test_a_number_that_is_none_is_named_and_leaves_nothing(site, config):
    told = {"shunter": {}} | config
    told["shunter"] = {"tensors": TENSORS} | told["shunter"]
    path = site.folder / "store/bad.mar"
    path.write_text(json.dumps({"name": "bad", "version": "1", "config": told}))
    with pytest.raises(HostError, match="allowed: a number"):
        site.host.load("bad.mar")
    assert site.host.served == () and not list(site.host.repository.folder.iterdir())


def test_a_change_that_waits_for_workers_ends_with_the_host(site):
    site.runtime.may_start.clear()
    failed = []

    def load():
        try:
            site.host.load("a.mar")
        except HostError as error:
            failed.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    assert site.runtime.starting.wait(PATIENCE_S)
    site.host.abandon()
    site.runtime.may_start.set()
    thread.join(PATIENCE_S)
    assert failed and all(each.closed for each in site.runtime.workers)
    with pytest.raises(HostError, match="the host ends"):
        site.host.load("b.mar")


# ---- the models of a start


def test_models_of_a_start_load_at_the_same_time_and_one_that_fails_stops_no_other(site, caplog):
    host, runtime, told, said = site.host, site.runtime, [], []
    both, begun = threading.Barrier(2), []

    def on_worker():  # the first two are being started at the same time, or this breaks
        begun.append(1)
        if len(begun) <= 2:
            both.wait(PATIENCE_S)

    runtime.on_worker = on_worker
    (site.folder / "store/bad.mar").write_text(
        json.dumps({"name": "bad", "version": "1", "config": {"shunter": {"tensors": 7}}})
    )
    models = ["a.mar", "again=a.mar", "none.mar", "b=b.mar", "bad.mar", "c.mar", "a=a.mar"]
    tally = loading.Tally(len(models), said.append)

    def note(archive, error):
        told.append((archive, error is None))
        tally.note(archive, error)

    host.load_all(loading.missing(models, host.served), note)
    tally.check()
    assert sorted(each.name for each in host.served) == ["a", "again", "b", "c"]
    assert sorted(told) == [
        ("a.mar", False),  # as version 1 of a once more
        ("a.mar", True),
        ("a.mar", True),
        ("b.mar", True),
        ("bad.mar", False),
        ("c.mar", True),
        ("none.mar", False),
    ]
    assert said[-1] == "4 of 7 models are loaded, 3 failed"
    assert "holds no none.mar" in caplog.text and "a/1 is served as version 1" in caplog.text
    assert loading.missing(models, host.served) == [("none.mar", None), ("bad.mar", None)]
    assert {each.name for each in host.repository.folder.iterdir()} == {"a", "again", "b", "c"}


def test_a_start_of_which_nothing_comes_fails_with_the_first_reason(site):
    site.runtime.fails = True
    tally = loading.Tally(2, lambda text: None)
    tally.check()
    site.host.load_all([("a.mar", None), ("b.mar", None)], tally.note)
    with pytest.raises(HostError, match="did not load: it does not load"):
        tally.check()
    assert not site.host.served and not list(site.host.repository.folder.iterdir())


# ---- the process, and a repository of somebody else's Triton


def test_one_model_that_does_not_load_does_not_end_the_server(tmp_path):
    command = Installation(tmp_path / "triton", tmp_path).command({"a": "b"}, ["m"])
    assert command[0] == str(tmp_path / "triton")
    assert {"--exit-on-error=false", "--a=b", "--load-model=m"} < set(command)


def test_the_watcher_goes_on_after_a_failure(monkeypatch):
    process, looked = TritonProcess.__new__(TritonProcess), []
    process._stops, process._process = threading.Event(), None

    def look_after():
        looked.append(1)
        if len(looked) == 3:
            process._stops.set()
        raise OSError("no space left")

    process._host = SimpleNamespace(look_after=look_after)
    monkeypatch.setattr("shunter.plugins.triton.serving.process.LOOK_S", 0.001)
    process._watch()
    assert len(looked) == 3


def test_a_packed_archive_that_cannot_be_started_is_an_error_of_the_user(tmp_path):
    from shunter.plugins.errors import UserError

    for name, section in (("a", {}), ("b", {"configuration": "nonsense"})):
        archive = tmp_path / f"models/{name}/1/{ARCHIVE}"
        archive.parent.mkdir(parents=True)
        config = {"shunter": {"tensors": TENSORS} | section}
        archive.write_text(json.dumps({"name": name, "version": "1", "config": config}))
    with pytest.raises(UserError, match="b/1"):
        PackedWorkers(tmp_path, None, FakeRuntime()).start()


class Told:
    """A backend that notes who speaks to it, for how long, and of what."""

    calls: ClassVar[list] = []

    def __init__(self, path, answer_s):
        self.calls.append((path, answer_s < backend.ANSWER_S, []))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def expect(self, name, version):
        self.calls[-1][2].append((name, version))
        if name == "last":
            raise backend.BackendGone


def test_who_comes_is_told_to_the_backend_at_once_and_one_that_hangs_is_left(monkeypatch):
    monkeypatch.setattr(Told, "calls", [])
    monkeypatch.setattr(reception, "Backend", Told)
    reception.expect("there", [])
    reception.expect("there", [("a", 1), ("last", 2), ("b", 3)])
    assert Told.calls == [("there", True, [("a", 1), ("last", 2)])]


def test_requests_wait_for_workers_of_a_packed_model_that_are_coming(tmp_path, monkeypatch):
    archive = tmp_path / f"models/m/1/{ARCHIVE}"
    archive.parent.mkdir(parents=True)
    archive.touch()
    workers = PackedWorkers(tmp_path, None, None)
    for name, number, is_coming in [("m", 2, True), ("n", 1, False)]:
        known = {"model": SimpleNamespace(name=name), "is_coming": is_coming, "problem": ""}
        known["look_after"] = lambda: None
        workers._generations.append((SimpleNamespace(**known), number))
    said = []
    monkeypatch.setattr(packed, "expect", lambda *told: said.append(told))
    assert workers.look_after() == []
    assert said == [(workers.socket, [("m", 2)])]
