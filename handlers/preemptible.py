"""Preemptible execution of any ``nn.Module``, without a change to the model.

A pass is cut in segments at calls of its modules: before such a call the thread looks at the gate
(:mod:`shunter.handlers.gate`) and stands still there, with everything that it has computed, for as
long as strict work wants the cores. So it goes on at the very segment; the arithmetic is the same
as without, bit by bit.

Which calls are boundaries is chosen by measured cost: the first passes with the largest input are
timed at every call, then only those remain that keep segments as long as wanted
(:mod:`shunter.batching.cutting`). Until then, and where passes call different modules each time,
every call is a boundary once the wanted time has passed.

A module that is compiled as a whole (TorchScript, ``torch.compile``) cannot stand still inside: the
bound is the time of one call of it, and is stated with the others' in the log and on the page.
"""

from __future__ import annotations

import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from shunter.batching.cutting import Cut, cut
from shunter.batching.runners import Runner

logger = logging.getLogger("shunter.preemptible")
SEGMENT_MS = 1.0
"""Wanted time of a segment where the model says nothing else."""
PASSES = 4
"""Passes that are measured; of each call the shortest time counts, and the first pass does not."""
STOOD_NS = 150_000
"""A look at the gate that takes longer was not only a look."""
GROWTH = 1.5
"""Input that is larger by this factor than what was measured is measured anew."""


@dataclass
class _Pass:
    """What was seen of one pass of the model."""

    batch: int
    begin_ns: int
    begin_cpu_ns: int
    calls: list[int]
    times_ns: list[int]
    bytes: int = 0


class Preemptible:
    """One model whose passes stand still at a gate."""

    def __init__(
        self,
        model: nn.Module,
        check: Callable[[], None],
        *,
        target_ns: int = int(SEGMENT_MS * 1e6),
        runner: Runner | None = None,
        catch_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Attach to ``model``; ``check`` is called wherever it can stand still.

        ``catch_up`` returns when what was computed so far is there, for times of a device.
        """
        self._model, self._check, self._target_ns = model, check, target_ns
        self._runner, self._catch_up = runner, catch_up
        self._modules = list(inner_modules(model))
        self._wrapped: list[tuple[nn.Module, Callable[..., Any] | None]] = []
        self._thread = 0
        """Of the pass that is measured; 0: none is."""
        self._pass: _Pass | None = None
        self._checked_ns = 0
        self._size = 0
        """Numbers in the largest input so far."""
        self._passes: list[_Pass] = []
        self.cut: Cut | None = None
        """How passes are cut; None while they are measured."""
        if can_be_seen(model):
            self._wrap(model, self._whole)
            self._measure()

    def detach(self) -> None:
        """Leave the model as it was."""
        for module, before in reversed(self._wrapped):
            restore(module, before)
        self._wrapped.clear()

    # ---- a pass

    def _whole(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._thread:  # the model calls itself, or another thread runs a pass
                return inner(*args, **kwargs)
            self._thread = threading.get_ident()
            try:
                self._begin((*args, *kwargs.values()))
                result = inner(*args, **kwargs)
                self._end()
                return result
            finally:
                self._pass, self._thread = None, 0

        return forward

    def _begin(self, arguments: tuple[Any, ...]) -> None:
        size = size_of(arguments)
        if size > self._size * GROWTH:
            self._size = size
            self._measure()
        self._check()
        now_ns = self._checked_ns = time.monotonic_ns()
        if self.cut is None and size >= self._size:
            self._pass = _Pass(batch_of(arguments), now_ns, time.process_time_ns(), [], [])

    def _end(self) -> None:
        seen = self._pass
        if seen is None:
            return
        self._catch_up()
        seen.times_ns.append(time.monotonic_ns())
        self._passes.append(seen)
        if len(self._passes) == PASSES + 1:
            self._settle(time.process_time_ns() - seen.begin_cpu_ns)

    # ---- measuring

    def _measure(self) -> None:
        """From now on every call is timed, and is a boundary."""
        self.cut = None
        self._passes.clear()
        self._unwrap_inner()
        for number, module in enumerate(self._modules):
            self._wrap(module, functools.partial(self._timed, number, module))

    def _timed(
        self, number: int, module: nn.Module, inner: Callable[..., Any]
    ) -> Callable[..., Any]:
        is_leaf = not any(True for _ in module.children())

        def forward(*args: Any, **kwargs: Any) -> Any:
            now_ns = time.monotonic_ns()
            if now_ns - self._checked_ns >= self._target_ns:
                self._check()
                self._checked_ns = time.monotonic_ns()
                if self._checked_ns - now_ns > STOOD_NS:
                    self._pass = None  # it stood still: its times mean nothing
            seen = self._pass
            if seen is None or threading.get_ident() != self._thread:
                return inner(*args, **kwargs)
            self._catch_up()
            seen.calls.append(number)
            seen.times_ns.append(time.monotonic_ns())
            result = inner(*args, **kwargs)
            if is_leaf:
                seen.bytes += _bytes_of((args, kwargs.values(), result, module.parameters(False)))
            return result

        return forward

    def _settle(self, cpu_ns: int) -> None:
        """All passes are measured: keep the boundaries that are needed."""
        passes = self._passes[1:]
        self._passes = []
        calls = passes[0].calls
        if any(each.calls != calls for each in passes):
            return  # another way each time: every call remains a boundary
        costs = [_costs(each) for each in passes]
        least = [min(of_call) for of_call in zip(*costs, strict=True)]
        self.cut = cut(calls, least[1:], self._target_ns, least[0])
        self._unwrap_inner()
        for number, module in enumerate(self._modules):
            if number in self.cut.boundaries:
                self._wrap(module, self._gated)
        last = passes[-1]
        report(self._model, self.cut, self._runner, last.batch, sum(least), cpu_ns, last.bytes)

    def _gated(self, inner: Callable[..., Any]) -> Callable[..., Any]:
        check = self._check

        def forward(*args: Any, **kwargs: Any) -> Any:
            check()
            return inner(*args, **kwargs)

        return forward

    # ---- other modules' forward

    def _wrap(
        self, module: nn.Module, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        # Not a hook: layers with hooks leave torch's fused fast paths, and results would differ.
        inner = module.forward
        self._wrapped.append((module, module.__dict__.get("forward")))
        module.forward = _Forward(module, make(inner), inner)  # type: ignore[method-assign]

    def _unwrap_inner(self) -> None:
        while len(self._wrapped) > 1:
            restore(*self._wrapped.pop())


def report(
    model: nn.Module,
    found: Cut,
    runner: Runner | None,
    batch: int,
    solo_ns: int,
    cpu_ns: int,
    moved: int,
) -> None:
    """Say in the log and on the page how passes of a model are cut, and what one takes alone."""
    logger.info(
        "Passes of %s (batch %d, %.1f ms) consist of %d parts between which they can stand "
        "still; the longest takes %.2f ms.",
        type(model).__name__,
        batch,
        solo_ns / 1e6,
        found.segments,
        found.longest_ns / 1e6,
    )
    if runner is None or solo_ns <= runner.get("solo_ns"):
        return  # of several models of a handler the largest counts
    words = {
        "segments": found.segments,
        "segment_ns": found.longest_ns,
        "solo_ns": solo_ns,
        "solo_cpu_ns": cpu_ns,
        "solo_bytes": moved,
        "solo_batch": batch,
    }
    for name, value in words.items():
        runner.set(name, value)


class _Forward:
    """In place of a module's ``forward``. A copy of the module gets its own back."""

    def __init__(
        self, module: nn.Module, call: Callable[..., Any], inner: Callable[..., Any]
    ) -> None:
        self._module, self._call = module, call
        functools.update_wrapper(self, inner)  # for those who look at its signature

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = memo.get(id(self._module))
        return self._call if copied is None else MethodType(type(copied).forward, copied)


def restore(module: nn.Module, before: Callable[..., Any] | None) -> None:
    """Give a module back the ``forward`` that its own ``__dict__`` had before, or none."""
    del module.__dict__["forward"]
    if before is not None:
        module.__dict__["forward"] = before


def _costs(seen: _Pass) -> list[int]:
    """Time before the first call, then from each call to the next one or the end."""
    marks = [seen.begin_ns, *seen.times_ns]
    return [b - a for a, b in itertools.pairwise(marks)]


def can_be_seen(module: nn.Module) -> bool:
    """Whether calls of a module can be seen from outside, without a change to what they do."""
    # The first has no forward that could be replaced, the second copies it to other devices; what
    # compiles its calls would compile what replaces it.
    return not isinstance(module, torch.jit.ScriptModule | nn.DataParallel) and (
        getattr(module, "_compiled_call_impl", None) is None
    )


def is_opaque(module: nn.Module) -> bool:
    """Whether a module is compiled as a whole, so that nothing inside of it can stand still."""
    return not can_be_seen(module) or type(module).__name__ == "OptimizedModule"


def inner_modules(model: nn.Module) -> Iterator[nn.Module]:
    """All modules below ``model`` whose calls can be seen, each once."""
    seen: set[int] = {id(model)}

    def below(module: nn.Module) -> Iterator[nn.Module]:
        if is_opaque(module):
            return
        for child in module.children():
            if id(child) in seen:
                continue
            seen.add(id(child))
            if can_be_seen(child):
                yield child
            yield from below(child)

    yield from below(model)


def _first_tensor(arguments: Iterable[Any]) -> torch.Tensor | None:
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument
        if isinstance(argument, list | tuple) and argument:
            return _first_tensor(argument)
    return None


def batch_of(arguments: Iterable[Any]) -> int:
    """Size of the batch: of the first tensor's first dimension; 1 where there is none."""
    found = _first_tensor(arguments)
    return 1 if found is None or not found.dim() else int(found.shape[0])


def size_of(arguments: Iterable[Any]) -> int:
    """Numbers in the first tensor, which grow with the batch and with sequences; at least 1."""
    found = _first_tensor(arguments)
    return 1 if found is None else max(1, found.numel())


def _bytes_of(content: Any) -> int:
    """Bytes of all tensors in it."""
    if isinstance(content, torch.Tensor):
        return content.numel() * content.element_size()
    if isinstance(content, dict):
        content = content.values()
    if isinstance(content, str | bytes) or not isinstance(content, Iterable):
        return 0
    return sum(map(_bytes_of, content))


def models_of(handler: Any) -> list[nn.Module]:
    """The models that a handler holds: attributes, in lists and dicts of them, or one level below.

    ``handler`` is an object, or the module of a handler that is a function.
    """
    found: dict[int, nn.Module] = {}
    for value in list(vars(handler).values()) if hasattr(handler, "__dict__") else []:
        for each in _members(value):
            if isinstance(each, nn.Module):
                found[id(each)] = each
            elif not isinstance(each, type | ModuleType):
                inner = getattr(each, "model", None)  # such as a pipeline of transformers
                if isinstance(inner, nn.Module):
                    found[id(inner)] = inner
    models = list(found.values())
    parts = {id(part) for model in models for part in model.modules() if part is not model}
    return [model for model in models if id(model) not in parts]


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else [value]
