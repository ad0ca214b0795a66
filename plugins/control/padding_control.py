"""The controller's side of preemption: turns, bounds, and who may run beside whom.

Reads what runners and worker groups say on the control page, and writes the ``beside`` masks of
the models whose groups give way.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.front_end_page import read_network
from shunter.batching.page.layout import SLOT_COUNT, RunnerState
from shunter.batching.page.records import GroupTelemetry, RunnerLine, SlotIdentity
from shunter.batching.page.runners import read_runners
from shunter.batching.page.slices import ALL_CPUS, EVERY, SliceSet, has_device
from shunter.batching.preemption.padding import Capacity, Pass, may_pad
from shunter.batching.preemption.pair_judge import Pair, PairJudge, Served
from shunter.plugins.control.settings import PreemptionSettings

LOGGER = logging.getLogger("shunter.padding")
_ALL_SLOTS = (1 << SLOT_COUNT) - 1
_BEST_EFFORT = 1


def kernel_preempts(line: RunnerLine) -> bool:
    """Whether the kernel gives this runner's cores to strict work at once."""
    if has_device(line.runner_slices):
        return False
    try:
        return os.sched_getscheduler(line.runner_pid) == os.SCHED_IDLE
    except OSError:  # it has just ended
        return False


def write_header(page: ControlPage, settings: PreemptionSettings, memory_bytes: float) -> None:
    """The settings that every process reads from the header. ``memory_bytes``: available now."""
    page.write_turns(settings.strict_order, settings.best_effort_order, settings.exclusive)
    page.write_bounds(round(settings.max_hold_ms * 1e3), round(settings.longest_park_ms * 1e3))
    page.want_memory(memory_bytes < settings.memory_floor_mb << 20)


@dataclass
class _Slot:
    """A slot in this duty cycle."""

    identity: SlotIdentity
    groups: list[GroupTelemetry]
    on_network: bool = False
    """Whether the network front end feeds workers of it."""
    runners: list[RunnerLine] = field(default_factory=list)

    def slices(self, yields: bool) -> SliceSet:
        """Where its groups that give way run, or the others; 0: there are none."""
        masks = [
            group.group_slices or EVERY
            for group in self.groups
            if bool(group.group_yields) is yields
        ]
        if self.on_network and not yields:
            masks.append(ALL_CPUS)  # where these workers run is not on the page
        return _union(masks)

    @property
    def has_work(self) -> bool:
        """Whether a group that gives way has a batch now, running or parked."""
        return any(group.group_yields and group.group_busy for group in self.groups) or any(
            line.runner_state != RunnerState.RUNNING for line in self.runners
        )

    @property
    def batches(self) -> int:
        """Batches that its runners ran."""
        return sum(line.batches for line in self.runners)

    @property
    def name(self) -> str:
        """``name/version``."""
        return f"{self.identity.model_name}/{self.identity.model_version}"

    @property
    def workers(self) -> tuple[str, str, int]:
        """Another value stands for other workers, with which everything is to be found out anew."""
        identity = self.identity
        return identity.model_name, identity.model_version, identity.generation


class PaddingControl:
    """Keeps the masks up to date, one duty cycle per :meth:`do_work`."""

    def __init__(
        self,
        page: ControlPage,
        lot: random.Random,
        cores: int,
        preempts: Callable[[RunnerLine], bool] = kernel_preempts,
    ) -> None:
        """``lot`` draws when a pair is parted to measure; ``cores`` is what all share."""
        self._page = page
        self._judge = PairJudge(lot)
        self._cores = cores
        self._preempts = preempts
        self._workers: dict[int, tuple[str, str, int]] = {}
        self._written: dict[int, int] = {}
        self._batches: dict[int, int] = {}
        self._service: dict[int, tuple[list[int], list[int]]] = {}
        self._unknown: set[Pair] = set()
        """Pairs that are tried although nobody knows what they need."""

    def do_work(
        self, identities: Mapping[int, SlotIdentity], settings: PreemptionSettings, now_ns: int
    ) -> None:
        """Write the masks of all slots with groups that give way, where they change."""
        slots = self._read(identities)
        yielding = {slot: seen for slot, seen in slots.items() if seen.slices(True)}
        self._forget(slots)
        measured = settings.padding == "auto" and not settings.exclusive
        pairs = set(_pairs(slots, yielding))
        if measured:
            self._judge.slow_down = settings.slow_down
            self._watch(pairs, slots, now_ns)
        else:
            self._judge.forget(set(self._judge.pairs))
        for slot in yielding:
            if settings.exclusive or settings.padding == "always":
                self._write(slot, _ALL_SLOTS)
            elif settings.padding == "never":
                self._write(slot, _bits(slots) & ~_bits(s for s, b in pairs if b == slot))
            else:
                open_to = {s for s, b in pairs if b == slot and self._is_open((s, b))}
                closed = {s for s, b in pairs if b == slot} - open_to
                self._write(slot, _bits(slots) & ~_bits(closed))

    def _read(self, identities: Mapping[int, SlotIdentity]) -> dict[int, _Slot]:
        """Slots with their groups and runners; none when nobody gives way."""
        if not any(self._page.yields(slot) for slot in identities):
            return {}
        slots = {
            slot: _Slot(
                identity,
                self._page.read_groups(slot, identity.group_count),
                read_network(self._page, slot).network_workers > 0,
            )
            for slot, identity in identities.items()
        }
        for line in read_runners(self._page):
            if line.runner_class == _BEST_EFFORT and line.runner_slot in slots:
                slots[line.runner_slot].runners.append(line)
        return slots

    def _forget(self, slots: Mapping[int, _Slot]) -> None:
        """What was known of workers that are gone."""
        workers = {slot: seen.workers for slot, seen in slots.items()}
        gone = {slot for slot, known in self._workers.items() if workers.get(slot) != known}
        for slot in gone:
            if self._written.pop(slot, None) is not None:
                self._page.forget_padding(slot)
            self._service.pop(slot, None)
            self._batches.pop(slot, None)
        self._judge.forget([pair for pair in self._judge.pairs if gone.intersection(pair)])
        self._workers = workers

    def _watch(self, pairs: set[Pair], slots: Mapping[int, _Slot], now_ns: int) -> None:
        """Tell the judge what the pairs did, and of new ones."""
        self._judge.forget(set(self._judge.pairs) - pairs)
        self._unknown.intersection_update(self._judge.pairs)
        served = {strict: self._served(strict) for strict in {strict for strict, _ in pairs}}
        works = {slot: self._works(slot, slots[slot]) for slot in {slot for _, slot in pairs}}
        seen = {}
        for pair in pairs:
            strict, slot = pair
            if slots[slot].runners:
                self._look_at(pair, slots[strict], slots[slot], now_ns)
            if pair in self._judge:
                seen[pair] = Served(*served[strict], works[slot])
        verdict = self._judge.step(seen, now_ns)
        if verdict is not None:
            strict, slot = (slots[each].name for each in verdict.pair)
            now = "runs" if verdict.is_open else "does not run any more"
            LOGGER.info(
                "best effort of %s %s beside strict work of %s, which was %.1f %% slower beside it",
                slot,
                now,
                strict,
                verdict.slow_down * 100,
            )

    def _served(self, slot: int) -> tuple[list[int], list[int]]:
        """Strict batches and their times since the last duty cycle, by size bucket."""
        now = self._page.read_strict_service(slot)
        before = self._service.get(slot, now)
        self._service[slot] = now
        batches, ns = (
            [max(0, b - a) for a, b in zip(*parts, strict=True)]
            for parts in zip(before, now, strict=True)
        )
        return batches, ns

    def _works(self, slot: int, seen: _Slot) -> bool:
        """Whether the best-effort model had work in this duty cycle."""
        before = self._batches.get(slot, seen.batches)
        self._batches[slot] = seen.batches
        return seen.has_work or seen.batches != before

    def _look_at(self, pair: Pair, strict: _Slot, best_effort: _Slot, now_ns: int) -> None:
        """Begin with a pair that fits, or that is not known to; of those it may become known."""
        if pair in self._judge and pair not in self._unknown:
            return
        fits = self._fits(strict, best_effort)
        if fits is None and pair not in self._judge:
            self._judge.begin(pair, False, now_ns)
            self._unknown.add(pair)
        elif fits is not None:
            self._unknown.discard(pair)
            self._judge.forget([pair])
            if fits:
                self._judge.begin(pair, True, now_ns)

    def _fits(self, strict: _Slot, best_effort: _Slot) -> bool | None:
        """Whether both rules hold, by profiles.

        None while these are not known, where strict work would have its cores back in any case.
        """
        takes_back = all(self._preempts(line) for line in best_effort.runners)
        first, second = _strict_pass(strict), _best_effort_pass(best_effort)
        if first is None or second is None:
            return None if takes_back else False
        capacity = Capacity(self._cores, takes_back=takes_back)
        return may_pad(first, second, capacity, self._judge.slow_down)

    def _is_open(self, pair: Pair) -> bool:
        return pair in self._judge and self._judge.is_open(pair)

    def _write(self, slot: int, mask: int) -> None:
        if self._written.get(slot) != mask:
            self._page.write_padding(slot, mask)
            self._written[slot] = mask


def _pairs(slots: Mapping[int, _Slot], yielding: Mapping[int, _Slot]) -> list[Pair]:
    """Strict and best-effort slots that have a slice in common."""
    return [
        (strict, slot)
        for strict, other in slots.items()
        for slot, seen in yielding.items()
        if other.slices(False) & seen.slices(True)
    ]


def _strict_pass(seen: _Slot) -> Pass | None:
    """From the fitted latency of its groups.

    None where a group does not say how many threads it has, or nothing was fitted.
    """
    groups = [group for group in seen.groups if not group.group_yields]
    fitted = [group for group in groups if group.group_fitted]
    if not fitted or not all(group.group_threads for group in groups):
        return None
    group = min(fitted, key=lambda each: each.group_fixed_ns + each.group_per_request_ns)
    solo_ns = max(1, group.group_fixed_ns + group.group_per_request_ns)
    return Pass(solo_ns, cpu_ns=solo_ns * group.group_threads)


def _best_effort_pass(seen: _Slot) -> Pass | None:
    """The heaviest of its runners' passes, None when one of them has not been measured."""
    if not all(line.solo_ns for line in seen.runners):
        return None
    passes = [Pass(line.solo_ns, line.solo_cpu_ns, line.segment_ns) for line in seen.runners]
    return max(passes, key=lambda each: each.segment_ns or each.solo_ns, default=None)


def _bits(slots: Iterable[int]) -> int:
    return sum(1 << slot for slot in slots)


def _union(masks: Sequence[int]) -> int:
    union = 0
    for mask in masks:
        union |= mask
    return union
