"""Workers of one model as processes: what its weights cost them together."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from shunter.handlers.sample import Sample
from shunter.plugins.torchserve.archives import UnpackedModel
from shunter.plugins.torchserve.worker_client import ModelWorker

HANDLER = """
import os

import torch


class Large:
    def initialize(self, context):
        folder = context.system_properties["model_dir"]
        self.model = torch.nn.Linear(2048, 8192)
        self.model.load_state_dict(torch.load(os.path.join(folder, "large.pt")))
        self.model.eval()

    def handle(self, data, context):
        with torch.no_grad():
            out = self.model(torch.linspace(-1, 1, 2048))
        text = out.numpy().tobytes().hex()
        with open(os.path.join(os.environ["ANSWERS"], str(os.getpid())), "w") as file:
            file.write(text)
        return [len(text) for _ in data]
"""
BYTES = 2048 * 8192 * 4


def model(folder, weights):
    folder.mkdir()
    (folder / "large.py").write_text(HANDLER)
    torch.manual_seed(4)
    torch.save(torch.nn.Linear(2048, 8192).state_dict(), folder / "large.pt")
    config = {"shunter": {"weights": weights}}
    (folder / "config.yaml").write_text(json.dumps(config))
    (folder / "MAR-INF").mkdir()
    manifest = {"model": {"modelName": "large", "configFile": "config.yaml"}}
    (folder / "MAR-INF/MANIFEST.json").write_text(json.dumps(manifest))
    return UnpackedModel("large", folder, "large.py", config)


def pss(pid):
    found = re.search(r"(?m)^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    return int(found[1]) * 1024


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="this kernel does not tell PSS"
)
def test_four_workers_have_one_copy_and_answer_what_a_worker_of_its_own_does(tmp_path):
    runtime, answers = tmp_path / "runtime", tmp_path / "answers"
    runtime.mkdir()
    answers.mkdir()
    variables = {
        "SHUNTER_RUNTIME": str(runtime),
        "SHUNTER_WEIGHTS": "",
        "ANSWERS": str(answers),
        "OMP_WAIT_POLICY": "passive",
    }
    kinds = {kind: model(tmp_path / kind, kind) for kind in ("shared", "private")}
    with ExitStack() as stack, ThreadPoolExecutor(5) as pool:
        workers = [
            ModelWorker(kinds[kind], threads=1, variables=variables)
            for kind in ("private", *["shared"] * 4)
        ]
        for each in workers:
            stack.callback(each.close)
        list(pool.map(ModelWorker.start, workers))
        for each in workers:
            each.run([Sample(b"x")])
        own, *together = [pss(each.pid) for each in workers]
        texts = {path.name: path.read_text() for path in answers.iterdir()}
        files = [path.name for path in (runtime / "weights").iterdir()]
    assert len(texts) == 5
    assert len(set(texts.values())) == 1, "the same weights give the same answers"
    assert [name.rpartition(".")[2] for name in files] == ["safetensors"]
    # Of four copies three are spared; what else a worker has varies by much less than one.
    assert sum(together) < 4 * own - 2.5 * BYTES
    assert sum(together) > BYTES
