"""A model that a server's worker has loaded, and how it comes to the network front end."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from shunter.batching.page.layout import CLASSES, SLOT_COUNT
from shunter.batching.page.slices import EVERY, SliceSet
from shunter.batching.queue.attach import MOST_POOLS, RESPONSE_TIMEOUT_S, Attach
from shunter.handlers.preemption.modules import models_of
from shunter.handlers.queue.device_model import device_model
from shunter.handlers.queue.front_end_link import FrontEndLink
from shunter.handlers.queue.packed_queue import packed_infer_of
from shunter.handlers.queue.tensor_config import TensorConfigError, bodies_config, tensor_config
from shunter.handlers.queue.tensor_queue import device_of, infer_of


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
    of_bodies: bool = False
    """Whether its requests are those of TorchServe, and not tensors that it declares."""


def link_of(
    path: Path,
    model: LoadedModel,
    environ: Mapping[str, str],
) -> FrontEndLink:
    """The link of a loaded model to the front end that listens for workers at ``path``.

    Raises TensorConfigError when the model cannot serve tensors.
    """
    tensors = (bodies_config if model.of_bodies else tensor_config)(model.section)
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
        environ.get("SHUNTER_RETRY") != "0",
        pool_of(environ),
        _slices(environ),
    )
    spin_us = _number(environ, "SHUNTER_SPIN_US", 100, "microseconds")
    device = device_of(model.handler, model.gpu)
    outlives = environ.get("SHUNTER_OUTLIVES_HOST") == "1"
    if tensors.packing:
        infer = packed_infer_of(model.handler)
        return FrontEndLink(
            *(path, attach, infer),
            spin_us=spin_us,
            device=device,
            padding=tensors.padding,
            backlog=tensors.backlog,
            outlives=outlives,
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
    return FrontEndLink(
        *(path, attach, infer),
        spin_us=spin_us,
        device=device,
        on_device=on_device,
        outlives=outlives,
    )


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
    slices = 0 if environ.get("SHUNTER_PREEMPTIBLE") == "1" else _slices(environ)
    return (slot if 0 <= slot < SLOT_COUNT else -1), slices


def _slices(environ: Mapping[str, str]) -> SliceSet:
    """Where it runs; 0: what is said makes no sense."""
    slices = _integer(environ.get("SHUNTER_SLICES", ""), 16)
    return slices if 0 <= slices <= EVERY else 0


def pool_of(environ: Mapping[str, str]) -> int:
    """Number of the process that a worker shares with those of other models, from 1; 0: none."""
    return max(0, min(_integer(environ.get("SHUNTER_POOL", ""), 10) + 1, MOST_POOLS))


def _integer(text: str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        return -1
