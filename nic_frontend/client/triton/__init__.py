"""The client in the shape of ``tritonclient``."""
