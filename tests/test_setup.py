"""What ``make setup`` finds out before anything is downloaded."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOUND = {"javac": "#!/bin/sh\n[ \"$2\" -le 21 ]\n", "cc": "#!/bin/sh\n"}

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def preflight(tmp_path):
    """Runs the check with programs of ours alone on the path."""

    def preflight(*options, without=(), **programs):
        for name, text in (FOUND | programs).items():
            if name not in without:
                (tmp_path / name).write_text(text)
                (tmp_path / name).chmod(0o755)
        make, path = shutil.which("make"), f"PATH={tmp_path}"
        environment = {k: v for k, v in os.environ.items() if k not in ("JAVA_HOME", "CC")}
        return subprocess.run(
            [make, "-s", "-C", ROOT, "preflight", path, "SHELL=/bin/sh", *options],
            env={**environment, "PATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return preflight


PYTHON = f"PYTHON={os.path.realpath(sys.executable)}"


def test_with_everything_there_it_says_nothing(preflight):
    done = preflight(PYTHON)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize(
    ("options", "more", "said"),
    [
        (["PYTHON=/bin/false"], {}, "Python 3.11 or later is needed, found: "),
        ([PYTHON], {"without": ["javac"]}, "a JDK 17 or later is needed: apt-get install openjdk-"),
        ([PYTHON], {"javac": "#!/bin/sh\n[ $2 -le 11 ]\n"}, "a JDK 17 or later is needed"),
        ([PYTHON], {"without": ["cc"]}, "a C compiler is needed: apt-get install gcc"),
    ],
    ids=["python", "no jdk", "old jdk", "cc"],
)
def test_what_is_missing_is_said_with_the_command_that_mends_it(preflight, options, more, said):
    done = preflight(*options, **more)
    assert done.returncode != 0
    assert said in done.stdout
