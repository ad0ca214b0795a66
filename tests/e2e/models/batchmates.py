"""Answers in parts: each says how many requests run together."""

import torch


class Batchmates:
    def initialize(self, context):
        pass

    def infer(self, batch):
        parts = [int(n) for n in batch["parts"]]
        for number in range(1, max(parts) + 1):
            for i, n in enumerate(parts):
                if number >= n:
                    batch.end(i)
            yield torch.full((len(parts),), len(parts))

    def handle(self, data, context):
        return [0.0 for _ in data]
