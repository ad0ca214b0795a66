"""The load generator as a process, against small servers of our own on loopback."""

import contextlib
import json
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from shunter.batching.forming import classes

LOAD = Path(__file__).parents[2] / "bench/load.py"


def at(*times):
    """Arrivals at these times, and nothing behind them."""
    return {"kind": "times", "times": times, "seconds": 0.5}


UNIFORM = {"kind": "uniform", "rate": 200, "seconds": 0.5}


@contextlib.contextmanager
def nobody_listens():
    """A port that nobody else gets meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture(scope="module")
def load(script):
    return script("load")


@pytest.fixture(scope="module")
def null(script):
    with script("ceiling").null_server() as url:
        yield url


class Recorder(ThreadingHTTPServer):
    """Keeps what was asked; ``misbehave(number)`` may name what is done instead of an answer."""

    daemon_threads, request_queue_size = True, 256

    def __init__(self, misbehave=lambda number: None):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.misbehave, self.asked, self.lock = misbehave, [], threading.Lock()
        self.is_over = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/predictions/m"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()
        return super().__enter__()

    def __exit__(self, *error):
        self.is_over.set()
        self.shutdown()
        super().__exit__(*error)


class _Handler(BaseHTTPRequestHandler):
    protocol_version, wbufsize = "HTTP/1.1", 1 << 16  # an answer is one packet

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            number = len(self.server.asked)
            self.server.asked.append((self.path, dict(self.headers), body))
        match self.server.misbehave(number):
            case "cut":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
                self.close_connection = True
            case "silent":
                self.server.is_over.wait(30)
                self.close_connection = True
            case "busy":
                self.send_error(503)
            case _:
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"[]")

    def log_message(self, *_):
        pass


def test_every_request_is_sent_at_its_time_and_answered(load, null, script):
    arrivals = {"kind": "poisson", "rate": 1000, "seconds": 0.5}
    stream = load.Stream("a", null, arrivals=arrivals, seed=3)
    result = load.run(load.Spec([stream], timeout_s=5))
    times = script("arrivals").poisson(1000, 0.5, seed=3)
    assert result.samples.due_s == pytest.approx(times, abs=1e-6)
    assert np.all(result.samples.status == 200)
    assert np.all(result.samples.late_s >= 0)
    assert np.all(result.samples.latency_s >= result.samples.late_s)
    found = result["a"]
    assert found["sent"] == found["ok"] == found["good"] == len(times)
    assert (found["unanswered"], found["attainment"]) == (0, 1)
    assert 0 < result.client["cores"] < 1.5
    assert result.client["late_p99_ms"] >= result.client["late_p50_ms"] > 0
    assert sum(result.windows("a")["sent"]) == len(times)


def test_streams_are_kept_apart_and_say_their_terms(load):
    with Recorder() as server:
        strict = load.Stream(
            "strict",
            server.url + "?x=1",
            arrivals=UNIFORM,
            bodies=[b"one", b"two"],
            request_class="strict",
            deadline_ms=50,
            content_type="text/plain",
            headers={"X-More": "yes"},
            slo_ms=1e-6,
        )
        plain = load.Stream("plain", server.url, arrivals=at(0.0, 0.4), bodies=[b"\x00\xff"])
        result = load.run(load.Spec([strict, plain], timeout_s=5))
    asked = [each for each in server.asked if each[0] == "/predictions/m?x=1"]
    assert len(asked) == 100 and len(server.asked) == 102
    assert Counter(body for _, _, body in asked) == {b"one": 50, b"two": 50}
    for _, headers, _ in asked:
        assert headers[classes.CLASS_KEY] == "strict"
        assert headers[classes.DEADLINE_KEY] == "50"
        assert (headers["Content-Type"], headers["X-More"]) == ("text/plain", "yes")
    (_, headers, body), _ = (each for each in server.asked if each[0] == "/predictions/m")
    assert body == b"\x00\xff"
    assert not any(name.lower().startswith("x-shunter") for name in headers)
    assert (result["strict"]["ok"], result["strict"]["good"]) == (100, 0)
    assert (result["plain"]["sent"], result["plain"]["good"]) == (2, 2)
    assert len(result.of("strict")) == 100


def test_each_request_ends_in_exactly_one_outcome_whatever_the_server_does(load, script):
    kinds = ["cut", "busy", None, "silent", None]
    with Recorder(lambda number: kinds[number % 5]) as server:
        stream = load.Stream("a", server.url, arrivals=UNIFORM)
        result = load.run(load.Spec([stream], timeout_s=5))
    found = result["a"]
    expected = {"200": 40, "503": 20, "broken": 20, "timeout": 20}
    assert found["statuses"] == expected
    assert (found["sent"], found["unanswered"], found["attainment"]) == (100, 40, 0.4)
    late = result.samples.latency_s[result.samples.status == script("http_client").TIMEOUT]
    assert np.all(late >= 5)


def test_without_a_server_every_request_is_refused(load):
    with nobody_listens() as port:
        stream = load.Stream("a", f"http://127.0.0.1:{port}/predictions/m", arrivals=UNIFORM)
        result = load.run(load.Spec([stream], timeout_s=5))
    assert result["a"]["statuses"] == {"refused": 100}
    assert (result["a"]["attainment"], result["a"]["p50_ms"]) == (0, None)


def test_waiting_for_a_connection_counts(load):
    def slowly(number):
        time.sleep(0.2)

    with Recorder(slowly) as server:
        stream = load.Stream("a", server.url, arrivals=at(*[0.0] * 5))
        result = load.run(load.Spec([stream], connections=1))
    assert result["a"]["ok"] == 5
    assert result["a"]["max_ms"] > 1000
    assert np.nanmax(result.samples.wait_s) > 0.8
    assert result.samples.late_s.max() < np.nanmax(result.samples.wait_s)


def test_closed_loop_clients_wait_for_their_answers(load):
    def slowly(number):
        time.sleep(0.02)

    with Recorder(slowly) as server:
        busy = load.Stream("a", server.url, closed=load.Closed(clients=3, seconds=1), slo_ms=60_000)
        idle = load.Stream("b", server.url, closed=load.Closed(1, seconds=1, think_s=0.2))
        result = load.run(load.Spec([busy, idle]))
    assert 3 <= result["a"]["sent"] <= 151
    assert 1 <= result["b"]["sent"] <= 5
    assert result["a"]["sent"] == result["a"]["good"] == len(result.of("a"))


def test_warm_up_and_cool_down_are_sent_but_not_counted(load, null):
    stream = load.Stream("a", null, arrivals=UNIFORM)
    result = load.run(load.Spec([stream], warmup_s=0.1, cooldown_s=0.15))
    assert len(result.samples) == 100
    assert result["a"]["sent"] == pytest.approx(50, abs=1)
    assert result["a"]["offered_per_s"] == pytest.approx(200, rel=0.03)
    assert result.counted_s == (0.1, 0.35)


def test_the_cores_of_other_processes_are_measured(load, null):
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinning:
        pids = {"spinning": [spinning.pid], "gone": [2**22 + 1]}
        stream = load.Stream("a", null, arrivals=UNIFORM)
        try:
            result = load.run(load.Spec([stream], cpu_pids=pids))
        finally:
            spinning.kill()
    assert 0 < result.cpu_cores["spinning"] < 1.1
    assert result.cpu_cores["gone"] == 0


def test_a_run_goes_on_while_its_caller_acts(load, null):
    before = time.monotonic()
    with load.start(load.Spec([load.Stream("a", null, arrivals=UNIFORM)])) as running:
        assert before < running.started < time.monotonic() + 1
        result = running.result()
    assert result.started == pytest.approx(running.started)
    with load.start(load.Spec([load.Stream("a", null, arrivals={**UNIFORM, "seconds": 60})])):
        began = time.monotonic()
    assert time.monotonic() - began < 60, "leaving the block ends the run"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arrivals": None}, "either arrivals or closed"),
        ({"url": "ftp://x/"}, "http:// or grpc://"),
        ({"bodies": []}, "needs bodies"),
        ({"arrivals": {"kind": "trace", "path": "absent.json"}}, "absent.json"),
        ({"arrivals": {"kind": "bursty"}}, "unknown kind"),
    ],
)
def test_a_bad_spec_is_told_by_the_caller_s_exception(load, change, said):
    stream = load.Stream(
        **{"name": "a", "url": "http://127.0.0.1:1/", "arrivals": UNIFORM} | change
    )
    with pytest.raises(load.LoadFailed, match=said):
        load.run(load.Spec([stream]))


def test_a_trim_that_leaves_nothing_is_refused(load, null):
    with pytest.raises(load.LoadFailed, match="leave nothing"):
        load.run(load.Spec([load.Stream("a", null, arrivals=UNIFORM)], warmup_s=1))


def command(*args):
    whole = [sys.executable, str(LOAD), *map(str, args)]
    done = subprocess.run(whole, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout, done.stderr


def test_a_spec_file_gives_a_result_and_samples_beside_it(load, null, tmp_path):
    (tmp_path / "counts.txt").write_text("50\n50\n")
    (tmp_path / "body").write_bytes(b"\x01")
    arrivals = {"kind": "trace", "path": "counts.txt", "time_scale": 0.25}
    bodies = ["text", {"json": {"a": 1}}, {"base64": "AA=="}, {"file": "body"}]
    content = {"streams": [{"name": "s", "url": null, "arrivals": arrivals, "bodies": bodies}]}
    (tmp_path / "spec.json").write_text(json.dumps(content))
    code, printed, errors = command(tmp_path / "spec.json", "--out", tmp_path / "r.json")
    assert (code, errors) == (0, "")
    assert "attainment 1.0" in printed
    result = load.Result.read(tmp_path / "r.json")
    assert (tmp_path / "r.npz").exists()
    assert result["s"]["sent"] == len(result.samples) == pytest.approx(100, abs=40)


def test_the_command_line_by_hand(null):
    code, printed, errors = command(
        *("--url", null, "--rate", 200, "--seconds", 0.5, "--body", "{}", "--slo-ms", 60000),
        *("--class", "best_effort", "--deadline-ms", "12.5", "--json"),
    )
    assert (code, errors) == (0, "")
    found = json.loads(printed)["streams"]["load"]
    assert found["sent"] == found["good"] > 50
    assert (found["class"], found["deadline_ms"], found["slo_ms"]) == ("best_effort", 12.5, 60_000)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "either a SPEC.json or --url"),
        (["--url", "http://127.0.0.1:1/"], "give --rate"),
        (["absent.json"], "absent.json"),
        (["--url", "http://127.0.0.1:1/", "--trace", "/absent.csv"], "No such file"),
    ],
)
def test_a_wrong_command_line_is_explained(args, said):
    code, _, errors = command(*args)
    assert code != 0
    assert said in errors
    assert "Traceback" not in errors


@pytest.fixture
def grpc_server():
    """A server of TorchServe's Predictions that keeps what it was asked."""
    grpc = pytest.importorskip("grpc")
    from shunter.plugins.torchserve import grpc_client

    asked, is_over = [], threading.Event()

    def predict(request, context):
        asked.append(request)
        if request.model_name == "busy":
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "full")
        if request.model_name == "down":
            context.abort(grpc.StatusCode.UNAVAILABLE, "no worker")
        if request.model_name == "slow":
            is_over.wait(30)
        return grpc_client.PredictionResponse(prediction=b"1")

    handler = grpc.unary_unary_rpc_method_handler(
        predict,
        request_deserializer=grpc_client.PredictionsRequest.FromString,
        response_serializer=grpc_client.PredictionResponse.SerializeToString,
    )
    service, method = grpc_client.METHOD.strip("/").split("/")
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}", asked
    is_over.set()
    server.stop(None).wait()


def test_grpc_streams_carry_the_same_terms(load, grpc_server):
    url, asked = grpc_server
    body = bytes(range(256)) * 2
    streams = [
        load.Stream(
            "ok",
            f"{url}/m/1.0",
            arrivals=UNIFORM,
            bodies=[body],
            request_class="best_effort",
            deadline_ms=70.5,
            slo_ms=60_000,
        ),
        load.Stream("busy", f"{url}/busy", arrivals=at(0.1, 0.2)),
        load.Stream("down", f"{url}/down", arrivals=at(0.3)),
        load.Stream("slow", f"{url}/slow", arrivals=at(0.4)),
    ]
    result = load.run(load.Spec(streams, timeout_s=5))
    named = [request for request in asked if request.model_name == "m"]
    assert len(named) == 100
    assert {request.model_version for request in named} == {"1.0"}
    expected = {"data": body, classes.CLASS_KEY: b"best_effort", classes.DEADLINE_KEY: b"70.5"}
    assert dict(named[0].input) == expected
    assert result["ok"]["statuses"] == {"200": 100}
    assert result["busy"]["statuses"] == {"RESOURCE_EXHAUSTED": 2}
    assert result["down"]["statuses"] == {"UNAVAILABLE": 1}
    assert result["slow"]["statuses"] == {"timeout": 1}


def test_a_grpc_connection_that_breaks_is_no_answer(load):
    pytest.importorskip("grpc")
    with socketserver.TCPServer(("127.0.0.1", 0), _Hello) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"grpc://127.0.0.1:{server.server_address[1]}/m"
        stream = load.Stream("a", url, arrivals=at(0.0, 0.1))
        result = load.run(load.Spec([stream], timeout_s=3, channels=1))
        server.shutdown()
    assert (result["a"]["sent"], result["a"]["unanswered"]) == (2, 2)
    assert set(result["a"]["statuses"]) <= {"broken", "refused"}


class _Hello(socketserver.BaseRequestHandler):
    """HTTP/2 as far as the first request, then the end."""

    def handle(self):
        self.request.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")  # empty SETTINGS
        while (data := self.request.recv(65536)) and b"Predictions" not in data:
            pass


def test_grpc_without_a_server_is_refused(load):
    pytest.importorskip("grpc")
    with nobody_listens() as port:
        stream = load.Stream("a", f"grpc://127.0.0.1:{port}/m", arrivals=at(0.0, 0.1))
        result = load.run(load.Spec([stream], timeout_s=5))
    assert result["a"]["statuses"] == {"refused": 2}


def test_the_null_ceiling_ends_in_time(script):
    began = time.monotonic()
    found = script("ceiling").null_ceiling(rate=200, seconds=0.3, limit_s=3)
    assert time.monotonic() - began < 60
    assert found["at_rate"] == 200
    assert found["added_p99_ms"] >= found["added_p50_ms"] > 0
    assert found["probes"]
