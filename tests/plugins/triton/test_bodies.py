"""Handlers of TorchServe behind a real Triton, unchanged: bodies in, the same bytes out."""

import contextlib
import importlib.util
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import yaml

from shunter.plugins import hosts
from shunter.plugins.host import HostError
from shunter.plugins.torchserve.archives import unpack
from shunter.plugins.torchserve.worker_client import ModelWorker
from shunter.plugins.torchserve.worker_messages import batch_message

pytestmark = pytest.mark.triton
PATIENCE_S = 120
TESTS = Path(__file__).parents[2]
KINDS = ("http", "grpc")
CODES = {
    400: ("400", "StatusCode.INVALID_ARGUMENT"),
    500: ("500", "StatusCode.INTERNAL"),
    503: ("503", "StatusCode.UNAVAILABLE"),
}


def archives(folder):
    spec = importlib.util.spec_from_file_location("triton_archives", TESTS / "e2e/archives.py")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found.Archives(folder)


def without_tensors(archive):
    """As a user of TorchServe alone has it; the archive."""
    with zipfile.ZipFile(archive) as source:
        content = {name: source.read(name) for name in source.namelist()}
    config = yaml.safe_load(content["model-config.yaml"])
    config["shunter"] = {"configuration": "1x1x4"}
    content["model-config.yaml"] = yaml.safe_dump({**config, "batchSize": 4}).encode()
    with zipfile.ZipFile(archive, "w") as target:
        for name, data in content.items():
            target.writestr(name, data)
    return archive


def texts(*content):
    found = np.empty((len(content), 1), object)
    found[:, 0] = content
    return found


class Site:
    """A Triton with models that declare no tensors."""

    def __init__(self, folder):
        import tritonclient.grpc as grpcclient
        import tritonclient.http as httpclient

        self.kinds = {"http": httpclient, "grpc": grpcclient}
        self.store = folder / "store"
        self.store.mkdir()
        made = archives(self.store)
        variables = {"environment": {"ECHO_RECORD": str(folder / "record")}}
        section = {**variables, "tensors": {"request_bytes": 2_000_000}}
        made.add("plain", "plain", config={"batchSize": 1})
        made.add("echo", config={"batchSize": 4, "maxBatchDelay": 50, "shunter": section})
        made.add("parts", "stream")
        made.add("wrong", config={"shunter": {"tensors": {"buckets": [8]}}})
        models = [f"{name}={name}-1.0.mar" for name in ("plain", "echo", "parts")]
        self.process = hosts.process_of(
            self.store, models, folder=folder / "server", name="triton"
        )
        self.process.start()

    def ask(self, kind, model, **inputs):
        """The answers to bodies, one of each row."""
        package = self.kinds[kind]
        address = self.process.grpc if kind == "grpc" else self.process.inference[7:]
        options = {} if kind == "grpc" else {"network_timeout": PATIENCE_S}
        given = []
        for name, rows in inputs.items():
            given.append(package.InferInput(name, [len(rows), 1], "BYTES"))
            given[-1].set_data_from_numpy(texts(*rows))
        with contextlib.closing(package.InferenceServerClient(address, **options)) as client:
            found = client.infer(model, given).as_numpy("answer")
        assert found.shape == (len(inputs["body"]), 1)
        return found[:, 0].tolist()

    def refused(self, kind, model, **inputs):
        """Status and text of the error."""
        from tritonclient.utils import InferenceServerException

        with pytest.raises(InferenceServerException) as told:
            self.ask(kind, model, **inputs)
        return told.value.status(), told.value.message()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    site = Site(tmp_path_factory.mktemp("bodies"))
    yield site
    site.process.drain(PATIENCE_S)


@pytest.mark.parametrize("kind", KINDS)
def test_a_function_answers_in_every_way_that_it_may(site, kind):
    assert site.ask(kind, "plain", body=[b"bytes"]) == [bytes(range(256))]
    assert site.ask(kind, "plain", body=[b"text"]) == ["grüße".encode()]
    assert site.ask(kind, "plain", body=[b"number"]) == [b"7"]
    [answer] = site.ask(kind, "plain", body=[b"list"])
    assert answer == json.dumps([1, 2.5, None, "x"], indent=2).encode()
    headers = {"user-agent": "mine", "X-Mine": "yes"}
    [answer] = site.ask(
        kind,
        "plain",
        body=[b"request"],
        content_type=[b"text/plain; charset=utf-8"],
        headers=[json.dumps(headers).encode()],
    )
    assert json.loads(answer) == [["body"], "mine", "yes"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_is_an_error_with_its_status_and_text(site, kind):
    wanted = {
        b"status": (400, "418 Teapot: short and stout"),
        b"refuse": (500, "513 not today"),
        b"raise": (503, "503 Prediction failed"),
        b"wrong length": (503, "503 number of batch response mismatched"),
        b"unserializable": (503, "503 Unsupported model output data type."),
    }
    for body, (code, text) in wanted.items():
        status, said = site.refused(kind, "plain", body=[body])
        assert (status in CODES[code], said) == (True, text)
    for headers in (b"{", b"[1]", b'{"a": 1}'):
        status, said = site.refused(kind, "plain", body=[b"text"], headers=[headers])
        assert status in CODES[400] and said.startswith("400 ")
    status, said = site.refused(kind, "plain", body=[b"text"], content_type=[b"\xff"])
    assert status in CODES[400] and said.startswith("400 ")


def test_rows_without_types_run_beside_those_with_them_in_one_batch(site):
    bodies = [json.dumps({"id": f"r{i}"}).encode() for i in range(4)]
    given = [b"application/json", b"", b"application/json", b""]
    answers = [json.loads(each) for each in site.ask("http", "echo", body=bodies)]
    answers += [
        json.loads(each) for each in site.ask("grpc", "echo", body=bodies, content_type=given)
    ]
    assert [each["id"] for each in answers] == ["r0", "r1", "r2", "r3"] * 2
    assert {each["batch"] for each in answers} == {4}
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda body: site.ask("http", "echo", body=[body])[0], bodies))
    assert [json.loads(each)["id"] for each in together] == ["r0", "r1", "r2", "r3"]


def test_a_request_may_be_as_long_as_the_model_says(site):
    body = json.dumps({"id": "long", "fill": "x" * 1_900_000}).encode()
    assert json.loads(site.ask("http", "echo", body=[body])[0])["id"] == "long"
    _, said = site.refused("http", "echo", body=[body + b" " * 100_000])
    assert "2000000" in said


def test_a_handler_that_sends_parts_is_told_that_it_cannot(site):
    body = json.dumps({"parts": 3, "id": "s"}).encode()
    status, said = site.refused("http", "parts", body=[body], content_type=[b"application/json"])
    assert (status, said) == ("503", "503 Prediction failed")


def test_other_words_about_tensors_need_tensors(site):
    with pytest.raises(HostError, match=r"buckets.*request_bytes and answer_bytes are allowed"):
        site.process.host.load("wrong-1.0.mar")


def packed(name, folder):
    """An archive of the model store, and bodies with their types: good ones, and a bad one."""
    if name == "digits":
        from shunter.model_store.digits.archive import SAMPLE, pack_digits

        image = bytes(np.array(SAMPLE["image"], np.uint8).ravel().tolist())
        asked = [(json.dumps(SAMPLE).encode(), "application/json"), (image, ""), (b"bad", "")]
        return pack_digits(folder).path, asked
    if name == "resnet50":
        from shunter.model_store.resnet50.archive import pack_resnet50, sample

        picture = (sample(), "image/jpeg")
        return pack_resnet50(folder), [picture, picture, (sample()[:700], "image/jpeg")]
    from shunter.model_store.minilm import archive

    if archive.weights_missing() is not None:
        pytest.skip(archive.weights_missing())
    asked = [("Überall Züge".encode(), "text/plain"), (b'{"text": "a"}', "application/json")]
    return archive.pack_minilm(folder), [*asked, (b"  ", "text/plain")]


@pytest.mark.parametrize("name", ["digits", "resnet50", "minilm"])
def test_models_answer_the_bytes_that_they_answer_behind_torchserve(site, tmp_path, name):
    pytest.importorskip({"digits": "sklearn", "resnet50": "PIL", "minilm": "tokenizers"}[name])
    path, asked = packed(name, tmp_path)
    path = without_tensors(path)
    path.rename(site.store / path.name)
    wanted = []
    with ThreadPoolExecutor(1) as pool:
        loaded = pool.submit(site.process.host.load, path.name)
        with ModelWorker(
            unpack(site.store / path.name, tmp_path / "model"), threads=1
        ) as worker:
            for body, kind in asked:
                sample = type("Sample", (), {"body": body, "content_type": kind})
                code, _, [answer] = worker._exchange(batch_message([sample]))
                assert code == 200
                wanted.append(answer)
        loaded.result(PATIENCE_S)
    assert [status for status, _ in wanted] == [200, 200, 400]
    for kind in KINDS:
        for (body, media), (status, answer) in zip(asked, wanted, strict=True):
            given = {"body": [body], "content_type": [media.encode()]}
            if status == 200:
                assert site.ask(kind, name, **given) == [answer]
            else:
                found, said = site.refused(kind, name, **given)
                assert found in CODES[400]
                assert said == f"400 Bad Request: {answer.decode()}"
    site.process.host.unload(name)
