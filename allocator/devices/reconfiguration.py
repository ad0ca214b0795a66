"""From one layout of a GPU to another as a transaction: the wanted one, or the one of before.

Drain, destroy, create, verify. Instances that are in both layouts are not touched and keep serving.
Whatever fails, the instances of before are made again. What is left when the process is killed in
between is finished or undone by :meth:`Reconfiguration.recover` at the next start. Nothing here
switches MIG on or off, nor resets a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.geometry import Layout, Placement, diff, fault, text_of
from shunter.allocator.devices.instances import GpuInstance
from shunter.allocator.devices.journal import Journal, Phase, Record
from shunter.allocator.devices.mig import MigGpu

TRIES_BACK = 4
"""How often the layout of before is tried to be restored, ever more slowly."""
FIRST_PAUSE_S = 0.5
LOOK_EVERY_S = 0.1
LOOKS = 10
EMPTY: Layout = frozenset()


class Tenants(Protocol):
    """Whoever uses instances. Both are called while nobody else changes the GPU."""

    def leave(self, instances: Sequence[GpuInstance]) -> None:
        """End all work on these and start none; return when it has ended, raise if it cannot."""

    def settle(self, instances: Sequence[GpuInstance]) -> None:
        """These are there now, with new UUIDs where they are new: work may run on all of them."""


class Nobody:
    """No one to be asked: what runs is only waited for."""

    def leave(self, instances: Sequence[GpuInstance]) -> None:
        """Nothing to be done."""

    def settle(self, instances: Sequence[GpuInstance]) -> None:
        """Nothing to be done."""


class ReconfigurationError(DeviceError):
    """A change failed. The message says why, what is there now, and what to do."""

    def __init__(self, message: str, code: int, is_restored: bool) -> None:
        super().__init__(message, code)
        self.is_restored = is_restored
        """Whether the layout of before is back; else the journal knows what to do."""


@dataclass(frozen=True)
class Recovery:
    """What a start found, and what became of it."""

    what: Literal["nothing", "not begun", "finished", "undone", "made again", "differs"]
    layout: Layout
    why: str = ""


class Reconfiguration:
    """Changes the instances of one GPU."""

    def __init__(
        self,
        gpu: MigGpu,
        folder: Path,
        tenants: Tenants | None = None,
        *,
        patience_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``patience_s``: how long processes may take to be gone after they were asked."""
        self.gpu, self.journal = gpu, Journal(folder, gpu.uuid)
        self._tenants = tenants or Nobody()
        self._patience_s, self._clock, self._sleep = patience_s, clock, sleep

    def change(self, wanted: Layout) -> tuple[GpuInstance, ...]:
        """Make it so; returns the instances, among them those that were kept.

        Raises DeviceError when nothing was begun, ReconfigurationError when something failed.
        """
        with self.journal.alone():
            self.gpu.check_ready()
            if why := fault(wanted, self.gpu.profiles):
                raise DeviceError(f"{self._text(wanted)} cannot be on {self.gpu.uuid}: {why}")
            self._finish_what_was_begun()
            return self._change(wanted)

    def recover(self) -> Recovery:
        """At a start: finish or undo what was interrupted, make again what a reboot took away.

        Raises DeviceError when that cannot be done; it is tried again at the next start.
        """
        with self.journal.alone():
            record = self.journal.read()
            if record is None:
                return Recovery("nothing", EMPTY)
            if record.phase is not Phase.SETTLED:
                self.gpu.check_ready()
                return self._finish_what_was_begun()
            return self._make_again(record)

    def _finish_what_was_begun(self) -> Recovery:
        record = self.journal.read()
        if record is None or record.phase is Phase.SETTLED:
            return Recovery("nothing", EMPTY if record is None else record.wanted)
        if record.phase is Phase.BACK:
            self._undo(record, DeviceError(f"interrupted while undoing: {record.step}"))
            return Recovery("undone", record.before, record.step)
        try:
            if record.phase is Phase.DRAINING and self.gpu.layout() == (record.before, EMPTY):
                self._settle(record.before)
                return Recovery("not begun", record.before)
            self._drain(record.wanted)
            self._walk(Record(Phase.FORWARD, record.before, record.wanted))
        except DeviceError as error:
            self._undo(record, error)
            return Recovery("undone", record.before, str(error))
        self._settle(record.wanted)
        return Recovery("finished", record.wanted)

    def _make_again(self, record: Record) -> Recovery:
        if not record.wanted:
            return Recovery("nothing", EMPTY)
        self.gpu.check_ready()
        there, unusable = self.gpu.layout()
        if there == record.wanted and not unusable:
            return Recovery("nothing", there)
        if there:
            # Somebody else made these; what runs there is not ours to end.
            why = f"{self._text(record.wanted)} was made, {self._text(there)} is there"
            return Recovery("differs", there, why)
        self._change(record.wanted)
        return Recovery("made again", record.wanted)

    # ---- one change

    def _change(self, wanted: Layout) -> tuple[GpuInstance, ...]:
        before, unusable = self.gpu.layout()
        if not diff(before, wanted, unusable):
            return self._settle(wanted)
        begun = Record(Phase.DRAINING, before, wanted)
        self.journal.write(begun)
        try:
            self._drain(wanted)
        except BaseException:
            self._settle(before)
            raise
        try:
            self._walk(Record(Phase.FORWARD, before, wanted))
        except BaseException as error:  # Ctrl-C is no reason to leave half of it.
            self._undo(begun, error)
            if not isinstance(error, Exception):
                raise
            raise ReconfigurationError(
                f"{error}. Nothing has changed: {self._text(before)} is there again on "
                f"{self.gpu.uuid}",
                getattr(error, "code", 0),
                is_restored=True,
            ) from error
        return self._settle(wanted)

    def _drain(self, wanted: Layout) -> None:
        """Wait until nothing runs on what will be destroyed."""
        there, unusable = self.gpu.layout()
        going = set(diff(there, wanted, unusable).destroy)
        leaving = [each for each in self.gpu.instances() if each.placement in going]
        if not leaving:
            return
        self._tenants.leave(leaving)
        until = self._clock() + self._patience_s
        while busy := [e for e in self.gpu.instances() if e.placement in going and e.pids]:
            if self._clock() >= until:
                users = [f"pid {pid} on {each.profile}" for each in busy for pid in each.pids]
                raise DeviceError(
                    f"{self.gpu.uuid} is still in use after {self._patience_s:g} s: "
                    f"{', '.join(users)}; end them or wait. Nothing was changed",
                    19,
                )
            self._sleep(LOOK_EVERY_S)

    def _walk(self, record: Record) -> None:
        """To ``wanted``, in the phase BACK to ``before``; each step is in the journal first."""
        target = record.before if record.phase is Phase.BACK else record.wanted
        there, unusable = self.gpu.layout()
        change = diff(there, target, unusable)
        steps: list[tuple[str, Callable[[Placement], None], Placement]] = [
            *(("destroy", self.gpu.destroy, each) for each in change.destroy),
            *(("create", self.gpu.create, each) for each in change.create),
        ]
        for verb, act, each in steps:
            step = f"{verb} {self._text([each])}"
            self.journal.write(Record(record.phase, record.before, record.wanted, step))
            act(each)
        self._verify(target)

    def _verify(self, target: Layout) -> None:
        there, unusable = self.gpu.layout()
        for _ in range(LOOKS):  # A MIG device may be seen a moment after it was made.
            if there == target and not unusable:
                return
            self._sleep(LOOK_EVERY_S)
            there, unusable = self.gpu.layout()
        if there != target or unusable:
            without = f", {self._text(unusable)} without a MIG device" if unusable else ""
            raise DeviceError(
                f"{self.gpu.uuid} has {self._text(there)}{without} after the change, not "
                f"{self._text(target)}: does another program change instances?"
            )

    def _undo(self, record: Record, cause: BaseException) -> None:
        """Back to ``before``; raises ReconfigurationError when that fails again and again."""
        pause, last = FIRST_PAUSE_S, cause
        for attempt in range(TRIES_BACK):
            try:
                self._walk(Record(Phase.BACK, record.before, record.wanted))
            except DeviceError as error:
                last = error
                if attempt < TRIES_BACK - 1:
                    self._sleep(pause)
                pause *= 2
            else:
                self._settle(record.before)
                return
        there = self._now()
        raise ReconfigurationError(
            f"{cause}. Undoing it failed too: {last}. {self.gpu.uuid} has {there} and is to have "
            f"{self._text(record.before)}: mend what is said above, then start again, which tries "
            "once more",
            getattr(last, "code", 0),
            is_restored=False,
        ) from cause

    def _settle(self, layout: Layout) -> tuple[GpuInstance, ...]:
        self.journal.write(Record(Phase.SETTLED, layout, layout))
        pause = FIRST_PAUSE_S
        for _ in range(TRIES_BACK - 1):  # Nobody may be left standing for one failed look.
            try:
                instances = self.gpu.instances()
                break
            except DeviceError:
                self._sleep(pause)
                pause *= 2
        else:
            instances = self.gpu.instances()
        self._tenants.settle(instances)
        return instances

    def _now(self) -> str:
        try:
            return self._text(self.gpu.layout()[0])
        except DeviceError:
            return "nobody knows what"

    def _text(self, layout: Layout | Sequence[Placement]) -> str:
        return text_of(layout, self.gpu.profiles)
