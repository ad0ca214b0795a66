"""Requests that are batches themselves: of each row its sum, and how many rows ran together."""

import torch


class Rowwise:
    def initialize(self, context):
        pass

    def inference(self, x):
        return x.sum(1), torch.full((len(x),), len(x))

    def handle(self, data, context):
        return [0.0 for _ in data]
