"""The actor of a gateway: it keeps a copy of the directory and an HTTP server beside each other.

It is no deployment of Ray Serve: there each request would pass two Python processes and Ray's own
queues, and what was sent to a replica that died is lost or, behind its HAProxy, sent again whether
or not it may run twice. A client, or a load balancer, takes any gateway.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from typing import Any

import ray
import uvicorn
from ray.exceptions import RayError

from shunter.plugins.ray.gateway.app import App
from shunter.plugins.ray.gateway.dispatch import Dispatch
from shunter.plugins.ray.records.names import CONTROLLER, NAMESPACE, here
from shunter.plugins.ray.records.settings import GatewaySettings

LOGGER = logging.getLogger("shunter.cluster")
LOOK_S = 0.2
ANSWER_S = 5.0
AGAIN_S = 0.5
KEEP_ALIVE_S = 75
"""An idle connection of a client is kept so long."""


class Gateway:
    """One of them, for as long as the actor is there."""

    def __init__(self, number: int, settings: GatewaySettings) -> None:
        """``number``: its port is so far behind the first one's."""
        self._port = settings.port + number
        self._settings = settings
        self._dispatch = Dispatch()
        self._app = App(self._dispatch, settings)
        self._problem = "it does not know the machines yet"
        self._knows = threading.Event()
        threading.Thread(target=self._serve, name="http", daemon=True).start()
        threading.Thread(target=self._look, name="directory", daemon=True).start()

    def said(self) -> dict[str, Any]:
        """Of it in the status."""
        return {
            "address": f"http://{self._settings.address}:{self._port}",
            "machine": here().get("name", ""),
            "pid": os.getpid(),
            "problem": self._problem,
            **self._app.counted(),
        }

    def _serve(self) -> None:
        self._knows.wait()  # clients rather go to another gateway than to one without machines
        while True:
            config = uvicorn.Config(
                self._app,
                http="httptools",
                loop="uvloop",
                lifespan="on",
                access_log=False,
                log_level="error",
                # Headers are the client's and the machine's.
                proxy_headers=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
            try:
                with self._listening() as listening:
                    self._problem = ""
                    uvicorn.Server(config).run([listening])
                self._problem = "its HTTP server ended"
            except OSError as error:
                self._problem = f"port {self._port} cannot be used: {error.strerror}"
            LOGGER.error("gateway at port %d: %s", self._port, self._problem)
            time.sleep(AGAIN_S)

    def _listening(self) -> socket.socket:
        address = self._settings.address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, self._port), family=family, backlog=1024)

    def _look(self) -> None:
        controller: Any = None
        while True:
            try:
                controller = controller or ray.get_actor(CONTROLLER, NAMESPACE)
                asked = controller.directory.remote(self._dispatch.number)
                found = ray.get(asked, timeout=ANSWER_S)
                if found is not None:
                    self._app.soon(found)
                    self._knows.set()
            except (RayError, ValueError, TimeoutError):  # what is known goes on to hold
                controller = None
            time.sleep(LOOK_S)
