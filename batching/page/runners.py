"""Runner lines: what workers say of their inference on the control page.

Claimed as holder lines are (:mod:`shunter.batching.page.holds`): the owner keeps a lock on the
line's bytes, which the kernel drops when it ends.
"""

from __future__ import annotations

from dataclasses import fields

from shunter.batching.page.codec import decode
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import (
    RUNNER_COUNT,
    RUNNER_FIELDS,
    RUNNER_SIZE,
    RUNNERS_OFFSET,
    RunnerState,
)
from shunter.batching.page.processes import is_alive
from shunter.batching.page.records import RunnerLine
from shunter.batching.page.slices import SliceSet, words_of

_R = {name: placed.offset // 8 for name, placed in RUNNER_FIELDS.items()}


class Runner:
    """One worker's own line, from :func:`claim`.

    Where every line is taken it writes to memory of its own: that worker is not observed.
    """

    def __init__(self, words: memoryview, base: int, pid: int, now_ns: int) -> None:
        """Clear what another worker left in the line, and take it over."""
        self._words, self._base = words, base
        for item in fields(RunnerLine):
            self.set(item.name, 0)
        self.set_slices(0)
        self.set("runner_slot", -1)
        self.beat(now_ns)
        self.set("runner_pid", pid)

    def release(self) -> None:
        """Nobody is there any more; the line must not be used after that."""
        self.set("runner_slot", -1)
        self.set("runner_pid", 0)

    def set(self, name: str, value: int) -> None:
        """Store a word."""
        self._words[self._base + _R[name]] = value

    def set_slices(self, slices: SliceSet) -> None:
        """Say where it runs."""
        for i, word in enumerate(words_of(slices)):
            self._words[self._base + _R["runner_slices"] + i] = word

    def add(self, name: str, amount: int) -> None:
        """Add to a word."""
        self._words[self._base + _R[name]] += amount

    def get(self, name: str) -> int:
        """A word of its own."""
        return self._words[self._base + _R[name]]

    def beat(self, now_ns: int) -> None:
        """Say that the worker lives."""
        self.set("runner_heartbeat_ns", now_ns)

    def enter(self, state: RunnerState, now_ns: int) -> None:
        """Say what the inference does."""
        self.set("runner_since_ns", now_ns)
        self.set("runner_state", state)
        self.beat(now_ns)


def claim(page: ControlPage, pid: int, now_ns: int, *, first: int = 0) -> Runner:
    """Become the writer of a free line, from the ``first`` on, for as long as this process lives
    or the page is open."""
    for index in range(first, RUNNER_COUNT):
        if page.lock(RUNNERS_OFFSET + index * RUNNER_SIZE):
            return Runner(page.words, (RUNNERS_OFFSET + index * RUNNER_SIZE) // 8, pid, now_ns)
    return Runner(memoryview(bytearray(RUNNER_SIZE)).cast("q"), 0, pid, now_ns)


def read_runners(page: ControlPage) -> list[RunnerLine]:
    """The lines of workers that live."""
    bases = ((RUNNERS_OFFSET + index * RUNNER_SIZE) // 8 for index in range(RUNNER_COUNT))
    # Most lines are free, and to decode one takes long.
    taken = [base for base in bases if is_alive(page.words[base + _R["runner_pid"]])]
    return [decode(RunnerLine, page.words, base) for base in taken]
