"""TorchServe's worker: its protocol, its replies, its log."""
