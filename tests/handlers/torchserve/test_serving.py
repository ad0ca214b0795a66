import copy
import os
import subprocess
import sys

import pytest
import ts.service
from ts.context import RequestProcessor
from ts.service import Service
from ts.utils.util import PredictionException

from shunter.handlers.torchserve import serving, worker
from shunter.handlers.torchserve.connection import answer


def raising(error):
    def handle(data, context):
        raise error

    return handle


def streamed(data, context):
    context.set_response_header(0, "ts_stream_next", "true")
    context.set_response_content_type(1, "text/plain")
    return ["a", "b"]


def changing(data, context):
    context.set_response_status(404, "Nothing", 1)
    context.request_ids[1] = "other"
    return [context.get_request_header(0, "Host"), data[1]["body"]]


HANDLERS = {
    "answers": lambda data, context: [[0.5], {"a": 1}],
    "no list": lambda data, context: (1, 2),
    "none": lambda data, context: None,
    "too few": lambda data, context: [1],
    "eats its input": lambda data, context: [data.pop()],
    "no JSON": lambda data, context: [1, object()],
    "streams": streamed,
    "changes things": changing,
    "fails": raising(ValueError("bad")),
    "predicts badly": raising(PredictionException("bad input", 417)),
    "default code": raising(PredictionException("bad input")),
    "no memory": raising(MemoryError("all gone")),
    "no GPU memory": raising(RuntimeError("CUDA out of memory")),
}

MESSAGE = [
    {
        "requestId": b"r0",
        "headers": [{"name": b"Host", "value": b"h"}],
        "parameters": [{"name": "body", "contentType": "text", "value": "one"}],
    },
    {
        "requestId": b"r1",
        "headers": [],
        "parameters": [{"name": "body", "contentType": "", "value": bytearray(b"two")}],
    },
]


def make_service(handler, metrics):
    service = Service("noop", ".", None, handler, None, 2, True, metrics)
    service.set_cl_socket(object())
    return service


@pytest.mark.parametrize("name", HANDLERS)
def test_whatever_a_handler_does_is_answered_as_torchserve_answers_it(
    name, stock_metrics, caplog, monkeypatch
):
    caplog.set_level("INFO")
    # The only text that depends on the clock is the duration in the metric line.
    monkeypatch.setattr(ts.service.time, "time", lambda: 1000.0)
    stock = make_service(HANDLERS[name], stock_metrics)
    expected = stock.predict(copy.deepcopy(MESSAGE))
    expected_log = [(record.name, record.levelname, record.message) for record in caplog.records]
    caplog.clear()

    ours = make_service(HANDLERS[name], stock_metrics)
    batch = Service.retrieve_data_for_inference(copy.deepcopy(MESSAGE))
    assert bytes(answer(ours, batch)) == bytes(expected)
    log = [(record.name, record.levelname, record.message) for record in caplog.records]
    assert log == expected_log
    assert ours.context.cl_socket is ours.cl_socket


def test_an_exit_asked_for_by_a_handler_is_an_exit(stock_metrics):
    service = make_service(raising(SystemExit(3)), stock_metrics)
    with pytest.raises(SystemExit):
        answer(service, ([RequestProcessor({})], [{}], {0: "r"}))


@pytest.mark.parametrize(
    ("argv", "variables", "words"),
    [
        (["--sock-type", "unix", "--sock-name", "s.1", "--async"], {}, "--async"),
        (["--sock-type", "unix", "--sock-name", "s.1"], {"LOCAL_RANK": "1"}, "LOCAL_RANK=1"),
        (["--sock-type", "unix"], {}, "--sock-name"),
        (["--sock-type", "tcp"], {}, "--port"),
        (["--sock-type", "udp"], {}, "udp"),
        (["--sock-type", "tcp", "--port", "1", "--no-such-flag"], {}, "--no-such-flag"),
        ([], {}, "--sock-type"),
    ],
)
def test_arguments_that_this_worker_cannot_serve_are_refused(
    argv, variables, words, monkeypatch, capsys
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        worker.parse_args(argv)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_the_working_directory_is_not_imported_from(monkeypatch):
    monkeypatch.setattr(sys, "path", [os.getcwd(), "/elsewhere", os.getcwd()])
    worker._forget_working_directory()
    assert sys.path == ["/elsewhere", os.getcwd()]


def test_serving_is_what_the_worker_runs(monkeypatch):
    seen = []
    monkeypatch.setenv("SHUNTER_THREADS", "2")
    for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"):
        monkeypatch.setenv(f"{name}_NUM_THREADS", "9")
    monkeypatch.setattr(serving, "run", lambda *arguments: seen.append(arguments) or 5)
    assert worker.main(["--sock-type", "tcp", "--port", "7070"]) == 5
    args, threads, on_loaded = seen[0]
    assert (args.port, threads, os.environ["OMP_NUM_THREADS"]) == ("7070", 2, "2")
    on_loaded()


def test_a_worker_whose_servers_folder_is_gone_says_so(tmp_path):
    command = [sys.executable, "-P", "-m", "shunter.handlers.torchserve.worker", "--sock-type"]
    command += ["unix", "--sock-name", str(tmp_path / "gone/socket"), "--metrics-config", "none"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert f"removed, restart the server: '{tmp_path}/gone'" in done.stdout + done.stderr
