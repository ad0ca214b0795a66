"""Shared by all tests: what a marked test needs, and how long property tests look."""

import gc
import importlib.util
import json
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path

import hypothesis
import pytest

from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import SLOT_FIELDS, SLOT_SIZE, SLOTS_OFFSET

with warnings.catch_warnings():
    # TorchServe leaves its version file open, which must not fail whatever test imports it first.
    warnings.simplefilter("ignore", ResourceWarning)
    import ts  # noqa: F401

GOLDEN = Path(__file__).parent / "golden"

# A loaded machine is no failure, and examples are not kept between runs.
hypothesis.settings.register_profile("shunter", deadline=None, database=None)
hypothesis.settings.register_profile("fuzz", deadline=None, database=None, max_examples=20_000)
hypothesis.settings.register_profile("fast", deadline=None, database=None, max_examples=25)
hypothesis.settings.load_profile("shunter")

_WAIT = "OMP_WAIT_POLICY"


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """While tests are collected torch is imported, and reads how its threads are to wait.

    They spin; beside other work that made tests a hundred times slower. No test and no process
    finds the variable, the processes of xdist neither: those would hand it on to their tests.
    """
    given = _WAIT in os.environ
    os.environ.setdefault(_WAIT, "passive")
    try:
        return (yield)
    finally:
        if not given:
            os.environ.pop(_WAIT, None)


def pytest_collection_finish():
    """What torch and the tests themselves are made of stays: the collector need not look there."""
    gc.freeze()


# Workers of the tests do not stand behind the other tests for long; these want all there is.
os.environ.setdefault("SHUNTER_PATIENCE_S", "2")

# A shell starts its background jobs deaf to Ctrl-C, and so would be every process of a test.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


def _missing_for_triton():
    from shunter.plugins.errors import UserError
    from shunter.plugins.triton import installation

    try:
        installation.find()
    except UserError as error:
        return str(error)
    return None if importlib.util.find_spec("tritonclient") else "needs tritonclient: `make triton`"


_NOT_FAST = ("java", "e2e", "gpu", "slow", "triton")
_NEEDS = {
    "java": _missing_for_java,
    "e2e": _missing_for_e2e,
    "gpu": _missing_for_gpu,
    "triton": _missing_for_triton,
}


def pytest_collection_modifyitems(config, items):
    """Skip marked tests, with the reason, where their ground is missing."""
    if config.getoption("--fast"):
        rest = [each for each in items if any(map(each.get_closest_marker, _NOT_FAST))]
        config.hook.pytest_deselected(items=rest)
        items[:] = [each for each in items if each not in set(rest)]
    if hasattr(config, "workerinput"):  # with several processes: no long file is left for the end
        items.sort(key=lambda item: not any(map(item.get_closest_marker, _NOT_FAST)))
    for marker, missing in _NEEDS.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        reason = missing() if marked else None
        if reason:
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))


# ---- the fast run


def pytest_addoption(parser):
    parser.addoption(
        "--fast",
        action="store_true",
        help="only tests in this very process: one that starts another is skipped as it does so",
    )


def pytest_configure(config):
    if config.getoption("--fast"):
        hypothesis.settings.load_profile("fast")
        sys.addaudithook(_no_process)


_STARTS = {"subprocess.Popen", "os.posix_spawn", "os.system"}
_running: list[str] = []


def _no_process(event, arguments):
    if event in _STARTS and _running:
        pytest.skip(f"not in the fast run: starts {arguments[0]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    _running.append(item.nodeid)
    try:
        return (yield)
    finally:
        _running.pop()


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


@pytest.fixture
def open_descriptors():
    """Tells which descriptors this process has open, without those that the collector would close.

    Earlier tests may have left some to it, and it may come between two looks.
    """

    def look():
        gc.collect()
        return set(os.listdir("/proc/self/fd"))

    return look
