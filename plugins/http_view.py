"""What a server without HTTP of ours shows: ``/metrics``, ``/shunter/`` and ``/shunter/status``."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from shunter.batching.page.control_page import ControlPage
from shunter.plugins.errors import UserError
from shunter.plugins.host import Host
from shunter.plugins.prometheus import TEXT, exposition

DASHBOARD = Path(__file__).with_name("view") / "dashboard.html"
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HTML = "text/html; charset=utf-8"
JSON = "application/json"


class HttpView:
    """A server on this host, until it is closed."""

    def __init__(self, page: Path, port: int, host: Host) -> None:
        """``page``: the control page; ``host``: whose status and events are shown.

        Raises UserError when the port is taken; PageError, OSError when there is no page.
        """
        self._page = ControlPage.attach(page, writable=False)
        self._answers: dict[str, tuple[str, Callable[[str], bytes]]] = {
            "/metrics": (TEXT, lambda _: exposition(self._page, time.monotonic_ns()).encode()),
            "/shunter/": (HTML, lambda _: DASHBOARD.read_bytes()),
            "/shunter/status": (JSON, lambda _: _json(host.status())),
            "/shunter/events": (JSON, lambda asked: _json({"events": host.events(_after(asked))})),
        }
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), self._handler())
        except OSError as error:
            self._page.close()
            raise UserError(f"port {port} for metrics: {error.strerror}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self._page.close()

    def _answer(self, path: str, query: str) -> tuple[int, str, bytes]:
        """Status, type and body."""
        if path == "/shunter":
            return 308, HTML, b""
        kind, body = self._answers.get(path, (JSON, None))
        if body is None:
            return 404, kind, b""
        try:
            return 200, kind, body(query)
        except ValueError as error:
            return 400, JSON, _json({"code": 400, "message": str(error)})
        except UserError as error:
            return 503, JSON, _json({"code": 503, "message": str(error)})

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self._answer

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, kind, body = answer(*self.path.partition("?")[::2])
                self.send_response(status)
                if status == 308:
                    self.send_header("Location", "/shunter/")
                if kind == HTML:
                    self.send_header("Content-Security-Policy", _POLICY)
                    self.send_header("Cache-Control", "no-cache")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Nobody wants to read it."""

        return Handler


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2).encode()


def _after(query: str) -> int:
    """The number of an event that is asked for. Raises ValueError."""
    said = parse_qs(query).get("after", ["0"])[0]
    if not (said.isascii() and said.isdigit() and len(said) <= 18):
        raise ValueError(f'after: "{said}"; allowed: a number of an event')
    return int(said)
