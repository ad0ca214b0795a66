"""The worker as a process, over its socket, with an archive folder as TorchServe unpacks it."""

import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from ts.context import Context, RequestProcessor
from ts.protocol.otf_message_handler import create_load_model_response, create_predict_response

HANDLER = """
import gc
import os
import time

import torch
from ts.handler_utils.utils import send_intermediate_predict_response
from ts.utils.util import PredictionException


class Tiny:
    def initialize(self, context):
        failure = os.environ.get("TINY_FAILURE")
        if failure:
            raise {"RuntimeError": RuntimeError, "ValueError": ValueError}[failure]("will not load")
        torch.set_num_interop_threads(2)  # a handler may do that, once

    def handle(self, data, context):
        print("printed by the handler")
        return [self.one(row["body"], context) for row in data]

    def one(self, body, context):
        if body == "fail":
            raise ValueError("as asked")
        if body == "surrogate":
            return "\\ud800"
        if body == "header":
            context.set_response_header(0, "x-count", 3)
        if body == "odd refusal":
            raise PredictionException(ValueError("\\ud800"), "many")
        if body == "refuse":
            raise PredictionException("not this one", 417)
        if body == "place":
            return [sorted(os.sched_getaffinity(0)), torch.get_num_threads(),
                    torch.get_num_interop_threads(), os.environ.get("OMP_NUM_THREADS")]
        if body == "collector":
            return [gc.isenabled(), any(found is torch.__dict__ for found in gc.get_objects())]
        if body == "stream":
            for part in ("one", "two"):
                send_intermediate_predict_response(
                    [part], context.request_ids, "Intermediate Prediction success", 200, context)
            return "three"
        if isinstance(body, list):
            return torch.tensor(body).mul(2).tolist()
        return bytes(body)
"""

TIMEOUT = 300


class Server:
    """A worker process and the front end's end of its socket."""

    def __init__(self, folder, metrics_file, wire, **variables):
        self.folder = Path(folder)
        self.wire = wire
        (self.folder / "tiny.py").write_text(HANDLER)
        self.socket_path = self.folder / "ts.sock.9000"
        self.log_path = self.folder / "log"
        command = [
            sys.executable,
            "-m",
            "shunter.handlers.torchserve.worker",
            "--sock-type",
            "unix",
        ]
        command += ["--sock-name", str(self.socket_path), "--metrics-config", str(metrics_file)]
        path = os.pathsep.join(filter(None, [str(self.folder), os.environ.get("PYTHONPATH")]))
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": path, **variables},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.socket = None

    def write_config(self, text):
        """The model's configuration, as an archive has it."""
        folder = self.folder / "MAR-INF"
        folder.mkdir()
        (folder / "MANIFEST.json").write_text('{"model": {"configFile": "model.yaml"}}')
        (self.folder / "model.yaml").write_text(text)

    def log(self):
        return self.log_path.read_text()

    def wait_for_log(self, text):
        deadline = time.monotonic() + TIMEOUT
        while text not in self.log():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def connect(self):
        self.wait_for_log("Torch worker started.")
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(TIMEOUT)
        self.socket.connect(str(self.socket_path))
        return self

    def load(self):
        self.send(self.wire.load("noop", self.folder, "tiny.py"))
        return self

    def send(self, message):
        self.socket.sendall(message)

    def expect(self, reply):
        reply = bytes(reply)
        got = b""
        while len(got) < len(reply):
            part = self.socket.recv(len(reply) - len(got))
            assert part, f"closed after {got!r}\n{self.log()}"
            got += part
            assert reply.startswith(got)

    def exit_status(self):
        return self.process.wait(TIMEOUT)

    def close(self):
        if self.socket is not None:
            self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture(scope="module")
def make_server(wire, tmp_path_factory):
    servers = []
    metrics_file = tmp_path_factory.mktemp("metrics") / "metrics.yaml"
    metrics_file.write_text(
        "model_metrics:\n  gauge:\n"
        "    - {name: PredictionTime, unit: ms, dimensions: [ModelName, Level]}\n"
    )

    def make(**variables):
        # The path of a Unix socket must be short, which that of tmp_path need not be.
        server = Server(tempfile.mkdtemp(prefix="shunter-worker-"), metrics_file, wire, **variables)
        servers.append(server)
        return server

    yield make
    for server in servers:
        server.close()
        shutil.rmtree(server.folder)


@pytest.fixture(scope="module")
def core():
    return min(os.sched_getaffinity(0))


@pytest.fixture(scope="module")
def server(make_server, core):
    server = make_server(SHUNTER_CORES=str(core), SHUNTER_THREADS="1").connect().load()
    server.expect(create_load_model_response(200, "loaded model noop"))
    return server


def batch(wire, *bodies, content_type="text/plain"):
    headers = [("Host", "h"), ("url_path", "")]
    return wire.infer(
        *(
            (f"r{index}", headers, [("body", content_type, body)])
            for index, body in enumerate(bodies)
        )
    )


def success(*results, headers=(), message="Prediction success", streaming=False):
    context = Context("noop", ".", None, 1, None, "0.12")
    context.request_processor = [RequestProcessor({}) for _ in results]
    for name, value in headers:
        context.set_response_header(0, name, value)
    ids = {index: f"r{index}" for index in range(len(results))}
    return create_predict_response(list(results), ids, message, 200, context, streaming)


def failure(message, code, count=1):
    ids = {index: f"r{index}" for index in range(count)}
    return create_predict_response(None, ids, message, code)


def test_a_worker_names_its_process_and_says_that_it_started(server):
    lines = server.log().splitlines()
    assert f"[PID]{server.process.pid}" in lines
    assert lines.index("Torch worker started.") > lines.index(f"[PID]{server.process.pid}")


def test_a_lone_request_is_answered(server, wire):
    server.send(batch(wire, b"[1, 2.5]", content_type="application/json"))
    server.expect(success([2.0, 5.0]))


def test_a_batch_is_answered_in_its_order(server, wire):
    server.send(batch(wire, b"a", b"b", b"c", content_type="application/octet-stream"))
    server.expect(success(b"a", b"b", b"c"))


def test_two_batches_sent_at_once_are_answered_in_their_order(server, wire):
    first = batch(wire, b"a", b"b", content_type="application/octet-stream")
    second = batch(wire, b"c", content_type="application/octet-stream")
    server.send(first + second)
    server.expect(success(b"a", b"b"))
    server.expect(success(b"c"))


def test_a_large_body_comes_back_whole(server, wire):
    body = os.urandom(700_000)
    server.send(batch(wire, body, content_type="image/jpeg"))
    server.expect(success(body))


def test_an_error_in_the_handler_fails_its_batch_and_no_other(server, wire):
    server.send(batch(wire, b"fail", b"fail") + batch(wire, b"refuse"))
    server.expect(failure("Prediction failed", 503, count=2))
    server.expect(failure("not this one", 417))
    server.send(batch(wire, b"x", content_type=""))
    server.expect(success(b"x"))
    assert "ValueError: as asked" in server.log()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"surrogate", ("Unsupported model output data type.", 503)),
        (b"header", ("Prediction failed", 503)),
        (b"odd refusal", ("?", 503)),
    ],
)
def test_an_answer_that_cannot_be_sent_fails_its_batch_and_no_other(server, wire, body, said):
    server.send(batch(wire, body))
    server.expect(failure(*said))
    server.send(batch(wire, b"[2]", content_type="application/json"))
    server.expect(success([4]))


def test_a_stream_is_sent_part_by_part(server, wire):
    server.send(batch(wire, b"stream"))
    intermediate = "Intermediate Prediction success"
    server.expect(success("one", message=intermediate, streaming=True))
    server.expect(success("two", message=intermediate, streaming=True))
    server.expect(success("three", headers=[("ts_stream_next", "false")]))


def test_a_worker_runs_where_it_was_put(server, wire, core):
    server.send(batch(wire, b"place"))
    # One inter-op thread although the handler asks for two: a core has no room for more.
    server.expect(success([[core], 1, 1, "1"]))


def test_the_collector_works_and_does_not_look_at_what_was_imported_before_the_model(server, wire):
    server.send(batch(wire, b"collector"))
    server.expect(success([True, False]))


def test_metric_lines_and_prints_appear_although_no_request_follows(server, wire):
    request_id = "the-one-whose-line-is-awaited"
    server.send(wire.infer((request_id, [], [("body", "", b"x")])))
    reply = struct.pack("!i", 200)
    assert server.socket.recv(1 << 16)[:4] == reply
    server.wait_for_log(f",{request_id}\n")
    line = next(line for line in server.log().splitlines() if line.endswith(request_id))
    assert line.startswith("[METRICS]PredictionTime.Milliseconds:")
    assert "|#ModelName:noop,Level:Model|#type:GAUGE|#hostname:" in line
    assert "printed by the handler" in server.log()


def test_metrics_of_a_batch_are_in_its_reply_where_the_server_takes_them(make_server, wire):
    server = make_server(SHUNTER_METRICS="reply").connect().load()
    server.expect(create_load_model_response(200, "loaded model noop"))
    for _ in range(2):
        server.send(batch(wire, b"x", b"y", content_type=""))
        code, length = struct.unpack("!ii", server.socket.recv(8, socket.MSG_WAITALL))
        message = server.socket.recv(length, socket.MSG_WAITALL).decode()
        first, *metrics = message.split("\n")
        assert (code, first, len(metrics)) == (200, "Prediction success", 1)
        assert metrics[0].startswith("[METRICS]PredictionTime.Milliseconds:")
        server.expect(bytes(success(b"x", b"y"))[8 + len(first) :])
    server.send(batch(wire, b"fail"))
    server.expect(failure("Prediction failed", 503))
    server.socket.close()
    assert server.exit_status() == 0
    assert "[METRICS]" not in server.log()


def test_a_worker_ends_well_when_the_front_end_goes_and_loses_no_line(make_server, wire):
    server = make_server(OMP_NUM_THREADS="1").connect().load()
    server.expect(create_load_model_response(200, "loaded model noop"))
    server.send(batch(wire, b"place"))
    # Nothing was asked of this worker, so the handler has its way.
    server.expect(success([sorted(os.sched_getaffinity(0)), 1, 2, "1"]))
    for _ in range(2):
        server.send(batch(wire, b"x", content_type=""))
        server.expect(success(b"x"))
    server.socket.close()
    assert server.exit_status() == 0
    log = server.log()
    assert log.count("[METRICS]PredictionTime.Milliseconds:") == 3
    assert log.splitlines()[-1] == "Frontend disconnected."
    assert "Backend received inference" not in log
    assert not server.socket_path.exists()


def test_a_malformed_message_ends_the_worker_with_the_reason(make_server):
    server = make_server().connect()
    server.send(b"L" + struct.pack("!i", -5) + b"rest")
    assert server.exit_status() == 1
    assert "The length of the model name is -5" in server.log()
    assert "Backend worker process died." in server.log()
    assert not server.socket_path.exists()


def test_a_handler_that_raises_a_runtime_error_while_loading_is_answered_500(make_server):
    server = make_server(TINY_FAILURE="RuntimeError").connect().load()
    reason = "Unknown exception: RuntimeError: will not load"
    server.expect(create_load_model_response(500, reason))
    assert server.exit_status() == 1
    assert "RuntimeError: will not load" in server.log()
    assert f"RuntimeError: 500 - {reason}" in server.log()


def test_any_other_error_while_loading_ends_the_worker_with_its_traceback(make_server):
    server = make_server(TINY_FAILURE="ValueError").connect().load()
    server.expect(create_load_model_response(500, "ValueError: will not load"))
    assert server.exit_status() == 1
    assert "ValueError: will not load" in server.log()


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        ("import not_there", "ModuleNotFoundError: No module named 'not_there'"),
        ("from os import not_there", "ImportError: cannot import name 'not_there' from 'os' ("),
        (
            "try:\n    open('/not/there')\nexcept OSError as error:\n"
            "    raise ValueError('no weights') from error",
            "ValueError: no weights, caused by FileNotFoundError: [Errno 2] No such file or "
            "directory: '/not/there'",
        ),
        ("assert False", "AssertionError"),
    ],
)
def test_why_a_handler_does_not_load_is_in_the_log_before_it_is_answered(
    make_server, handler, reason
):
    server = make_server()
    (server.folder / "tiny.py").write_text(f"print('a last word')\n{handler}\n")
    server.connect().load()
    code, length = struct.unpack("!ii", server.socket.recv(8, socket.MSG_WAITALL))
    log = server.log()  # whoever has the answer ends the process
    message = server.socket.recv(length, socket.MSG_WAITALL).decode()
    assert code == 500
    assert message.startswith(reason)
    assert message == reason or "(" in reason
    assert "a last word" in log
    assert "Backend worker process died." in log
    assert handler.splitlines()[-1].strip() in log  # the traceback of the cause
    assert server.exit_status() == 1
    assert server.log().count("Backend worker process died.") == 1


TENSORS = """
shunter:
  tensors:
    inputs: [{name: x, dtype: float32, shape: [4]}]
    outputs: [{name: y, dtype: float32, shape: [4]}]
"""


@pytest.mark.parametrize(
    ("infer", "config", "spin_us", "reason"),
    [
        (False, TENSORS, "0", "Tiny has neither infer(inputs, outputs) nor inference(batch)"),
        (True, "minWorkers: 1", "0", "tensors: two lists, inputs and outputs"),
        (True, TENSORS, "1.5", "SHUNTER_SPIN_US: '1.5'; allowed: microseconds, from 0"),
    ],
)
def test_a_model_that_cannot_serve_tensors_is_not_loaded_for_the_network(
    make_server, infer, config, spin_us, reason
):
    server = make_server(SHUNTER_FRONT_END="/nowhere", SHUNTER_SPIN_US=spin_us)
    if infer:
        with (server.folder / "tiny.py").open("a") as file:
            file.write("    def infer(self, inputs, outputs):\n        pass\n")
    server.write_config(config)
    server.connect().load()
    server.expect(create_load_model_response(500, f"TensorConfigError: {reason}"))
    assert server.exit_status() == 1
