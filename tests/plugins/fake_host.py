"""A server in memory with the interface of a host, for tests of what uses hosts."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shunter.allocator.planning.configuration import format_configuration
from shunter.plugins.host import HostedModel, HostError

NAME = "Fake"


class FakeHost:
    """Models by name and version. Archives are ``NAME-VERSION.mar``."""

    name = NAME

    def __init__(self, process):
        self._process = process
        self._models = {}
        self._default = {}
        self._events = []
        self.broken = set()
        """Names of models whose workers do not load."""

    def models(self):
        self._check_running()
        return sorted(self._models.values(), key=lambda model: (model.name, model.version))

    def load(self, archive, name=None, *, workers=1, batch=None):
        self._check_running()
        stem, _, version = archive.removesuffix(".mar").partition("-")
        if archive not in self._process.store:
            raise HostError(f"there is no {archive}; put it into the store")
        model = HostedModel(name or stem, version, f"{workers}x0x{batch or 1}", workers)
        if (model.name, version) in self._models:
            raise HostError(f"{model.name}/{version} is there already; unload it first")
        if model.name in self.broken:
            raise HostError(f"workers of model {model.name} did not load: told to fail")
        self._default.setdefault(model.name, version)
        return self._put(model)

    def unload(self, model):
        found = self._find(model)
        del self._models[found.name, found.version]
        if self._default[found.name] == found.version:
            del self._default[found.name]

    def start_generation(self, model, configuration, *, cores="auto"):
        found = self._find(model)
        if found.name in self.broken:
            raise HostError(f"a worker of {found.name} did not load: told to fail at loading")
        ready = sum(group.instances for group in configuration)
        text = format_configuration(configuration)
        return self._put(replace(found, configuration=text, ready=ready))

    def retire(self, model):
        found = self._put(replace(self._find(model), configuration="", ready=0))
        self._process.wait_answered(60)
        return found

    def status(self):
        models = [{"name": m.name, "version": m.version} for m in self.models() if m.ready]
        return {"pid": self._process.pid, "models": models}

    def events(self, after=0):
        return [each for each in self._events if each["number"] > after]

    def _put(self, model):
        self._models[model.name, model.version] = model
        about, number = f"{model.name}/{model.version}", len(self._events) + 1
        told = {"number": number, "unix_ms": 0, "level": "info", "about": about}
        self._events.append(told | {"text": "it serves"})
        return model

    def _find(self, model):
        self._check_running()
        name, _, version = model.partition("/")
        found = self._models.get((name, version or self._default.get(name)))
        if found is None:
            raise HostError(f"no model is called {model}; `shunter status` lists them")
        return found

    def _check_running(self):
        if not self._process.running:
            raise HostError(f"no {NAME} answers")


class FakeProcess:
    """It runs requests in the threads of their clients."""

    name = NAME
    pid = 1
    inference = "http://nowhere"
    log = Path("/dev/null")
    status_command = "shunter status"

    def __init__(self, store):
        self.store = set(store)
        self.host = FakeHost(self)
        self.addresses = {"inference": self.inference}
        self.running = False
        self._stops = False
        self._held = 0
        self._changed = threading.Condition()

    def grpc_client(self):
        raise NotImplementedError("a server in memory has no network")

    def start(self, timeout_s=120):
        self.running = True

    def drain(self, timeout_s):
        self._stops = True
        in_time = self.wait_answered(timeout_s)
        self.running = False
        return in_time

    def ask(self, model, gate=None):
        """Run one request, until its gate opens; the status of the answer."""
        if not self.running or self._stops:
            return 503
        try:
            if not self.host._find(model).ready:
                return 503
        except HostError:
            return 404
        with self._under_way():
            if gate is not None:
                gate.reached.set()
                gate.opened.wait(60)
        return 200

    @contextmanager
    def _under_way(self):
        with self._changed:
            self._held += 1
        try:
            yield
        finally:
            with self._changed:
                self._held -= 1
                self._changed.notify_all()

    def wait_answered(self, timeout_s):
        end = time.monotonic() + timeout_s
        with self._changed:
            return self._changed.wait_for(lambda: not self._held, end - time.monotonic())
