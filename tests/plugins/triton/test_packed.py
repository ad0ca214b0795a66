"""Tensors of any size, texts, batches and streams through a real Triton, by its own clients."""

import asyncio
import contextlib
import importlib.util
import json
import queue
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

from shunter.model_store.minilm import archive
from shunter.model_store.resnet50.archive import pack_resnet50, random_model, sample
from shunter.plugins import hosts

pytestmark = pytest.mark.triton
PATIENCE_S = 120
TESTS = Path(__file__).parents[2]
MISSING = archive.weights_missing()
KINDS = ("http", "grpc")
NAMES = {"float32": "FP32", "int64": "INT64", "object": "BYTES"}


def tensor(name, dtype, shape):
    return {"name": name, "dtype": dtype, "shape": shape}


MODELS = {
    "letters": {
        "inputs": [tensor("text", "bytes", [])],
        "outputs": [tensor("json", "bytes", [])],
        "request_bytes": 100_000,
        "answer_bytes": 1000,
    },
    "rowwise": {
        "inputs": [tensor("x", "float32", [-1])],
        "outputs": [tensor("sum", "float32", []), tensor("together", "int64", [])],
        "batched": True,
        "request_bytes": 4096,
    },
    "shapes": {
        "inputs": [tensor("x", "float32", [-1, -1]), tensor("words", "bytes", [-1])],
        "outputs": [tensor("capitals", "bytes", [-1]), tensor("y", "float32", [-1, -1])],
    },
    "words": {
        "inputs": [tensor("text", "bytes", []), tensor("sequence_id", "int64", [])],
        "outputs": [tensor("word", "bytes", []), tensor("number", "int64", [])],
        "streamed": True,
        "request_bytes": 65536,
        "answer_bytes": 1024,
    },
}


def archives(folder):
    spec = importlib.util.spec_from_file_location("triton_archives", TESTS / "e2e/archives.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.Archives(folder)


class Site:
    """A Triton with models of any size."""

    def __init__(self, folder):
        import tritonclient.grpc as grpcclient
        import tritonclient.http as httpclient

        self.kinds = {"http": httpclient, "grpc": grpcclient}
        self.store = folder / "store"
        self.store.mkdir()
        made = archives(self.store)
        variables = {"WORDS_GATE": str(folder / "gate"), "WORDS_RECORD": str(folder / "record")}
        for name, tensors in MODELS.items():
            section = {"tensors": tensors, "environment": variables}
            made.add(name, name, config={"batchSize": 8, "shunter": section})
        self.folder = folder
        models = [f"{name}={name}-1.0.mar" for name in MODELS]
        self.process = hosts.process_of(
            self.store, models, folder=folder / "server", name="triton"
        )
        self.process.start()
        self.events = f"{self.process.inference}/v2/models/words/generate_stream"

    @contextlib.contextmanager
    def client(self, kind):
        address = self.process.grpc if kind == "grpc" else self.process.inference[7:]
        options = {} if kind == "grpc" else {"concurrency": 16, "network_timeout": PATIENCE_S}
        with contextlib.closing(
            self.kinds[kind].InferenceServerClient(address, **options)
        ) as client:
            yield client

    def ask(self, kind, model, arrays, wanted, *, client=None, **options):
        """The outputs of that names."""
        inputs = []
        for name, array in arrays.items():
            given = self.kinds[kind].InferInput(name, array.shape, NAMES[array.dtype.name])
            given.set_data_from_numpy(array)
            inputs.append(given)
        if client is None:
            with self.client(kind) as client:
                found = client.infer(model, inputs, **options)
        else:
            found = client.infer(model, inputs, **options)
        return [found.as_numpy(name) for name in wanted]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("packed"))
    yield site
    site.process.drain(PATIENCE_S)


@pytest.fixture
def errors():
    from tritonclient.utils import InferenceServerException

    return InferenceServerException


def texts(*content, shape=(-1,)):
    found = np.empty(len(content), object)
    found[:] = content
    return found.reshape(shape)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_come_and_json_goes(site, errors, kind):
    given = ["", "übel", "aab", "z" * 99_000]
    wanted = [{}, {"ü": 1, "b": 1, "e": 1, "l": 1}, {"a": 2, "b": 1}, {"z": 99_000}]
    asked = texts(*(each.encode() for each in given), shape=(-1, 1))
    [found] = site.ask(kind, "letters", {"text": asked}, ["json"])
    assert found.shape == (4, 1)
    assert [json.loads(each) for each in found[:, 0]] == wanted
    with pytest.raises(errors) as told:  # no UTF-8
        site.ask(kind, "letters", {"text": texts(b"\xff", shape=(1, 1))}, ["json"])
    assert told.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    many = texts("".join(map(chr, range(200, 400))).encode(), shape=(1, 1))
    with pytest.raises(errors, match="handler failed"):  # its answer would be too long
        site.ask(kind, "letters", {"text": many}, ["json"])
    long = texts(b"z" * 100_000, shape=(1, 1))
    with pytest.raises(errors, match=r"100068 bytes with its header; .* 100000 "):
        site.ask(kind, "letters", {"text": long}, ["json"])


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_of_a_request_is_answered_with_its_own(site, kind):
    """Of several tensors with several sizes, of many blocks too."""
    rng = np.random.default_rng(1)
    with site.client(kind) as client, ThreadPoolExecutor(8) as pool:
        asked = []
        for rows, high, wide, words in ((1, 1, 1, 1), (3, 2, 5, 2), (8, 7, 3, 0), (2, 300, 200, 9)):
            x = rng.random((rows, high, wide), np.float32)
            content = [b"w" * int(n) for n in rng.integers(0, 90, rows * words)]
            arrays = {"x": x, "words": texts(*content, shape=(rows, words))}
            asked += [arrays] * 3
        wanted = ["y", "capitals"]
        answers = [
            pool.submit(
                site.ask, kind, "shapes", arrays, wanted,
                client=client if kind == "grpc" else None,
            )
            for arrays in asked
        ]  # fmt: skip
        for arrays, answer in zip(asked, answers, strict=True):
            y, capitals = answer.result(PATIENCE_S)
            np.testing.assert_array_equal(y, arrays["x"] * 2)
            assert capitals.shape == arrays["words"].shape
            upper = [each.upper() for each in arrays["words"].reshape(-1)]
            assert capitals.reshape(-1).tolist() == upper


def test_only_the_outputs_that_are_wanted_come(site):
    arrays = {"x": np.ones((1, 2, 2), np.float32), "words": texts(b"a", shape=(1, 1))}
    package = site.kinds["http"]
    wanted = [package.InferRequestedOutput("capitals")]
    y, capitals = site.ask("http", "shapes", arrays, ["y", "capitals"], outputs=wanted)
    assert y is None
    assert capitals.tolist() == [[b"A"]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_may_be_a_batch_for_its_handler(site, errors, kind):
    with site.client(kind) as client:
        for n in (1, 8, 3):
            x = np.full((n, 1 + n % 3), n, np.float32)
            sums, together = site.ask(
                kind, "rowwise", {"x": x}, ["sum", "together"], client=client
            )
            assert (sums.reshape(n).tolist(), together.reshape(n).tolist()) == (
                x.sum(1).tolist(),
                [n] * n,
            )
    with pytest.raises(errors, match="batch"):
        site.ask(kind, "rowwise", {"x": np.zeros((9, 1), np.float32)}, ["sum"])


def test_inputs_that_the_model_does_not_take_are_refused(site, errors):
    words = texts(b"a", b"b", shape=(2, 1))
    wrong = {
        "batch size": {"x": np.zeros((1, 2, 2), np.float32), "words": words},
        "shape": {"x": np.zeros((2, 2), np.float32), "words": words},
        "data-type|type": {"x": np.zeros((2, 2, 2), np.int64), "words": words},
        "bytes with its header": {"x": np.zeros((2, 600, 600), np.float32), "words": words},
        "words|inputs": {"x": np.zeros((2, 2, 2), np.float32)},
    }
    for kind in KINDS:
        for said, arrays in wrong.items():
            with pytest.raises(errors, match=said) as told:
                site.ask(kind, "shapes", arrays, ["y"])
            assert told.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")


@pytest.mark.parametrize("cut", [1, 4, 7])
def test_texts_that_are_not_their_bytes_are_refused(site, errors, cut):
    """As a client may send them that is not Triton's own: the lengths of texts lie."""
    package = site.kinds["grpc"]
    x = package.InferInput("x", [2, 1, 1], "FP32")
    x.set_data_from_numpy(np.zeros((2, 1, 1), np.float32))
    words = package.InferInput("words", [2, 1], "BYTES")
    words.set_data_from_numpy(texts(b"abc", b"defg", shape=(2, 1)))
    words._raw_content = words._raw_content[:-cut]
    with site.client("grpc") as client, pytest.raises(errors) as told:
        client.infer("shapes", [x, words])
    assert told.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_a_worker_that_dies_loses_no_request(site):
    import psutil

    [model] = [each for each in site.process.host.status()["models"] if each["name"] == "shapes"]
    arrays = {"x": np.ones((4, 90, 90), np.float32), "words": texts(*[b"a"] * 4, shape=(4, 1))}
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(site.ask, "grpc", "shapes", arrays, ["y"]) for _ in range(40)]
        for pid in model["pids"]:
            psutil.Process(pid).kill()
        answers += [pool.submit(site.ask, "http", "shapes", arrays, ["y"]) for _ in range(4)]
        for answer in answers:
            np.testing.assert_array_equal(answer.result(PATIENCE_S)[0], arrays["x"] * 2)


class Stream:
    """What one gRPC stream delivers: (id of its request, word, number), or an error."""

    def __init__(self, site, hear=None):
        self._site, self._found = site, queue.Queue()
        package = site.kinds["grpc"]
        self.client = package.InferenceServerClient(site.process.grpc)
        self.client.start_stream(hear or self._hear)

    def _hear(self, result, error):
        self._found.put((result, error))

    def ask(self, text, name="", **options):
        given = self._site.kinds["grpc"].InferInput("text", [1, 1], "BYTES")
        given.set_data_from_numpy(texts(text.encode(), shape=(1, 1)))
        options.setdefault("enable_empty_final_response", True)
        self.client.async_stream_infer("words", [given], request_id=name, **options)

    def next(self):
        """None: the end of a request's answer."""
        found, error = self._found.get(timeout=PATIENCE_S)
        if error is not None:
            return error
        told = found.get_response()
        if told.parameters["triton_final_response"].bool_param:
            return told.id, None
        word, number = found.as_numpy("word"), found.as_numpy("number")
        assert (word.shape, number.shape) == ((1, 1), (1, 1))
        return told.id, word[0, 0].decode(), int(number[0, 0])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.stop_stream(cancel_requests=True)
        self.client.close()


def words_of(text):
    return [(word.upper(), number) for number, word in enumerate(text.split())]


def records(site):
    path = site.folder / "record"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def counted(site, name, what):
    """Of a model, by the status."""
    states = site.process.host.status()["models"]
    return next(each[what] for each in states if each["name"] == name)


def wait_until(told):
    end = time.monotonic() + PATIENCE_S
    while not (found := told()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_an_answer_in_parts_streams(site):
    """Of several requests on several streams, which run in batches; more parts than places."""
    asked = {str(n): " ".join(f"w{n}-{i}" for i in range(n)) for n in (1, 2, 3, 4, 9, 40)}
    streams = [Stream(site) for _ in range(3)]
    with contextlib.ExitStack() as stack:
        for stream in streams:
            stack.enter_context(stream)
            for name, text in asked.items():
                stream.ask(text, name)
        for stream in streams:
            found = {name: [] for name in asked}
            while any(None not in each for each in found.values()):
                name, *part = stream.next()
                found[name].append(tuple(part) if part != [None] else None)
            assert found == {name: [*words_of(text), None] for name, text in asked.items()}


def test_a_handler_that_asks_for_it_knows_the_sequence(site):
    with Stream(site) as stream:
        stream.ask("a b", "x", sequence_id=500, sequence_end=True)
        assert [stream.next() for _ in range(2)] == [("x", "A", 500), ("x", "B", 501)]


def test_a_part_comes_when_its_handler_yields_it(site):
    with Stream(site) as stream:
        stream.ask("early WAIT late", "x")
        assert stream.next() == ("x", "EARLY", 0)
        (site.folder / "gate").touch()
        assert [stream.next()[1:] for _ in range(3)] == [("WAIT", 1), ("LATE", 2), (None,)]
    (site.folder / "gate").unlink()


def test_the_asynchronous_client_streams(site):
    import tritonclient.grpc.aio as aio

    async def ask(count):
        async def asked():
            given = aio.InferInput("text", [1, 1], "BYTES")
            given.set_data_from_numpy(texts(b"one two three", shape=(1, 1)))
            for _ in range(count):
                yield {"model_name": "words", "inputs": [given]}

        async with aio.InferenceServerClient(site.process.grpc) as client:
            answers = client.stream_infer(asked())
            found = [(await anext(answers))[0].as_numpy("word")[0, 0] for _ in range(3 * count)]
            return sorted(found)

    assert asyncio.run(ask(4)) == [b"ONE"] * 4 + [b"THREE"] * 4 + [b"TWO"] * 4


def test_events_stream_over_http(site):
    with httpx.stream("POST", site.events, json={"text": "a b c"}) as answer:
        lines = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data:")]
    assert [(each["word"], each["number"]) for each in lines] == words_of("a b c")


def test_what_is_no_stream_is_told_so_by_triton(site, errors):
    given = {"text": texts(b"a b", shape=(1, 1))}
    for kind in KINDS:
        with pytest.raises(errors, match="decoupled"):
            site.ask(kind, "words", given, ["word"])
    with Stream(site) as stream:
        stream.ask("a", parameters={"slo_class": "gold"})
        assert "slo_class 'gold'" in stream.next().message()


def test_who_leaves_in_the_midst_ends_the_handler(site):
    def left():
        # The record of a request before this test may come only now.
        return [record for record in records(site)[before:] if record["unwanted"]]

    before = len(records(site))
    with Stream(site) as stream:
        stream.ask("early WAIT " + "late " * 1000, "x")
        assert stream.next() == ("x", "EARLY", 0)
    record = {"unwanted": [0], "steps": 1, "texts": 1}
    assert wait_until(left) == [record]
    with httpx.stream("POST", site.events, json={"text": "early WAIT late"}) as answer:
        next(answer.iter_lines())
    wait_until(lambda: len(left()) == 2)
    assert left() == [record] * 2


def test_who_reads_slowly_holds_up_nobody(site):
    reads, errors_of = threading.Event(), []

    def slowly(result, error):
        errors_of.append(error)
        reads.wait(PATIENCE_S)

    with Stream(site, slowly) as slow, Stream(site) as stream:
        slow.ask("w " * 2000, enable_empty_final_response=False)
        wait_until(lambda: errors_of)
        stream.ask("a b", "x")
        assert [stream.next()[1:] for _ in range(3)] == [("A", 0), ("B", 1), (None,)]
        reads.set()
        wait_until(lambda: len(errors_of) == 2000)
        assert not any(errors_of)


def test_a_failure_in_the_midst_is_the_last_response(site):
    with Stream(site) as stream:
        stream.ask("a b FAIL", "x")
        assert [stream.next() for _ in range(2)] == [("x", "A", 0), ("x", "B", 1)]
        assert "handler failed" in stream.next().message()
        before = counted(site, "words", "batches")
        stream.ask("a b DIE", "y")
        assert [stream.next() for _ in range(2)] == [("y", "A", 0), ("y", "B", 1)]
        assert "died in the midst of its answer" in stream.next().message()
        wait_until(lambda: counted(site, "words", "ready"))
        stream.ask("again", "z")  # of the next worker; the other ran once
        assert [stream.next() for _ in range(2)] == [("z", "AGAIN", 0), ("z", None)]
        assert counted(site, "words", "batches") == before + 2


@pytest.mark.skipif(MISSING is not None, reason=str(MISSING))
def test_texts_of_any_length_are_embedded_as_one_by_one(site, errors, tmp_path):
    config = yaml.safe_load((archive.HERE / "model-config.yaml").read_text())["shunter"]
    del config["slo_ms"]  # nothing is late, however busy the machine is
    config = {"shunter": {**config, "configuration": "1x1x8"}, "batchSize": 8}
    made = archive.pack_minilm(tmp_path, name="embed", config=config)
    shutil.copy(made, site.store)
    site.process.host.load(made.name, "embed")
    rng = np.random.default_rng(0)
    asked = [rng.integers(1000, 30000, (1, n)) for n in (5, 1, 256, 30, 31, 32, 33, 2, 100, 7)]
    for kind in KINDS:
        alone = [site.ask(kind, "embed", {"ids": ids}, ["embedding"])[0] for ids in asked]
        assert all(abs(float(each[0] @ each[0]) - 1) < 1e-4 for each in alone)
        with ThreadPoolExecutor(10) as pool:
            answers = [
                pool.submit(site.ask, kind, "embed", {"ids": ids}, ["embedding"]) for ids in asked
            ]
            for answer, wanted in zip(answers, alone, strict=True):
                np.testing.assert_allclose(answer.result(PATIENCE_S)[0], wanted, atol=1e-5)
        three = np.concatenate([asked[3]] * 3)
        [found] = site.ask(kind, "embed", {"ids": three}, ["embedding"])
        np.testing.assert_allclose(found, np.concatenate([alone[3]] * 3), atol=1e-5)
        for bad in ([], range(1000, 1257), [30522], [-1]):
            with pytest.raises(errors):
                site.ask(kind, "embed", {"ids": np.array([bad], np.int64)}, ["embedding"])
    site.process.host.unload("embed")


def test_pictures_are_classified(site, errors):
    """ResNet-50, from the bytes of JPEGs to classes."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("ts")
    from shunter.model_store.resnet50 import handler

    pack_resnet50(site.store, name="pictures", config={"batchSize": 4, "maxBatchDelay": 1})
    site.process.host.load("pictures.mar", "pictures", batch=4)
    pixels = handler.pixels_of(sample()).permute(2, 0, 1)[None].float()
    with torch.inference_mode():
        scores = random_model()((pixels - handler.MEAN) / handler.DEVIATION)
    wanted = scores.softmax(dim=1).topk(5)
    asked = texts(sample(), sample(), shape=(2, 1))
    for kind in KINDS:
        names = ["probabilities", "classes"]
        probabilities, classes = site.ask(kind, "pictures", {"picture": asked}, names)
        np.testing.assert_allclose(probabilities, wanted.values.repeat(2, 1), atol=1e-3)
        assert classes.tolist() == wanted.indices.repeat(2, 1).tolist()
        with pytest.raises(errors) as told:
            broken = texts(sample()[:700], shape=(1, 1))
            site.ask(kind, "pictures", {"picture": broken}, names)
        assert told.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    site.process.host.unload("pictures")
