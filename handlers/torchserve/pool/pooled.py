"""What a seat would have as a worker of its own: a door, a connection, a model."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import weakref
from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml
from torch import nn
from ts.service import Service

from shunter.handlers.placement.placement import (
    LIBRARY_VARIABLES,
    PREEMPTIBLE_VARIABLE,
    THREADS_VARIABLE,
)
from shunter.handlers.pool.handover import Handover
from shunter.handlers.pool.models import PooledModels
from shunter.handlers.pool.process_state import ProcessState
from shunter.handlers.pool.reception import Seat
from shunter.handlers.pool.sharable import NotSharable
from shunter.handlers.preemption.gate import Passers
from shunter.handlers.preemption.modules import models_of
from shunter.handlers.queue.pooled_link import PooledLink
from shunter.handlers.sample import section_of
from shunter.handlers.torchserve.connection import Connection
from shunter.handlers.torchserve.loaded import holder_of_models
from shunter.handlers.torchserve.output import LINES
from shunter.handlers.torchserve.serving import Worker
from shunter.handlers.torchserve.worker import parse_args

_BUFFER = 64 * 1024
"""Bytes for messages: there are many connections."""
_PREEMPTIBLE = PREEMPTIBLE_VARIABLE.encode()
Kind = tuple[str, str]
"""Folder and handler of a model."""


def state_of(has: Handover, usual: ProcessState) -> ProcessState:
    """The process as a seat's model finds it at first; ``usual``: as it is without one."""
    environ = dict(has.environment)
    for name in (THREADS_VARIABLE, *LIBRARY_VARIABLES):
        key = name.encode()
        environ[key] = usual.environ.get(key, b"")
    said = os.fsdecode(environ.get(b"PYTHONPATH", b"")).split(os.pathsep)
    own = [each for each in said if each]
    rest = [each for each in usual.path if each not in own]
    return replace(usual, environ=environ, folder=os.fsdecode(has.folder), path=(*own, *rest))


def _arguments(has: Handover) -> Sequence[str]:
    """Of the worker, without the Python and the module before them."""
    texts = [os.fsdecode(each) for each in has.arguments]
    return texts[texts.index("-m") + 2 :]


def is_resident(folder: Path) -> bool:
    """Whether the weights of an unpacked archive stay hot: ``resident: true`` of its section."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        manifest = json.loads((folder / "MAR-INF/MANIFEST.json").read_bytes())
        config = yaml.safe_load((folder / manifest["model"]["configFile"]).read_bytes())
        return section_of(config).get("resident") is True
    return False  # what is wrong with it is said when it is loaded


def _modules_of(service: Service) -> Sequence[nn.Module]:
    return models_of(holder_of_models(service))


class PooledWorker:
    """Of one seat."""

    def __init__(
        self, seat: Seat, number: int, usual: ProcessState, passers: Passers | None = None
    ) -> None:
        """``number``: no other has it; ``passers``: who may run where its batches stand still."""
        self.seat, self.number = seat, number
        self.name = ""
        """Of its model, which others may have by the same name with another number."""
        self.title = ""
        """``NAME/VERSION``."""
        self.is_strict = seat.has.environment.get(b"SHUNTER_CLASS", b"") != b"best_effort"
        self.may_pass = (
            self.is_strict and seat.has.environment.get(_PREEMPTIBLE, b"") != b"1"
        )
        """Whether its batches run where those of others stand still."""
        self._passers = passers
        _HERE.add(self)
        self.is_loaded = self.was_refused = False
        self.since = 0.0
        """When its batch that waits was seen."""
        self.connection: Connection | None = None
        self.link: PooledLink | None = None
        """To a front end, once it has loaded."""
        self._kind: Kind = "", ""
        self._state = state_of(seat.has, usual)
        self._worker: Worker | None = None
        self._door: socket.socket | None = None

    def listen(self) -> socket.socket:
        """Where its server will connect. Raises what a worker that starts does."""
        self._worker = Worker(parse_args(_arguments(self.seat.has)))
        self._worker.listen()
        self._door = self._worker.sock
        return self._door

    def accept(self) -> socket.socket:
        """The connection of its server, which is there; there will be no other."""
        assert self._worker is not None and self._door is not None
        sock, _ = self._door.accept()
        self._door.close()
        self._door = None
        sock.setblocking(True)
        logging.info("Connection accepted: %s.", sock.getsockname())
        self.connection = self._worker.connection(
            sock, buffer=_BUFFER, passers=self._passers
        )
        return sock

    def watched(self) -> list[socket.socket]:
        """Where something may come."""
        found = [self._door, self.connection.socket if self.connection else None]
        return [each for each in found if each is not None]

    def look(self) -> bytes | None:
        """The first byte of the next message; empty: there will be none. None: not yet."""
        assert self.connection is not None
        try:
            return self.connection.receiver.look()
        except BlockingIOError:
            return None
        except ConnectionError:
            return b""

    @property
    def has_more(self) -> bool:
        """Whether another message has been received."""
        return self.connection is not None and self.connection.receiver.has_more

    def step(self) -> None:
        """Answer the next batch."""
        if self.link is not None:
            self.link.run()
            return
        assert self.connection is not None
        self.connection.step()

    def load(self, models: PooledModels[Service], alone: MutableMapping[Kind, str]) -> None:
        """Load its model and say so. ``alone``: kinds that cannot be shared, and why.

        Raises NotSharable, and what was answered.
        """
        connection = self.connection
        assert connection is not None
        connection.receiver.command()
        message = connection.receiver.load_message()
        folder, handler = (os.fsdecode(bytes(message[key])) for key in ("modelPath", "handler"))
        self._kind = folder, handler
        try:
            if why := alone.get(self._kind):
                raise NotSharable(why)
            called = os.fsdecode(bytes(message["modelName"]))
            version = os.fsdecode(self.seat.has.environment.get(b"SHUNTER_MODEL_VERSION", b""))
            self.name, self.title = f"{called}#{self.number}", f"{called}/{version}"
            models.register(
                self.name,
                Path(folder),
                lambda: connection.loaded(message),
                _modules_of,
                resident=is_resident(Path(folder)),
                state=self._state,
            )
            self.is_loaded = True
            models.run(self.name, connection.prepare)
            models.try_out(self.name, connection.warm_up)
            models.run(self.name, connection.ready)
            self.link = PooledLink(connection.link) if connection.link else None
        except NotSharable as error:
            alone[self._kind] = str(error)
            raise
        except Exception as error:
            self.was_refused = True
            connection.refuse(error)
            raise

    def be_alone_next(self, alone: MutableMapping[Kind, str], why: str) -> None:
        """What forbids to share a process was seen too late for this one: the next one knows."""
        if self._kind not in alone:
            logging.warning("The next worker of the model has a process of its own: %s", why)
            alone[self._kind] = why

    def be_alone(self) -> None:
        """Its process goes on where this one stops: its server has asked for a model."""
        assert self.connection is not None
        LINES.flush()
        received = self.connection.receiver.received()
        self.seat.be_alone(self.connection.socket.fileno(), received)

    def let_go(self) -> None:
        """Of its server's connections, in a child of this process: who is at their other ends shall
        hear it when this process goes, and not when its child does. Those to front ends see to that
        themselves."""
        for each in self.watched():
            each.close()

    def close(self) -> None:
        """Let go of what its server has connected to."""
        for each in self.watched():
            each.close()
        if self.link is not None:
            self.link.close()
        if self.connection is not None and self.connection.yielding is not None:
            self.connection.yielding.close()
        if self._worker is not None and self._worker.sock_type == "unix":
            with contextlib.suppress(OSError):
                Path(self._worker.sock_name).unlink()
        self.connection = self._worker = self._door = None


_HERE: weakref.WeakSet[PooledWorker] = weakref.WeakSet()
"""Of this process. A global, because what is to be done at a fork stays until the process ends."""


def _let_go_in_child() -> None:
    for each in list(_HERE):
        each.let_go()


os.register_at_fork(after_in_child=_let_go_in_child)
