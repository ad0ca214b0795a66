"""Who runs on which set of cores of a host, and how the cores are split into sets. Pure.

PROTEAN's decision where slices are sets of cores. Where its GPUs lack memory a host lacks processor
time, so best effort is packed by that: first-fit onto the fewest, smallest sets. Strict models go
to the sets where they are expected to be slowed down least. A set may serve both: best effort there
gives way, and gets the time that strict work leaves.

How fast a model is on so many cores is an argument: whoever knows Packrat's best configuration for
them has chosen already how wide its instances are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from shunter.allocator.placement.core_load import Load
from shunter.allocator.placement.scoring import ENOUGH, Outlook, Weights, choose
from shunter.allocator.placement.seats import Seat, Seats, aligned, moved
from shunter.allocator.placement.slowdown import contention

GIVES_WAY = 0.05
"""By what share strict work is slower on cores where best effort gives way to it."""
RESUME_MS = 0.5
"""What an interruption costs best effort besides the time of strict work itself: to be told, and
to fill its caches anew."""
MOST_SETS = 4
"""With more sets than that a host is not split, so that few splits are looked at."""
STEPS = 8
"""Sets are at least this part of a host wide."""
MARGIN = 0.01
"""By how much another split has to cost less than the present one: a hundredth of best effort, or
a thousandth of the strict requests. What is less than that is noise of the rates."""


@dataclass(frozen=True)
class Decision:
    """A split, and what is expected of it."""

    seats: Seats
    outlook: Outlook


@dataclass
class _Set:
    """A set of cores while models are placed."""

    cores: int
    for_strict: bool
    for_best_effort: bool
    strict: dict[str, float] = field(default_factory=dict)
    """Share of its time, by model."""
    best_effort: dict[str, float] = field(default_factory=dict)
    """Requests per second, by model."""
    room: float = 1.0
    """Share of its time that best effort does not take yet."""
    only: Seat | None = None
    """Who runs there, where that is given."""

    @classmethod
    def of(cls, seat: Seat) -> _Set:
        """Just for those who are there."""
        return cls(seat.cores, bool(seat.strict), bool(seat.best_effort), only=seat)

    @property
    def busy(self) -> float:
        return sum(self.strict.values())

    def takes(self, load: Load) -> bool:
        """Whether that model may run there."""
        if self.only is not None:
            return load.model in (self.only.strict if load.is_strict else self.only.best_effort)
        return self.for_strict if load.is_strict else self.for_best_effort


def splits(cores: int, most: int = MOST_SETS) -> Iterator[tuple[int, ...]]:
    """Ways to part so many cores, widest set first; in steps of more than one where they are many.

    >>> list(splits(3)), max(len(list(splits(n))) for n in range(1, 600))
    ([(3,), (2, 1), (1, 1, 1)], 15)
    """
    step = -(-cores // STEPS)
    for parts in _partitions(cores // step, cores // step, most):
        # What is left over is the widest set's.
        yield (parts[0] * step + cores % step, *(part * step for part in parts[1:]))


def _partitions(total: int, widest: int, most: int) -> Iterator[tuple[int, ...]]:
    if total == 0:
        yield ()
    for first in range(min(total, widest) if most else 0, 0, -1):
        for rest in _partitions(total - first, first, most - 1):
            yield (first, *rest)


def decide(
    splits: Iterable[Sequence[int]],
    loads: Sequence[Load],
    weights: Weights,
    current: Seats = (),
    awaited: Seats = (),
) -> Decision:
    """The best of all these splits, with everybody in his place. One of no sets is left out.

    That is ``awaited`` where no other is better by :data:`MARGIN`, and rather than either of them
    ``current``: rates are never exact, and whoever moves has to start anew.
    """
    splits = [tuple(split) for split in splits]
    if not splits:
        raise ValueError("no split of the cores was given")

    def priced(sets: Sequence[_Set], whole: int, there: Seats = ()) -> tuple[Decision, float]:
        seats, outlook = _placed(sets, loads, whole)
        seats = there or aligned(seats, current)
        outlook = replace(outlook, moved=moved(current, seats))
        return Decision(seats, outlook), weights.cost(outlook)

    candidates = (
        priced([_Set(cores, *role) for cores, role in zip(split, roles, strict=True)], sum(split))
        for split in splits
        for roles in _roles(split, loads)
    )
    kept = (
        priced([_Set.of(seat) for seat in seats], sum(splits[0]), seats)
        for seats in (awaited, current)
        if _is_possible(seats, splits, loads)
    )
    return choose(candidates, kept, MARGIN)


def _is_possible(seats: Seats, splits: Sequence[Sequence[int]], loads: Sequence[Load]) -> bool:
    """Whether these sets are there, and everybody has a place on them and nobody else."""
    widths = Counter(seat.cores for seat in seats)
    if not seats or all(widths - Counter(split) for split in splits):
        return False
    placed = {(name, True) for seat in seats for name in seat.strict}
    placed |= {(name, False) for seat in seats for name in seat.best_effort}
    return placed == {(load.model, load.is_strict) for load in loads}


def _roles(split: Sequence[int], loads: Sequence[Load]) -> Iterator[tuple[tuple[bool, bool], ...]]:
    """For each set whether strict work and best effort may run there; nobody is left out."""
    kinds = [(True, False), (False, True), (True, True)]
    if not 1 <= len(split) <= MOST_SETS:
        return
    needed = [any(load.is_strict is strict for load in loads) for strict in (True, False)]
    seen = set()
    for roles in product(kinds, repeat=len(split)):
        key = tuple(sorted(zip(split, roles, strict=True)))
        have = [any(role[at] for role in roles) for at in (0, 1)]
        if key not in seen and all(h or not n for h, n in zip(have, needed, strict=True)):
            seen.add(key)
            yield roles


def _placed(sets: Sequence[_Set], loads: Sequence[Load], whole: int) -> tuple[Seats, Outlook]:
    strict = [load for load in loads if load.is_strict]
    for load in sorted(strict, key=lambda load: (-load.share(whole), load.model)):
        mine = [each for each in sets if each.takes(load)]
        _occupy(load, mine if all(each.only for each in mine) else _soonest(load, mine))
    be = [load for load in loads if not load.is_strict]
    unserved = _place_best_effort(be, [each for each in sets if each.for_best_effort], whole)
    pressure = contention(_fbr(each, loads) for each in sets)
    late = eta = total = 0.0
    for load in strict:
        weight = max(load.rate, ENOUGH)  # who has no load now still wants to be soon
        latency, rho = _expected(load, [each for each in sets if load.model in each.strict])
        latency *= pressure
        late += weight * _missed(latency, rho * pressure, load.slo_ms)
        eta += weight * latency / load.by_cores[whole].latency_ms
        total += weight
    total = total or 1.0
    outlook = Outlook(missed=late / total, unserved=unserved, eta=eta / total)
    seats = (
        Seat(each.cores, tuple(sorted(each.strict)), tuple(sorted(each.best_effort)))
        for each in sets
    )
    used = [seat for seat in seats if seat.strict or seat.best_effort]
    # Which of two equal sets came first depends on who has a little more load just now.
    used.sort(key=lambda seat: (-seat.cores, not seat.strict, seat.strict, seat.best_effort))
    return tuple(used), outlook


def _soonest(load: Load, sets: Sequence[_Set]) -> Sequence[_Set]:
    """The set where strict work is soonest, and the next ones as long as that helps."""

    def soonest(each: _Set) -> tuple[float, int]:
        left = max(ENOUGH, 1 - each.busy)
        return load.by_cores[each.cores].latency_ms / left, each.cores

    order = sorted(sets, key=soonest)
    best: tuple[tuple[float, float], int] | None = None
    for count in range(1, len(order) + 1):
        latency, rho = _expected(load, order[:count])
        key = _missed(latency, rho, load.slo_ms), latency / max(ENOUGH, 1 - rho)
        if best is None or key < best[0]:
            best = key, count
    return order[: best[1]] if best else []


def _occupy(load: Load, chosen: Sequence[_Set]) -> None:
    rate = sum(load.by_cores[each.cores].rate for each in chosen)
    for each in chosen:
        each.strict[load.model] = load.rate / rate
        # Best effort stands still from the first strict request to the last answer: larger batches
        # spare time, but only where requests have to wait for each other anyway.
        here = load.rate * load.by_cores[each.cores].rate / rate
        held = here * (load.by_cores[each.cores].latency_ms + RESUME_MS) / 1e3
        each.room = max(0.0, each.room - max(held, load.rate / rate))


def _expected(load: Load, sets: Sequence[_Set]) -> tuple[float, float]:
    """Latency of its batches, and the share of time that is taken, of a model on these sets.

    Requests go to the sets by what each can do; the slowest set is what is told.
    """
    rate = sum(load.by_cores[each.cores].rate for each in sets)
    others = max(each.busy - each.strict.get(load.model, 0.0) for each in sets)
    rho = load.rate / rate + others
    latency = max(
        load.by_cores[each.cores].expected_ms(rho) * (1 + GIVES_WAY * each.for_best_effort)
        for each in sets
    )
    return latency, rho


def _missed(latency_ms: float, rho: float, slo_ms: float) -> float:
    """Share that waits too long: Poisson arrivals, batches that all last as long."""
    if rho >= 1 or latency_ms > slo_ms:
        return 1.0
    if math.isinf(slo_ms):
        return 0.0
    return rho * math.exp(-2 * (1 - rho) * (slo_ms - latency_ms) / latency_ms)


def _place_best_effort(loads: Sequence[Load], sets: Sequence[_Set], whole: int) -> float:
    """First-fit onto the smallest sets; returns the share that finds no room.

    Where there is too little room for all, each gets as large a part of what it wants. It is a
    share of what the host could do at most, and below 0 where sets do more than all cores together.
    """
    if not loads:
        return 0.0
    order = sorted(sets, key=lambda each: (each.cores, each.for_strict))
    room = sum(each.room * each.cores for each in order)
    wanted = sum(load.share(order[0].cores) * order[0].cores for load in loads)
    part = min(1.0, room / wanted) if wanted > 0 else 1.0
    work = sum(load.share(whole) for load in loads)
    missing = 0.0
    for load in loads:
        left = part * load.rate
        mine = [each for each in order if each.takes(load)]
        for each in mine:
            taken = min(left, each.room * load.by_cores[each.cores].rate)
            if taken > ENOUGH * load.rate:
                each.best_effort[load.model] = taken
                each.room -= taken / load.by_cores[each.cores].rate
                left -= taken
        if not any(load.model in each.best_effort for each in mine):
            mine[0].best_effort[load.model] = 0.0
        missing += load.share(whole) * (1 - part + left / max(load.rate, ENOUGH))
    # Of what is more than all cores can do a part is missing wherever the others are.
    return 1 - (work - missing) / min(work, 1.0) if work > 0 else 0.0


def _fbr(each: _Set, loads: Sequence[Load]) -> float:
    """What a set wants of the memory: one model's batches run there at a time."""
    here = {*each.strict, *each.best_effort}
    return max((x.by_cores[each.cores].fbr for x in loads if x.model in here), default=0.0)
