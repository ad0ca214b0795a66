"""The words by which a front end and a worker agree on parts of answers, in any order of steps."""

import subprocess
from pathlib import Path

import hypothesis
import pytest

from shunter.nic_frontend import build

HERE = Path(__file__).parent
FUZZ = hypothesis.settings.get_current_profile_name() == "fuzz"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """parts_events.c, which has both ends, under the sanitizers."""
    found = tmp_path_factory.mktemp("parts") / "parts_events"
    flags = ["-std=c11", "-O1", "-g", "-pthread", *build.WARNINGS, *build.SANITIZERS]
    command = [*build.compiler(), *flags, *build.includes(), str(HERE / "parts_events.c")]
    subprocess.run([*command, "-o", str(found)], check=True)
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_parts_come_once_and_in_order_and_nobody_waits_for_ever(program, seed):
    stories = 100_000 if FUZZ else 2000
    command = [str(program), str(seed), str(stories)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    said = [int(text.split()[0]) for text in done.stdout.split(",")]
    told, parts, deaths, stops, unwanted, sleeps, ends = said
    assert told == stories and parts > 5 * stories and sleeps > 5 * stories
    assert min(deaths, stops, unwanted, ends) > stories / 20
