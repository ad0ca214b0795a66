"""Convolutions of 1 x 1 in workers with one thread, by oneDNN as those of workers with more.

torch gives convolutions to oneDNN. Those of 1 x 1 with stride 1 it does not, where one thread works
on a batch of less than 16 (``ConvParams::use_mkldnn`` in ATen's ``Convolution.cpp``): then it calls
a matrix product of its own. Most of ResNet-50's convolutions are such ones, and one thread takes
up to 1.4 times as long for all of the network: for a batch of 15 longer than for one of 16
(``bench/pointwise.py``). So what torch would call then is replaced in the worker; it calls oneDNN
where there is enough to do, else what it was. Results differ as those of batches below and above 16
always have: in the last digits.

Processors differ, so both are tried at the first such convolution. What the first worker of a
server finds holds for all, by a link in the runtime folder: with workers that had each tried for
themselves, the last digits depended on which one was asked. A torch that cannot be told stays as it
is, and ``SHUNTER_POINTWISE=0`` leaves any as it is.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import wrapt

VARIABLE = "SHUNTER_POINTWISE"
RUNTIME = "SHUNTER_RUNTIME"
FEWEST_PIXELS = 64
"""Of a batch: oneDNN puts the weights in order for each call, which must be worth it."""
FEWEST_PRODUCTS = 1 << 20
"""The same: a call costs some tens of microseconds."""
FASTER = 0.9
"""oneDNN is taken where it takes no more than this share of the time."""
_TRIAL = (2, 256, 28, 64)
"""Pictures, channels, side and filters of the convolution that is tried."""
_TRIES = 5
_YES, _NO = "onednn", "usual"
_OPERATOR = "_slow_conv2d_forward"
_OURS: list[Any] = []
"""What is registered lives as long as the process."""


def use() -> None:
    """From when torch is imported, if nobody said otherwise."""
    if os.environ.get(VARIABLE, "1") != "0":
        wrapt.register_post_import_hook(_replace, "torch")


def is_worth(shape: Sequence[int], filters: int) -> bool:
    """Whether so much is done for an input (n, channels, height, width) that oneDNN pays."""
    pictures, channels, height, width = shape
    pixels = pictures * height * width
    return pixels >= FEWEST_PIXELS and pixels * channels * filters >= FEWEST_PRODUCTS


def agree(runtime: str | None, version: str, find: Callable[[], bool]) -> bool:
    """What the first worker of a server with this version of torch found; the first one finds.

    A link is made whole or not at all, so nobody waits for anybody, who may be standing still.
    Where the folder cannot be read or written, each worker goes by what it finds itself.
    """
    if not runtime:
        return find()
    link = Path(runtime) / f"pointwise-{version}"
    with suppress(OSError):
        return os.readlink(link) == _YES
    found = find()
    with suppress(OSError):
        link.symlink_to(_YES if found else _NO)
    with suppress(OSError):
        return os.readlink(link) == _YES
    return found


def _replace(torch: Any) -> None:
    try:
        operators = torch.ops.aten
        usual, onednn = operators._slow_conv2d_forward.output, operators.mkldnn_convolution
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there was one before is known
            library.impl(_OPERATOR, _forward_of(torch, usual, onednn), "CPU")
        _OURS.append(library)
    except (AttributeError, RuntimeError) as error:
        print(f"Convolutions of 1 x 1 stay as torch has them: {error}", flush=True)


def _forward_of(torch: Any, usual: Any, onednn: Any) -> Callable[..., Any]:
    """What is called instead, with the same arguments."""

    def as_it_was(x: Any, weight: Any, size: Any, bias: Any, stride: Any, padding: Any) -> Any:
        return usual(x, weight, size, bias, stride, padding, output=x.new_empty(0))

    @cache
    def is_faster() -> bool:
        if not torch.backends.mkldnn.is_available():
            return False
        return agree(os.environ.get(RUNTIME), torch.__version__, try_both)

    def try_both() -> bool:
        pictures, channels, side, filters = _TRIAL
        x = torch.ones(pictures, channels, side, side)
        weight = torch.ones(filters, channels, 1, 1)
        calls = (
            lambda: as_it_was(x, weight, [1, 1], None, [1, 1], [0, 0]),
            lambda: onednn(x, weight, None, [0, 0], [1, 1], [1, 1], 1),
        )
        tries = [[_seconds(call) for call in calls] for _ in range(_TRIES)]
        before, now = (min(each) for each in zip(*tries, strict=True))
        return now <= FASTER * before

    def forward(x: Any, weight: Any, size: Any, bias: Any, stride: Any, padding: Any) -> Any:
        if (
            list(size) == [1, 1]
            and x.dtype == torch.float32
            and x.ndim == 4
            and torch.get_num_threads() == 1
            and torch.backends.mkldnn.enabled
            and is_worth(x.shape, weight.shape[0])
            and is_faster()
        ):
            return onednn(x, weight, bias, padding, stride, [1, 1], 1)
        return as_it_was(x, weight, size, bias, stride, padding)

    return forward


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.thread_time()  # the one thread's own: others want the core, too
    call()
    return time.thread_time() - begin
