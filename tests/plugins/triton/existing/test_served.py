"""A real Triton and a model of its Python backend: batches, classes, instances, a profile."""

import collections
import contextlib
import itertools
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.planning.measurement import Effort
from shunter.allocator.planning.profile import Cell, Profile
from shunter.plugins.cli.main import app
from shunter.plugins.host import HostError
from shunter.plugins.ports import free_ports
from shunter.plugins.profiling import profiler
from shunter.plugins.profiling.profiles import write_profile
from shunter.plugins.triton import installation
from shunter.plugins.triton.existing import adoption, build, profiling
from shunter.plugins.triton.existing.page import StrategyPage
from shunter.plugins.triton.existing.server import page_of, threads_of

pytestmark = pytest.mark.triton
PATIENCE_S = 120
CLIENTS = 12
CONFIG = """
backend: "python"
max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
instance_group [ { kind: KIND_CPU count: 1 } ]
parameters { key: "SHUNTER_THREADS" value { string_value: "1" } }
"""
MODEL = """
import json
import os
import sys
sys.path[:0] = {packages!r}
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.threads = parameters["SHUNTER_THREADS"]["string_value"]
        self.record = open({record!r}, "a", buffering=1)

    def execute(self, requests):
        given = [pb_utils.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        rows = sum(len(each) for each in given)
        kinds = "".join(sorted({{str(int(each[0, 1])) for each in given}}))
        self.record.write(f"{{os.getpid()}} {{rows}} {{kinds}} {{self.threads}}\\n")
        time.sleep(0.002 + 0.0005 * rows)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", each + 1)]) for each in given]
"""
Batch = collections.namedtuple("Batch", "pid rows kinds threads")


def wait_until(told):
    end = time.monotonic() + PATIENCE_S
    while not (found := told()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


class Site:
    """A Triton that serves the model ``m``, prepared by the command."""

    def __init__(self, folder):
        import tritonclient.grpc as client

        self.client, self.folder, self.record = client, folder, folder / "record"
        self.record.touch()
        model = folder / "models/m"
        (model / "1").mkdir(parents=True)
        (model / "config.pbtxt").write_text(CONFIG)
        found = installation.find()
        packages = [each for each in found.variables.get("PYTHONPATH", "").split(":") if each]
        text = MODEL.format(packages=packages, record=str(self.record))
        (model / "1/model.py").write_text(text)
        words = ["adopt", "prepare", str(model), "--write", "--page", str(folder / "page")]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        found.link_backends(folder / "backends", build.ensure())
        http, grpc = free_ports(2)
        options = {
            "model-repository": str(folder / "models"),
            "backend-directory": str(folder / "backends"),
            "http-port": str(http),
            "grpc-port": str(grpc),
        }
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                found.command(options, ["m"]),
                env=found.environment(),
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.address = adoption.Address("m", f"http://127.0.0.1:{http}", f"127.0.0.1:{grpc}")
        self.model = self.address.open()
        wait_until(self._is_ready)

    def _is_ready(self):
        assert self.process.poll() is None, (self.folder / "log").read_text()[-4000:]
        with contextlib.suppress(HostError):
            return self.model.config()

    def batches(self, skip=0):
        lines = self.record.read_text().splitlines(keepends=True)[skip:]
        return [Batch(*each.split()) for each in lines if each.endswith("\n")]

    def close(self):
        self.model.close()
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


class Load:
    """Clients of both classes, each with one request under way; each answer is looked at."""

    def __init__(self, site):
        self._site, self._stops = site, threading.Event()
        self.answered, self.failures = [0] * CLIENTS, []
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(CLIENTS)]

    def _run(self, at):
        kind, package = at % 2, self._site.client
        terms = {"slo_class": "best_effort" if kind else "strict"}
        with package.InferenceServerClient(self._site.address.grpc) as client:
            for number in itertools.count():
                x = np.array([[number % 1000, kind]], np.float32)
                given = package.InferInput("x", [1, 2], "FP32")
                given.set_data_from_numpy(x)
                try:
                    y = client.infer("m", [given], parameters=terms, client_timeout=PATIENCE_S)
                    assert (y.as_numpy("y") == x + 1).all()
                except Exception as error:
                    self.failures.append(repr(error))
                self.answered[at] += 1
                if self._stops.is_set():
                    return

    def more(self, batches=30):
        """What ran from now on, when it is so many batches."""
        skip = len(self._site.batches())
        return wait_until(lambda: len(f := self._site.batches(skip)) >= batches and f)

    def __enter__(self):
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *error):
        self._stops.set()
        for each in self._threads:
            each.join(PATIENCE_S)
        assert not any(each.is_alive() for each in self._threads)
        assert self.failures == []
        assert min(self.answered) > 0


def now(load):
    """Which instances run batches."""
    return {each.pid for each in load.more()}


def held_from_now_on(load, rule):
    """Once the rule is seen to hold it holds always; the batches that show it."""
    wait_until(lambda: all(map(rule, load.more())))
    shown = load.more(100)
    assert all(map(rule, shown))
    return shown


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("existing"))
    yield site
    site.close()


@pytest.fixture
def numbers_hold(monkeypatch):
    """For longer than a test takes, however busy the machine is: it writes them once."""
    monkeypatch.setattr("shunter.plugins.triton.existing.page.HOLDS_S", 3600.0)


def test_batches_keep_the_live_cap_and_the_classes_apart(site, numbers_hold):
    with Load(site) as load:
        free = wait_until(lambda: [b for b in load.more() if int(b.rows) > 3])
        assert wait_until(lambda: [b for b in load.more() if b.kinds == "01"])
        assert free
        with StrategyPage(site.folder / "page") as page:
            page.write(cap=3, apart=1)
            held = held_from_now_on(load, lambda b: int(b.rows) <= 3 and len(b.kinds) == 1)
            assert {each.kinds for each in held} == {"0", "1"}
            page.write(cap=2, apart=0)
            held = held_from_now_on(load, lambda b: int(b.rows) <= 2)
            assert max(int(each.rows) for each in held) == 2
        # Without its writer Triton does as it likes again.
        assert wait_until(lambda: [b for b in load.more() if int(b.rows) > 3])


def test_a_tight_deadline_makes_batches_smaller(site, numbers_hold):
    with StrategyPage(site.folder / "page") as page, Load(site) as load:
        # As if a row took 10 s: strict requests without a deadline have 35, and 5 to be late in.
        page.write(per_row_ns=10**10, slo_ns=35 * 10**9)
        held_from_now_on(load, lambda b: int(b.rows) <= 3 or "0" not in b.kinds)


def test_instances_change_under_load_and_nothing_is_lost(site, tmp_path):
    config = site.model.config()
    here = profiling.provenance(site.model, config, "", read_topology().cores)
    known = Profile(here, 1, 16, "adaptive", complete=True)
    for batch, ms in ((1, 10.0), (16, 160.0)):
        known = known.with_cells([Cell(1, batch, ms, ms, ms, 6)], 1.0)
    write_profile(tmp_path / "m.profile.json", known)
    http, grpc = site.address.inference, site.address.grpc
    words = ["adopt", "control", "m", "--profile", str(tmp_path / "m.profile.json"), "--cores", "2"]
    words += ["--http", http, "--grpc", grpc, "--timeout-s", "1", "--every", "0.05"]
    with Load(site) as load:
        before = now(load)
        with (tmp_path / "said").open("w") as said:
            controller = subprocess.Popen(
                [sys.executable, "-m", "shunter.plugins.cli.main", *words],
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        try:
            wait_until(lambda: "now 2x1x16\n" in (tmp_path / "said").read_text())
            pids = wait_until(lambda: len(f := now(load) - before) == 2 and f == now(load) and f)
            assert all(len(each.kinds) == 1 for each in load.more())
            controller.terminate()
            assert controller.wait(PATIENCE_S) == 0
        finally:
            controller.kill()
            controller.wait()
        # From now on it is the instances alone that change: those that stay are the very same.
        site.model.change(3)
        more = wait_until(lambda: len(f := now(load)) == 3 and f)
        assert pids < more
        site.model.change(1)
        assert wait_until(lambda: len(f := now(load)) == 1 and f) < more
        # Another number of threads is another version of the model, loaded beside this one.
        site.model.change(1, threads=4)
        wait_until(lambda: {each.threads for each in load.more()} == {"4"})
    assert threads_of(site.model.config()) == 4
    count = site.model.counters()
    assert count.failed == 0


def test_a_served_model_is_measured_batch_by_batch(site, tmp_path):
    skip = len(site.batches())
    task = profiler.Task(site.folder, (), 1, 2, None, effort=Effort(0.5, fewest=3, seconds=0.05))
    path = tmp_path / "m.profile.json"
    found = adoption.measure(site.address, task, path, read_topology(), lambda progress: None)
    assert set(found.cells) == {(1, 1), (1, 2)}
    assert found.complete
    assert found.provenance.torch.startswith("Triton 2.")
    ran = site.batches(skip)
    assert {each.rows for each in ran} == {"1", "2"}
    assert {each.threads for each in ran} == {"1"}
    after = site.model.config()
    assert after["instance_group"][0]["count"] == 1
    assert threads_of(after) == 4  # as before
    assert page_of(after) == str(site.folder / "page")
