"""The harnesses of the rivals; those that start one are skipped where it is not installed."""

import contextlib
import json
import struct
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

BENCH = Path(__file__).parents[2] / "bench"
HANDLER = '''
import torch
from ts.torch_handler.base_handler import BaseHandler


class Lengths(BaseHandler):
    """Every number of an answer is the length of its text."""

    def initialize(self, context):
        pass

    def preprocess(self, data):
        return torch.tensor([float(len(request["body"]["text"])) for request in data])

    def inference(self, data):
        return data[:, None].expand(-1, 384).contiguous()

    def postprocess(self, data):
        return ['{"embedding":[%s]}' % ",".join(map(str, row)) for row in data.tolist()]
'''


@pytest.fixture
def rivals(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    # A package of the benchmarks' own, as a script beside it would import it.
    from rivals import bentoml_server, environments, process, triton_server

    modules = {
        "Bento": bentoml_server.Bento,
        "Triton": triton_server.Triton,
        "bentoml_server": bentoml_server,
        "triton_server": triton_server,
        "environments": environments,
        "process": process,
    }
    return type("Rivals", (), modules)


@pytest.fixture
def archive(tmp_path):
    path = tmp_path / "lengths.mar"
    manifest = {"model": {"modelName": "lengths", "handler": "handler.py"}}
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        packed.writestr("handler.py", HANDLER)
    return path


def test_bodies_and_answers_of_bentoml(rivals, archive):
    server = rivals.Bento(archive)
    assert json.loads(server.body('say "hi"')) == {"texts": ['say "hi"']}
    assert server.embedding(json.dumps(['{"embedding":[1e-6,2]}']).encode()) == [1e-6, 2]


def test_bodies_and_answers_of_triton(rivals, archive):
    server = rivals.Triton(archive)
    plain = json.loads(server.body("a"))
    assert plain["inputs"][0] == {
        "name": "text",
        "shape": [1, 1],
        "datatype": "BYTES",
        "data": ["a"],
    }
    assert plain["parameters"] == {"binary_data_output": True}
    full = json.loads(server.body("a", priority=1, timeout_us=500))["parameters"]
    assert (full["priority"], full["timeout"]) == (1, 500)
    row = [float(number) for number in range(384)]
    assert server.embedding(b'{"some": "head"}' + struct.pack("<384f", *row)) == row


def test_a_failed_installation_is_unavailable_and_leaves_nothing(rivals, monkeypatch, tmp_path):
    monkeypatch.setenv("SHUNTER_BENCH_CACHE", str(tmp_path / "cache"))
    with pytest.raises(rivals.environments.Unavailable, match="pip failed"):
        rivals.environments.installed("none", ["./no-such-folder"])
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_what_is_installed_is_not_installed_again(rivals, monkeypatch, tmp_path):
    monkeypatch.setenv("SHUNTER_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(
        rivals.environments, "_install", lambda target, *others: target.mkdir(parents=True)
    )
    first = rivals.environments.installed("some-1", ["some==1"])
    monkeypatch.setattr(rivals.environments, "_install", None)
    assert rivals.environments.installed("some-1", ["some==1"]) == first


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["bentoml", "triton"])
def test_a_real_rival_batches_answers_and_ends(rivals, archive, name):
    if not any(rivals.environments.cache().glob(f"{name}-*")):
        pytest.skip(f"{name} is not installed: cd bench && python -m rivals {name}")
    start = {
        "bentoml": lambda: rivals.Bento(archive, max_batch=8, max_latency_ms=30_000, threads=1),
        "triton": lambda: rivals.Triton(archive, max_batch=8, threads=1, priorities=True),
    }[name]
    texts = ["x" * (1 + place % 7) for place in range(60)]
    with start() as server, ThreadPoolExecutor(30) as pool:
        for _ in range(10):  # until some came together, which is the host's affair
            answers = list(pool.map(lambda text: server.embedding(_post(server, text)), texts))
            assert answers == [[float(len(text))] * 384 for text in texts]
            if max(server.batches()) > 1:
                break
        if name == "triton":
            server.reload()
            assert server.embedding(_post(server, "abc")) == [3.0] * 384
        pids, sizes = server.pids(), server.batches()
    assert max(sizes) > 1
    assert max(sizes) <= 8
    assert len(pids) >= 2
    assert not any(map(_runs, pids))
    assert not server.folder.exists()


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["bentoml", "triton"])
def test_a_model_that_does_not_load_is_said(rivals, tmp_path, name):
    if not any(rivals.environments.cache().glob(f"{name}-*")):
        pytest.skip(f"{name} is not installed: cd bench && python -m rivals {name}")
    broken = tmp_path / "broken.mar"
    with zipfile.ZipFile(broken, "w") as packed:
        packed.writestr("MAR-INF/MANIFEST.json", "{}")
    kind = {"bentoml": rivals.Bento, "triton": rivals.Triton}[name]
    with pytest.raises(rivals.process.RivalFailed, match="KeyError"):
        kind(broken).start(timeout_s=60)


def _runs(pid):
    """Whether it has not ended; orphans are buried later."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _post(server, text):
    request = urllib.request.Request(server.url, server.body(text), dict(server.headers))
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read()
