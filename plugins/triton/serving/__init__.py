"""A Triton that this process starts and looks after: ``shunter serve --triton``."""
