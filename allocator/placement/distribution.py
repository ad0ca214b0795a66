"""Which slice each batch runs on (PROTEAN, algorithm 1). Pure.

Best effort goes first-fit onto the fewest, smallest slices. A strict batch goes to the slice where
it is slowed down least, counting what runs there and the best effort that is expected there. The
two are not parted for the sake of it: where the model says that a strict batch is faster beside
best effort than elsewhere, it goes there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shunter.allocator.placement.slowdown import SlowdownModel, slowdown


@dataclass(frozen=True)
class SliceState:
    """A slice, and what is on it now."""

    name: str
    kind: str
    compute: float
    """Its share of the device: what slices are ordered by, then their memory."""
    free_bytes: int
    running: tuple[str, ...] = ()
    """Models of the batches there; a model as often as it has a batch there."""


@dataclass(frozen=True)
class Batch:
    """One that is to be placed."""

    model: str
    is_strict: bool
    memory_bytes: int
    """What it takes on a slice; 0 when its model is there already."""


@dataclass
class _Place:
    """A slice while batches are placed."""

    state: SliceState
    tag: float
    """Share of its memory that best effort is expected to take."""
    expected: float
    """FBR of the best effort that is expected."""
    free_bytes: int
    running: list[str] = field(default_factory=list)


def ascending(slices: Iterable[SliceState]) -> list[SliceState]:
    """The smallest first."""
    return sorted(slices, key=lambda each: (each.compute, each.free_bytes, each.name))


def tags(slices: Iterable[SliceState], best_effort_bytes: int) -> dict[str, float]:
    """Share of each slice's free memory that so much best effort takes, the smallest first."""
    found, left = {}, best_effort_bytes
    for each in ascending(slices):
        if each.free_bytes > 0:
            found[each.name] = min(1.0, left / each.free_bytes)
        else:
            found[each.name] = 1.0 if left > 0 else 0.0
        left = max(0, left - each.free_bytes)
    return found


def distribute(
    slices: Sequence[SliceState], batches: Sequence[Batch], known: SlowdownModel
) -> list[str | None]:
    """The slice of each batch, in the order of ``batches``; None: it has to wait for memory.

    Strict batches are placed first, in their order. Raises KeyError for a model or a kind of slice
    that was never measured.
    """
    be = [each for each in batches if not each.is_strict]
    tagged = tags(slices, sum(each.memory_bytes for each in be))
    places = [
        _Place(each, tagged[each.name], 0.0, each.free_bytes, list(each.running))
        for each in ascending(slices)
    ]
    _expect(places, be, known)
    found: list[str | None] = [None] * len(batches)
    order = sorted(range(len(batches)), key=lambda at: not batches[at].is_strict)
    for at in order:
        batch = batches[at]
        place = _strict(batch, places, known) if batch.is_strict else _first_fit(batch, places)
        if place is not None:
            place.free_bytes -= batch.memory_bytes
            place.running.append(batch.model)
            found[at] = place.state.name
    return found


def _expect(places: Sequence[_Place], batches: Sequence[Batch], known: SlowdownModel) -> None:
    """Say on each slice how much bandwidth the best effort will want that fits there."""
    left = list(batches)
    for place in places:
        room = place.free_bytes
        for batch in tuple(left):
            if batch.memory_bytes <= room:
                room -= batch.memory_bytes
                place.expected += known.fbr_on(batch.model, place.state.kind)
                left.remove(batch)


def _strict(batch: Batch, places: Sequence[_Place], known: SlowdownModel) -> _Place | None:
    fitting = [place for place in places if batch.memory_bytes <= place.free_bytes]
    # Where best effort takes everything there would be no room; unless it does so everywhere.
    roomy = [place for place in fitting if place.tag < 1] or fitting
    return min(
        roomy,
        key=lambda place: (eta(batch.model, place, known), -place.state.compute, place.state.name),
        default=None,
    )


def eta(model: str, place: _Place, known: SlowdownModel) -> float:
    """The slowdown of one more batch there, with the best effort that is expected."""
    kind = place.state.kind
    beside = [known.fbr_on(each, kind) for each in (model, *place.running)]
    return slowdown(known.rdf(model, kind), [*beside, place.expected])


def _first_fit(batch: Batch, places: Sequence[_Place]) -> _Place | None:
    fitting = (place for place in places if batch.memory_bytes <= place.free_bytes)
    return next(fitting, None)


def shares(batches: Sequence[Batch], places: Sequence[str | None]) -> dict[str, dict[str, float]]:
    """Of each model the share of its placed batches by slice: what the data path follows."""
    counts: dict[str, Counter[str]] = {}
    for batch, name in zip(batches, places, strict=True):
        if name is not None:
            counts.setdefault(batch.model, Counter())[name] += 1
    return {model: _as_shares(each) for model, each in counts.items()}


def _as_shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items()}
