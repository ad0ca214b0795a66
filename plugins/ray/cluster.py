"""What ``shunter cluster`` does: start nodes on this host, ask the controller, end what it started.

What was started stands in a file of the cluster's folder, so that another call finds it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from shunter.allocator.cluster.procurement import Kind
from shunter.plugins.errors import UserError
from shunter.plugins.ports import free_ports
from shunter.plugins.ray.node import Node, NodeSpec, environment
from shunter.plugins.ray.records.names import CONTROLLER, HEAD_RESOURCE, NAMESPACE, require_ray
from shunter.plugins.ray.records.settings import ClusterSettings
from shunter.plugins.ray.started import down, make_folder, note, start_node

HEAD = "node-0"
START_S = 300.0
ANSWER_S = 60.0
"""Longest wait for the controller: a restart takes 4 s, and many times that on a loaded host."""
_TRITON = {"http-header-forward-pattern": "(?i)x-shunter.*"}
"""Else class and deadline, which are headers at a gateway, would not reach its servers."""
LOOK_S = 0.2


def told(settings: ClusterSettings, base: Path, *, is_local: bool) -> dict[str, Any]:
    """What every machine's server is told, where its node says nothing else.

    ``base``: where relative paths start; ``is_local``: all machines are of this host.
    """
    models = [
        f"{name}={model.archive or name + '.mar'}" for name, model in settings.models.items()
    ]
    config = settings.server.shunter_config
    return {
        "kind": settings.server.kind,
        "store": str((base / settings.server.store).resolve()),
        "models": models,
        "shunter_config": str((base / config).resolve()) if config else "",
        "settings": _TRITON if settings.server.kind == "triton" else {},
        "ports": None if is_local else [settings.server.port, settings.server.grpc],
        "address": "127.0.0.1",
    }


def join(spec: NodeSpec) -> None:
    """Be a node in the foreground until SIGINT or SIGTERM; then drain, and end. Raises UserError.

    A second signal ends it at once.
    """
    require_ray()
    folder, node = Path(spec.folder), Node(spec)
    told = threading.Event()

    def leave(*_: object) -> None:
        if told.is_set():
            node.stop()
        else:
            told.set()
            threading.Thread(target=_leave, args=(folder, spec, node), daemon=True).start()

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, leave)
    print(f"{spec.name} joins {spec.address}; Ctrl-C drains and stops", flush=True)
    node.run()


def _leave(folder: Path, spec: NodeSpec, node: Node) -> None:
    try:
        with connected(folder, address=spec.address):
            ask("drain", spec.name)
    except UserError as error:
        print(f"shunter: {spec.name} ends without being drained: {error}", file=sys.stderr)
    finally:
        node.stop()


def up(
    folder: Path,
    settings: ClusterSettings,
    base: Path,
    *,
    nodes: int,
    is_local: bool,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Start so many nodes on this host; come back when every machine and gateway serves.

    Raises UserError, and has ended what it started.
    """
    require_ray(*(["boto3"] if settings.machines.provider == "aws" else []))
    make_folder(folder)
    given = told(settings, base, is_local=is_local)
    if not Path(given["store"]).is_dir():
        raise UserError(f"{given['store']} is not a folder: name the model store by --store")
    host = own_address(folder)
    address = f"{host}:{free_ports(1, host)[0] if is_local else settings.head_port}"
    machines = settings.machines
    can_be_taken = machines.provider == "local" and not machines.only_on_demand
    kind = Kind.SPOT if can_be_taken else Kind.ON_DEMAND
    described = {} if is_local else {"address": host}
    try:
        for number in range(nodes):
            say(f"node {number + 1} of {nodes}")
            spec = NodeSpec(str(folder), f"node-{number}", address, not number, described)
            start_node(folder, spec, kind if number else Kind.ON_DEMAND)
        with connected(folder, wait_s=60):
            _begin(settings, given, folder, nodes)
            return _wait_whole(folder, nodes, settings.gateways.count, say)
    except BaseException:
        down(folder)
        raise


@contextlib.contextmanager
def connected(folder: Path, wait_s: float = 10, address: str = "") -> Iterator[None]:
    """Be a client of the cluster's Ray. Raises UserError."""
    require_ray()
    address = address or note(folder)["address"]
    os.environ.update(environment(folder))
    import ray

    end = time.monotonic() + wait_s
    host, _, port = address.rpartition(":")
    while not _listens(host, int(port)):  # Ray itself would wait for minutes
        if time.monotonic() > end:
            raise UserError(f"no head answers at {address}: {folder}/{HEAD}.log says why")
        time.sleep(LOOK_S)
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:
        raise UserError(f"the cluster at {address} cannot be joined: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def controller() -> Any:
    """The actor. Raises UserError."""
    import ray

    try:
        return ray.get_actor(CONTROLLER, NAMESPACE)
    except ValueError as error:
        raise UserError("the cluster has no controller: `shunter cluster up` starts it") from error


def status(folder: Path) -> dict[str, Any]:
    """Of gateways and machines. Raises UserError."""
    with connected(folder):
        return ask("status")


def drain(folder: Path, machine: str) -> None:
    """Let a machine finish and end. Raises UserError."""
    with connected(folder):
        ask("drain", machine)


def ask(what: str, *arguments: Any) -> Any:
    """Of the controller, by whoever is connected: what may be asked twice. Raises UserError.

    A controller that has died is started again by Ray: it is asked again meanwhile.
    """
    import ray
    from ray.exceptions import ActorUnavailableError, RayError, RayTaskError

    end = time.monotonic() + ANSWER_S
    while True:
        try:
            said = getattr(controller(), what).remote(*arguments)
            return ray.get(said, timeout=max(end - time.monotonic(), LOOK_S))
        except RayTaskError as error:
            cause = error.cause
            raise UserError(str(cause) if isinstance(cause, UserError) else f"{cause!r}") from None
        except RayError as error:
            if not isinstance(error, ActorUnavailableError) or time.monotonic() > end:
                reason = f"the controller does not answer: {type(error).__name__}"
                raise UserError(reason) from None
        time.sleep(LOOK_S)


def _begin(settings: ClusterSettings, given: dict[str, Any], folder: Path, nodes: int) -> None:
    import ray

    from shunter.plugins.ray.controller import Controller

    ray.remote(Controller).options(
        name=CONTROLLER,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        max_restarts=-1,
        max_concurrency=16,
        num_cpus=0,
        resources={HEAD_RESOURCE: 0.001},
    ).remote(settings, given, str(folder), nodes)


def _wait_whole(
    folder: Path, nodes: int, gateways: int, say: Callable[[str], None]
) -> dict[str, Any]:
    end = time.monotonic() + START_S
    while True:
        found: dict[str, Any] = ask("status")
        serving = sum(each["state"] == "serving" for each in found["machines"])
        open_ = sum(each.get("problem") == "" for each in found["gateways"])
        if serving >= nodes and open_ >= gateways:
            return found
        say(f"{serving} of {nodes} machines and {open_} of {gateways} gateways serve")
        problems = [each["problem"] for each in found["machines"] if each["problem"]]
        if problems and serving == 0 and min(e["starts"] for e in found["machines"]) > 1:
            raise UserError(f"no machine serves: {problems[0]}")
        if time.monotonic() > end:
            raise UserError(f"the cluster is not whole after {START_S:g} s: {problems or found}")
        time.sleep(LOOK_S)


def own_address(folder: Path) -> str:
    """Of this host, as Ray will call it. ``folder``: the cluster's, whose key Ray reads when it is
    imported, and never again."""
    os.environ.update(environment(folder))
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return False
    return True
