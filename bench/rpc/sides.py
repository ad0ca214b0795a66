"""Our side of the RPC benchmarks, and how it is asked by its public Python client."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import psutil
from numpy.typing import NDArray

from rpc.models import RpcModel, pack_model
from shunter.nic_frontend.client import InferenceError, Session
from shunter.nic_frontend.server.front_end import QUIET_CYCLE_NS
from shunter.plugins.torchserve import rest
from shunter.plugins.torchserve.build import ensure
from shunter.plugins.torchserve.server import Server, free_ports
from shunter.plugins.view import page_status

Array = NDArray[np.generic]
Ask = Callable[[Array], Any]
SPIN_US = 2000
"""Longer than a round trip, so that a spinning side is awake while it is asked, and only then."""
FRESH_S = 1.2 * QUIET_CYCLE_NS / 1e9
"""A front end that was quiet writes its counters after that cycle."""
OPEN_S = 60
ANYWHERE = "0.0.0.0"


def wait_for(find: Callable[[], int]) -> int:
    """What is found, when it is not 0 any more."""
    deadline = time.monotonic() + OPEN_S
    while not (found := find()):
        if time.monotonic() > deadline:
            raise RuntimeError("the front end or its worker was not started in time")
        time.sleep(0.1)
    return found


def living(pids: Iterable[int]) -> int:
    """The first process that there is, else 0; the status may name one that is gone."""
    return next((pid for pid in pids if pid > 0 and psutil.pid_exists(pid)), 0)


def everywhere(anywhere: bool, config: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Arguments of Server: ports, and what serves them at all addresses instead of loopback's."""
    ports, more = free_ports(), dict(config or {})
    if anywhere:
        more["inference_address"] = f"http://{ANYWHERE}:{ports.inference}"
        more["grpc_inference_address"] = ANYWHERE
    return {"ports": ports, "config": more}


class Side(Protocol):
    """A way to ask."""

    name: str

    def client(self, model: RpcModel, stack: ExitStack) -> Ask:
        """A connected client of one model; ``stack`` closes it."""


class Ours:
    """TorchServe with the plugin, which starts the network front end and its workers."""

    def __init__(
        self,
        store: Path,
        models: Sequence[RpcModel],
        *,
        spin_us: int | None = None,
        settings: str = "",
        anywhere: bool = False,
        config: Mapping[str, str] | None = None,
        packed: bool = False,
        **packing: Any,
    ) -> None:
        """``store`` is an empty folder of its own; ``settings`` go into ``[nic]``, ``config`` into
        TorchServe's configuration.

        ``anywhere``: served at all addresses, HTTP too, instead of loopback's.

        ``spin_us``: waits that are shorter are without sleep; None: the default.

        ``packing``: for :func:`pack_model`; ``packed``: the archives are there already.
        """
        for model in () if packed else models:
            pack_model(model, store, **packing)
        toml = store / "shunter.toml"
        port = free_ports().grpc_inference  # the same after a restart
        toml.write_text(
            f'[nic]\nenabled = true\nport = {port}\nunix = "{store}/nic.stream"\n'
            f'host = "{ANYWHERE if anywhere else "127.0.0.1"}"\n'
            f"{'' if spin_us is None else f'spin_us = {spin_us}'}\n{settings}",
            encoding="utf-8",
        )
        env = {"SHUNTER_CONFIG": str(toml)}
        if spin_us is not None:
            env["SHUNTER_SPIN_US"] = str(spin_us)
        self._server = Server(
            model_store=store,
            models=[f"{model.name}={model.name}.mar" for model in models],
            plugins=ensure(),
            env=env,
            **everywhere(anywhere, config),
        )
        self._unix = store / "nic.stream"

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.__exit__(kind, error, trace)

    def state(self) -> dict[str, Any]:
        """Of the front end, as /shunter/status tells it."""
        return rest.get_json(f"{self._server.management}/shunter/status")

    @cached_property
    def runtime(self) -> Path:
        """Its runtime folder; asked by HTTP once."""
        return Path(self.state()["runtime"])

    def counters(self) -> dict[str, int]:
        """What the front end has counted; up to date after its next cycle."""
        time.sleep(FRESH_S)
        return page_status.fetch(self.runtime)["front_end"]["counters"]

    def front_end_pid(self) -> int:
        """The front end, once it is there."""
        return wait_for(lambda: living([self.state()["front_end"]["pid"]]))

    def network_pid(self, model: RpcModel) -> int:
        """A worker of a model that the front end feeds, once there is one."""

        def find() -> int:
            states = [state for state in self.state()["models"] if state["name"] == model.name]
            groups = [group for state in states for group in state["groups"]]
            return living(
                worker["pid"]
                for group in groups
                if group["front_end"] == "network"
                for worker in group["workers"]
            )

        return wait_for(find)

    @property
    def pid(self) -> int:
        """The process that all others of this server are below."""
        return self._server.pid

    @property
    def inference(self) -> str:
        """Base URL of HTTP."""
        return self._server.inference

    def url(self, scheme: str, host: str = "127.0.0.1") -> str:
        """Where it is reached."""
        if scheme == "unix":
            return f"unix://{self._unix}"
        return f"{scheme}://{host}:{wait_for(lambda: self.state()['front_end']['port'])}"

    def session(self, scheme: str, model: RpcModel, **settings: Any) -> Session:
        """A session with one model; its workers may still be loading."""
        return open_session(self.url(scheme), model, **settings)


class Named(Protocol):
    """Whatever stands for a model."""

    @property
    def name(self) -> str:
        """Under which it is registered."""


def open_session(url: str, model: Named, **settings: Any) -> Session:
    """A session with one model; its workers may still be loading."""
    deadline = time.monotonic() + OPEN_S
    while True:
        try:
            return Session(url, model.name, **settings)
        except InferenceError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class OurAsk:
    """Asks in a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __call__(self, x: Array) -> Any:
        return self._session.infer([x])[0]

    def copied(self) -> int:
        """Bytes of answers that the client had to copy, as the C client counts them."""
        if self._session.native is None:
            raise RuntimeError("copies are counted by the session, and there is none now")
        return self._session.native.numbers()["copied"]


class OurSide:
    """Our client over one kind of transport."""

    def __init__(self, name: str, server: Ours, scheme: str, **settings: Any) -> None:
        """``settings`` of its sessions."""
        self.name, self._server, self._scheme = name, server, scheme
        self._settings = settings

    def client(self, model: RpcModel, stack: ExitStack) -> OurAsk:
        """See :class:`Side`."""
        session = self._server.session(self._scheme, model, **self._settings)
        return OurAsk(stack.enter_context(session))

    def session(self, model: RpcModel) -> Session:
        """Another session with the model."""
        return self._server.session(self._scheme, model)

    def counters(self) -> dict[str, int]:
        """Of the front end."""
        return self._server.counters()
