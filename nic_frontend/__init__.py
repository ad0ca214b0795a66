"""UDP requests in, tensors in shared memory: a process of its own beside TorchServe."""
