"""A handler's batches as CUDA graphs, one for each of some sizes, on tensors that stay.

The handler itself is what is captured, from its inputs to its outputs, so what it does on the host
happens once for each size, and what it puts on the device is repeated for every batch. That is
found out, not believed: the graphs must give what the handler gives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import nn

from shunter.handlers.device.capture import Captured, Recorder, capture_pass
from shunter.handlers.device.driver import Driver
from shunter.handlers.device.executor import DeviceExecutor, capabilities
from shunter.handlers.device.ladder import Capabilities
from shunter.handlers.device.runner import Whole

Infer = Callable[[list[torch.Tensor], list[torch.Tensor]], None]
RecorderOf = Callable[[Any], Recorder]
"""Makes one that captures on a stream."""
_RELATIVE, _ABSOLUTE = 0.02, 0.002
"""How far results may be from the handler's: other algorithms may be chosen in a capture."""


class NotCaptured(Exception):
    """Batches cannot be graphs; the message says why."""


class Yields(Protocol):
    """How best effort gets out of the way."""

    def check(self) -> None:
        """Stand still while others want the device."""

    def is_held(self) -> bool:
        """Whether they do."""

    @property
    def may_drop(self) -> bool:
        """Whether a batch may be begun anew when its memory is wanted."""


def sizes_up_to(batch: int) -> list[int]:
    """Of graphs: a batch is run by the next larger one.

    >>> sizes_up_to(12)
    [1, 2, 4, 8, 12]
    """
    return [*(1 << i for i in range((batch - 1).bit_length())), batch]


class Graphed:
    """Called as the handler is, with the first rows of the tensors that it was made for.

    Use as a context manager: what it takes of the device is given back.
    """

    def __init__(
        self,
        infer: Infer,
        models: Sequence[nn.Module],
        tensors: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]],
        driver: Driver,
        recorder: RecorderOf,
        *,
        yields: Yields | None = None,
        graphs: bool = True,
        current: Callable[[Any], Any] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """``models``: those of the handler; ``tensors``: its inputs and outputs, of as many rows as
        the largest batch has; ``recorder`` makes one that captures on a stream; ``yields``: of
        best-effort work, which is cut where it can stand still; ``graphs``: whether torch gives
        graphs away. The rest as for :class:`DeviceExecutor`.

        Raises NotCaptured, and has let go of everything then.
        """
        self._infer, self._tensors = infer, tensors
        batch = len(tensors[1][0])
        self.sizes = sizes_up_to(batch)
        self._runners: dict[int, Whole] = {}
        _check(models, graphs, yields)
        with ExitStack() as stack:
            try:
                executor = stack.enter_context(
                    _executor(driver, yields, current=current, environment=environment)
                )
                self._make(executor, models, recorder, yields)
            except NotCaptured:
                raise
            except Exception as error:  # of the device, of torch, or what a handler raises
                raise NotCaptured(f"{type(error).__name__}: {error}") from error
            self._kept = stack.pop_all()

    def _make(
        self,
        executor: DeviceExecutor,
        models: Sequence[nn.Module],
        recorder: RecorderOf,
        yields: Yields | None,
    ) -> None:
        lane = executor.strict_lane if yields is None else executor.best_effort_lane
        self.stream = lane.stream
        made = recorder(lane.stream)
        for size in reversed(self.sizes):  # the largest finds memory for all
            if yields is None:
                self._runners[size] = executor.alone(self._captured(size, (), made))
            else:
                captured = self._captured(size, models, made)
                self._runners[size] = executor.best_effort(captured, check=yields.check)
            self._verify(size, lane.current)

    def _rows(self, size: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        inputs, outputs = self._tensors
        return [tensor[:size] for tensor in inputs], [tensor[:size] for tensor in outputs]

    def _captured(self, size: int, cut_at: Sequence[nn.Module], recorder: Recorder) -> Captured:
        inputs, outputs = self._rows(size)
        return capture_pass(lambda: self._infer(inputs, outputs), cut_at, inputs, recorder)

    def _verify(self, size: int, current: Callable[[], Any]) -> None:
        """Raises NotCaptured if the graph does not do what the handler does."""
        inputs, outputs = self._rows(size)

        def results(run: Callable[[], None]) -> list[torch.Tensor]:
            for tensor, sample in zip(inputs, samples, strict=True):
                tensor.copy_(sample)
            for tensor in outputs:
                tensor.zero_()
            run()
            return [tensor.cpu().clone() for tensor in outputs]

        with torch.no_grad(), current():
            samples = [_sample(tensor) for tensor in inputs]
            right = results(lambda: self._infer(inputs, outputs))
            again = results(lambda: self._infer(inputs, outputs))
            found = results(self._runners[size].run_once)
        if not _same(right, again):
            raise NotCaptured("the handler gives other results for the same inputs")
        if not _same(right, found):
            raise NotCaptured(f"a graph of {size} requests gives other results than the handler")

    def __call__(self, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
        """Put a batch on :attr:`stream`; of a larger size, where there is none of its own."""
        count = len(outputs[0])
        self._runners[next(size for size in self.sizes if size >= count)].start()

    def __enter__(self) -> Graphed:
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.close()
        self._runners.clear()


def _check(models: Sequence[nn.Module], graphs: bool, yields: Yields | None) -> None:
    if not graphs:
        raise NotCaptured("this torch keeps its graphs to itself; 2.8 and later give them away")
    if not models:
        raise NotCaptured("the handler has no torch module among its attributes")
    if any(model.training for model in models):
        raise NotCaptured("its module is in training mode")
    if yields is not None and yields.may_drop:
        raise NotCaptured("a batch of it may be dropped, to give back memory that graphs keep")


def _executor(
    driver: Driver, yields: Yields | None, *, environment: Mapping[str, str], current: Any
) -> DeviceExecutor:
    found, held = Capabilities(), lambda: False
    if yields is not None:
        found, held = capabilities(driver, graphs=True), yields.is_held
    else:  # nothing else runs in this process: there is nothing to choose
        environment = {}
    return DeviceExecutor(driver, found, held, environment=environment, current=current)


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers that a model may get: whole ones may be indices, of which only 0 is one for sure."""
    if not tensor.is_floating_point():
        return torch.zeros_like(tensor)
    return torch.rand(tensor.shape).to(tensor)


def _same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(
        torch.allclose(_numbers(a), _numbers(b), _RELATIVE, _ABSOLUTE, equal_nan=True)
        for a, b in zip(one, other, strict=True)
    )


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).double()
