"""A real Triton with the backend: unchanged clients of Triton, and what happens to workers."""

import asyncio
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.planning.configuration import parse_configuration
from shunter.batching.page import holds
from shunter.batching.page.runners import read_runners
from shunter.batching.page.runtime import parent
from shunter.batching.page.slices import ALL_CPUS
from shunter.batching.queue.tensor_spec import dtype_of
from shunter.plugins import hosts
from shunter.plugins.host import HostError
from shunter.plugins.view import page_status

pytestmark = pytest.mark.triton
PATIENCE_S = 120
TESTS = Path(__file__).parents[2]
TYPES = {
    "bool": "BOOL",
    "uint8": "UINT8",
    "int8": "INT8",
    "int16": "INT16",
    "int32": "INT32",
    "int64": "INT64",
    "float16": "FP16",
    "bfloat16": "BF16",
    "float32": "FP32",
    "float64": "FP64",
}
SETTINGS = """
[models.one]
ahead = 0
[models.cached]
ahead = 0
[configuration]
timeout_s = 1
[preemption]
max_hold_ms = 60000
"""
PROFILE = {(1, 1): 8.0, (1, 8): 16.0, (2, 1): 5.0, (2, 8): 26.0}
"""One request is soonest on both cores, eight are on one core each."""
CACHED = """
response_cache { enable: true }
dynamic_batching { priority_levels: 3 default_priority_level: 2 }
"""
ENSEMBLE = """
name: "chain" platform: "ensemble" max_batch_size: 1
input [ { name: "in" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling { step [
  { model_name: "cached" model_version: 1
    input_map { key: "x" value: "in" } output_map { key: "y" value: "half" } },
  { model_name: "cached" model_version: 2
    input_map { key: "x" value: "half" } output_map { key: "y" value: "out" } } ] }
"""
DIE, WAIT = 13.0, 15.0
"""Of the test handler tensors."""


def archives(folder):
    spec = importlib.util.spec_from_file_location("triton_archives", TESTS / "e2e/archives.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.Archives(folder)


def wait_until(told):
    end = time.monotonic() + PATIENCE_S
    while not (found := told()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def fill(store, folder):
    """The archives, and the variables that their workers get."""
    outputs = [{"name": "y", "dtype": "float32", "shape": [4]}]
    outputs += [{"name": "pid", "dtype": "int64", "shape": [1]}]
    variables = {"ECHO_RECORD": str(folder / "record"), "TENSORS_GATE": str(folder / "gate")}
    tensors = {"inputs": [{"name": "x", "dtype": "float32", "shape": [4]}], "outputs": outputs}
    section = {"tensors": tensors, "environment": variables}
    for name, batch, retry in (("two", 8, True), ("one", 1, False)):
        config = {"batchSize": batch, "shunter": {**section, "retry": retry}}
        config |= {"jobQueueSize": 1} if name == "one" else {}
        store.add(name, "tensors", config=config)
    store.add("giving", "tensors", config={"shunter": section | {"class": "best_effort"}})
    slow = variables | {"TENSORS_SLEEP_S": "0.02", "ECHO_NO_LOAD": str(folder / "no-load")}
    auto = {"batchSize": 8, "shunter": section | {"environment": slow}}
    store.add_profile(store.add("auto", "tensors", config=auto), PROFILE)
    for version in ("1.0", "2.0", "3.0"):
        config = {"batchSize": 1, "shunter": section, "triton": CACHED}
        store.add("cached", "tensors", version=version, config=config)
    mixed = {
        side: [{"name": f"{side}-{t}", "dtype": t, "shape": [2, 3]} for t in TYPES]
        for side in ("inputs", "outputs")
    }
    known = (("sequence_id", "int64"), ("sequence_start", "bool"), ("sequence_end", "bool"))
    for name, dtype in known:
        mixed["inputs"].append({"name": name, "dtype": dtype, "shape": [1]})
        mixed["outputs"].append({"name": f"{name}-changed", "dtype": dtype, "shape": [1]})
    section = {"tensors": mixed, "configuration": "1x0x4"}  # it wants no cores of its own
    store.add("mixed", "mixed", config={"batchSize": 4, "shunter": section})


class Site:
    """A Triton that was started."""

    def __init__(self, folder):
        import tritonclient.grpc as grpcclient
        import tritonclient.http as httpclient

        self.kinds = {"http": httpclient, "grpc": grpcclient}
        self.folder = folder
        (folder / "store").mkdir()
        fill(archives(folder / "store"), folder)
        (folder / "shunter.toml").write_text(SETTINGS)
        own = folder / "own"
        (own / "chain/1").mkdir(parents=True)
        (own / "chain/config.pbtxt").write_text(ENSEMBLE)
        self.process = hosts.process_of(
            *(folder / "store", ["mixed=mixed-1.0.mar"]),
            settings={
                "cache-config": "local,size=1048576",
                "model-store": str(own),
                "shunter_config": str(folder / "shunter.toml"),
            },
            folder=folder / "server",
            name="triton",
        )
        self.process.start()
        self.host = self.process.host

    def client(self, kind):
        address = self.process.grpc if kind == "grpc" else self.process.inference[7:]
        options = {} if kind == "grpc" else {"concurrency": 16, "network_timeout": PATIENCE_S}
        return self.kinds[kind].InferenceServerClient(address, **options)

    def x(self, kind, rows, name="x"):
        array = np.zeros((len(rows), 4), np.float32)
        array[:, 0] = rows
        tensor = self.kinds[kind].InferInput(name, array.shape, "FP32")
        tensor.set_data_from_numpy(array)
        return [tensor]

    def ask(self, model, rows, kind="http", **options):
        """The first numbers of the rows' answers."""
        with contextlib.closing(self.client(kind)) as client:
            found = client.infer(model, self.x(kind, rows), **options)
        return found.as_numpy("y")[:, 0].tolist()

    def served(self, model):
        [found] = [each for each in self.host.served if each.name == model]
        return found

    @property
    def page(self):
        return self.host.page.page

    def page_status(self):
        return page_status.fetch(self.host.page.path.parent)

    def metrics(self):
        return httpx.get(self.process.addresses["metrics"]).text

    def state(self, model):
        [found] = [each for each in self.host.status()["models"] if each["name"] == model]
        return found

    def record(self):
        path = self.folder / "record"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["id"] for line in lines]

    @contextlib.contextmanager
    def held(self, model):
        """The model's only worker is busy until the end of this, and gets nothing meanwhile."""
        # Until the settings are told to the server, a second batch would be sent to it ahead.
        served = [each for each in self.host.served if each.name == model]
        wait_until(lambda: all(each.policy and each.policy.ahead == 0 for each in served))
        before = len(self.record())
        with ThreadPoolExecutor() as pool:
            holding = pool.submit(self.ask, model, [WAIT])
            try:
                wait_until(lambda: len(self.record()) > before)
                yield
            finally:
                (self.folder / "gate").touch()
                holding.exception(PATIENCE_S)
                (self.folder / "gate").unlink()
            assert holding.result() == [2 * WAIT + 1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("triton"))
    yield site
    site.process.drain(PATIENCE_S)


@pytest.fixture
def two(site):
    """Two workers that take batches."""
    yield site.host.load("two-1.0.mar", workers=2)
    site.host.unload("two")


@pytest.fixture(scope="module")
def kept(site):
    """The same, for tests that leave it as it is."""
    return site.host.load("two-1.0.mar", "kept", workers=2)


@pytest.fixture
def one(site):
    """A worker that takes one request at a time, and none ahead."""
    model = site.host.load("one-1.0.mar")
    wait_until(lambda: (found := site.served("one").policy) is not None and found.ahead == 0)
    yield model
    site.host.unload("one")


@pytest.fixture
def errors(site):
    from tritonclient.utils import InferenceServerException

    return InferenceServerException


class Load:
    """Clients that ask all the time and check what they get."""

    def __init__(self, site, model, count=6):
        self._site, self._model = site, model
        self._over = threading.Event()
        self.answered, self.failures = 0, []
        self._threads = [threading.Thread(target=self._run, args=(i,)) for i in range(count)]

    def _run(self, number):
        kind = ("http", "grpc")[number % 2]
        with contextlib.closing(self._site.client(kind)) as client:
            value = 100 + number * 1_000_000
            while not self._over.is_set():
                rows = [float(value + i) for i in range(1 + value % 3)]
                value += len(rows)
                try:
                    found = client.infer(self._model, self._site.x(kind, rows)).as_numpy("y")
                    wanted = [2 * row + 1 for row in rows]
                    if found[:, 0].tolist() != wanted:
                        self.failures.append((rows, found))
                except Exception as error:
                    self.failures.append(error)
                self.answered += 1

    def __enter__(self):
        for each in self._threads:
            each.start()
        return self

    def more(self, count=200):
        """So many answers later."""
        begun = self.answered
        wait_until(lambda: self.answered > begun + count)

    def __exit__(self, *_):
        self._over.set()
        for each in self._threads:
            each.join()


@pytest.mark.parametrize("kind", ["http", "grpc"])
@pytest.mark.parametrize("rows", [1, 3])
def test_tensors_of_all_types_come_and_go(site, errors, kind, rows):
    package, inputs, wanted = site.kinds[kind], [], {}
    for name, triton in TYPES.items():
        array = (np.arange(rows * 6).reshape(rows, 2, 3) % 2).astype(dtype_of(name))
        tensor = package.InferInput(f"inputs-{name}", array.shape, triton)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
        wanted[f"outputs-{name}"] = ~array if name == "bool" else array + array.dtype.type(1)
    for name, value in (("id", 42), ("start", False), ("end", True)):
        wanted[f"sequence_{name}-changed"] = np.full((rows, 1), value)
    with contextlib.closing(site.client(kind)) as client:
        found = client.infer("mixed", inputs, sequence_id=41, sequence_start=True)
        some = client.infer("mixed", inputs, outputs=[package.InferRequestedOutput("outputs-int8")])
    for name, array in wanted.items():
        np.testing.assert_array_equal(found.as_numpy(name), array)
    assert [name for name in wanted if some.as_numpy(name) is not None] == ["outputs-int8"]
    with contextlib.closing(site.client(kind)) as client, pytest.raises(errors, match="no texts"):
        client.infer("mixed", inputs, sequence_id="41")


def test_the_model_digits_of_the_model_store_knows_them(site):
    datasets = pytest.importorskip("sklearn.datasets")
    from shunter.model_store.digits.archive import pack_digits

    pack_digits(site.folder / "store", eager=False, name="digits", version="3.1")
    found = datasets.load_digits()
    images = found.images[:64].astype(np.float32)
    loaded = site.host.load("digits.mar")
    assert (loaded.version, loaded.configuration, loaded.ready) == ("3.1", "2x1x32", 2)
    right = 0
    with contextlib.closing(site.client("grpc")) as client:
        for i in range(0, 64, 16):
            tensor = site.kinds["grpc"].InferInput("image", [16, 8, 8], "FP32")
            tensor.set_data_from_numpy(images[i : i + 16])
            answer = client.infer("digits", [tensor], model_version="3")
            classes = answer.as_numpy("probabilities").argmax(axis=1)
            right += int((classes == found.target[i : i + 16]).sum())
    assert right > 55
    site.host.unload("digits/3.1")


def test_the_asynchronous_client_is_served(site, kept):
    async def ask():
        import tritonclient.grpc.aio as aio

        async with aio.InferenceServerClient(site.process.grpc) as client:
            found = await asyncio.gather(
                *(client.infer("kept", site.x("grpc", [100.0 + i])) for i in range(50))
            )
            return [each.as_numpy("y")[0, 0] for each in found]

    assert asyncio.run(ask()) == [2 * (100 + i) + 1 for i in range(50)]


def test_clients_on_this_host_share_memory(site, kept):
    import tritonclient.utils.shared_memory as shm

    array = np.full((3, 4), 7, np.float32)
    region = shm.create_shared_memory_region("in", f"/shunter-{os.getpid()}", array.nbytes)
    try:
        shm.set_shared_memory_region(region, [array])
        with contextlib.closing(site.client("http")) as client:
            key = f"/shunter-{os.getpid()}"
            client.register_system_shared_memory("in", key, array.nbytes)
            tensor = site.kinds["http"].InferInput("x", array.shape, "FP32")
            tensor.set_shared_memory("in", array.nbytes)
            assert client.infer("kept", [tensor]).as_numpy("y").tolist() == [[15.0] * 4] * 3
            package = site.kinds["http"]
            wanted = package.InferRequestedOutput("y")
            wanted.set_shared_memory("in", array.nbytes)  # in its place
            client.infer("kept", [tensor], outputs=[wanted])
            found = shm.get_contents_as_numpy(region, np.float32, array.shape)
            assert found.tolist() == [[15.0] * 4] * 3
            client.unregister_system_shared_memory("in")
    finally:
        shm.destroy_shared_memory_region(region)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"slo_class": "gold"}, "slo_class 'gold'; allowed: strict, best_effort"),
        ({"deadline_ms": -1}, "deadline_ms '-1'; allowed: milliseconds"),
        ({"deadline_ms": "soon"}, "deadline_ms 'soon'; allowed: milliseconds"),
        ({"idempotent": "yes"}, "idempotent 'yes'; allowed: true, false"),
    ],
)
def test_a_parameter_that_means_nothing_is_named(site, kept, errors, parameters, said):
    for kind, status in (("http", "400"), ("grpc", "StatusCode.INVALID_ARGUMENT")):
        with pytest.raises(errors) as told:
            site.ask("kept", [1.0], kind, parameters=parameters)
        assert said in told.value.message()
        assert told.value.status() == status


def test_inputs_that_are_not_the_models_are_refused(site, kept, errors):
    with contextlib.closing(site.client("http")) as client:
        tensor = site.kinds["http"].InferInput("x", [1, 5], "FP32")
        tensor.set_data_from_numpy(np.zeros((1, 5), np.float32))
        with pytest.raises(errors, match="shape"):
            client.infer("kept", [tensor])
    with pytest.raises(errors, match="batch"):
        site.ask("kept", [1.0] * 9)


def test_what_would_be_late_is_told_while_it_waits(site, one, errors):
    with site.held("one"):
        for options in (
            {"parameters": {"deadline_ms": 50}},
            {"parameters": {"deadline_ms": "50.5", "slo_class": "best_effort"}},
            {"timeout": 50_000},
        ):
            for kind, status in (("http", "503"), ("grpc", "StatusCode.UNAVAILABLE")):
                with pytest.raises(errors, match="timeout expired") as told:
                    site.ask("one", [3.0], kind, **options)
                assert told.value.status() == status
    assert site.record().count(3.0) == 0
    assert site.state("one")["expired"] == 6


def test_a_request_that_was_cancelled_does_not_run_and_no_more_wait_than_may(site, one, errors):
    def done(result, error):
        ended.append(error)

    ended = []
    with contextlib.closing(site.client("grpc")) as client:
        with site.held("one"):
            call = client.async_infer("one", site.x("grpc", [31.0]), done)
            wait_until(lambda: site.state("one")["queued"] == 1)
            for kind, status in (("http", "503"), ("grpc", "StatusCode.UNAVAILABLE")):
                with pytest.raises(errors, match="1 requests wait already; raise jobQ") as told:
                    site.ask("one", [32.0], kind)
                assert told.value.status() == status
            assert site.state("one")["rejected"] == 2
            call.cancel()
            wait_until(lambda: site.state("one")["abandoned"] == 1)
        wait_until(lambda: ended)
    assert 31.0 not in site.record()


def test_where_no_more_may_wait_a_strict_request_takes_the_place_of_best_effort(site, one, errors):
    best_effort = {"parameters": {"slo_class": "best_effort"}}
    with ThreadPoolExecutor() as pool:
        with site.held("one"):
            first = pool.submit(site.ask, "one", [35.0], "grpc", **best_effort)
            wait_until(lambda: site.state("one")["queued"] == 1)
            strict = pool.submit(site.ask, "one", [36.0])
            with pytest.raises(errors, match="a strict request took this one's place") as told:
                first.result(PATIENCE_S)
            assert told.value.status() == "StatusCode.UNAVAILABLE"
            with pytest.raises(errors, match="1 requests wait already"):
                site.ask("one", [37.0], **best_effort)
        assert strict.result(PATIENCE_S) == [73.0]
    assert {35.0, 37.0}.isdisjoint(site.record())


def test_a_request_that_kills_its_workers_is_answered_and_named_the_cause(site, two, errors):
    with pytest.raises(errors, match="died of this request, twice"):
        site.ask("two", [DIE])
    wait_until(lambda: site.state("two")["ready"] == 2)
    assert site.ask("two", [1.0]) == [3.0]


@pytest.mark.parametrize("idempotent", [False, "false"])
def test_what_must_not_run_twice_ends_with_its_first_worker(site, two, errors, idempotent):
    before = site.record().count(DIE)
    with pytest.raises(errors, match="died; the request must not run twice") as told:
        site.ask("two", [DIE], "grpc", parameters={"idempotent": idempotent})
    assert told.value.status() == "StatusCode.INTERNAL"
    assert site.ask("two", [1.0]) == [3.0]
    assert site.record().count(DIE) == before + 1


def test_a_model_that_does_not_retry_runs_nothing_twice(site, one, errors):
    before = site.record().count(DIE)
    with pytest.raises(errors, match="must not run twice"):
        site.ask("one", [DIE])
    assert site.record().count(DIE) == before + 1


def test_a_reload_and_a_new_generation_under_load_lose_no_request(site, two):
    with Load(site, "two") as load:
        for _ in range(3):
            load.more()
            site.host.repository.load("two")
        asked = hosts.running(runtime=site.host.page.path.parent)  # as the command line does
        found = asked.start_generation("two", parse_configuration("1x1x8"))
        load.more()
    assert load.failures == []
    assert asked.models() == site.host.models()
    assert (found.configuration, found.ready) == ("1x1x8", 1)


def test_an_unloaded_model_answers_what_it_holds(site, errors):
    site.host.load("one-1.0.mar")
    with ThreadPoolExecutor() as pool:
        with site.held("one"):
            unloading = pool.submit(site.host.unload, "one")
            with contextlib.closing(site.client("http")) as client:
                wait_until(lambda: not client.is_model_ready("one"))
        unloading.result(PATIENCE_S)
    with pytest.raises(errors):
        site.ask("one", [1.0])
    assert "one" not in [each.name for each in site.host.models()]


def test_the_statistics_of_triton_know_batches(site):
    site.host.load("two-1.0.mar")  # one worker: rows of a request may go to several
    with contextlib.closing(site.client("http")) as client:
        for _ in range(5):
            client.infer("two", site.x("http", [1.0, 2.0]))

        def statistics():
            [found] = client.get_inference_statistics("two")["model_stats"]
            return found

        # They are told a moment after the answer.
        wait_until(lambda: statistics()["inference_count"] == 10)
        told = statistics()
    assert told["execution_count"] == 5
    assert [each["batch_size"] for each in told["batch_stats"]] == [2]
    site.host.unload("two")


@contextlib.contextmanager
def spoiled(site, model):
    """The server refuses what it is told to load next of a model."""
    call = site.host.repository._call

    def once(path):
        site.host.repository._call = call
        config = site.host.repository.folder / model / "config.pbtxt"
        text = config.read_text()
        config.write_text(text.replace('backend: "shunter"', 'backend: "nobody"'))
        try:
            call(path)
        finally:
            config.write_text(text)

    site.host.repository._call = once
    yield


def test_caches_versions_ensembles_and_priorities_are_tritons(site, errors):
    site.host.load("cached-1.0.mar")
    with spoiled(site, "cached"), pytest.raises(HostError, match="Triton answered"):
        site.host.load("cached-2.0.mar")
    with contextlib.closing(site.client("http")) as client:
        assert client.is_model_ready("cached") and client.is_model_ready("cached", "1")
        index = [each for each in client.get_model_repository_index() if each["name"] == "cached"]
        assert [each["version"] for each in index if each["state"] == "READY"] == ["1"]
        assert site.ask("cached", [49.0]) == [99.0]
    site.host.load("cached-2.0.mar")
    with contextlib.closing(site.client("http")) as client:
        client.load_model("chain")
        for version in ("1", "2", ""):
            assert site.ask("cached", [50.0], model_version=version) == [101.0]
        assert site.record().count(50.0) == 2  # once by each version
        told = client.get_inference_statistics("cached", "2")["model_stats"][0]
        assert told["inference_stats"]["cache_hit"]["count"] == 1
        found = client.infer("chain", site.x("http", [60.0], "in")).as_numpy("out")
        assert found[0, 0] == 4 * 60 + 3
        assert site.record()[-2:] == [60.0, 121.0]
        with pytest.raises(errors, match="slo_class 'gold'"):
            asked = site.x("http", [61.0], "in")
            client.infer("chain", asked, parameters={"slo_class": "gold"})
        client.unload_model("chain")
    asked = [(71.0, {}), (72.0, {"priority": 3}), (73.0, {"priority": 1})]
    asked.append((74.0, {"priority": 3, "parameters": {"slo_class": "strict"}}))
    with ThreadPoolExecutor() as pool, site.held("cached"):
        for i, (value, options) in enumerate(asked):
            pool.submit(site.ask, "cached", [value], "grpc", **options)
            wait_until(
                lambda i=i: (
                    sum(
                        each["queued"]
                        for each in site.host.status()["models"]
                        if each["name"] == "cached"
                    )
                    == i + 1
                )
            )
    assert site.record()[-4:] == [73.0, 74.0, 71.0, 72.0]
    for version in ("1.0", "2.0"):
        site.host.unload(f"cached/{version}")


def test_a_version_without_workers_is_no_obstacle_to_others(site):
    for version in "12":
        site.host.load(f"cached-{version}.0.mar", "versions")
    site.host.retire("versions/2.0")
    site.host.load("cached-3.0.mar", "versions")
    for version in "13":
        assert site.ask("versions", [81.0], model_version=version) == [163.0]
    site.host.start_generation("versions/2.0", parse_configuration("1x1x1"))
    wait_until(lambda: site.host.repository.is_ready("/v2/models/versions/versions/2/ready"))
    assert site.ask("versions", [82.0], model_version="2") == [165.0]
    for version in "321":
        site.host.unload(f"versions/{version}.0")


def test_a_triton_that_is_killed_comes_again_and_so_do_its_workers(site, two, one):
    """And it does not wait for those of a retired model, which is loaded when it has some."""
    site.host.retire("one")
    pids, before = set(site.state("two")["pids"]), site.process.restarts
    os.kill(site.process.pid, signal.SIGKILL)
    wait_until(lambda: site.process.restarts == before + 1 and site.process.pid)
    wait_until(lambda: site.host.repository.is_ready("/v2/models/two/ready"))
    assert site.ask("two", [4.0]) == [9.0]
    wait_until(lambda: set(site.state("two")["pids"]) == pids)
    site.host.start_generation("one", parse_configuration("1x1x1"))
    wait_until(lambda: site.host.repository.is_ready("/v2/models/one/ready"))
    assert site.ask("one", [5.0]) == [11.0]


def test_a_model_whose_worker_is_busy_for_longer_than_a_new_triton_waits_comes_all_the_same(
    site, one, monkeypatch
):
    monkeypatch.setattr("shunter.plugins.triton.serving.process.WAIT_S", 1)
    restarts, before = site.process.restarts, len(site.record())
    gate, log = site.folder / "gate", site.process.log
    with ThreadPoolExecutor() as pool:
        holding = pool.submit(site.ask, "one", [WAIT])
        try:
            wait_until(lambda: len(site.record()) > before)
            os.kill(site.process.pid, signal.SIGKILL)
            assert holding.exception(PATIENCE_S)
            wait_until(lambda: site.process.restarts > restarts)
            wait_until(lambda: site.host.repository.is_ready("/v2/health/live"))
            assert "no worker of one/1 has come within wait-s=1" in log.read_text()
        finally:
            gate.touch()
        wait_until(lambda: site.host.repository.is_ready("/v2/models/one/ready"))
        gate.unlink()
    assert site.ask("one", [6.0]) == [13.0]


def test_the_configuration_follows_the_load_and_no_request_is_lost(site):
    """Undone while workers cannot load; the controller asks again, later."""
    if read_topology().cores < 2 or read_topology().limited:
        pytest.skip("two cores of its own needed")
    assert site.host.load("auto-1.0.mar").configuration == "1x1x8"
    no_load = site.folder / "no-load"
    no_load.touch()
    with Load(site, "auto", 8) as load:
        wait_until(lambda: "undone" in site.state("auto")["last_change"])
        assert site.state("auto")["ready"] == 1
        assert "told to fail at loading\n" in site.process.log.read_text()
        no_load.unlink()
        wait_until(lambda: site.state("auto")["last_change"] == "generation 2 serves")
        # How many, depends on the cores that other models keep here.
        count = {"1x1x8": 1, "2x1x8": 2}[site.state("auto")["configuration"]]
        wait_until(lambda: len(site.state("auto")["pids"]) == count)
        load.more()
        cores = [os.sched_getaffinity(pid) for pid in site.state("auto")["pids"]]
        assert list(map(len, cores)) == [1] * count
        assert len(set.union(*cores)) == count
        slot = site.served("auto").slot.index

        def identity():
            found = site.page.read_identity(slot)
            return found.auto, found.generation

        wait_until(lambda: identity() == (1, 2))
    assert load.failures == []
    site.host.unload("auto")


def test_strict_requests_of_one_model_make_workers_of_another_stand_still(site, one, errors):
    site.host.load("giving-1.0.mar")
    slot, giving = (site.served(name).slot.index for name in ("one", "giving"))
    with ThreadPoolExecutor() as pool, site.held("one"):
        wait_until(lambda: holds.held(site.page, ALL_CPUS, time.monotonic_ns()) == ALL_CPUS)
        assert holds.holding_models(site.page, time.monotonic_ns()) == 1 << slot
        [told] = [each for each in site.page_status()["models"] if each["name"] == "one"]
        assert (told["holds"], told["queue"]["strict"]) == (True, 0)
        wait_until(lambda: 'shunter_holds{model="one",version="1.0"} 1' in site.metrics())
        late = pool.submit(site.ask, "giving", [1.0])
        runners = wait_until(lambda: [r for r in read_runners(site.page) if r.preemptions])
        assert [runner.runner_slot for runner in runners] == [giving]
        assert [g.group_yields for g in site.page.read_groups(giving, 1)] == [1]
    assert late.result(PATIENCE_S) == [3.0]
    assert holds.held(site.page, ALL_CPUS, time.monotonic_ns()) == 0
    for options in ({}, {"parameters": {"deadline_ms": 60_000}}):
        site.ask("giving", [2.0], **options)
    wait_until(lambda: site.page.read_telemetry(giving).answered == (0, 3))
    told = site.page.read_telemetry(giving)
    assert (told.slo_met, told.attainment, told.strict_batches[0]) == ((0, 1), (0, 1_000_001), 0)
    site.host.unload("giving")
    assert giving not in site.page.live_slots()


HOST = """
import sys, time
from pathlib import Path
from shunter.plugins import hosts
store, folder = map(Path, sys.argv[1:3])
server = hosts.process_of(store, sys.argv[3:], folder=folder, name="triton")
server.start()
print(server.pid, server.inference, server.grpc, flush=True)
time.sleep(1000)
"""


class OtherHost:
    """A process that serves."""

    def __init__(self, site, folder, *models):
        # The folder as a user may write it: from where he is.
        command = [sys.executable, "-c", HOST, str(site.folder / "store"), folder.name, *models]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=folder.parent
        )
        pid, self.inference, self.grpc = self.process.stdout.readline().split()
        self.triton = psutil.Process(int(pid))
        [model] = hosts.status_of(folder / "backend.sock")["models"]
        self.workers = [psutil.Process(each) for each in model["pids"]]
        self.kinds, self.x = site.kinds, site.x

    def client(self, kind):
        address = self.grpc if kind == "grpc" else self.inference[7:]
        return self.kinds[kind].InferenceServerClient(address)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def test_a_host_that_hangs_or_is_killed_under_load_loses_no_request_and_the_next_takes_over(
    site, tmp_path
):
    first = OtherHost(site, tmp_path, "two=two-1.0.mar")
    started = [first]
    try:
        with Load(first, "two", 4) as load:
            load.more(50)
            first.process.send_signal(signal.SIGSTOP)
            load.more(50)
            with pytest.raises(HostError, match="another `shunter serve` has"):
                hosts.process_of(site.folder / "store", [], folder=tmp_path, name="triton").start()
            first.kill()
            load.more(50)
            assert all(each.is_running() for each in first.workers)
            # What cannot be loaded does not end what serves.
            second = OtherHost(site, tmp_path, "two=two-1.0.mar", "nobody=nobody.mar")
            started.append(second)
            load.more(50)
            assert (second.triton, second.inference) == (first.triton, first.inference)
            assert not set(first.workers) & set(second.workers)
            runtime = parent(os.environ) / f"shunter-{os.getuid()}-{second.process.pid}"
            wait_until(
                lambda: (
                    [m["configuration"] for m in page_status.fetch(runtime)["models"]] == ["1x1x8"]
                )
            )
            psutil.wait_procs(first.workers, PATIENCE_S)
            second.kill()
            load.more(50)
        assert load.failures == []
    finally:
        for each in started:
            each.kill()
        first.triton.terminate()
    # With its server a worker ends, too.
    _, alive = psutil.wait_procs([*first.workers, *second.workers], PATIENCE_S)
    assert not alive
