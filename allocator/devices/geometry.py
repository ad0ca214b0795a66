"""How one GPU may be parted into instances (MIG): which layouts are legal, and the way between two.

A GPU has an axis of memory slices, eight on most. It lists its *profiles*, sizes of instances, and
for each the *places* where one may lie. A *layout* is a set of instances at their places. It is
legal when none overlap, no profile is there more often than the GPU allows, and all together have
no more compute slices than the GPU. Pure: what the lists say is an argument.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TypeAlias


@dataclass(frozen=True)
class Profile:
    """A size of instance, as a GPU lists it."""

    id: int
    """The GPU's number for it."""
    name: str
    """As in 3g.20gb."""
    compute: int
    """Its compute slices, of 7 on most GPUs."""
    places: tuple[tuple[int, int], ...]
    """First memory slice and number of them, wherever one may lie."""
    most: int
    """Of them on a GPU at the same time."""
    is_plain: bool = True
    """Nothing special: the usual share of memory and engines for its compute slices."""
    index: int = 0
    """By which NVML tells of it; another number than the id."""
    multiprocessors: int = 0
    memory_mb: int = 0

    @property
    def kind(self) -> str:
        """Short name: 3g, or the whole one for what is special."""
        return f"{self.compute}g" if self.is_plain else self.name

    def placements(self) -> Iterator[Placement]:
        """One instance of it at each of its places."""
        return (Placement(start, size, self.id) for start, size in self.places)


@dataclass(frozen=True, order=True)
class Placement:
    """An instance at its place."""

    start: int
    """Its first memory slice."""
    size: int
    """Its memory slices."""
    profile: int
    """Id of its profile."""

    @property
    def end(self) -> int:
        """The memory slice after its last one."""
        return self.start + self.size


Layout: TypeAlias = frozenset[Placement]
Profiles: TypeAlias = tuple[Profile, ...]


@dataclass(frozen=True)
class Change:
    """The way from one layout to another: what is in both is not touched."""

    keep: tuple[Placement, ...]
    destroy: tuple[Placement, ...]
    create: tuple[Placement, ...]

    def __bool__(self) -> bool:
        return bool(self.destroy or self.create)


def diff(current: Layout, target: Layout, unusable: Layout = frozenset()) -> Change:
    """What to destroy, then to create; ``unusable`` ones of now are made anew where wanted."""
    sound = current - unusable
    return Change(
        keep=tuple(sorted(sound & target)),
        destroy=tuple(sorted(current - (sound & target))),
        create=tuple(sorted(target - sound)),
    )


def fault(layout: Collection[Placement], profiles: Profiles) -> str | None:
    """Why a GPU with these profiles cannot have the layout; None when it can."""
    known = {profile.id: profile for profile in profiles}
    for each in sorted(layout):
        profile = known.get(each.profile)
        if profile is None:
            return f"no profile of this GPU has the id {each.profile}"
        if (each.start, each.size) not in profile.places:
            allowed = ", ".join(str(start) for start, _ in profile.places)
            return f"{profile.kind} cannot lie at {each.start}; allowed: {allowed}"
    return _crowded(sorted(layout), known)


def _crowded(layout: Sequence[Placement], known: dict[int, Profile]) -> str | None:
    """Which of several instances, each of them at a place of its own, are too many."""
    for one, other in pairwise(layout):
        if one.end > other.start:
            both = " and ".join(_text(each, known[each.profile]) for each in (one, other))
            return f"{both} overlap"
    for number, count in Counter(each.profile for each in layout).items():
        if count > known[number].most:
            return f"{count} x {known[number].kind} are too many; allowed: {known[number].most}"
    wanted = sum(known[each.profile].compute for each in layout)
    there = max((profile.compute for profile in known.values()), default=0)
    if wanted > there:
        return f"{wanted} compute slices are wanted, the GPU has {there}"
    return None


def plain(profiles: Iterable[Profile]) -> Profiles:
    """Those with nothing special, in which the papers count."""
    return tuple(profile for profile in profiles if profile.is_plain)


@cache
def layouts(profiles: Profiles, used: Profiles | None = None) -> tuple[Layout, ...]:
    """Every legal layout but the empty one, of all these profiles or of those ``used``."""
    known = {profile.id: profile for profile in profiles}
    some = profiles if used is None else used
    places = sorted(each for profile in some for each in profile.placements())
    found: list[Layout] = []
    open_ends: list[tuple[Placement, ...]] = [()]
    while open_ends:
        begun = open_ends.pop()
        for each in places:  # To the right of the last one, so that each set is met once.
            longer = (*begun, each)
            if (not begun or each.start >= begun[-1].end) and _crowded(longer, known) is None:
                found.append(frozenset(longer))
                open_ends.append(longer)
    return tuple(sorted(found, key=sorted))


@cache
def maximal(profiles: Profiles) -> tuple[Layout, ...]:
    """The legal layouts to which nothing can be added."""
    every = layouts(profiles)
    # What a legal layout has one instance less than is legal too.
    extended = {layout - {each} for layout in every for each in layout}
    return tuple(layout for layout in every if layout not in extended)


@cache
def freedom(layout: Layout, profiles: Profiles) -> int:
    """How many legal layouts have all of these instances: how much can still come beside them."""
    return sum(other >= layout for other in layouts(profiles))


def arrange(
    profiles: Profiles,
    wanted: Sequence[tuple[Profile, int | None]],
    current: Layout = frozenset(),
) -> Layout | None:
    """The best layout with these instances, each at its start where that is given; else None.

    Best is what keeps most of the current one, then what leaves most to be chosen beside it: a 3g
    goes to the upper half, where it takes no compute slice from anybody.
    """
    used = tuple(dict.fromkeys(profile for profile, _ in wanted))
    counts = Counter(profile.id for profile in (each for each, _ in wanted))
    fixed = {(profile.id, start) for profile, start in wanted if start is not None}
    usual = plain(profiles)
    all_usual = frozenset(each for profile in usual for each in profile.placements())

    def rank(layout: Layout) -> tuple[int, int, list[Placement]]:
        kept = sum(each.size for each in layout & current)
        return (-kept, -freedom(layout & all_usual, usual), sorted(layout))

    fitting = [
        layout
        for layout in layouts(profiles, used)
        if Counter(each.profile for each in layout) == counts
        and fixed <= {(each.profile, each.start) for each in layout}
    ]
    return min(fitting, key=rank, default=frozenset() if not wanted else None)


class LayoutError(ValueError):
    """A layout that cannot be; the message says why, and what is allowed."""


def parse(text: str, profiles: Profiles, current: Layout = frozenset()) -> Layout:
    """A layout as users write it: ``4g,3g``, ``4g@0,2g@4,1g@6``, ``1g.5gb@0:1`` or ``none``."""
    wanted = []
    for word in text.replace(",", " ").split():
        if word != "none":
            wanted.append(_parse_one(word, profiles))
    if not wanted and "none" not in text:
        raise LayoutError(
            f"{text!r} is no layout; allowed: kinds of instances, as in 4g,3g, or none"
        )
    found = arrange(profiles, wanted, current)
    if found is None:
        there = Counter(profile.kind for profile, _ in wanted)
        kinds = " and ".join(f"{count} x {kind}" for kind, count in there.items())
        places = "" if all(start is None for _, start in wanted) else " at these places"
        raise LayoutError(f"{text}: {kinds} do not fit on this GPU together{places}")
    return found


def _parse_one(word: str, profiles: Profiles) -> tuple[Profile, int | None]:
    kind, at, place = word.partition("@")
    start, colon, size = place.partition(":")
    for profile in profiles:
        if kind in (profile.kind, profile.name):
            starts = {str(each): width for each, width in profile.places}
            if not at:
                return profile, None
            if start in starts and (not colon or size == str(starts[start])):
                return profile, int(start)
            raise LayoutError(f"{word}: {kind} may start at {', '.join(starts)}")
    allowed = ", ".join(profile.kind for profile in profiles)
    raise LayoutError(f"{word}: {kind} is no kind of instance of this GPU; allowed: {allowed}")


def text_of(layout: Iterable[Placement], profiles: Profiles) -> str:
    """A layout to read, which :func:`parse` understands."""
    known = {profile.id: profile for profile in profiles}
    return " ".join(_text(each, known.get(each.profile)) for each in sorted(layout)) or "none"


def _text(each: Placement, profile: Profile | None) -> str:
    kind = f"profile {each.profile}" if profile is None else profile.kind
    return f"{kind}@{each.start}:{each.size}"
