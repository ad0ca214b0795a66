"""The page /shunter/ in a real browser, with what servers say in it."""

import contextlib
import copy
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from shunter.plugins.http_view import DASHBOARD

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")
KEY = "4Xk29sQz"
ODD = "<img src=x onerror=document.title='bad'>"

COUNTERS = ("arrivals", "answered", "answered_late", "expired", "rejected", "failed", "abandoned")


def counters(good, expired=0, retried=0):
    found = {name: {"strict": 0, "best_effort": 0} for name in COUNTERS}
    found |= {"good": {"strict": good, "best_effort": 0}, "slo_met": {"strict": good}}
    found["expired"]["strict"] = expired
    return found | {"retried": retried, "poisoned": 0}


def model(name, **more):
    return {
        "name": name,
        "version": "1.0",
        "generation": 1,
        "state": "serving",
        "class": "strict",
        "configuration": "2x1x8",
        "slo_ms": 40.0,
        "queue": {"strict": 3, "best_effort": 1},
        "in_flight": {"requests": 4, "batches": 1},
        "slo_attainment": {"strict": 0.987, "best_effort": None},
        "counters": counters(100),
        "batches": {"1": 10, "4": 25, "8": 3},
        "groups": [
            {
                "state": "serving",
                "instances": 2,
                "threads": 1,
                "batch": 8,
                "slice": "cpus:0-1",
                "slo": {"strict": {"attainment": 0.99}, "best_effort": {"attainment": None}},
                "latency": {"fixed_ms": 4.1, "per_request_ms": 2.04, "error_ms": 0.6},
                "workers": [{"id": "1", "pid": 7, "state": "READY"}, {"id": "2", "state": "DEAD"}],
            }
        ],
        **more,
    }


FIRST = {
    "version": "0.1.0",
    "torchserve": "0.12.0",
    "pid": 4711,
    "uptime_s": 7300,
    "draining": False,
    "controller": {"state": "running", "settings_valid": True},
    "devices": {"layouts": {"0": "4g@0,2g@4,1g@6"}, "changing": [], "changes": 0, "problem": ""},
    "front_end": {
        "state": "running",
        "port": 8083,
        "restarts": 0,
        "sessions": 12,
        "mean_rtt_ms": 0.11,
        "landing": {"blocks": 100, "free": 20, "scarce": True},
        "counters": {"answered": 5000, "failed": 1},
    },
    "pools": [
        {
            "pool": 0,
            "pid": 9,
            "models": ["resnet/1.0", "minilm/1.0"],
            "hot": ["minilm/1.0"],
            "bytes": 90868736,
            "budget": 134217728,
            "hits": 812,
            "misses": 9,
            "swap_ms": 61.5,
            "evictions": 8,
        }
    ],
    "models": [
        model("resnet50"),
        model(
            "minilm",
            **{"class": "best_effort"},
            preemption={"runners": [{"preemptions": 3, "parked_ms": 1500.0}]},
        ),
    ],
    "stock_models": ["sequence/1.0"],
}


HAPPENED = [
    {"number": number, "unix_ms": 1e12, "level": level, "about": about, "text": text}
    for number, (level, about, text) in enumerate(
        (
            ("info", "resnet50/1.0", "generation 2 serves; configuration 1x2x16"),
            ("warning", "resnet50/1.0", "5 strict requests were dropped: too late to be in time"),
            ("error", "controller", "ended with status 1; it starts again"),
            ("info", ODD, "it is served from now on"),
        ),
        start=1,
    )
]


def later(other="newcomer"):
    """What has happened when the page asks again; ``other``: a model that has come."""
    status = copy.deepcopy(FIRST)
    [resnet, _] = status["models"]
    resnet |= {"generation": 2, "configuration": "1x2x16", "last_change": "1x2x16 serves"}
    resnet |= {"problem": "killed by signal 9", "counters": counters(300, expired=5, retried=2)}
    status["pools"][0]["evictions"] += 2
    status["controller"]["settings_valid"] = False
    status["models"].append(model(other))
    return status


@contextlib.contextmanager
def serving(statuses, key=None):
    """A server with the page, and one status after the other."""
    left = list(statuses)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            code, kind, body = 404, "text/plain", b""
            if self.path == "/shunter/":
                code, kind, body = 200, "text/html", DASHBOARD.read_bytes()
            elif self.path == "/shunter/status" and key not in (None, self._key()):
                code, kind, body = 400, "application/json", b"{}"
            elif self.path == "/shunter/status":
                found = left.pop(0) if len(left) > 1 else left[0]
                code, kind, body = 200, "application/json", json.dumps(found).encode()
            elif found := re.fullmatch(r"/shunter/events\?after=(\d+)", self.path):
                told = [each for each in HAPPENED if each["number"] > int(found[1])]
                code, kind, body = 200, "application/json", json.dumps({"events": told}).encode()
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _key(self):
            return self.headers.get("Authorization", "").removeprefix("Bearer ")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/shunter/"
        server.shutdown()
        thread.join()


def browse(url, folder, *options):
    """What Chromium has in its window after some seconds, and what its console said."""
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu"]
    command += ["--disable-dev-shm-usage", "--enable-logging=stderr", f"--user-data-dir={folder}"]
    command += ["--virtual-time-budget=9000", *options, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return done.stdout, said


def test_it_is_small_and_needs_nothing_from_elsewhere():
    text = DASHBOARD.read_text(encoding="utf-8")
    assert len(text) < 100_000
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "innerHTML" not in text and "insertAdjacentHTML" not in text


@needs_browser
def test_it_shows_what_the_server_says_and_what_has_changed(tmp_path):
    with serving([FIRST, FIRST, later(ODD)]) as url:
        shown, said = browse(url, tmp_path, "--dump-dom")
    assert said == []
    for text in (
        *("0.1.0 in TorchServe 0.12.0, pid 4711", "resnet50 1.0", "minilm 1.0", "1x2x16", "98.7 %"),
        *("1 of 2", "4.1 ms + 2.04 ms each", "3 times", "cpus:0-1", "86.7 MB of 128 MB hot"),
        *("812, 9", "port 8083", "Left to stock TorchServe: sequence/1.0"),
        "shunter.toml cannot be used",
        *("resnet50/1.0: generation 2 serves", "lost a worker: killed by signal 9"),
        *("5 strict requests were dropped", "controller: ended with status 1"),
        "it is served from now on",
    ):
        assert text in shown, text
    assert shown.count("generation 2 serves") == 1  # each is told once
    assert shown.count("grid-column:") == 3 + 1  # the slices of a GPU, and the page's own text
    assert "<polyline" in shown
    assert "&lt;img src=x" in shown and "<title>Shunter</title>" in shown


@needs_browser
def test_where_a_deadline_was_missed_it_does_not_say_100_percent(tmp_path):
    shares = {1.0: "100 %", 0.99998: "99.99 %", 0.9997: "99.97 %", 0.904: "90.4 %", 0.5: "50 %"}
    status = copy.deepcopy(FIRST)
    status["models"] = [
        model(f"m{index}", slo_attainment={"strict": share, "best_effort": None})
        for index, share in enumerate(shares)
    ]
    with serving([status]) as url:
        shown, _ = browse(url, tmp_path, "--dump-dom")
    found = re.findall(r"strict in time</dt><dd[^>]*>([^<]+)<", shown)
    assert found == list(shares.values())


@needs_browser
def test_it_asks_for_a_key_where_the_server_wants_one(tmp_path):
    with serving([FIRST], KEY) as url:
        shown, _ = browse(url, tmp_path, "--dump-dom")
    assert '<form id="ask">' in shown
    assert '<div id="shown" hidden="">' in shown
    assert "resnet50" not in shown


@needs_browser
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dashboard", ("--window-size=1280,1100",)),
        ("dashboard-dark", ("--window-size=1280,1100", "--blink-settings=preferredColorScheme=0")),
        ("dashboard-phone", ("--window-size=500,1400",)),
    ],
)
def test_screenshots(tmp_path, name, options):
    # SHUNTER_SCREENSHOTS=docs/images makes those of the documentation.
    picture = Path(os.environ.get("SHUNTER_SCREENSHOTS", tmp_path)) / f"{name}.png"
    with serving([FIRST, FIRST, later()]) as url:
        browse(url, tmp_path / "profile", f"--screenshot={picture.absolute()}", *options)
    assert picture.stat().st_size > 20_000
