"""The part of ``shunter demo`` with Triton: the same archive, by Triton's own HTTP API."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console

from shunter.plugins import hosts
from shunter.plugins.errors import UserError
from shunter.plugins.host import HostProcess

STOP_S = 30


@contextlib.contextmanager
def serving(store: Path, archive: str, console: Console) -> Iterator[HostProcess | None]:
    """A Triton with digits; None, and the reason is printed, where there is no Triton."""
    try:
        server = hosts.process_of(store, [f"digits={archive}"], name=hosts.TRITON)
    except UserError as error:
        console.print(f"no Triton in this demo: {error}", soft_wrap=True)
        yield None
        return
    try:
        with console.status("starting Triton with the backend"):
            server.start()
        console.print(f"triton with the backend is up, pid {server.pid}")
        yield server
    finally:
        with console.status("stopping"):
            server.drain(STOP_S)


@contextlib.contextmanager
def connect(
    server: HostProcess, connections: int, deadline_ms: str
) -> Iterator[Callable[[np.ndarray, str], int]]:
    """What sends one image as a class and returns the label."""
    url = f"{server.inference}/v2/models/digits/infer"
    limits = httpx.Limits(max_connections=connections)
    with httpx.Client(limits=limits, timeout=60, trust_env=False) as client:

        def send(image: np.ndarray, request_class: str) -> int:
            terms: dict[str, Any] = {"slo_class": request_class}
            if request_class == "strict":
                terms["deadline_ms"] = int(deadline_ms)
            values = image.astype(float).ravel().tolist()
            tensor = {"name": "image", "shape": [1, 8, 8], "datatype": "FP32", "data": values}
            answer = client.post(url, json={"inputs": [tensor], "parameters": terms})
            answer.raise_for_status()
            return int(np.argmax(answer.json()["outputs"][0]["data"]))

        yield send
