"""A model on a device, with the tensors there that its batches go through.

They are at the same addresses for every batch of every front end that is served, so that the
kernels of a batch can be captured in CUDA graphs once, before the first of them comes.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from typing import Any

import torch
from torch import nn

from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.handlers.device.capture import CudaRecorder
from shunter.handlers.device.driver import DeviceError, Driver, cuda_driver
from shunter.handlers.device.executor import keeps_graphs
from shunter.handlers.device.graphed import Graphed, Infer, NotCaptured, RecorderOf, Yields
from shunter.handlers.device.memory import allocate, cuda_view

logger = logging.getLogger("shunter.device_model")
View = Callable[[int, tuple[int, ...], str], torch.Tensor]
"""A tensor over memory of the device, from address, shape and dtype."""


@cache
def tell_pageable(reason: str) -> None:
    """Once for each reason, however often a front end comes."""
    logger.warning("Batches are copied to the device from pageable memory: %s", reason)


def device_model(
    infer: Infer,
    models: Sequence[nn.Module],
    specs: tuple[Sequence[TensorSpec], Sequence[TensorSpec]],
    batch: int,
    device: torch.device,
    *,
    graphs: bool = True,
    yields: Yields | None = None,
) -> DeviceModel | None:
    """A handler's model on ``device``, captured if ``graphs``; None where batches must be staged.

    ``models``: the torch modules that it holds; ``yields``: how it gets out of the way, if it does.
    """
    if device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    try:
        driver = Driver(cuda_driver(), device.index)
    except (ImportError, RuntimeError) as error:
        tell_pageable(f"no CUDA driver for Python (pip install 'shunter[gpu]'): {error!r}")
        return None
    try:
        found = DeviceModel(
            infer,
            specs,
            batch,
            driver,
            lambda address, shape, dtype: cuda_view(address, shape, dtype, device),
            lambda: torch.cuda.current_stream(device).cuda_stream,
        )
    except (RuntimeError, TypeError) as error:
        tell_pageable(f"no memory on {device}: {error}")
        return None
    if graphs:
        found.capture(
            models,
            lambda stream: CudaRecorder(driver, device, stream),
            yields=yields,
            graphs=keeps_graphs(),
        )
    return found


class DeviceModel:
    """What puts the kernels of a batch on :meth:`stream`."""

    def __init__(
        self,
        infer: Infer,
        specs: tuple[Sequence[TensorSpec], Sequence[TensorSpec]],
        batch: int,
        driver: Driver,
        view: View,
        stream: Callable[[], Any],
    ) -> None:
        """``specs``: of inputs and outputs; ``batch``: requests of the largest one; ``stream``
        tells on which one the handler's kernels run. It takes the driver.

        Raises DeviceError, and has let go of everything then.
        """
        self.driver, self.infer, self.stream, self.batch = driver, infer, stream, batch
        self.is_captured = False
        self._stack = ExitStack()
        try:
            self.inputs, self.outputs = [
                [self._rows(spec, view) for spec in kind] for kind in specs
            ]
        except BaseException:
            self.close()
            raise

    def _rows(self, spec: TensorSpec, view: View) -> torch.Tensor:
        size = self.batch * spec.bytes
        address = allocate(self.driver, size) if size else 0
        return view(address, (self.batch, *spec.shape), spec.dtype)

    def capture(self, models: Sequence[nn.Module], recorder: RecorderOf, **options: Any) -> None:
        """Let batches be graphs from now on; where they cannot, the handler goes on as it is.

        The arguments are those of :class:`Graphed`.
        """
        for tensor in (*self.inputs, *self.outputs):
            tensor.zero_()
        tensors = self.inputs, self.outputs
        try:
            graphed = Graphed(self.infer, models, tensors, self.driver, recorder, **options)
        except NotCaptured as error:
            logger.warning("Batches run without CUDA graphs: %s", error)
            return
        self._stack.enter_context(graphed)
        self.is_captured = True
        self.infer, self.stream = graphed, lambda: graphed.stream
        sizes = ", ".join(map(str, graphed.sizes))
        logger.info("Batches of up to %s requests are CUDA graphs.", sizes)

    def close(self) -> None:
        """Give everything back to the device. The tensors may not be used afterwards."""
        with contextlib.suppress(DeviceError):  # of a device that failed nothing is to be had
            self.driver.enter()
            self._stack.close()
        self.inputs, self.outputs = [], []
        with contextlib.suppress(DeviceError):
            self.driver.made.close()
