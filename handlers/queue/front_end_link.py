"""A worker's connection to the network front end: attach, work on batches, leave, come back.

The front end may end and come again at any time; the worker then attaches anew. The worker ends
when its own server says so: it asks for no more batches, answers those that it has, and leaves.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from shunter.batching.page.layout import CLASSES, SLOT_COUNT
from shunter.batching.page.slices import EVERY
from shunter.batching.queue.attach import (
    RESPONSE_TIMEOUT_S,
    Attach,
    AttachError,
    receive,
    send,
)
from shunter.batching.queue.native import LibraryError, WorkerQueue, load
from shunter.batching.queue.shared_memory import Mapping as Mapped
from shunter.batching.queue.size import QueueError
from shunter.batching.queue.tensor_queue import TensorQueue
from shunter.handlers.preemption.modules import models_of
from shunter.handlers.queue.device_model import device_model
from shunter.handlers.queue.device_queue import queue_worker
from shunter.handlers.queue.packed_queue import (
    PackedInfer,
    PackedQueueWorker,
    keep_batch,
    packed_infer_of,
)
from shunter.handlers.queue.shared_regions import FrontEndWords
from shunter.handlers.queue.streaming import StreamingQueueWorker
from shunter.handlers.queue.tensor_config import UNPADDED, Padding, TensorConfigError, tensor_config
from shunter.handlers.queue.tensor_queue import (
    Infer,
    QueueWorker,
    device_of,
    infer_of,
    keep_inputs,
)

if TYPE_CHECKING:
    from shunter.handlers.device.graphed import Yields
    from shunter.handlers.preemption.gate import Keep
    from shunter.handlers.queue.device_model import DeviceModel

logger = logging.getLogger("shunter.front_end_link")
RETRY_S = 0.5
LEAVE_S = 10.0
_LOOK_NS = 1_000_000_000


@dataclass(frozen=True)
class LoadedModel:
    """What a server's worker has loaded, whichever server it is."""

    name: str
    section: Mapping[str, Any]
    """What ``shunter:`` says in its configuration."""
    batch: int
    """Requests of the largest batch."""
    handler: Any
    """The object that runs it; None: a module of functions."""
    gpu: int | None = None


def link_of(
    path: Path,
    model: LoadedModel,
    environ: Mapping[str, str],
) -> FrontEndLink:
    """The link of a loaded model to the front end that listens for workers at ``path``.

    Raises TensorConfigError when the model cannot serve tensors.
    """
    tensors = tensor_config(model.section)
    attach = Attach(
        model.name,
        environ.get("SHUNTER_MODEL_VERSION", ""),
        tensors.inputs,
        tensors.outputs,
        model.batch,
        os.getpid(),
        _number(environ, "SHUNTER_RESPONSE_TIMEOUT_S", int(RESPONSE_TIMEOUT_S), "seconds"),
        environ.get("SHUNTER_CLASS", CLASSES[0]),
        _number(environ, "SHUNTER_SLO_NS", 0, "nanoseconds"),
        _number(environ, "SHUNTER_CLIENT_TIMEOUT_NS", 0, "nanoseconds"),
        *place_of(environ),
        tensors.packing,
    )
    spin_us = _number(environ, "SHUNTER_SPIN_US", 100, "microseconds")
    device = device_of(model.handler, model.gpu)
    if tensors.packing:
        infer = packed_infer_of(model.handler)
        return FrontEndLink(
            *(path, attach, infer), spin_us=spin_us, device=device, padding=tensors.padding
        )
    infer, on_device = infer_of(model.handler), None
    if device is not None:
        on_device = partial(
            device_model,
            infer,
            models_of(model.handler),
            (tensors.inputs, tensors.outputs),
            model.batch,
            device,
            graphs=tensors.graphs,
        )
    return FrontEndLink(path, attach, infer, spin_us=spin_us, device=device, on_device=on_device)


def _number(environ: Mapping[str, str], variable: str, default: int, unit: str) -> int:
    text = environ.get(variable, str(default))
    if not text.isdecimal():
        raise TensorConfigError(f"{variable}: {text!r}; allowed: {unit}, from 0")
    return int(text)


def place_of(environ: Mapping[str, str]) -> tuple[int, int]:
    """The model's slot, and the slices that its strict requests want for themselves.

    What is missing or wrong is -1 and 0: requests are served all the same. A worker that stands
    still for strict requests would do so for its own, so it wants nothing.
    """
    slot = _integer(environ.get("SHUNTER_SLOT", ""), 10)
    slices = _integer(environ.get("SHUNTER_SLICES", ""), 16)
    if environ.get("SHUNTER_PREEMPTIBLE") == "1" or not 0 <= slices <= EVERY:
        slices = 0
    return (slot if 0 <= slot < SLOT_COUNT else -1), slices


def _integer(text: str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        return -1


class FrontEndLink:
    """Serves batches of one front end after another."""

    def __init__(
        self,
        path: Path,
        attach: Attach,
        infer: Infer | PackedInfer,
        *,
        spin_us: int = 0,
        device: torch.device | None = None,
        padding: Padding = UNPADDED,
        on_device: Callable[..., DeviceModel | None] | None = None,
    ) -> None:
        """``path``: where the front end listens for workers; ``device``: where the model is;
        ``padding``: of packed requests, whose ``infer`` is a PackedInfer; ``on_device`` makes the
        model ready there, see :func:`device_model`."""
        self._path, self._attach, self._device = path, attach, device
        self._infer: Any = infer
        self._spin_us, self._padding, self._on_device = spin_us, padding, on_device
        self._guarded: Callable[[Any], Any] = lambda infer: infer
        self._yields: Yields | None = None
        self._model: DeviceModel | None = None
        self._told = ""

    def guard(self, wrap: Callable[[Any, Keep], Any], yields: Yields | None = None) -> None:
        """From now on let batches run as ``wrap`` makes them, captured ones stand still inside
        where ``yields`` says so."""
        keep = keep_batch if self._attach.packing else keep_inputs
        self._guarded, self._yields = lambda infer: wrap(infer, keep), yields

    def run(self, server: socket.socket, is_over: Callable[[], bool]) -> None:
        """Serve until ``server``, which is then readable, says that it is over."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self._on_device is not None:
                self._model = self._on_device(yields=self._yields)
            if self._model is not None:
                self._model.infer = self._guarded(self._model.infer)
                stack.callback(self._model.close)
            self._infer = self._guarded(self._infer)
            self._attend(server, is_over)

    def _attend(self, server: socket.socket, is_over: Callable[[], bool]) -> None:
        """One front end after another."""
        while True:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                    connection.connect(str(self._path))
                    self._serve(connection, server, is_over)
                    return
            except (OSError, EOFError, AttachError, QueueError, LibraryError) as error:
                self._tell(error)
            if select.select([server], [], [], RETRY_S)[0] and is_over():
                return

    def _tell(self, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if text != self._told:  # once, not twice a second
            # That none is there yet, or not any more, is as it should be.
            level = logging.INFO if isinstance(error, OSError | EOFError) else logging.WARNING
            logger.log(level, "No front end serves %s: %s", self._attach.model, text)
            self._told = text

    def _serve(
        self, connection: socket.socket, server: socket.socket, is_over: Callable[[], bool]
    ) -> None:
        """Serve one front end until it is over. Raises OSError or EOFError when it is gone."""
        with ExitStack() as stack:
            send(connection, self._attach.to_json())
            answer, descriptors = receive(connection)
            if "refused" in answer:
                raise AttachError(answer["refused"])
            udp = socket.socket(fileno=descriptors[0])
            stack.callback(udp.close)
            doorbell, front, pool, *rings = descriptors[1:]
            for descriptor in (doorbell, front, pool):
                stack.callback(os.close, descriptor)
            attach = self._attach
            queue = stack.enter_context(
                TensorQueue.attach(
                    *(rings, attach.carried_inputs, attach.carried_outputs),
                    packed=attach.packing is not None,
                )
            )
            index, func_id = int(answer["worker"]), int(answer["func_id"])
            landing = stack.enter_context(Mapped(pool, int(answer["landing"]), writable=False))
            end = WorkerQueue(
                load(str(answer["library"])),
                *(queue, func_id, index, landing),
                doorbell=doorbell,
                socket=udp.fileno(),
                front=front,
            )
            stack.callback(end.close)
            words = FrontEndWords(connection, end)
            stack.callback(words.close)
            end.look = words.hear
            self._told = ""
            worker = self._worker_of(end)
            stack.callback(worker.close)
            self._work(connection, server, is_over, worker, end, words)

    def _worker_of(self, end: WorkerQueue) -> QueueWorker | PackedQueueWorker:
        attach, device = self._attach, self._device
        if attach.packing:
            kind = StreamingQueueWorker if attach.packing.streamed else PackedQueueWorker
            return kind(end, self._infer, attach, self._padding, device)
        return queue_worker(end, self._infer, attach.batch, device, self._model)

    def _work(
        self,
        connection: socket.socket,
        server: socket.socket,
        is_over: Callable[[], bool],
        worker: QueueWorker | PackedQueueWorker,
        end: WorkerQueue,
        words: FrontEndWords,
    ) -> None:
        others = [connection.fileno(), server.fileno()]
        deadline = look = 0.0
        while True:
            pause_ns = worker.pause_ns()
            batch = end.wait(others, self._spin_us, _LOOK_NS if pause_ns is None else pause_ns)
            if batch is not None:
                worker.begin(batch)
            while finished := worker.finished():
                end.answer(*finished)
            if (batch is not None or pause_ns is not None) and time.monotonic() < look:
                continue
            look = time.monotonic() + _LOOK_NS / 1e10  # also while there is no end of batches
            ready = select.select(others, [], [], 0)[0]
            if connection.fileno() in ready:
                words.hear()
            if words.is_dismissed:
                return
            if len(others) == 2 and server.fileno() in ready and is_over():
                send(connection, {"leave": True})
                others, deadline = others[:1], time.monotonic() + LEAVE_S
            if deadline and time.monotonic() > deadline:
                return
