"""The controller's side of preemption: turns, bounds, and who may run beside whom.

Reads what runners and worker groups say on the control page, and writes the ``beside`` masks of
the models whose groups give way. How a pair begins is the slowdown model's to say, by the
profiles; then it is measured.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterable, Mapping

from shunter.allocator.placement.beside import Start, start
from shunter.allocator.planning.profile import Profile
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.front_end_page import read_network
from shunter.batching.page.layout import SLOT_COUNT
from shunter.batching.page.records import RunnerLine, SlotIdentity
from shunter.batching.page.runners import read_runners
from shunter.batching.page.slices import has_device
from shunter.batching.preemption.pair_judge import Pair, PairJudge, Served
from shunter.plugins.control.padding_slot import PaddingSlot
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
        self._begun: dict[Pair, tuple[Start, bool]] = {}
        """How the pairs began that are watched; whether best effort gave cores back then."""

    def do_work(
        self,
        identities: Mapping[int, SlotIdentity],
        settings: PreemptionSettings,
        now_ns: int,
        profiles: Mapping[int, Profile | None] | None = None,
    ) -> None:
        """Write the masks of all slots with groups that give way, where they change.

        ``profiles``: of the slots' models, where there are any.
        """
        slots = self._read(identities, profiles or {})
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

    def _read(
        self, identities: Mapping[int, SlotIdentity], profiles: Mapping[int, Profile | None]
    ) -> dict[int, PaddingSlot]:
        """Slots with their groups and runners; none when nobody gives way."""
        if not any(self._page.yields(slot) for slot in identities):
            return {}
        slots = {
            slot: PaddingSlot(
                identity,
                self._page.read_groups(slot, identity.group_count),
                read_network(self._page, slot).network_workers > 0,
                profile=profiles.get(slot),
            )
            for slot, identity in identities.items()
        }
        for line in read_runners(self._page):
            if line.runner_class == _BEST_EFFORT and line.runner_slot in slots:
                slots[line.runner_slot].runners.append(line)
        return slots

    def _forget(self, slots: Mapping[int, PaddingSlot]) -> None:
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

    def _watch(self, pairs: set[Pair], slots: Mapping[int, PaddingSlot], now_ns: int) -> None:
        """Tell the judge what the pairs did, and of new ones."""
        self._judge.forget(set(self._judge.pairs) - pairs)
        self._begun = {pair: how for pair, how in self._begun.items() if pair in self._judge}
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

    def _works(self, slot: int, seen: PaddingSlot) -> bool:
        """Whether the best-effort model had work in this duty cycle."""
        before = self._batches.get(slot, seen.batches)
        self._batches[slot] = seen.batches
        return seen.has_work or seen.batches != before

    def _look_at(
        self, pair: Pair, strict: PaddingSlot, best_effort: PaddingSlot, now_ns: int
    ) -> None:
        """Begin with a pair; on trial, too, when more becomes known of it.

        A runner that begins or ends does not look as if it gave cores back. No pair begins anew
        for that: one that was measured to do harm would be tried as often as one that was not.
        """
        begun, took_back = self._begun.get(pair, (None, False))
        if begun is Start.TOGETHER:
            return
        takes_back = took_back or self._takes_back(best_effort)
        found = self._start(strict, best_effort, takes_back)
        if found is begun:
            return
        self._judge.forget([pair])
        self._begun.pop(pair, None)
        if found is not Start.APART:
            self._judge.begin(pair, found is Start.TOGETHER, now_ns)
            self._begun[pair] = found, takes_back

    def _takes_back(self, best_effort: PaddingSlot) -> bool:
        lines = best_effort.runners
        return bool(lines) and all(self._preempts(line) for line in lines)

    def _start(self, strict: PaddingSlot, best_effort: PaddingSlot, takes_back: bool) -> Start:
        """How a pair begins, by profiles and by what its passes were seen to take alone.

        While these are not known it is tried only where strict work would have its cores back.
        """
        first, second = strict.strict_pass, best_effort.best_effort_pass
        if first is None or second is None:
            return Start.TRIAL if takes_back else Start.APART
        return start(first, second, self._cores, takes_back, self._judge.slow_down)

    def _is_open(self, pair: Pair) -> bool:
        return pair in self._judge and self._judge.is_open(pair)

    def _write(self, slot: int, mask: int) -> None:
        if self._written.get(slot) != mask:
            self._page.write_padding(slot, mask)
            self._written[slot] = mask


def _pairs(slots: Mapping[int, PaddingSlot], yielding: Mapping[int, PaddingSlot]) -> list[Pair]:
    """Strict and best-effort slots that have a slice in common."""
    return [
        (strict, slot)
        for strict, other in slots.items()
        for slot, seen in yielding.items()
        if other.slices(False) & seen.slices(True)
    ]


def _bits(slots: Iterable[int]) -> int:
    return sum(1 << slot for slot in slots)
