"""The gate at which best-effort inference stands still for strict requests.

Code that runs best-effort work calls :meth:`Gate.check` wherever it can stand still. That looks at
the hold words of the control page (:mod:`shunter.batching.page.holds`), which takes about two
microseconds, and returns when nothing holds the slices that the work runs on. The states it goes
through are :mod:`shunter.batching.preemption.states`'s, and stand on the page for everyone to see.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.holds import (
    MAX_HOLD_NS,
    held,
    is_raised,
    progress_ns,
    since_ns,
)
from shunter.batching.page.layout import (
    HEADER_FIELDS,
    SLOT_FIELDS,
    SLOT_SIZE,
    SLOT_WORDS,
    SLOTS_OFFSET,
)
from shunter.batching.page.runners import Runner
from shunter.batching.page.slices import EVERY, SliceSet, mask_of
from shunter.batching.preemption.states import (
    LONGEST_PARK_NS,
    Event,
    RunnerState,
    after,
    end_of_parking,
)

STEP_S = 0.0002
"""Parked work looks so often whether it may go on. Under SCHED_IDLE that takes nothing from others,
and it is short against what one preemption may cost."""
SLOT_VARIABLE = "SHUNTER_SLOT"
SLICES_VARIABLE = "SHUNTER_SLICES"
EVERY_SLOT = (1 << 64 * SLOT_WORDS) - 1
_H = {name: placed.offset // 8 for name, placed in HEADER_FIELDS.items()}
_S = {name: placed.offset // 8 for name, placed in SLOT_FIELDS.items()}
Result = TypeVar("Result")
Keep = Callable[..., Callable[[], Sequence[object]]]
"""Takes the arguments of work; what it returns gives them again as they were then."""


class Dropped(BaseException):  # no error: what catches Exception must let it pass
    """A batch gives its memory back and begins anew."""


@dataclass(frozen=True)
class WorkerPlace:
    """Where a worker stands: whose work it does, and where."""

    slot: int = -1
    """Of its model; -1: it has none."""
    slices: SliceSet = 0
    """On which it runs."""

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> WorkerPlace:
        """As the server says it. Raises ValueError naming the variable."""
        numbers = {}
        for variable, default in ((SLOT_VARIABLE, "-1"), (SLICES_VARIABLE, "0")):
            text = environ.get(variable) or default
            try:
                numbers[variable] = int(text, 0)
            except ValueError:
                raise ValueError(f"{variable}={text!r}; allowed: a whole number") from None
        if not 0 <= numbers[SLICES_VARIABLE] <= EVERY:
            text = environ[SLICES_VARIABLE]
            raise ValueError(f"{SLICES_VARIABLE}={text!r}; allowed: 0 to {EVERY:#x}")
        return cls(numbers[SLOT_VARIABLE], numbers[SLICES_VARIABLE])


class Passers(Protocol):
    """Strict batches of the same process, which can run while one of best effort stands still."""

    def may_stand(self) -> bool:
        """Whether the batch that runs may stand still here."""

    def are_there(self) -> bool:
        """Whether any waits."""

    def run_one(self) -> bool:
        """Let the next one run, if there is one; whether there was."""


def close_steps(steps: Iterator[Any]) -> None:
    """Let a generator end where it stands."""
    if callable(close := getattr(steps, "close", None)):
        close()


class Gate:
    """Keeps one worker's inference standing still while strict work holds its slices."""

    def __init__(
        self,
        page: ControlPage,
        runner: Runner,
        place: WorkerPlace,
        *,
        beside: int,
        may_drop: bool = False,
        passers: Passers | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``beside``: mask of the slots beside whose strict work this one may run, until the
        controller says it; ``may_drop``: whether a parked batch may begin anew; ``passers``: of a
        process that serves other models, too."""
        self._page, self._runner, self._place = page, runner, place
        self._slices, self._beside, self._may_drop = place.slices, beside, may_drop
        self._passers, self._clock, self._sleep = passers, clock, sleep
        self._state = RunnerState.RUNNING
        self._lock = threading.Lock()  # of handlers that compute in several threads
        self._passed_ns = clock()
        self._parked_ns = 0
        self._has_begun = False
        """A batch is under way, which could be begun anew."""
        self._has_aged = self._was_dropped = False
        base = (SLOTS_OFFSET + max(0, place.slot) * SLOT_SIZE) // 8
        self._known_at = base + _S["padding_known"]
        self._beside_at = base + _S["beside"]
        runner.set("runner_slot", place.slot)
        runner.set_slices(place.slices)

    def begin_batch(self) -> None:
        """Before each batch: it can stand still here, and has not done so yet."""
        self._runner.add("batches", 1)
        self._begin()

    def _begin(self) -> None:
        self._parked_ns, self._has_aged, self._was_dropped = 0, False, False
        self.check()

    def check(self) -> None:
        """Stand still while strict work holds what this runs on; raises Dropped to begin anew."""
        now_ns = self._clock()
        if self._is_raised() and self._is_wanted(now_ns):
            with self._lock:
                # Another thread may have stood still meanwhile, for this one too.
                now_ns = self._clock()
                if self._is_wanted(now_ns):
                    self._stand(now_ns)
        self._passed_ns = now_ns

    def _is_raised(self) -> bool:
        """Whether there may be a reason to stand still; that there is none is found out at once."""
        return self._passers is not None or is_raised(self._page, self._slices)

    def _is_wanted(self, now_ns: int) -> bool:
        """Whether it stands still now: for strict work on its slices, or in its own process."""
        if self._has_aged:
            return False
        if self._passers is None:
            return self._is_held(now_ns)
        return self._passers.may_stand() and self._has_reason(now_ns)

    def _has_reason(self, now_ns: int) -> bool:
        if self._passers is not None and self._passers.are_there():
            return True
        return is_raised(self._page, self._slices) and self._is_held(now_ns)

    def is_held(self) -> bool:
        """Whether strict work holds what this runs on."""
        return self._is_held(self._clock())

    @property
    def may_drop(self) -> bool:
        """Whether a parked batch may begin anew."""
        return self._may_drop

    def guard(self, work: Callable[..., Result], keep: Keep) -> Callable[..., Result]:
        """The same work as a batch that can stand still, and begins anew when it was dropped.

        It is dropped once at most: else it might never end. ``keep`` is called where a batch may
        be dropped, before it begins: its handler may change its arguments. Of a generator each step
        can stand still as a batch can, and none begins anew: what it has yielded was seen.
        """

        def guarded(*args: object) -> Result:
            self.begin_batch()
            as_given = keep(*args) if self._may_drop else None
            try:
                self._has_begun = True
                return self._by_step(work(*args))
            except Dropped:
                self._runner.add("drops", 1)
            finally:
                self._has_begun = False
            self._was_dropped = True
            self.check()
            assert as_given is not None  # else it is never dropped
            return self._by_step(work(*as_given()))

        return guarded

    def _by_step(self, found: Any) -> Any:
        """What a batch gave; a generator begins its first step at once."""
        return self._steps(found) if isinstance(found, Iterator) else found

    def _steps(self, steps: Iterator[Any]) -> Iterator[Any]:
        try:
            for found in steps:
                yield found
                self._begin()
        finally:
            close_steps(steps)

    def _is_held(self, now_ns: int) -> bool:
        words, beside = self._page.words, self._beside
        if self._place.slot >= 0 and words[self._known_at] == 1:
            beside = mask_of(words, self._beside_at, SLOT_WORDS)
        max_hold_ns = words[_H["max_hold_us"]] * 1000 or MAX_HOLD_NS
        found = held(self._page, self._slices, now_ns, beside=beside, max_hold_ns=max_hold_ns)
        return found != 0

    def _stand(self, began_ns: int) -> None:
        """Until it may go on. Whatever exception ends the wait leaves it running."""
        try:
            self._yield(began_ns)
            ended = self._park(began_ns)
        except BaseException:
            self._move(Event.INTERRUPTED, self._clock())
            raise
        if ended is Event.WANTED:
            raise Dropped

    def _yield(self, now_ns: int) -> None:
        raised_ns = since_ns(self._page, self._slices)
        self._move(Event.HELD, now_ns)
        self._move(Event.BOUNDARY, now_ns)
        runner = self._runner
        runner.add("preemptions", 1)
        if raised_ns > self._passed_ns:  # else it was up before there was anything to preempt
            runner.add("yield_ns", now_ns - raised_ns)
            runner.set("yield_worst_ns", max(runner.get("yield_worst_ns"), now_ns - raised_ns))

    def _park(self, began_ns: int) -> Event:
        before_ns = self._parked_ns
        now_ns, ended = began_ns, None
        try:
            while ended is None:
                self._runner.beat(now_ns)
                if self._passers is None or not self._passers.run_one():
                    self._sleep(STEP_S)
                now_ns = self._clock()
                self._parked_ns = before_ns + now_ns - began_ns
                ended = self._end_of_parking(now_ns)
        finally:
            self._runner.add("parked_ns", now_ns - began_ns)
        self._has_aged = ended is Event.WAITED
        lowered_ns = progress_ns(self._page)
        if ended is Event.RELEASED and began_ns < lowered_ns <= now_ns:
            self._runner.add("restore_ns", now_ns - lowered_ns)
        self._move(ended, now_ns)
        self._move(Event.WENT_ON, now_ns)
        return ended

    def _end_of_parking(self, now_ns: int) -> Event | None:
        words = self._page.words
        return end_of_parking(
            is_held=self._has_reason(now_ns),
            parked_ns=self._parked_ns,
            longest_park_ns=words[_H["longest_park_us"]] * 1000 or LONGEST_PARK_NS,
            memory_is_wanted=words[_H["memory_wanted"]] == 1,
            may_drop=self._has_begun and self._may_drop and not self._was_dropped,
        )

    def _move(self, event: Event, now_ns: int) -> None:
        self._state = after(self._state, event)
        self._runner.enter(self._state, now_ns)
