"""What a front end asks of a worker that attaches, and when one counts as gone."""

import gc
import os
import select
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from shunter.batching.queue.attach import AttachError
from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.server.workers import KILL_NS, Worker, check_together, end_stuck

MOST = 2048 * (15 * 4096 - 16)
"""Bytes of a request in as many segments as there may be, each as long as one may be."""


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [([MOST], True), ([MOST + 1], False), ([MOST // 2] * 2, True), ([MOST // 2 + 1] * 2, False)],
)
def test_what_no_session_could_carry_is_refused(sizes, fits):
    specs = tuple(TensorSpec(f"t{i}", "uint8", (size,)) for i, size in enumerate(sizes))
    if fits:
        check_together(specs)
    else:
        with pytest.raises(AttachError, match="at most 2048"):
            check_together(specs)


TIMEOUT_S = 1
ATTACH = SimpleNamespace(response_timeout_s=TIMEOUT_S, model="m", slices=0, batch=1, pool=0)
LATE_NS = TIMEOUT_S * 10**9 + 1
WAITS = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
sys.stdin.read()
"""


class Path:
    """A data path of which a worker has had a batch for some time."""

    def __init__(self, busy_ns):
        self.at_ns = busy_ns
        self.drained = []

    def busy_ns(self, func_id, index, now_ns):
        return self.at_ns

    def drain_worker(self, func_id, index):
        self.drained.append((func_id, index))


@pytest.fixture
def process(tmp_path):
    """One that is connected; its worker."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        command = [sys.executable, "-c", WAITS, str(tmp_path / "s")]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as started:
            connection = listener.accept()[0]
            with connection:
                yield Worker.of(connection, 3, 1, -1, ATTACH)
            started.kill()


def test_a_worker_that_answers_in_time_is_left_alone(process):
    path = Path(LATE_NS - 1)
    assert end_stuck(path, [process], 0) == []
    assert not process.killed and path.drained == []


def test_a_worker_that_is_killed_is_gone_when_its_process_is(process):
    path = Path(LATE_NS)
    assert end_stuck(path, [process], 0) == []
    assert process.killed and path.drained == [(3, 1)]
    assert select.select([process.process], [], [], 60)[0]
    assert end_stuck(path, [process], 0) == [process]


def test_a_worker_that_shares_its_process_is_not_gone_when_its_seat_is(process):
    """What runs its batches may write to them for a while; its connection says when it does not."""
    shared = Worker.of(process.connection, 3, 1, -1, SimpleNamespace(**vars(ATTACH) | {"pool": 1}))
    path = Path(LATE_NS)
    assert end_stuck(path, [shared], 0) == []
    assert select.select([shared.process], [], [], 60)[0]
    assert not shared.has_ended and end_stuck(path, [shared], 0) == []
    assert process.has_ended


def test_a_worker_that_cannot_be_killed_is_not_gone(process, monkeypatch, caplog):
    """It may still write to what it holds."""
    monkeypatch.setattr(Worker, "kill", lambda worker: None)
    path = Path(LATE_NS)
    end_stuck(path, [process], 0)
    path.at_ns += 100 * KILL_NS
    for _ in range(3):
        assert end_stuck(path, [process], 0) == []
    assert [record.message for record in caplog.records if "does not end" in record.message] == [
        f"worker 1 (pid {process.pid}) of m was killed and does not end: its requests wait for it"
    ]


def test_its_descriptor_goes_with_it(process):
    worker = Worker.of(process.connection, 3, 2, -1, ATTACH)
    descriptor = worker.process
    os.fstat(descriptor)
    del worker
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(descriptor)
