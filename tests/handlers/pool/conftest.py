"""A process that has no model yet."""

import sys

import pytest


@pytest.fixture(autouse=True)
def no_model_yet(monkeypatch):
    """What a process had before it had models stays; of these names a worker's has none."""
    for name in ("handler", "model"):
        monkeypatch.delitem(sys.modules, name, raising=False)
