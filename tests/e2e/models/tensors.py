"""A handler for both front ends: y = 2 x + 1, and who computed it.

An x that begins with 13 ends the worker.
"""

import json
import os
import signal

import torch


class Tensors:
    def initialize(self, context):
        if os.path.exists(os.environ.get("ECHO_NO_LOAD", "")):
            raise RuntimeError("told to fail at loading")

    def infer(self, inputs, outputs):
        [x], [y, pid] = inputs, outputs
        if bool((x[:, 0] == 13).any()):
            os.kill(os.getpid(), signal.SIGKILL)
        torch.add(torch.mul(x, 2), 1, out=y)
        pid.fill_(os.getpid())

    def handle(self, data, context):
        bodies = [row["body"] for row in data]
        x = torch.tensor([b if isinstance(b, list) else json.loads(b) for b in bodies])
        y, pid = torch.empty(x.shape), torch.empty((len(x), 1), dtype=torch.int64)
        self.infer([x.float()], [y, pid])
        return [{"y": row.tolist(), "pid": os.getpid()} for row in y]
