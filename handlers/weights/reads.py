"""Which operators read weights that lie in one piece of memory, told before each of them begins."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Reads(TorchDispatchMode):
    """While it is entered, ``on_read`` hears of every operator's tensors that lie in ``data``.

    All that goes through torch's dispatcher is seen, whatever module it belongs to; kernels that
    are launched past it (compiled graphs, fused scripts, extensions) are not.
    """

    def __init__(
        self, data: torch.Tensor, begins: Sequence[int], on_read: Callable[[int], None]
    ) -> None:
        """``begins``: offsets of the parts of ``data``, ascending; their numbers are told."""
        super().__init__()
        self._address, self._size = data.data_ptr(), data.numel()
        self._begins, self._on_read = begins, on_read

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Else the compiler, which nobody needs here, is imported at the first operator."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Tell, then run it."""
        kwargs = kwargs or {}
        for each in tree_leaves((args, kwargs)):
            if isinstance(each, torch.Tensor):
                self._look(each)
        return func(*args, **kwargs)

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


def _span(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to behind its last one."""
    steps = zip(tensor.size(), tensor.stride(), strict=True)
    return (1 + sum((size - 1) * stride for size, stride in steps)) * tensor.element_size()
