"""A server's connection to a worker: a model is loaded, and batches of it are answered.

Loading is TorchServe's. Archives and handlers see no difference.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ts.protocol.otf_message_handler import create_load_model_response
from ts.service import Service

from shunter.handlers.placement import allocation
from shunter.handlers.placement.placement import PREEMPTIBLE_VARIABLE
from shunter.handlers.sample import SampleError, sample_of, section_of
from shunter.handlers.torchserve.inbox import BUFFER_SIZE, Disconnected, ProtocolError
from shunter.handlers.torchserve.invocation import Failed, logger, results_of
from shunter.handlers.torchserve.load_errors import (
    LastError,
    LoadFailed,
    Refused,
    explain,
    flush_output,
)
from shunter.handlers.torchserve.output import LINES
from shunter.handlers.torchserve.receive import INFER, LOAD, Batch, Receiver
from shunter.handlers.torchserve.reply import failure_reply, success_reply
from shunter.handlers.torchserve.warm_up import NoSocket, warm_up
from shunter.handlers.weights.setting import wants_shared

if TYPE_CHECKING:
    from shunter.handlers.preemption.gate import Passers
    from shunter.handlers.preemption.yielding import Yielding
    from shunter.handlers.queue.front_end_link import FrontEndLink

FRONT_END = "SHUNTER_FRONT_END"
"""Environment: where the network front end listens for workers, if this is one of its."""

BODIES = "SHUNTER_BODIES"
"""Environment: 1 where that front end takes models that declare no tensors, too."""

DIED = "Backend worker process died."
LoadModel = Callable[[dict[str, Any]], tuple[Service, str, int]]
"""TorchServe's way: a service, what to say, and a status."""


def answer(service: Service, batch: Batch) -> bytes:
    """Let the handler of ``service`` work on ``batch`` and return the reply."""
    found, ids = results_of(service, batch), batch[2]
    if isinstance(found, Failed):
        return failure_reply(ids, *found)
    try:
        return success_reply(found, ids, service.context, LINES.for_reply())
    except Exception:  # headers that are no texts, a status that is no number
        logger.warning("The handler's answer cannot be sent.", exc_info=True)
        return failure_reply(ids, "Prediction failed", 503)


class Connection:
    """A server's side sends messages; each is answered before the next one is read."""

    def __init__(
        self,
        sock: socket.socket,
        load_model: LoadModel,
        on_loaded: Callable[[], None] = lambda: None,
        *,
        first: bytes = b"",
        buffer: int = BUFFER_SIZE,
        passers: Passers | None = None,
    ) -> None:
        """``on_loaded`` runs between loading the model and saying so; ``first``: what somebody else
        has received already; ``buffer``: bytes of that for messages; ``passers``: who may run
        where its batches stand still, of a process of several models."""
        self.socket, self.receiver = sock, Receiver(sock, buffer, first=first)
        self._load_model, self._on_loaded, self._passers = load_model, on_loaded, passers
        self.yielding: Yielding | None = None
        """Of a model that gives way, once it has loaded."""
        self._service: Service | None = None
        self.link: FrontEndLink | None = None
        """Of a worker of the network front end, once it has loaded."""

    def serve(self) -> None:
        """Until the server ends it. Raises Disconnected then, and LoadFailed."""
        while True:
            self.step()
            if self.link is not None:
                self.link.run(self.socket, self._is_over)
                raise Disconnected

    def _is_over(self) -> bool:
        return not self.socket.recv(1, socket.MSG_PEEK)

    def step(self) -> None:
        """Do what the next message asks for. Raises Disconnected when none comes."""
        command = self.receiver.command()
        if command == INFER:
            batch = self.receiver.batch()
            if self._service is None:
                raise RuntimeError("Received an inference before a model was loaded")
            self.socket.sendall(answer(self._service, batch))
        elif command == LOAD:
            self.load(self.receiver.load_message())
        else:
            raise ProtocolError(f"Invalid command: {command!r}")

    def load(self, message: dict[str, Any]) -> None:
        """Load a model, be ready for its batches, and say so. Raises what was answered."""
        LINES.flush()  # loading may take minutes and may end the process
        try:
            service = self.loaded(message)
            _share_weights(service)
            self.prepare(service)
        except Refused as refused:
            self.refuse(refused)
            raise RuntimeError(str(refused)) from None
        except Exception as error:
            self.refuse(error)
            raise LoadFailed from error
        self.warm_up(service)
        self.ready(service)

    def loaded(self, message: dict[str, Any]) -> Service:
        """The model of a load message. Raises Refused, and what its code does."""
        with LastError() as last:
            service, result, code = self._load_model(message)
        if code != 200:
            cause = f": {explain(last.error)}" if last.error is not None else ""
            raise Refused(code, result + cause)
        return service

    def prepare(self, service: Service) -> None:
        """For the network front end, and for giving way, where the server wants that."""
        self.link = _link(service)
        self.yielding = _give_way(service, self.link, self._passers)

    def warm_up(self, service: Service) -> None:
        """Run the first batches, if there is an example of one."""
        allocation.give_back()
        _warm_up(service)

    def ready(self, service: Service) -> None:
        """From now on batches are for this service; the server hears it, but not before clients
        of the network front end are served, too."""
        service.set_cl_socket(self.socket)
        self._service = service
        text = f"loaded model {service.context.model_name}"
        if self.link is None:
            self._answer_load(200, text)
        else:
            self.link.when_settled(lambda: self._answer_later(200, text))

    def refuse(self, error: Exception) -> None:
        """The server hears why there is no model."""
        if isinstance(error, Refused):
            allocation.give_back()
            self._answer_load(error.code, error.text)
            return
        logging.error(DIED, exc_info=error)
        flush_output()
        self.socket.sendall(create_load_model_response(500, explain(error)))

    def _answer_later(self, code: int, text: str) -> None:
        """Where nobody catches anything: the server hears it, or that this worker is over."""
        try:
            self._answer_load(code, text)
        except ConnectionError:
            pass  # it has gone, which is seen when it is listened to
        except Exception:
            logging.error(DIED, exc_info=True)
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)

    def _answer_load(self, code: int, text: str) -> None:
        self._on_loaded()
        flush_output()
        self.socket.sendall(create_load_model_response(code, text))


def _share_weights(service: Service) -> None:
    """Let what the handler has loaded be the server's one copy, where its model says so."""
    section = section_of(service.context.model_yaml_config)
    if wants_shared(section):
        from shunter.handlers.preemption.modules import models_of
        from shunter.handlers.torchserve.loaded import holder_of_models
        from shunter.handlers.weights.sharing import share_or_keep

        share_or_keep(models_of(holder_of_models(service)), os.environ)


def _link(service: Service) -> FrontEndLink | None:
    """Of a worker of the network front end. Raises TensorConfigError when it cannot be one."""
    if not (front_end := os.environ.get(FRONT_END)):
        return None
    from shunter.handlers.queue.loaded_model import link_of
    from shunter.handlers.torchserve.loaded import loaded_model

    model = loaded_model(service, takes_bodies=os.environ.get(BODIES) == "1")
    return link_of(Path(front_end), model, os.environ)


def _give_way(
    service: Service, link: FrontEndLink | None, passers: Passers | None
) -> Yielding | None:
    """Let a best-effort worker's batches stand still for strict requests."""
    if os.environ.get(PREEMPTIBLE_VARIABLE) != "1":
        return None
    from shunter.handlers.preemption.yielding import yielding_of
    from shunter.handlers.torchserve.loaded import holder_of_models, keep_requests

    section = section_of(service.context.model_yaml_config)
    yielding = yielding_of(holder_of_models(service), section, os.environ, passers)
    if yielding is not None:
        service._entry_point = yielding.guard(service._entry_point, keep_requests)
        if link is not None:
            link.guard(yielding.guard, yielding.gate)
    return yielding


def _warm_up(service: Service) -> None:
    context = service.context
    try:
        section = section_of(context.model_yaml_config)
        sample = sample_of(Path(context.system_properties["model_dir"]), section)
    except SampleError as error:
        logger.warning("The worker is not warmed up: %s", error)
        return
    if sample is not None and os.environ.get("SHUNTER_WARM_UP") != "0":
        service.set_cl_socket(NoSocket())
        warm_up(partial(answer, service), sample, context.system_properties["batch_size"])
