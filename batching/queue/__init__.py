"""Tensor queues: a model's batches in shared memory, and how workers attach to them."""
