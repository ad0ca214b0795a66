"""The control page: shared memory between the server, the controller and the workers.

:mod:`shunter.batching.page.layout` declares its bytes. The JVM creates the page; Python processes
attach it (:mod:`shunter.batching.page.page_file`).

Who may write is settled by locks on byte ranges of the file
(:mod:`shunter.batching.page.processes`): one controller on its header line, one process on each
holder line (:mod:`shunter.batching.page.holds`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from shunter.batching.page.codec import cut_text, decode, encode
from shunter.batching.page.layout import (
    GROUP_COUNT,
    GROUP_STRIDE,
    HEADER_FIELDS,
    SIZE_BUCKETS,
    SLOT_COUNT,
    SLOT_FIELDS,
    SLOT_SIZE,
    SLOT_WORDS,
    SLOTS_OFFSET,
    Claims,
    Order,
)
from shunter.batching.page.page_file import PageError, PageFile
from shunter.batching.page.records import (
    Commands,
    GroupCommands,
    GroupTelemetry,
    PageHeader,
    SlotChange,
    SlotCommands,
    SlotIdentity,
    SlotPadding,
    SlotTelemetry,
)
from shunter.batching.page.slices import mask_of, words_of

__all__ = ["ControlPage", "PageError", "UnstableError"]
READ_ATTEMPTS = 100
_SEQUENCE_LIMIT = 1 << 62
_H = {name: placed.offset // 8 for name, placed in HEADER_FIELDS.items()}
_S = {name: placed.offset // 8 for name, placed in SLOT_FIELDS.items()}
_COMMANDS_END = _S["network_workers"]
"""What follows the commands has other writers, or no seqlock."""
_CONTROLLER_LINE = HEADER_FIELDS["controller_pid"].offset


class UnstableError(Exception):
    """A seqlock section was being changed at every attempt to read it."""


class ControlPage(PageFile):
    """The words of the page, by what they mean. Use as a context manager or call :meth:`close`."""

    # ---- header

    def header(self) -> PageHeader:
        """Who made the page, who writes it, and when they last did."""
        return decode(PageHeader, self.words)

    def claim_controller(self) -> bool:
        """Become the page's only controller; False when another one lives. Kept until close."""
        return self.lock(_CONTROLLER_LINE)

    def write_controller(self, pid: int, cycles: int, now_ns: int) -> None:
        """Say who the controller is and that it lives."""
        self.words[_H["controller_pid"]] = pid
        self.words[_H["controller_cycles"]] = cycles
        self.words[_H["controller_heartbeat_ns"]] = now_ns

    def want_front_end(self, number: int) -> None:
        """Say whether the server shall keep a network front end, and of which settings."""
        self._set(_H["front_end_wanted"], number)

    def write_strict_key(self, digest: bytes) -> None:
        """Say what :attr:`Claims.WITH_KEY` asks for: the SHA-256 of a secret."""
        for index, word in enumerate(memoryview(digest).cast("q")):
            self._set(_H["strict_key"] + index, word)

    def allow_strict(self, slot: int, claims: Claims) -> None:
        """Say which requests for a slot's model may call themselves strict."""
        self._set(_base(slot) + _S["strict_claims"], claims)

    def read_claims(self, slot: int) -> Claims:
        """What :meth:`allow_strict` said of it."""
        word = self.words[_base(slot) + _S["strict_claims"]]
        return Claims(word) if 0 <= word <= max(Claims) else Claims.NONE

    def tell_settings(self, valid: bool) -> None:
        """Say whether the settings file could be read the last time."""
        self._set(_H["settings_invalid"], int(not valid))

    def write_turns(self, strict: Order, best_effort: Order, exclusive: bool) -> None:
        """Say how models take turns on a slice, within each class and between the two."""
        self._set(_H["strict_order"], strict)
        self._set(_H["best_effort_order"], best_effort)
        self._set(_H["exclusive"], int(exclusive))

    def write_bounds(self, max_hold_us: int, longest_park_us: int) -> None:
        """Say for how long strict work may hold, and best effort be parked."""
        self._set(_H["max_hold_us"], max_hold_us)
        self._set(_H["longest_park_us"], longest_park_us)

    def want_memory(self, wanted: bool) -> None:
        """Say whether parked work shall give its memory back."""
        self._set(_H["memory_wanted"], int(wanted))

    def tell_devices(
        self, changing: int, done: int, changes: int, undone: int, layouts: str, problem: str
    ) -> None:
        """Say how the changes of GPUs' instances stand; texts that are too long are cut."""
        numbers = {"changes": changes, "undone": undone, "changing": changing, "done": done}
        for name, text in (("mig_layouts", layouts), ("mig_problem", problem)):
            words = cut_text(text, HEADER_FIELDS[name].field.width)
            for index, word in enumerate(words):
                self._set(_H[name] + index, word)
        for name, number in numbers.items():
            self._set(_H[f"mig_{name}"], number)

    # ---- slots

    def live_slots(self) -> list[int]:
        """Slots in use now."""
        state = _S["slot_state"]
        return [slot for slot in range(SLOT_COUNT) if self.words[_base(slot) + state] == 1]

    def slot_bytes(self, slot: int) -> bytes:
        """All of a slot as it is now, torn where it is being written: to see that it changes."""
        return bytes(self.words[_base(slot) : _base(slot) + SLOT_SIZE // 8])

    def identity_sequence(self, slot: int) -> int:
        """Changes whenever the identity of the slot does."""
        return self.words[_base(slot) + _S["slot_sequence"]]

    def command_sequence(self, slot: int) -> int:
        """Changes whenever the commands of the slot do; 0 never written, odd while they change."""
        return self.words[_base(slot) + _S["command_sequence"]]

    def wanted_request(self, slot: int) -> int:
        """Number of the configuration wanted last, whichever controller wanted it."""
        return max(0, self.words[_base(slot) + _S["wanted_request"]])

    def read_identity(self, slot: int) -> SlotIdentity:
        """Consistent identity of a slot. Raises UnstableError when it never stood still."""
        return decode(SlotIdentity, self._stable(slot, "slot_sequence", "updated_ns"))

    def read_telemetry(self, slot: int) -> SlotTelemetry:
        """Counters of a slot."""
        return decode(SlotTelemetry, self.words, _base(slot))

    def depth(self, slot: int) -> int:
        """Requests in the system: waiting and running."""
        base, queued = _base(slot), _S["queued"]
        parts = (queued, queued + 1, _S["in_flight_requests"])
        return sum(max(0, self.words[base + part]) for part in parts)

    def arrivals(self, slot: int) -> int:
        """Requests that were offered so far, of both classes, through whatever front end."""
        base, parts = _base(slot), (_S["arrivals"], _S["network_arrivals"])
        return sum(max(0, self.words[base + part + c]) for part in parts for c in range(2))

    def read_change(self, slot: int) -> SlotChange:
        """What became of the wanted configuration of a slot."""
        return decode(SlotChange, self.words, _base(slot))

    def read_groups(self, slot: int, count: int) -> list[GroupTelemetry]:
        """Counters of a slot's first ``count`` worker groups."""
        base, stride = _base(slot), GROUP_STRIDE // 8
        groups = range(min(count, GROUP_COUNT))
        return [decode(GroupTelemetry, self.words, base + g * stride) for g in groups]

    def yields(self, slot: int) -> bool:
        """Whether a worker group of a slot gives way to strict work."""
        start, stride = _base(slot) + _S["group_yields"], GROUP_STRIDE // 8
        return any(self.words[start + g * stride] for g in range(GROUP_COUNT))

    def read_commands(self, slot: int) -> Commands | None:
        """Consistent commands of a slot, None when no controller wrote them.

        Raises UnstableError when they never stood still: a controller died while writing.
        """
        if self.command_sequence(slot) == 0:
            return None
        words = self._stable(slot, "command_sequence", "network_workers")
        groups = (decode(GroupCommands, words, g * GROUP_STRIDE // 8) for g in range(GROUP_COUNT))
        return Commands(decode(SlotCommands, words), tuple(groups))

    def read_strict_service(self, slot: int) -> tuple[list[int], list[int]]:
        """Strict batches that a slot's workers answered by size bucket, and their times in ns."""
        base = _base(slot)
        starts = (base + _S["strict_batches"], base + _S["strict_batch_ns"])
        batches, ns = ([max(0, n) for n in self.words[at : at + SIZE_BUCKETS]] for at in starts)
        return batches, ns

    def read_padding(self, slot: int) -> int | None:
        """Mask of slots beside whose strict work a slot's best effort may run.

        None when its workers go by a default of their own.
        """
        padding = decode(SlotPadding, self.words, _base(slot))
        return mask_of(padding.beside, 0, SLOT_WORDS) if padding.padding_known else None

    def write_padding(self, slot: int, beside: int) -> None:
        """Say beside which slots' strict work this slot's best effort may run, as a mask.

        Each word is whole; a reader may see some of them from before.
        """
        base = _base(slot)
        for index, word in enumerate(words_of(beside, SLOT_WORDS)):
            self._set(base + _S["beside"] + index, word)
        self._set(base + _S["padding_known"], 1)

    def forget_padding(self, slot: int) -> None:
        """Let a slot's best effort go by its own default."""
        self._set(_base(slot) + _S["padding_known"], 0)

    def write_commands(
        self, slot: int, commands: SlotCommands, groups: Sequence[GroupCommands] = ()
    ) -> int:
        """Replace the commands of a slot; groups beyond the given ones are left alone by them.

        Returns the new sequence. A sequence that a dead writer left odd is repaired. Raises
        ValueError before anything is stored when a value is out of range.
        """
        base, stride = _base(slot), GROUP_STRIDE // 8
        padded = [*groups, *[GroupCommands()] * (GROUP_COUNT - len(groups))]
        if len(padded) > GROUP_COUNT:
            raise ValueError(f"{len(groups)} groups; allowed: at most {GROUP_COUNT}")
        draft = [0] * (SLOT_SIZE // 8)
        encode(commands, draft)
        for group, record in enumerate(padded):
            encode(record, draft, group * stride)
        at = _S["command_sequence"]
        before = self.words[base + at]
        changing = ((before if 0 <= before < _SEQUENCE_LIMIT else 0) + 1) | 1
        self.words[base + at] = changing
        self._store(base + at + 1, draft[at + 1 : _COMMANDS_END])
        self.words[base + at] = changing + 1
        return changing + 1

    def _set(self, index: int, value: int) -> None:
        """Store a word, unless that would only take its line away from those who read it."""
        if self.words[index] != value:
            self.words[index] = value

    def _store(self, index: int, values: Sequence[int]) -> None:
        """Store words one by one; the caller holds the section's sequence odd."""
        for offset, value in enumerate(values):
            self.words[index + offset] = value

    def _stable(self, slot: int, sequence: str, end: str) -> memoryview:
        """Copy of a slot's words from a seqlock word to the field ``end``, at their own indexes."""
        base = _base(slot)
        start, stop = _S[sequence], _S[end]
        for attempt in range(READ_ATTEMPTS):
            before = self.words[base + start]
            if not before & 1:
                copy = self.words[base + start : base + stop].tobytes()
                if self.words[base + start] == before:
                    return memoryview(bytes(start * 8) + copy).cast("q")
            if attempt % 10 == 9:
                time.sleep(0.0001)  # the writer may be waiting for this processor
        raise UnstableError(f"slot {slot}: {sequence} {before} kept changing or stayed odd")


def _base(slot: int) -> int:
    if not 0 <= slot < SLOT_COUNT:
        raise IndexError(f"slot {slot}; allowed: 0 to {SLOT_COUNT - 1}")
    return (SLOTS_OFFSET + slot * SLOT_SIZE) // 8
