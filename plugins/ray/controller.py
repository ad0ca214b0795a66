"""The controller of a cluster: an actor that knows the machines and keeps what there should be.

It holds nothing that is not also elsewhere: what the cluster should be stands in its own start,
which Ray keeps; what it is, each machine's actor says. So it can be killed at any moment: gateways
go on with the directory that they have, and the next one asks the machines.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from shunter.plugins.errors import UserError
from shunter.plugins.ray.gateway.actor import Gateway
from shunter.plugins.ray.machine import Machine
from shunter.plugins.ray.number import NumberOfMachines, provider_of
from shunter.plugins.ray.records.directory import Directory, Entry, Report, add, told
from shunter.plugins.ray.records.names import (
    HEAD_RESOURCE,
    MACHINE_RESOURCE,
    NAMESPACE,
    gateway_actor,
    machine_actor,
)
from shunter.plugins.ray.records.settings import ClusterSettings

LOGGER = logging.getLogger("shunter.cluster")
LOOK_S = 0.2
NODES_S = 1.0
NODES_LATE_S = 60.0
"""Gateways wait no longer for the nodes that they are to be on."""
SILENT_S = 10.0
"""A machine that says nothing for so long is lost."""
_FOREVER = {"namespace": NAMESPACE, "lifetime": "detached", "max_restarts": -1, "num_cpus": 0}


class Controller:
    """See the module. Methods are called by several threads of the actor."""

    def __init__(
        self, settings: ClusterSettings, told: dict[str, Any], folder: str, nodes: int
    ) -> None:
        """``told``: what every machine's server is told, see ``serving``; ``folder``: the
        cluster's, on the head; ``nodes``: so many are being started."""
        self._settings, self._told = settings, told
        self._nodes_for_gateways = min(nodes, settings.gateways.count)
        self._directory = Directory(idempotent=_idempotent(settings))
        self._nodes: dict[str, Any] = {}
        """Actor of the machine, by node."""
        self._heads: set[str] = set()
        self._asked: dict[str, tuple[Any, float]] = {}
        """Report that is awaited, and when the machine was last heard."""
        self._next_nodes = 0.0
        self._is_known = False
        """Whether the machines have said what there is: until then the gateways know better."""
        self._began = time.monotonic()
        provider = provider_of(settings, Path(folder))
        self._number = provider and NumberOfMachines(provider, settings.machines, self._drain)
        threading.Thread(target=self._run, args=(self.look,), name="look", daemon=True).start()
        if self._number is not None:  # who provides machines may take minutes to answer
            steps = (self._look_at_number,)
            threading.Thread(target=self._run, args=steps, name="number", daemon=True).start()

    def directory(self, number: int) -> Directory | None:
        """The directory; None: it is the one of that number, or is not known yet."""
        found = self._directory
        return found if self._is_known and found.number != number else None

    def status(self) -> dict[str, Any]:
        """What ``shunter cluster status --json`` prints."""
        gateways = []
        for number in range(self._settings.gateways.count):
            name = gateway_actor(number)
            try:
                said = ray.get(ray.get_actor(name, NAMESPACE).said.remote(), timeout=2)
            except (RayError, ValueError) as error:
                said = {"problem": f"it does not answer: {type(error).__name__}"}
            gateways.append({"name": name, **said})
        found = {
            "controller": {"pid": os.getpid()},
            "gateways": gateways,
            "machines": told(self._directory),
        }
        return found | ({"procurement": self._number.told()} if self._number else {})

    def drain(self, name: str) -> None:
        """Let a machine answer what it holds and end; come back when it has. Raises UserError."""
        drained = self._drain(name)
        if self._number is not None:
            self._number.drain(name)
        ray.get(drained)

    def _drain(self, name: str) -> Any:
        return self._nodes[self._entry(name).node_id].drain.remote()

    def _entry(self, name: str) -> Entry:
        entry = self._directory.entries.get(name)
        if entry is None or entry.node_id not in self._nodes:
            known = ", ".join(sorted(self._directory.entries)) or "none yet"
            raise UserError(f"no machine is called {name!r}; there are: {known}")
        return entry

    # ---- what goes on all the time

    def _run(self, look: Callable[[], None]) -> None:
        told = ""
        while True:
            try:
                look()
                told = ""
            except Exception as error:  # Ray's head may be away; that passes
                if repr(error) != told:
                    LOGGER.exception("a look at the cluster failed; the next one follows")
                told = repr(error)
            time.sleep(LOOK_S)

    def look(self) -> None:
        """Once: nodes, machines, directory, gateways."""
        now = time.monotonic()
        if now >= self._next_nodes:
            self._next_nodes = now + NODES_S
            self._look_at_nodes(now)
            self._keep_gateways()
        self._ask(now)

    def _look_at_number(self) -> None:
        if self._number is not None and self._is_known:
            self._number.look(time.monotonic(), self._directory.entries)

    def _look_at_nodes(self, now: float) -> None:
        resources = {each["NodeID"]: each["Resources"] for each in ray.nodes() if each["Alive"]}
        alive = {node_id for node_id, has in resources.items() if MACHINE_RESOURCE in has}
        self._heads = {node_id for node_id, has in resources.items() if HEAD_RESOURCE in has}
        for gone in self._nodes.keys() - alive:
            del self._nodes[gone]
            self._asked.pop(gone, None)
        for node_id in alive - self._nodes.keys():
            self._nodes[node_id] = (
                ray.remote(Machine)
                .options(
                    name=machine_actor(node_id),
                    get_if_exists=True,  # it is older than this controller
                    max_concurrency=8,
                    resources={MACHINE_RESOURCE: 1},
                    scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
                    **_FOREVER,
                )
                .remote(self._told)
            )
            self._asked[node_id] = (self._nodes[node_id].report.remote(), now)

    def _ask(self, now: float) -> None:
        """All machines at once; who does not answer in time is asked again when it has."""
        awaited = [ref for ref, _ in self._asked.values()]
        if awaited:
            ray.wait(awaited, num_returns=len(awaited), timeout=LOOK_S)
        before = {entry.node_id: entry for entry in self._directory.entries.values()}
        entries = {}
        for node_id, (ref, heard) in list(self._asked.items()):
            entry = before.get(node_id)
            if ray.wait([ref], timeout=0)[0]:
                try:
                    name, report = ray.get(ref)
                    entry, heard = Entry(name, node_id, report), now
                except RayError as error:
                    # Its actor ended, and its server with it. It starts again, or is made anew.
                    LOGGER.warning("machine %s: %s", entry.name if entry else node_id, error)
                    if entry is not None:
                        entry = Entry(entry.name, node_id, Report("lost"))
                    del self._nodes[node_id]
                    del self._asked[node_id]
                else:
                    self._asked[node_id] = (self._nodes[node_id].report.remote(), heard)
            elif entry is not None and now - heard > SILENT_S:
                entry = Entry(entry.name, node_id, Report("lost"))
            if entry is not None:
                add(entry, entries)
        self._publish(entries)

    def _publish(self, entries: dict[str, Entry]) -> None:
        # A controller that starts again must not begin below the numbers of the one before.
        heard_all = bool(self._nodes) and len(entries) >= len(self._nodes)
        self._is_known |= heard_all or time.monotonic() - self._began > SILENT_S
        number = max(self._directory.number + 1, time.time_ns() // 1_000_000)
        ordered = {
            name: replace(
                entries[name], order=order, is_head=entries[name].node_id in self._heads
            )
            for order, name in enumerate(sorted(entries))
        }
        self._directory = Directory(number, ordered, self._directory.idempotent)

    def _keep_gateways(self) -> None:
        """Each on a node of its own where there are enough; Ray starts again what ends."""
        nodes = sorted(self._nodes, key=lambda node_id: (node_id not in self._heads, node_id))
        if len(nodes) < self._nodes_for_gateways and time.monotonic() - self._began < NODES_LATE_S:
            return  # two on one node would end together
        for number in range(self._settings.gateways.count if nodes else 0):
            node_id = nodes[number % len(nodes)]
            ray.remote(Gateway).options(
                name=gateway_actor(number),
                get_if_exists=True,
                max_concurrency=4,
                # Its address is its host's: on another one only when this one is gone.
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
                **_FOREVER,
            ).remote(number, self._settings.gateways)


def _idempotent(settings: ClusterSettings) -> dict[str, bool]:
    return {name: model.idempotent for name, model in settings.models.items()}
