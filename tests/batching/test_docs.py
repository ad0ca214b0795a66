import doctest
import importlib

import pytest

NAMES = ("forming.classes", "page.layout", "forming.release", "forming.threshold")


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_in_the_documentation_are_true(name):
    module = importlib.import_module(f"shunter.batching.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
