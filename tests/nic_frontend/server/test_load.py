"""The benchmarks' load from C: nobody is left out where there is little credit."""

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"
SESSIONS, DEPTH = 24, 2
LONG = 60
"""Seconds that nothing here takes."""
LARGE = ("float32", (8192,))


@pytest.fixture
def bench():
    """Imports a module of bench/ as a script there would."""
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module
    sys.path.remove(str(BENCH))


def test_every_session_is_answered_when_credit_is_short(make_service, bench):
    def ones(inputs, outputs):
        outputs[0].fill_(1)

    service = make_service(queue_bytes=8 * 2 * 4 * LARGE[1][0])
    service.serve("ones", inputs=[LARGE], outputs=[LARGE], infer=ones, batch=1)
    model = bench("rpc.models").RpcModel("ones", "empty", LARGE, LARGE)
    session = bench("shunter.nic_frontend.client").Session

    def opened():
        return session(service.url(), "ones", timeout_s=LONG)

    rows = []
    with bench("rpc.load").Load(model, opened, SESSIONS) as load:
        # As many seconds as so many requests take on this machine.
        while not rows or sum(row["requests"] for row in rows) <= 4 * SESSIONS:
            rows.append(load.closed(1.0, depth=DEPTH))
            assert len(rows) < LONG
        assert all(answers.any() for answers in load.answers())
    assert [row["failed"] for row in rows] == [0] * len(rows)
    assert all(0 < row["mean_on_their_way"] <= SESSIONS * DEPTH for row in rows)
