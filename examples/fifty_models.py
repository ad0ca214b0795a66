"""Fifty different models in one process; only ten of them have their weights hot at a time."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import httpx
import psutil
from serving import serving, shunter

MODELS = 50
HANDLER = '''
import torch


class Network(torch.nn.Module):
    """One layer whose weights say which model this is."""

    def __init__(self, number):
        super().__init__()
        self.layer = torch.nn.Linear(512, 512, bias=False)
        with torch.no_grad():
            self.layer.weight.fill_(number / 512)

    def forward(self, x):
        return self.layer(x)


class Handler:
    def initialize(self, context):
        self.model = Network(NUMBER).eval()

    def handle(self, data, context):
        with torch.inference_mode():
            answers = self.model(torch.ones(len(data), 512))
        return [round(float(row[0])) for row in answers]


_handler = Handler()


def initialize(context):
    _handler.initialize(context)


def handle(data, context):
    return _handler.handle(data, context) if data else None
'''
SETTINGS = '\n[pool]\nmodels = "shared"\nworkers = 1\nhot_mb = 10\nthreads = 1\n'


def main() -> None:
    """Run it."""
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        store.mkdir()
        for number in range(1, MODELS + 1):
            source = Path(folder) / f"model{number}"
            source.mkdir()
            text = HANDLER.replace("NUMBER", str(number))
            (source / "handler.py").write_text(text, encoding="utf-8")
            shunter("pack", str(source), "--store", str(store), "--no-weights")
        with serving(store, "--no-tokens", settings=SETTINGS) as server, httpx.Client() as client:
            random.seed(1)
            for _ in range(400):
                number = random.randint(1, MODELS)
                url = f"{server.http}/predictions/model{number}"
                answer = client.post(url, content=b"x", timeout=120)
                answer.raise_for_status()
                assert int(answer.text) == number, f"model{number} answered {answer.text}"
            print(f"{MODELS} models, 400 requests, every answer from the right one")
            print(memory())


def memory() -> str:
    """Of the process that has all models; the seats of their workers are next to nothing."""
    below = psutil.Process().children(recursive=True)
    named = [each for each in below if "python" in each.name()]
    largest = max(each.memory_full_info().pss for each in named)
    return f"the largest process takes {largest >> 20} MB, {len(named)} Python processes in all"


if __name__ == "__main__":
    main()
