"""A model's weights that come to a GPU and leave it, while they may be computed with.

As :mod:`shunter.handlers.weights.hot`, but nothing can be read where it is not: weights lie in the
device's memory from the moment in which their copy begins, and whoever reads one waits for its
group, on the GPU and not in the host. Which operator reads which weight is seen while it happens
(:mod:`shunter.handlers.weights.reads`), so the first layers compute before the last ones are there,
whatever the layers do; a weight whose reading was not seen in the first batches is waited for
before a batch begins. To look at operators takes the host's time: of a model that has many small
ones all weights are waited for, for they are there sooner. To drop a model costs nothing: nothing
is copied back.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from shunter.handlers.weights.device_memory import DeviceMemory, Driver
from shunter.handlers.weights.hot import PIECE, GivenUp, Group, groups_of
from shunter.handlers.weights.hot_memory import NoRoom
from shunter.handlers.weights.layout import Record
from shunter.handlers.weights.reads import Reads, operator_s
from shunter.handlers.weights.tensors import Weight

_COMPILER = "torch._inductor.compile_fx"
"""Whoever has imported it may launch kernels past the dispatcher."""


@dataclass
class _Coming:
    """A swap, from its beginning until the weights are dropped."""

    data: torch.Tensor
    groups: list[Group]
    marks: list[Any] = field(default_factory=list)
    """Of the groups whose copies have begun."""
    is_over: threading.Event = field(default_factory=threading.Event)
    done: Future[float] | None = None
    waited: set[tuple[int, int]] = field(default_factory=set)
    """Queues of work, and groups that these wait for."""
    is_here: bool = False
    """All of it: nothing is waited for any more."""


class DeviceModel:
    """A model that comes and goes. All but the copy itself is for the thread that computes."""

    def __init__(
        self,
        weights: Sequence[Weight],
        records: Sequence[Record],
        cold: torch.Tensor,
        memory: DeviceMemory,
        copies: Executor,
        models: Sequence[nn.Module],
    ) -> None:
        """``cold``: the data of ``records`` in the host, best pinned; ``models`` have the weights.

        From here on the weights are not there.
        """
        self._weights, self._records = list(weights), list(records)
        self._cold, self._memory, self._copies = cold, memory, copies
        self.bytes = self._records[-1].end
        """Of what comes and goes."""
        self._modules = list(models)
        self._seen: set[int] = set()
        """Offsets of weights that operators were seen to read."""
        self._looking_s = 0.0
        """What it takes to look at the operators of a batch."""
        self._swap_s = 0.0
        """What the last swap took."""
        self._now: _Coming | None = None
        self.at_end: Callable[[], None] | None = None
        """What else goes with the model."""
        self._shapes = [each.tensor.size() for each in weights]
        self._strides = [each.tensor.stride() for each in weights]
        self._nothing = self._absent(memory.driver.device)
        self._remove()

    @property
    def is_hot(self) -> bool:
        """Whether all weights are there."""
        now = self._now
        return now is not None and now.done is not None and now.done.done()

    def swap_in(self) -> Future[float]:
        """Begin to bring the weights in; seconds that it took, once it has.

        Raises NoRoom. A swap that is dropped ends with GivenUp.
        """
        if self._now is not None:
            assert self._now.done is not None
            return self._now.done
        data = self._memory.take(self.bytes)
        now = _Coming(data, groups_of(self._weights, self._records))
        typed = {  # one view of each type: a model has thousands of weights
            kind: data[: data.numel() // kind.itemsize * kind.itemsize].view(kind)
            for kind in {each.tensor.dtype for each in self._weights}
        }
        places = zip(self._weights, self._records, self._shapes, self._strides, strict=True)
        for weight, record, shape, strides in places:
            kind = weight.tensor.dtype
            weight.become(typed[kind].as_strided(shape, strides, record.begin // kind.itemsize))
        now.done = self._copies.submit(_copy, now, self._cold, self._memory.driver)
        self._now = now
        return now.done

    @contextlib.contextmanager
    def reading(self, *, learn: bool = False) -> Iterator[bool]:
        """Inside, a batch may compute with the weights, which come or are there; says whether
        they all were. ``learn``: see what it reads, for later batches.
        """
        now = self._now
        if now is None or now.done is None:
            raise NoRoom("the device had no room for the weights")
        if was_hot := now.done.done():
            self._swap_s = now.done.result()  # raises what has ended it
        is_seen = not (was_hot or learn) and self._is_seen
        for number in () if was_hot else range(len(now.groups)):
            if not (is_seen and self._is_known(now, number)):
                self._memory.driver.finish(self._mark(now, number))  # for whatever queue of work
        if is_seen:
            begins, wait = [each.begin for each in now.groups], lambda n: self._wait(now, n)
            with Reads(now.data, begins, wait, lambda: _has_come(now)):
                yield was_hot
        elif learn:
            with self._learning(now):
                yield was_hot
        else:
            yield was_hot

    @contextlib.contextmanager
    def _learning(self, now: _Coming) -> Iterator[None]:
        """What batches inside read, and what it takes to look at the operators of one."""
        calls = dict.fromkeys(self._modules, 0)

        def count(module: nn.Module, _: Any) -> None:
            if module in calls:
                calls[module] += 1

        begins = [each.begin for each in self._records]
        with Reads(now.data, begins, lambda n: self._seen.add(begins[n])) as reads:
            counting = register_module_forward_pre_hook(count)
            try:
                yield
            finally:
                counting.remove()
        self._looking_s = reads.operators // max(1, *calls.values()) * operator_s()

    def _is_known(self, now: _Coming, number: int) -> bool:
        """Whether all weights of a group were seen to be read."""
        return {record.begin for _, record in now.groups[number].weights} <= self._seen

    @property
    def _is_seen(self) -> bool:
        """Whether it is worth while to see what operators read, and possible: scripts fuse some,
        compilers nearly all."""
        if self._looking_s > self._swap_s:
            return False
        are_scripts = any(
            isinstance(each, torch.jit.ScriptModule)
            for model in self._modules
            for each in model.modules()
        )
        return bool(self._seen) and not (are_scripts or _has_compiled())

    @staticmethod
    def _mark(now: _Coming, number: int) -> Any:
        """Of a group whose copy has begun. Raises what has ended the swap before."""
        now.groups[number].arrived.wait()
        if number >= len(now.marks):
            assert now.done is not None
            now.done.result()
        return now.marks[number]

    def _wait(self, now: _Coming, number: int) -> None:
        driver = self._memory.driver
        key = driver.stream(), number
        if not now.is_here and key not in now.waited:
            driver.wait(self._mark(now, number))
            now.waited.add(key)

    def finish(self) -> None:
        """Wait, in the host, for weights that are coming."""
        if (now := self._now) is not None and not now.is_here:
            for number in range(len(now.groups)):
                self._memory.driver.finish(self._mark(now, number))
            now.is_here = True

    def drop(self) -> None:
        """The weights leave. No batch may be running."""
        now, self._now = self._now, None
        if now is None:
            return
        assert now.done is not None
        now.is_over.set()
        if not now.done.cancel() and now.done.exception() is None:
            self._swap_s = now.done.result()
        self._memory.driver.rest()
        self._remove()
        now.data = torch.empty(0)
        self._memory.give_back(self.bytes)

    def close(self) -> None:
        """The model is no more."""
        self.drop()
        if self.at_end is not None:
            self.at_end()

    def _remove(self) -> None:
        """Of each weight only the shape is left: all its numbers are one."""
        for weight, nothing in zip(self._weights, self._nothing, strict=True):
            weight.become(nothing)

    def _absent(self, device: torch.device) -> list[torch.Tensor]:
        zeros = {
            kind: torch.zeros((), dtype=kind, device=device)
            for kind in {each.tensor.dtype for each in self._weights}
        }
        return [
            zeros[each.tensor.dtype].expand(shape)
            for each, shape in zip(self._weights, self._shapes, strict=True)
        ]


def _has_come(now: _Coming) -> bool:
    """Whether all of it is there; of a swap that has failed, it never is."""
    return now.done is not None and now.done.done() and now.done.exception() is None


def _has_compiled() -> bool:
    """Whether this process may run kernels that are no model's operators."""
    functions = torch.jit._state._python_cu.get_functions()  # scripts that are no modules
    return bool(functions) or _COMPILER in sys.modules


def _copy(now: _Coming, cold: torch.Tensor, driver: Driver) -> float:
    """In a thread of its own; groups that never come have arrived too, without a mark."""
    begin = time.perf_counter()
    try:
        for group in now.groups:
            for start in range(group.begin, group.end, PIECE):
                if now.is_over.is_set():
                    raise GivenUp
                end = min(start + PIECE, group.end)
                driver.copy(now.data[start:end], cold[start:end])
            now.marks.append(driver.mark())
            group.arrived.set()
        driver.finish(now.marks[-1])
    except BaseException:
        driver.finish(driver.mark())  # what has begun ends before its source may go
        raise
    finally:
        for group in now.groups:
            group.arrived.set()
    return time.perf_counter() - begin
