"""TorchServe's micro-batching: the steps of a batch's parts run beside each other."""

import os

from ts.handler_utils.micro_batching import MicroBatching
from ts.torch_handler.base_handler import BaseHandler


class Doubler(BaseHandler):
    def __init__(self):
        super().__init__()
        self.handle = MicroBatching(self, micro_batch_size=2)

    def initialize(self, context):
        self.initialized = True

    def preprocess(self, data):
        return [(row.get("data") or row.get("body"), len(data)) for row in data]

    def inference(self, data):
        return [({"id": body["id"], "doubled": 2 * body["x"]}, part) for body, part in data]

    def postprocess(self, data):
        return [{**answer, "part": part, "pid": os.getpid()} for answer, part in data]
