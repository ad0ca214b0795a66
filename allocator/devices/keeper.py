"""Keeps GPUs in the layouts that are wanted, on a thread of its own: a change takes seconds.

First what an earlier process left half done is finished or undone, GPU by GPU. Then the wanted
layouts are carried out one GPU after the other. What failed was undone, and is tried again later,
ever more rarely. A GPU that cannot be mended, or does not answer any more, holds no other one up.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pynvml

from shunter.allocator.devices.advice import DeviceError
from shunter.allocator.devices.geometry import LayoutError, parse, text_of
from shunter.allocator.devices.instances import GpuInstance
from shunter.allocator.devices.inventory import Stock
from shunter.allocator.devices.mig import MigGpu, gpus, nvml_started
from shunter.allocator.devices.reconfiguration import Reconfiguration, ReconfigurationError
from shunter.allocator.devices.standing import Standing, number_of

LOGGER = logging.getLogger("shunter.devices")
LOOK_S = 2.0
"""How often it looks whether somebody else changed instances."""
FIRST_RETRY_S, LAST_RETRY_S = 30.0, 600.0
FIRST_MEND_S, LAST_MEND_S = 0.5, 30.0
"""Pauses between two attempts to make a GPU whole again."""


class Leaving(Protocol):
    """Whoever has work on instances."""

    def leave(self, names: frozenset[str]) -> None:
        """End all work on these MIG devices and start none; raise DeviceError if it cannot."""


class Keeper:
    """The thread, and what it is told."""

    def __init__(
        self,
        folder: Path,
        leaving: Leaving,
        *,
        patience_s: float = 60.0,
        nvml: Any = pynvml,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``folder``: of the journals; ``patience_s``: for processes that shall leave."""
        self.standing, self._stock = Standing(), Stock(nvml)
        self._folder, self._leaving, self._patience_s = folder, leaving, patience_s
        self._nvml, self._sleep, self._clock = nvml, sleep, clock
        self._wanted: tuple[str, ...] = ()
        self._wake, self._ended = threading.Event(), threading.Event()
        self._whole: set[str] = set()
        self._retry_s, self._retry_at = FIRST_RETRY_S, 0.0
        self._mend_s, self._mend_at = FIRST_MEND_S, 0.0
        self._tried = 0
        self._made: dict[str, bool] = {}
        """GPUs on which they were tried since it was time for all; whether it went well."""
        self._unanswered = ""
        """What NVML said last, when it said no more than that."""

    def start(self) -> None:
        """Begin; it ends with the process, or at :meth:`end`."""
        threading.Thread(target=self.run, name="shunter-devices", daemon=True).start()

    def end(self) -> None:
        """Begin nothing more."""
        self._ended.set()
        self._wake.set()

    def want(self, layouts: Sequence[str]) -> None:
        """Layouts of all GPUs, one for all or one for each; none: leave them as they are.

        An empty one: leave that GPU as it is.
        """
        if tuple(layouts) != self._wanted:
            self._wanted = tuple(layouts)
            self._wake.set()

    # ---- the thread

    def run(self) -> None:
        """Look, mend, carry out, until it is to end."""
        while not self._ended.is_set():
            try:
                with nvml_started(self._nvml):
                    while not self._ended.is_set():
                        self.work(gpus(self._nvml))
                        self._pause()
            except DeviceError as error:  # such as no driver: perhaps it is loaded later
                self._unanswered = str(error)
                self._complain(self._unanswered)
            except Exception:  # the thread must outlive what nobody thought of
                LOGGER.exception("the instances of GPUs are left as they are")
            self._pause()

    def _pause(self) -> None:
        self._wake.wait(min(LOOK_S, self._mend_s) if self._mend_at else LOOK_S)
        self._wake.clear()

    def work(self, there: Sequence[MigGpu]) -> None:
        """One round. NVML must have been started. Raises DeviceError when it does not answer.

        ``there``: the GPUs that do. What another one has is seen to when it answers again.
        """
        self._whole &= {gpu.uuid for gpu in there}
        broken = [gpu for gpu in there if gpu.uuid not in self._whole]
        if broken and self._clock() >= self._mend_at:
            self._mend(broken)
        self.look()
        self._carry_out(there)

    def look(self) -> None:
        """Bring up to date which instances there are. Raises DeviceError.

        It is never called in the middle of a change: nothing is about to go.
        """
        found, silent = self._stock.look()
        whole = frozenset(self._whole)
        self._say(gpus=found, silent=silent, closing=frozenset(), changing=0, whole=whole)
        if silent:
            return  # why is the problem, and was said
        if self._unanswered and self._unanswered == self.standing.problem:
            self._say(problem="")  # it answers again
        self._unanswered = ""

    def _mend(self, broken: Sequence[MigGpu]) -> None:
        """Finish or undo what was left half done; whatever cannot be is tried again."""
        self._mend_at = 0.0
        for gpu in broken:
            try:
                found = self._reconfiguration(gpu).recover()
            except DeviceError as error:
                self._mend_at = self._clock() + self._mend_s
                self._complain(str(error))
                continue
            self._whole.add(gpu.uuid)
            if found.what != "nothing":
                why = f" ({found.why})" if found.why else ""
                LOGGER.info("instances of %s: what was begun is %s%s", gpu.uuid, found.what, why)
        self._mend_s = min(LAST_MEND_S, 2 * self._mend_s) if self._mend_at else FIRST_MEND_S

    def _carry_out(self, there: Sequence[MigGpu]) -> None:
        """Make the wanted layouts, if it is time; where a GPU has become whole it is at once."""
        wanted = self._wanted
        number = number_of(wanted)
        if number != self._tried:
            self._retry_s, self._retry_at = FIRST_RETRY_S, 0.0
            self._made.clear()
        if not wanted:
            return
        if number == self._tried:
            self._say_done(there, number)  # the GPU of a failed change is whole again
        is_due = self._clock() >= self._retry_at
        if is_due:
            self._made.clear()
        open_ = {gpu.uuid for gpu in there if gpu.uuid in self._whole - self._made.keys()}
        if not is_due and not open_:
            return
        self._tried = number
        count = self.standing.count
        if len(wanted) not in (1, count):
            self._made |= dict.fromkeys(open_, False)
            self._complain(
                f"{len(wanted)} layouts are wanted; allowed: 1, or {count}: one for each GPU"
            )
        else:
            texts = wanted if len(wanted) == count else wanted * count
            for gpu in there:
                if gpu.uuid in open_:
                    self._made[gpu.uuid] = self._change(gpu, texts[gpu.index])
        failed = not all(self._made.get(gpu.uuid) for gpu in there)
        if is_due:
            self._retry_at = self._clock() + (self._retry_s if failed else LAST_RETRY_S)
            self._retry_s = min(LAST_RETRY_S, 2 * self._retry_s)
        if not failed:
            self._say(problem="")
        self._say_done(there, number)

    def _say_done(self, there: Sequence[MigGpu], number: int) -> None:
        if {gpu.uuid for gpu in there} <= self._whole:
            self._say(done=number)

    def _change(self, gpu: MigGpu, text: str) -> bool:
        """Whether it has that layout now, or none is wanted of it."""
        if not text:
            return True
        try:
            now = gpu.layout()[0]
            wanted = parse(text, gpu.profiles, now)
            if gpu.layout() == (wanted, frozenset()):
                return True
            self._say(changing=1)
            self._reconfiguration(gpu).change(wanted)
        except (DeviceError, LayoutError) as error:
            if isinstance(error, ReconfigurationError) and not error.is_restored:
                self._whole.discard(gpu.uuid)
            self._say(undone=self.standing.undone + 1)
            self._complain(str(error))
            return False
        finally:
            self.settled()
        self._say(changes=self.standing.changes + 1)
        LOGGER.info("instances of %s: %s", gpu.uuid, text_of(wanted, gpu.profiles))
        return True

    def _reconfiguration(self, gpu: MigGpu) -> Reconfiguration:
        return Reconfiguration(
            gpu,
            self._folder,
            _Tenants(self),
            patience_s=self._patience_s,
            sleep=self._sleep,
            clock=self._clock,
        )

    def leave(self, instances: Sequence[GpuInstance]) -> None:
        """Close these instances, and let everybody leave them."""
        names = frozenset(part.uuid for each in instances for part in each.parts)
        self._say(closing=self.standing.closing | names, changing=1)
        self._leaving.leave(names)

    def settled(self) -> None:
        """No instance is about to go any more."""
        try:
            self.look()
        except DeviceError as error:  # what is closed stays so until the next look
            self._unanswered = str(error)
            self._complain(self._unanswered)

    def _say(self, **changed: Any) -> None:
        self.standing = replace(self.standing, **changed)

    def _complain(self, problem: str) -> None:
        if problem != self.standing.problem:
            LOGGER.warning("%s", problem)
            self._say(problem=problem)


class _Tenants:
    """What a change of one GPU tells the keeper."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def leave(self, instances: Sequence[GpuInstance]) -> None:
        self._keeper.leave(instances)

    def settle(self, instances: Sequence[GpuInstance]) -> None:
        self._keeper.settled()
