"""What a worker of a front end is told by its environment. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from shunter.batching.page.layout import SLOT_COUNT
from shunter.batching.page.slices import EVERY
from shunter.handlers.queue.tensor_config import TensorConfigError


def number_of(environ: Mapping[str, str], variable: str, default: int, unit: str) -> int:
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
    slices = _integer(environ.get("SHUNTER_SLICES", ""), 16)
    if environ.get("SHUNTER_PREEMPTIBLE") == "1" or not 0 <= slices <= EVERY:
        slices = 0
    return (slot if 0 <= slot < SLOT_COUNT else -1), slices


def _integer(text: str, base: int) -> int:
    try:
        return int(text, base)
    except ValueError:
        return -1
