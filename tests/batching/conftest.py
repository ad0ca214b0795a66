"""Shared by the tests of the batching room."""

import importlib.util
import json
from pathlib import Path

import pytest

from shunter.batching.control_page import ControlPage
from shunter.batching.layout import SLOT_FIELDS, SLOT_SIZE, SLOTS_OFFSET

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="session")
def golden_folder():
    return GOLDEN


@pytest.fixture(scope="session")
def golden():
    """Reads a golden file by name."""
    return lambda name: json.loads((GOLDEN / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def make_golden():
    """The program that makes the golden files, as a module."""
    spec = importlib.util.spec_from_file_location("make_golden", GOLDEN / "make_golden.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def page_path(tmp_path):
    return tmp_path / "control"


@pytest.fixture
def page(page_path):
    """An empty page."""
    with ControlPage.create(page_path, owner_pid=1, created_unix_ns=2, now_ns=3) as page:
        yield page


@pytest.fixture
def poke(page):
    """Writes a word of a slot as the server would."""

    def poke(slot, name, value, index=0):
        at = SLOTS_OFFSET + slot * SLOT_SIZE + SLOT_FIELDS[name].offset
        page.words[at // 8 + index] = value

    return poke
