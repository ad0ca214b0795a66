"""Slots of the control page, as the server writes them that made the page."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shunter.batching.page.codec import encode
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import (
    GROUP_STRIDE,
    HEADER_FIELDS,
    SLOT_COUNT,
    SLOT_FIELDS,
    SLOT_SIZE,
    SLOTS_OFFSET,
)
from shunter.batching.page.records import (
    GroupTelemetry,
    SlotChange,
    SlotIdentity,
    SlotTelemetry,
)
from shunter.plugins.host import HostError

_SEQUENCE = SLOT_FIELDS["slot_sequence"].offset // 8
_STATE = SLOT_FIELDS["slot_state"].offset // 8
_WORDS = SLOT_SIZE // 8
_BEAT = HEADER_FIELDS["server_heartbeat_ns"].offset // 8


class ServerPage:
    """A control page of this process, and who has which of its slots."""

    def __init__(self, path: Path, pid: int, server: str) -> None:
        """Make it. Raises OSError, PageError."""
        self.path = path
        self.page = ControlPage.create(
            path,
            owner_pid=pid,
            created_unix_ns=time.time_ns(),
            now_ns=time.monotonic_ns(),
            server=server,
        )
        self._taken: set[int] = set()

    def beat(self, now_ns: int) -> None:
        """Say that the server lives."""
        self.page.words[_BEAT] = now_ns

    def take(self) -> SlotWriter:
        """A free slot. Raises HostError: there is none."""
        free = set(range(SLOT_COUNT)) - self._taken
        if not free:
            raise HostError(f"at most {SLOT_COUNT} model versions are served at once")
        self._taken.add(min(free))
        return SlotWriter(self.page, min(free))

    def give_back(self, slot: SlotWriter) -> None:
        """It is free again."""
        slot.leave()
        self._taken.discard(slot.index)

    def close(self) -> None:
        """Unmap it."""
        self.page.close()


class SlotWriter:
    """One slot. What is the same as before is not written again.

    Of several threads one may leave it while another still has news of its model.
    """

    def __init__(self, page: ControlPage, index: int) -> None:
        """It is free. What a controller has written since its last model left is none of ours."""
        self.index = index
        self._lock = threading.RLock()
        self._is_over = False
        self._words = page.words
        self._base = SLOTS_OFFSET // 8 + index * _WORDS
        self._last: dict[tuple[type, int], Any] = {}
        self._zero()

    def identity(self, identity: SlotIdentity, groups: Sequence[GroupTelemetry]) -> None:
        """Say which model it is, and what its groups are."""
        with self._lock:
            if self._is_over or self._last.get((SlotIdentity, 0)) == identity:
                return
            sequence = self._words[self._base + _SEQUENCE] | 1
            self._words[self._base + _SEQUENCE] = sequence
            self.groups(groups)
            self._tell(identity)
            self._words[self._base + _SEQUENCE] = sequence + 1

    def groups(self, groups: Sequence[GroupTelemetry]) -> None:
        """Say how they stand."""
        for number, group in enumerate(groups):
            self._tell(group, number)

    def telemetry(self, told: SlotTelemetry) -> None:
        """Say what became of its requests."""
        self._tell(told)

    def change(self, change: SlotChange) -> None:
        """Say what became of the configuration that was wanted."""
        self._tell(change)

    def leave(self) -> None:
        """The model has gone; what is said of it from now on is not written."""
        with self._lock:
            self._is_over = True
            self._zero()

    def _zero(self) -> None:
        """Every word; the state first, so that nobody takes the rest for a live model."""
        sequence = self._words[self._base + _SEQUENCE] | 1
        self._words[self._base + _SEQUENCE] = sequence
        self._words[self._base + _STATE] = 0
        for at in range(self._base + _STATE + 1, self._base + _WORDS):
            self._words[at] = 0
        self._words[self._base + _SEQUENCE] = sequence + 1

    def _tell(self, record: Any, group: int = 0) -> None:
        with self._lock:
            if not self._is_over and self._last.get((type(record), group)) != record:
                encode(record, self._words, self._base + group * GROUP_STRIDE // 8)
                self._last[type(record), group] = record
