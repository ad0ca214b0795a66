"""The actor of a gateway: it keeps a copy of the directory and an HTTP server beside each other.

It is no deployment of Ray Serve: there each request would pass two Python processes and Ray's own
queues, and what was sent to a replica that died is lost or, behind its HAProxy, sent again whether
or not it may run twice. A client, or a load balancer, takes any gateway.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

import ray
import uvicorn
from ray.exceptions import RayError

from shunter.plugins.ray.gateway.app import App
from shunter.plugins.ray.gateway.dispatch import Dispatch
from shunter.plugins.ray.records.names import CONTROLLER, NAMESPACE
from shunter.plugins.ray.records.settings import GatewaySettings

LOGGER = logging.getLogger("shunter.cluster")
LOOK_S = 0.2
ANSWER_S = 5.0
AGAIN_S = 0.5


class Gateway:
    """One of them, for as long as the actor is there."""

    def __init__(self, number: int, settings: GatewaySettings) -> None:
        """``number``: its port is so far behind the first one's."""
        self._port = settings.port + number
        self._settings = settings
        self._dispatch = Dispatch()
        self._app = App(self._dispatch, settings)
        self._problem = ""
        threading.Thread(target=self._serve, name="http", daemon=True).start()
        threading.Thread(target=self._look, name="directory", daemon=True).start()

    def said(self) -> dict[str, Any]:
        """Of it in the status."""
        return {
            "address": f"http://{self._settings.address}:{self._port}",
            "pid": os.getpid(),
            "problem": self._problem,
            **self._app.counted(),
        }

    def _serve(self) -> None:
        while True:
            try:
                config = uvicorn.Config(
                    self._app,
                    host=self._settings.address,
                    port=self._port,
                    lifespan="on",
                    access_log=False,
                    log_level="error",
                    timeout_keep_alive=75,
                    h11_max_incomplete_event_size=1 << 16,
                )
                server = uvicorn.Server(config)
                server.run()
                self._problem = f"port {self._port} cannot be used" if not server.started else ""
            except SystemExit:  # uvicorn's way to say that it has no port
                self._problem = f"port {self._port} cannot be used: is it taken?"
            LOGGER.error("the gateway's server ended: %s", self._problem)
            time.sleep(AGAIN_S)

    def _look(self) -> None:
        controller: Any = None
        while True:
            try:
                controller = controller or ray.get_actor(CONTROLLER, NAMESPACE)
                asked = controller.directory.remote(self._dispatch.number)
                found = ray.get(asked, timeout=ANSWER_S)
                if found is not None:
                    self._app.soon(found)
            except (RayError, ValueError, TimeoutError):  # what is known goes on to hold
                controller = None
            time.sleep(LOOK_S)
