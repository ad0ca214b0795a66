"""What a model author writes for TorchServe: nothing in it knows of Shunter."""

import torch
from ts.torch_handler.base_handler import BaseHandler


class Sums(BaseHandler):
    def preprocess(self, data):
        rows = [row.get("data") or row.get("body") for row in data]
        self.context.metrics.add_counter("RowsSeen", len(rows))
        self.context.metrics.add_size("LongestRow", max(map(len, rows)))
        return torch.tensor(rows, dtype=torch.float32)

    def postprocess(self, data):
        for index in range(len(data)):
            self.context.set_response_header(index, "x-rows", str(len(data)))
        return data.tolist()

    def describe_handle(self):
        return {"inputs": 4, "outputs": 2}
