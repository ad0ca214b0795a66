"""The benchmarks' own modules, which import each other by their bare names."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="session")
def script():
    """Import a module of bench/ as a script there would."""
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module
    sys.path.remove(str(BENCH))


class Repository:
    """A git repository of its own; ``/`` leads into its folder."""

    def __init__(self, path):
        self.path = path
        self._git("init", "-q")

    def __truediv__(self, name):
        return self.path / name

    def commit(self):
        """Everything; the commit's hash."""
        self._git("add", ".")
        self._git("commit", "-q", "-m", "one more")
        return self._git("rev-parse", "HEAD").strip()

    def _git(self, *arguments):
        roles = ("AUTHOR", "COMMITTER")
        who = {f"GIT_{role}_{what}": "t@t" for role in roles for what in ("NAME", "EMAIL")}
        command, env = ["git", *arguments], {**os.environ, **who}
        done = subprocess.run(
            command, cwd=self.path, env=env, check=True, capture_output=True, text=True
        )
        return done.stdout


@pytest.fixture
def repository(tmp_path):
    return Repository(tmp_path)
