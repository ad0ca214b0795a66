"""The client against the worker that serves, with tiny handlers packed as archives."""

import os

import psutil
import pytest

from shunter.handlers.sample import Sample
from shunter.model_store.pack import pack
from shunter.plugins.host import WorkerFailed
from shunter.plugins.torchserve.archives import unpack
from shunter.plugins.torchserve.worker_client import ModelWorker
from shunter.plugins.torchserve.worker_process import raised_in

pytest.importorskip("model_archiver")

HANDLER = """
import os
import subprocess
import time

from ts.handler_utils.utils import send_intermediate_predict_response


class Handler:
    def initialize(self, context):
        what = os.environ.get("TINY_LOAD")
        if what == "raise":
            raise ValueError("will not load")
        if what == "die":
            os._exit(7)
        if what == "hang":
            time.sleep(60)

    def handle(self, data, context):
        return [self.one(bytes(row["body"]).decode(), i, context) for i, row in enumerate(data)]

    def one(self, body, index, context):
        if body == "raise":
            raise ValueError("as asked")
        if body == "refuse":
            context.set_response_status(418, "Teapot", idx=index)
        if body == "die":
            print("about to die", flush=True)
            os._exit(9)
        if body == "killed":
            os.kill(os.getpid(), 9)
        if body == "hang":
            time.sleep(60)
        if body == "spawn":
            subprocess.Popen(["sleep", "60"])
        if body == "large":
            self.memory = b"x" * 100_000_000
        if body == "stream":
            for part in ("one", "two"):
                send_intermediate_predict_response(
                    [part], context.request_ids, "Intermediate Prediction success", 200, context)
        if body.startswith("nonsense "):
            context.cl_socket.sendall(bytes.fromhex(body.split()[1]))
        if body.startswith("variable "):
            found = os.environ.get(body.split()[1])
            if found != body.split()[2]:
                raise ValueError(f"it is {found}")
        return body
"""


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "handler.py").write_text(HANDLER)
    (folder / "model-config.yaml").write_text("shunter:\n  environment: {TINY: 5}\n")
    return pack(folder, folder / "store", name="tiny")


@pytest.fixture(scope="module")
def model(archive, tmp_path_factory):
    return unpack(archive, tmp_path_factory.mktemp("unpacked"))


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    """Where the workers' own folders are made."""
    folder = tmp_path_factory.mktemp("t")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(folder))
        yield folder


@pytest.fixture(scope="module")
def worker(model, temporary):
    """One for all tests that leave it in order."""
    with ModelWorker(model, threads=1) as worker:
        yield worker


def request(body):
    return Sample(body.encode())


def test_a_batch_is_answered_and_takes_its_time(worker):
    assert 0 < worker.run([request("a")] * 5) < 60
    assert not worker.is_dead
    assert psutil.Process(worker.pid).is_running()


def test_the_memory_of_a_worker_is_told(worker):
    before = worker.peak_bytes
    worker.run([request("large")])
    assert 90_000_000 < worker.peak_bytes - before < 200_000_000


def test_a_stream_is_one_answer(worker):
    worker.run([request("stream")])
    worker.run([request("after it")] * 2)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise", "answered 503 Prediction failed"),
        ("refuse", "answered a request with 418: refuse"),
    ],
)
def test_a_handler_that_refuses_fails_the_batch_but_not_the_worker(worker, body, said):
    with pytest.raises(WorkerFailed, match=said):
        worker.run([request("good"), request(body), request("good")])
    assert not worker.is_dead
    worker.run([request("after it")])


def test_a_failure_comes_with_the_workers_last_lines(worker):
    with pytest.raises(WorkerFailed, match="ValueError: as asked"):
        worker.run([request("raise")])


@pytest.mark.parametrize(
    ("name", "value"),
    [("SHUNTER_THREADS", "1"), ("OMP_NUM_THREADS", "1"), ("TINY", "5")],
)
def test_a_worker_has_the_variables_it_would_have_when_it_serves(worker, name, value):
    worker.run([request(f"variable {name} {value}")])


def test_a_worker_runs_on_the_cores_it_was_given(model):
    core = max(os.sched_getaffinity(0))
    variables = {"MORE": "yes"}
    with ModelWorker(model, threads=1, cores=[core], variables=variables) as worker:
        assert os.sched_getaffinity(worker.pid) == {core}
        worker.run([request("variable MORE yes")])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("die", "ended with status 9 and did not answer; its last lines:\n.*about to die"),
        ("killed", "ended with signal 9 and did not answer"),
        ("hang", "did not answer: timed out"),
        # the length of the message, the number of headers
        ("nonsense 000000c8ffffff00", "a length of -256"),
        ("nonsense 000000c8" + "00000000" * 5 + "7fffffff", "a length of 2147483647"),
    ],
)
def test_a_worker_that_does_not_answer_is_dead_and_nothing_is_left_of_it(
    model, temporary, body, said
):
    before = set(temporary.iterdir())
    # Loading has as long, too.
    with ModelWorker(model, threads=1, timeout_s=10 if body == "hang" else 60) as worker:
        process = psutil.Process(worker.pid)
        with pytest.raises(WorkerFailed, match=f"(?s){said}"):
            worker.run([request(body)])
        assert worker.is_dead
    assert not process.is_running()
    assert set(temporary.iterdir()) == before


@pytest.mark.parametrize(
    ("how", "timeout_s", "said"),
    [
        ("raise", 60, "could not load the model: ValueError: will not load"),
        ("die", 60, "ended with status 7 and did not answer"),
        ("hang", 0.5, "did not answer: timed out"),
    ],
)
def test_a_model_that_does_not_load_leaves_nothing(model, temporary, how, timeout_s, said):
    files, children = set(temporary.iterdir()), set(psutil.Process().children())
    with pytest.raises(WorkerFailed, match=said):
        ModelWorker(model, threads=1, timeout_s=timeout_s, variables={"TINY_LOAD": how}).start()
    assert set(temporary.iterdir()) == files
    assert set(psutil.Process().children()) <= children


def test_what_a_handler_starts_ends_with_it(model):
    with ModelWorker(model, threads=1) as worker:
        worker.run([request("spawn")])
        [child] = psutil.Process(worker.pid).children()
        assert os.getsid(worker.pid) != os.getsid(0)
    # It is an orphan now: someone else buries it, in a moment.
    assert psutil.wait_procs([child], timeout=30)[1] == []


def test_the_temporary_folder_may_have_a_long_path(model, tmp_path, monkeypatch):
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with ModelWorker(model, threads=1) as worker:
        worker.run([request("a")])
    assert list(long.iterdir()) == []


def test_a_cpu_that_is_not_there_is_named(model):
    with pytest.raises(WorkerFailed, match=r"(?s)ended with status 1 .*CPU 8191 is not available"):
        ModelWorker(model, threads=1, cores=[8191]).start()


CHAIN = """Traceback (most recent call last):
  File "a.py", line 1, in f
OSError: libx.so: cannot open shared object file

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "b.py", line 2, in g
ImportError: no x here
"""


DURING = CHAIN.replace(
    "The above exception was the direct cause of", "During handling of the above"
)
TOLD = "ImportError: no x here, caused by OSError: libx.so: cannot open shared object file"


@pytest.mark.parametrize(
    ("log", "told"),
    [
        ("", ""),
        ("The error: none was raised\nValueError is not raised here", ""),
        (CHAIN, TOLD),
        (DURING, TOLD),
        (f"{CHAIN}Traceback:\nnp.LinAlgError: singular\nthe end", "np.LinAlgError: singular"),
        ("Traceback (most recent call last):\nKeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_what_a_log_says_was_raised_last_comes_with_its_causes(log, told):
    assert raised_in(log.splitlines()) == told


def test_one_that_another_thread_has_just_reaped_is_dead(monkeypatch):
    def reaped(self):
        raise ChildProcessError(10, "No child processes")

    worker = ModelWorker.__new__(ModelWorker)
    worker._owes, worker._process = False, object()
    monkeypatch.setattr(ModelWorker, "_end", reaped)
    assert worker.is_dead
