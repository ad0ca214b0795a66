"""Fifty different models in one process; only ten of them have their weights hot at a time."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import httpx
from serving import serving

from shunter.model_store.pack import pack

MODELS = 50
MODEL = '''
import torch


class Network(torch.nn.Module):
    """One layer whose weights say which model this is."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(512, 512, bias=False)
        with torch.no_grad():
            self.layer.weight.fill_(NUMBER / 512)

    def forward(self, x):
        return self.layer(x)
'''
HANDLER = '''
import torch
from model import Network


class Handler:
    def initialize(self, context):
        self.model = Network().eval()

    def handle(self, data, context):
        with torch.inference_mode():
            answers = self.model(torch.ones(len(data), 512))
        return [round(float(row[0])) for row in answers]
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
            (source / "handler.py").write_text(HANDLER, encoding="utf-8")
            text = MODEL.replace("NUMBER", str(number))
            (source / "model.py").write_text(text, encoding="utf-8")
            pack(source, store, weights_needed=False)  # as `shunter pack --no-weights`
        with serving(store, "--no-tokens", settings=SETTINGS) as server, httpx.Client() as client:
            random.seed(1)
            for _ in range(400):
                number = random.randint(1, MODELS)
                url = f"{server.http}/predictions/model{number}"
                answer = client.post(url, content=b"x", timeout=120)
                assert answer.status_code == 200, f"model{number}: {answer.text}"
                assert int(answer.text) == number, f"model{number} answered {answer.text}"
            print(f"{MODELS} models, 400 requests, every answer from the right one")
            management = next(line.split()[1] for line in server.lines if "management" in line)
            [pool] = client.get(f"{management}/shunter/memory").json()["pools"]
            print(
                f"one process, pid {pool['pid']}: of {len(pool['models'])} models "
                f"{len(pool['hot'])} have their weights in {pool['bytes'] >> 20} MB of hot memory, "
                f"{pool['hits']} hits, {pool['misses']} misses"
            )


if __name__ == "__main__":
    main()
