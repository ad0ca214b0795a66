"""When a supervised process counts as hung, through the program StockTool."""

import json

import pytest

pytestmark = pytest.mark.java

INTERVAL, MOST, START = 10, 6, 120
FINE, SILENT, HUNG = "fine", "silent", "hung"


def _looks(beats, times=None):
    """A begin with the heartbeat 7 at time 0, then a look per heartbeat."""
    times = times or [INTERVAL * (n + 1) for n in range(len(beats))]
    return [[7, 0, "begin"], *map(list, zip(beats, times, strict=True))]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(_looks([8, 9, 10, 11]), [FINE] * 4, id="beats"),
        pytest.param(
            _looks([8] * 8), [FINE, FINE, *[SILENT] * 4, HUNG, HUNG], id="stops after a beat"
        ),
        pytest.param(
            _looks([8, 8, 8, 8, 9, 9, 9]),
            [FINE, FINE, SILENT, SILENT, FINE, FINE, SILENT],
            id="a beat ends the silence",
        ),
        pytest.param(
            _looks([7] * (START + 1)), [*[FINE] * (START - 1), HUNG, HUNG], id="never begins"
        ),
        pytest.param(
            _looks([8] * 9, [10, 20, 30, 40, 1000, 1010, 1020, 1030, 1040]),
            [FINE, FINE, SILENT, SILENT, FINE, FINE, SILENT, SILENT, SILENT],
            id="this process stood still too",
        ),
        pytest.param(
            _looks([8] * 30, [10, *(100 * n for n in range(1, 30))]),
            [FINE] * 30,
            id="a host on which this process too gets to nothing",
        ),
        pytest.param(
            [*_looks([8] * 7), [8, 80, "begin"], [8, 90], [9, 100]],
            [FINE, FINE, *[SILENT] * 4, HUNG, FINE, FINE],
            id="another process has all its time again",
        ),
    ],
)
def test_a_process_is_hung_after_so_many_looks_without_a_heartbeat(run_tool, rows, expected):
    done = run_tool("StockTool", "silence", INTERVAL, MOST, json.dumps(rows))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == expected
