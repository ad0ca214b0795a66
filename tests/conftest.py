"""Shared by all tests: what a marked test needs, and how long property tests look."""

import importlib.util
import shutil

import hypothesis
import pytest

# A loaded machine is no failure, and examples are not kept between runs.
hypothesis.settings.register_profile("shunter", deadline=None, database=None)
hypothesis.settings.register_profile("fuzz", deadline=None, database=None, max_examples=20_000)
hypothesis.settings.load_profile("shunter")


def _missing_for_java():
    if shutil.which("javac") is None:
        return "needs a JDK"
    return None if importlib.util.find_spec("ts") else "needs an installed TorchServe"


def _missing_for_e2e():
    if shutil.which("java") is None:
        return "needs Java"
    return None if importlib.util.find_spec("ts") else "needs an installed TorchServe"


def _missing_for_gpu():
    import torch

    return None if torch.cuda.is_available() else "needs an NVIDIA GPU"


_NEEDS = {"java": _missing_for_java, "e2e": _missing_for_e2e, "gpu": _missing_for_gpu}


def pytest_collection_modifyitems(items):
    """Skip marked tests, with the reason, where their ground is missing."""
    for marker, missing in _NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = missing() if marked else None
        if reason:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
