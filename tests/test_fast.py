"""The fast run leaves out what starts a process, whether or not somebody remembered to say so."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def server():
    return subprocess.run([sys.executable, "-c", ""])


def test_here():
    assert True


def test_with_a_process():
    subprocess.run([sys.executable, "-c", ""], check=True)


def test_with_the_process_of_a_fixture(server):
    assert True


@pytest.mark.slow
def test_marked():
    assert True
"""


@pytest.mark.parametrize(
    ("options", "counts"),
    [([], {"passed": 4}), (["--fast"], {"passed": 1, "skipped": 2, "deselected": 1})],
)
def test_only_what_stays_in_this_process_is_fast(tmp_path, options, counts):
    (tmp_path / "conftest.py").write_text(Path(__file__).with_name("conftest.py").read_text())
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    last = done.stdout.splitlines()[-1]
    found = {
        word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|deselected)", last)
    }
    assert found == counts, done.stdout
