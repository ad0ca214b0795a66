"""Which operators read weights that lie in one piece of memory, told before each of them begins."""

from __future__ import annotations

import functools
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_TRIED = 50


class Reads(TorchDispatchMode):
    """While it is entered, ``on_read`` hears of every operator's tensors that lie in ``data``.

    All that goes through torch's dispatcher is seen, whatever module it belongs to; kernels that
    are launched past it (compiled graphs, fused scripts, extensions) are not.
    """

    def __init__(
        self,
        data: torch.Tensor,
        begins: Sequence[int],
        on_read: Callable[[int], None],
        is_over: Callable[[], bool] = lambda: False,
    ) -> None:
        """``begins``: offsets of the parts of ``data``, ascending; their numbers are told, until
        ``is_over``."""
        super().__init__()
        self._address, self._size = data.data_ptr(), data.numel()
        self._begins, self._on_read, self._is_over = begins, on_read, is_over
        self.operators = 0
        """That were seen."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else the compiler, which nobody needs here, is imported at the first operator."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Tell, then run it."""
        kwargs = kwargs or {}
        self.operators += 1
        if not self._is_over():
            self._look_at(args)
            if kwargs:
                self._look_at(kwargs.values())
        return func(*args, **kwargs)

    def _look_at(self, arguments: Iterable[Any]) -> None:
        for each in arguments:
            if isinstance(each, torch.Tensor):
                self._look(each)
            elif isinstance(each, list | tuple):
                self._look_at(each)

    def _look(self, tensor: torch.Tensor) -> None:
        try:
            at = tensor.data_ptr() - self._address
        except (RuntimeError, NotImplementedError):  # it has no memory, but is made of others
            for number in range(len(self._begins)):
                self._on_read(number)
            return
        if 0 <= at < self._size and tensor.numel():
            last = at + _span(tensor) - 1
            for number in range(bisect_right(self._begins, at) - 1, len(self._begins)):
                if self._begins[number] > last:
                    break
                self._on_read(number)


@functools.cache
def operator_s() -> float:
    """Seconds that an operator takes longer when it is looked at, on this host."""
    one = torch.zeros(1, device="cpu")

    def took() -> float:
        begin = time.perf_counter()
        for _ in range(_TRIED):
            one.add(one)
        return time.perf_counter() - begin

    with torch.inference_mode():
        plain = min(took() for _ in range(5))
        with Reads(one, [0], lambda _: None):
            seen = min(took() for _ in range(5))
    return max(0.0, seen - plain) / _TRIED


def _span(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to behind its last one."""
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()
