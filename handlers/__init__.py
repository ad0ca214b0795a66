"""Code that runs inside a model worker: the worker entry, placement, receiving and replying."""
