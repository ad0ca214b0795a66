"""A model worker: TorchServe's own, with another way to receive, to reply and to log.

Loading, sockets and start-up are TorchServe's. Archives and handlers see no difference.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from ts.model_service_worker import SOCKET_ACCEPT_TIMEOUT, TorchModelServiceWorker
from ts.protocol.otf_message_handler import create_load_model_response
from ts.service import Service

from shunter.handlers.placement import allocation, gentle
from shunter.handlers.placement.placement import PREEMPTIBLE_VARIABLE
from shunter.handlers.sample import SampleError, sample_of, section_of
from shunter.handlers.torchserve.inbox import Disconnected, ProtocolError
from shunter.handlers.torchserve.invocation import Failed, logger, results_of
from shunter.handlers.torchserve.load_errors import LastError, LoadFailed, explain, flush_output
from shunter.handlers.torchserve.metrics import LineMetricsCache, use_direct_route
from shunter.handlers.torchserve.output import LINES, LineHandler
from shunter.handlers.torchserve.receive import INFER, LOAD, Batch, Receiver
from shunter.handlers.torchserve.reply import failure_reply, success_reply
from shunter.handlers.torchserve.warm_up import NoSocket, warm_up
from shunter.handlers.weights.setting import wants_shared

if TYPE_CHECKING:
    from shunter.handlers.queue.front_end_link import FrontEndLink

FRONT_END = "SHUNTER_FRONT_END"
"""Environment: where the network front end listens for workers, if this is one of its."""

BODIES = "SHUNTER_BODIES"
"""Environment: 1 where that front end takes models that declare no tensors, too."""

METRICS = "SHUNTER_METRICS"
"""Environment: ``reply`` where the server takes metric lines out of replies."""
DIED = "Backend worker process died."


def answer(service: Service, batch: Batch) -> bytes:
    """Let the handler of ``service`` work on ``batch`` and return the reply."""
    found, ids = results_of(service, batch), batch[2]
    if isinstance(found, Failed):
        return failure_reply(ids, *found)
    return success_reply(found, ids, service.context, LINES.for_reply())


class Worker(TorchModelServiceWorker):
    """TorchServe's worker on our receiver, replies and metrics."""

    def __init__(
        self,
        args: Namespace,
        threads: int | None = None,
        on_loaded: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare the socket, read the metrics file, let an operator use ``threads`` threads.

        ``on_loaded`` runs between loading the model and saying so.
        """
        super().__init__(
            args.sock_type, args.sock_name, args.host, args.port, args.metrics_config, False
        )
        self.metrics_cache = LineMetricsCache.adopt(self.metrics_cache)
        self.connected = False
        self._on_loaded = on_loaded
        if threads is not None:
            _use_threads(threads)

    def handle_connection(self, cl_socket: socket.socket) -> None:
        """Serve one connection; it ends with the process, as the front end expects."""
        self.connected = True
        receiver = Receiver(cl_socket)
        service: Service | None = None
        try:
            while True:
                command = receiver.command()
                if command == INFER:
                    batch = receiver.batch()
                    if service is None:
                        raise RuntimeError("Received an inference before a model was loaded")
                    cl_socket.sendall(answer(service, batch))
                elif command == LOAD:
                    service, link = self._load(receiver.load_message(), cl_socket)
                    if link is not None:
                        self._serve_front_end(link, cl_socket)
                else:
                    raise ProtocolError(f"Invalid command: {command!r}")
        except Disconnected:
            logging.info("Frontend disconnected.")
            gentle.leave()
            sys.exit(0)

    def _serve_front_end(self, link: FrontEndLink, cl_socket: socket.socket) -> NoReturn:
        """Work on the network front end's batches until the server ends this worker."""

        def is_over() -> bool:
            return not cl_socket.recv(1, socket.MSG_PEEK)

        link.run(cl_socket, is_over)
        raise Disconnected

    def _load(
        self, message: dict[str, Any], cl_socket: socket.socket
    ) -> tuple[Service, FrontEndLink | None]:
        LINES.flush()  # loading may take minutes and may end the process
        with LastError() as last:
            try:
                service, result, code = self.load_model(message)
                if code == 200:
                    _share_weights(service)
                link = _link(service) if code == 200 else None
                if code == 200:
                    _give_way(service, link)
            except Exception as error:
                logging.error(DIED, exc_info=True)
                flush_output()
                cl_socket.sendall(create_load_model_response(500, explain(error)))
                raise LoadFailed from error
        allocation.give_back()
        if code == 200:
            _warm_up(service)
        elif last.error is not None:
            result += f": {explain(last.error)}"
        self._on_loaded()
        flush_output()
        cl_socket.sendall(create_load_model_response(code, result))
        if code != 200:
            raise RuntimeError(f"{code} - {result}")
        service.set_cl_socket(cl_socket)
        return service, link


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


def _give_way(service: Service, link: FrontEndLink | None) -> None:
    """Let a best-effort worker's batches stand still for strict requests."""
    if os.environ.get(PREEMPTIBLE_VARIABLE) != "1":
        return
    from shunter.handlers.preemption.yielding import yielding_of
    from shunter.handlers.torchserve.loaded import holder_of_models, keep_requests

    section = section_of(service.context.model_yaml_config)
    yielding = yielding_of(holder_of_models(service), section, os.environ)
    if yielding is not None:
        service._entry_point = yielding.guard(service._entry_point, keep_requests)
        if link is not None:
            link.guard(yielding.guard, yielding.gate)


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


def _use_threads(threads: int) -> None:
    """Let an operator use ``threads`` threads, and run one operator at a time."""
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(1)

    def keep(number: int) -> None:
        logger.info("This worker keeps to one inter-op thread; the handler asked for %s.", number)

    # Torch takes this setting once; a handler that sets it too must not fail.
    torch.set_num_interop_threads = keep


def run(args: Namespace, threads: int | None, on_loaded: Callable[[], None]) -> int:
    """Serve until the front end goes away; return the exit status of any other end."""
    handler = LineHandler(LINES)
    logging.basicConfig(format="%(message)s", level=logging.INFO, handlers=[handler])
    use_direct_route(handler)
    LINES.for_replies = os.environ.get(METRICS) == "reply"
    worker: Worker | None = None
    try:
        worker = Worker(args, threads, on_loaded)
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
