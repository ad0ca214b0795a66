"""A model worker: TorchServe's own, with another way to receive, to reply and to log.

Loading, sockets and start-up are TorchServe's. Archives and handlers see no difference.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
import socket
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wrapt
from ts.model_service_worker import SOCKET_ACCEPT_TIMEOUT, TorchModelServiceWorker

from shunter.handlers.placement import gentle, pointwise
from shunter.handlers.pool.handover import CONTINUES_VARIABLE
from shunter.handlers.torchserve.connection import DIED, Connection
from shunter.handlers.torchserve.inbox import BUFFER_SIZE, Disconnected
from shunter.handlers.torchserve.invocation import logger
from shunter.handlers.torchserve.load_errors import LoadFailed
from shunter.handlers.torchserve.metrics import LineMetricsCache, use_direct_route
from shunter.handlers.torchserve.output import LINES, LineHandler

if TYPE_CHECKING:
    from shunter.handlers.preemption.gate import Passers

METRICS = "SHUNTER_METRICS"
"""Environment: ``reply`` where the server takes metric lines out of replies."""

GONE = "the folder of its server was removed, restart the server"


class Worker(TorchModelServiceWorker):
    """TorchServe's worker on our receiver, replies and metrics."""

    def __init__(
        self,
        args: Namespace,
        on_loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the socket, read the metrics file. Raises FileNotFoundError: no folder for it.

        ``on_loaded`` runs between loading the model and saying so.
        """
        if args.sock_type == "unix" and not (folder := Path(args.sock_name).parent).is_dir():
            raise FileNotFoundError(errno.ENOENT, GONE, str(folder))
        super().__init__(
            args.sock_type, args.sock_name, args.host, args.port, args.metrics_config, False
        )
        self.metrics_cache = LineMetricsCache.adopt(self.metrics_cache)
        self.connected = False
        self._on_loaded = on_loaded

    def connection(
        self,
        sock: socket.socket,
        first: bytes = b"",
        buffer: int = BUFFER_SIZE,
        passers: Passers | None = None,
    ) -> Connection:
        """With the server, which has connected. ``first``: what was received of it already;
        ``passers``: of a process of several models."""
        return Connection(
            *(sock, self.load_model, self._on_loaded), first=first, buffer=buffer, passers=passers
        )

    def listen(self) -> None:
        """As :meth:`run_server` does, where somebody else accepts."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        is_unix = self.sock_type == "unix"
        self.sock.bind(self.sock_name if is_unix else (self.sock_name, int(self.port)))
        self.sock.listen(1)
        logging.info("[PID]%d", os.getpid())
        logging.info("Torch worker started.")
        logging.info("Python runtime: %s", platform.python_version())

    def run_server(self) -> None:
        """Serve the connection that comes, or that the seat had which this process was."""
        if said := os.environ.pop(CONTINUES_VARIABLE, ""):
            descriptor, _, first = said.partition(":")
            sock = socket.socket(fileno=int(descriptor))
            self.handle_connection(sock, bytes.fromhex(first))
        super().run_server()

    def handle_connection(self, cl_socket: socket.socket, first: bytes = b"") -> None:
        """Serve one connection; it ends with the process, as the front end expects."""
        self.connected = True
        try:
            self.connection(cl_socket, first).serve()
        except Disconnected:
            logging.info("Frontend disconnected.")
            gentle.leave()
            sys.exit(0)


def use_threads(threads: int) -> None:
    """Let an operator use ``threads`` threads, and run one operator at a time.

    Where torch is not imported yet, as soon as a handler does it.
    """

    def use(torch: Any) -> None:
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        # Torch takes this setting once; a handler that sets it too must not fail.
        torch.set_num_interop_threads = keep

    def keep(number: int) -> None:
        logger.info("This worker keeps to one inter-op thread; the handler asked for %s.", number)

    wrapt.register_post_import_hook(use, "torch")


def log_lines() -> None:
    """Let this process log as workers do, and say its metrics as its server wants them."""
    handler = LineHandler(LINES)
    logging.basicConfig(format="%(message)s", level=logging.INFO, handlers=[handler])
    use_direct_route(handler)
    LINES.for_replies = os.environ.get(METRICS) == "reply"


def run(args: Namespace, threads: int | None, on_loaded: Callable[[], None]) -> int:
    """Serve until the front end goes away; return the exit status of any other end."""
    log_lines()
    worker: Worker | None = None
    try:
        if threads is not None:
            use_threads(threads)
        pointwise.use()
        worker = Worker(args, on_loaded)
        worker.run_server()
    except LoadFailed:
        pass  # it is in the log
    except Exception as error:
        if isinstance(error, TimeoutError) and worker is not None and not worker.connected:
            logging.error("Backend worker did not receive connection in: %d", SOCKET_ACCEPT_TIMEOUT)
        else:
            logging.error(DIED, exc_info=True)
    finally:
        if args.sock_type == "unix" and args.sock_name is not None:
            Path(args.sock_name).unlink(missing_ok=True)
        LINES.flush()
    return 1
