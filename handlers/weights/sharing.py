"""One copy of a model's weights for all its workers: ``weights: shared`` of its configuration.

A handler loads its model as it always does. Then its parameters and buffers are looked up by their
content among the files of the server, and from now on they are that file, mapped: what the worker
had is free again. A handler that changes a weight has a copy of that page of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from shunter.allocator.memory.host import available_bytes
from shunter.handlers.weights.files import WeightFile, obtain, sweep
from shunter.handlers.weights.setting import folder_of
from shunter.handlers.weights.tensors import CPU, Weight, bytes_of, records_of, weights_of

logger = logging.getLogger("shunter.weights")


@dataclass(frozen=True)
class Shared:
    """What a worker has together with others."""

    file: WeightFile
    weights: list[Weight]
    """In the order of the file's records."""
    bytes: int
    all_bytes: int
    """Of all parameters and buffers; what is missing could not be moved."""


def share_or_keep(models: Sequence[nn.Module], environ: Mapping[str, str]) -> Shared | None:
    """Share the weights of what a handler has loaded, and say how much it is.

    Where that is not possible the worker keeps its own, and says why.
    """
    folder = folder_of(environ)
    if folder is None:
        logger.info("The weights are this worker's own: it belongs to no server.")
        return None
    try:
        found = share(models, folder)
    except OSError as error:
        logger.warning("The weights are this worker's own: %s", error)
        return None
    if found is None:
        logger.warning(
            "There are no weights to share: the handler has no torch modules on the CPU."
        )
        return None
    left = found.all_bytes - found.bytes
    more = f"; {left / 1e6:.1f} MB cannot be" if left > 0 else ""
    logger.info("%.1f MB of weights are shared%s.", found.bytes / 1e6, more)
    return found


def share(models: Sequence[nn.Module], folder: Path) -> Shared | None:
    """Let the weights of ``models`` be a file of ``folder``; None: there are none.

    Raises OSError, and nothing has changed then.
    """
    found = store(models, folder)
    if found is not None:
        move(found.weights, found.file)
    return found


def store(
    models: Sequence[nn.Module], folder: Path, device: torch.device = CPU
) -> Shared | None:
    """The same, but the weights, those on a device, stay where they are."""
    weights = weights_of(models, device)
    if not weights:
        return None
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sweep(folder)
    records, everything = records_of(weights), bytes_of(models)

    def parts() -> Iterator[memoryview]:
        return (each.bytes for each in weights)

    file = obtain(folder, records, parts, available_bytes())
    return Shared(file, weights, sum(each.bytes for each in records), everything)


def data_of(file: WeightFile) -> torch.Tensor:
    """The data of a mapped file, as bytes. It keeps the file mapped."""
    return torch.frombuffer(file.content, dtype=torch.uint8)[file.data_offset :]


def move(weights: Sequence[Weight], file: WeightFile) -> None:
    """Let weights be those of a file with the same records in the same order."""
    data = data_of(file)
    for weight, record in zip(weights, file.records, strict=True):
        weight.move(data, record)
