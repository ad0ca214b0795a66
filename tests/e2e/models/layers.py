"""Layers, one after the other, and in front of the last a wait, layer by layer, until the file
``gate`` of each request exists. Says what comes out of ``x``, and whether the file ``sees`` of a
request was there when it ran."""

import json
import os
import time

import torch
from torch import nn


def net():
    """Of a class in here: a file of a handler has one class."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(1)
            self.first, self.wait, self.last = nn.Linear(4, 4), nn.Identity(), nn.Linear(4, 1)

        def forward(self, x, gates):
            x, end = self.first(x), time.monotonic() + 120
            while not all(map(os.path.exists, gates)) and time.monotonic() < end:
                time.sleep(0.002)
                x = self.wait(x)
            return self.last(x)

    return Net().eval()


class Layers:
    def initialize(self, context):
        self.model = net()

    def handle(self, data, context):
        bodies = [row["body"] for row in data]
        requests = [b if isinstance(b, dict) else json.loads(b) for b in bodies]
        gates = [each["gate"] for each in requests if "gate" in each]
        for each in requests:
            if "gate" in each:
                open(f"{each['gate']}.{each['id']}", "w").close()
        x = torch.tensor([[float(each.get("x", 0))] * 4 for each in requests])
        with torch.inference_mode():
            y = self.model(x, gates)
        saw = [os.path.exists(each.get("sees", "")) for each in requests]
        facts = {"pid": os.getpid(), "mode": torch.is_inference_mode_enabled()}
        return [
            {**facts, "id": each["id"], "y": number, "saw": there}
            for each, number, there in zip(requests, y[:, 0].tolist(), saw, strict=True)
        ]
