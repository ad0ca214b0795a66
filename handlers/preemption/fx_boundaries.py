"""Boundaries before operations, for models whose modules are too coarse.

``torch.fx`` follows the model once and makes a graph of it; a check is put before those operations
that keep segments as long as wanted (:mod:`shunter.batching.preemption.cutting`), by their measured
cost. The graph does the same operations on the same tensors; its first result is compared with the
model's own, and where they differ, or the model cannot be followed, modules are the boundaries.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from shunter.batching.page.runners import Runner
from shunter.batching.preemption.cutting import Cut, cut
from shunter.handlers.preemption.modules import batch_of, is_opaque, restore, size_of
from shunter.handlers.preemption.preemptible import GROWTH, PASSES, Preemptible, at_once, report

logger = logging.getLogger("shunter.preemptible")


class _Timed(fx.Interpreter):
    """Runs a graph and notes when each operation begins."""

    def __init__(
        self, module: fx.GraphModule, check: Callable[[], None], catch_up: Callable[[], bool]
    ) -> None:
        super().__init__(module, garbage_collect_values=True)
        self._check, self._catch_up = check, catch_up
        self._stood_ns = 0
        self.times_ns: list[int] = []
        """As if it had never stood still."""

    def run_node(self, n: fx.Node) -> Any:
        self._catch_up()
        begin_ns = time.monotonic_ns()
        self._check()
        end_ns = time.monotonic_ns()
        self._stood_ns += end_ns - begin_ns
        self.times_ns.append(end_ns - self._stood_ns)
        return super().run_node(n)


class OperationBoundaries:
    """One model whose passes stand still between operations."""

    def __init__(
        self,
        model: nn.Module,
        check: Callable[[], None],
        *,
        target_ns: int,
        runner: Runner | None = None,
        catch_up: Callable[[], bool] = at_once,
        cpu_time_ns: Callable[[], int] = time.process_time_ns,
    ) -> None:
        """Attach to ``model``, as a :class:`Preemptible` of :mod:`.preemptible` is."""

        def stand_still() -> None:  # a graph calls functions that have names
            check()

        self._model, self._check, self._target_ns = model, stand_still, target_ns
        self._runner, self._catch_up, self._cpu_time_ns = runner, catch_up, cpu_time_ns
        self._inner = model.forward
        self._before = model.__dict__.get("forward")
        self._size = 0
        self._preparing = threading.Lock()  # of handlers that compute in several threads
        self._graph: fx.GraphModule | None = None
        self._instead: Preemptible | None = None
        self._cut: Cut | None = None

        @functools.wraps(self._inner)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self._forward(args, kwargs)

        if is_opaque(model):
            self._go_by_modules()
        else:
            model.forward = forward  # type: ignore[method-assign]

    @property
    def cut(self) -> Cut | None:
        """How passes are cut; None before the first."""
        return self._instead.cut if self._instead is not None else self._cut

    def detach(self) -> None:
        """Leave the model as it was."""
        if self._instead is not None:
            self._instead.detach()
        else:
            restore(self._model, self._before)

    def _forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        size = size_of((*args, *kwargs.values()))
        if self._graph is None or size > self._size * GROWTH:
            result = self._inner(*args, **kwargs)
            # Nothing is to be measured while it is captured in a graph.
            if self._catch_up() and self._preparing.acquire(blocking=False):
                try:
                    self._prepare(result, args, kwargs)
                    self._size = size
                except Exception as error:  # whatever a graph cannot do
                    self._give_up(error)
                finally:
                    self._preparing.release()
            return result
        self._check()
        return self._graph(*args, **kwargs)

    def _prepare(self, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Follow the model, measure its operations with these inputs, put the checks in."""
        graph = fx.symbolic_trace(self._model)
        bound = inspect.signature(self._inner).bind(*args, **kwargs)
        bound.apply_defaults()
        nodes = list(graph.graph.nodes)
        passes, cpu_ns = [], 0
        for _ in range(PASSES):
            timed, begin_ns = _Timed(graph, self._check, self._catch_up), self._cpu_time_ns()
            found = timed.run(*bound.arguments.values())
            cpu_ns = self._cpu_time_ns() - begin_ns
            if not _equal(found, result):
                raise ValueError("its graph gives another result")
            passes.append([b - a for a, b in itertools.pairwise(timed.times_ns)])
        least = [min(times) for times in zip(*passes, strict=True)]
        known = [(n, t) for n, t in zip(nodes, least, strict=False) if n.op != "placeholder"]
        self._cut = cut([n.name for n, _ in known], [t for _, t in known], self._target_ns)
        for node in nodes:
            if node.name in self._cut.boundaries:
                with graph.graph.inserting_before(node):
                    graph.graph.call_function(self._check)
        graph.recompile()
        self._graph = graph
        batch = batch_of((*args, *kwargs.values()))
        report(self._model, self._cut, self._runner, batch, sum(least), cpu_ns)

    def _give_up(self, error: Exception) -> None:
        name = type(self._model).__name__
        logger.warning("%s stands still before modules, not operations: %s", name, error)
        restore(self._model, self._before)
        self._go_by_modules()

    def _go_by_modules(self) -> None:
        self._instead = Preemptible(
            self._model,
            self._check,
            target_ns=self._target_ns,
            runner=self._runner,
            catch_up=self._catch_up,
            cpu_time_ns=self._cpu_time_ns,
        )


def _equal(one: Any, other: Any) -> bool:
    """Whether two results are the same, bit by bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and _equal(list(one.items()), list(other.items()))
    if isinstance(one, list | tuple):
        alike = isinstance(other, list | tuple) and len(one) == len(other)
        return alike and all(_equal(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)
