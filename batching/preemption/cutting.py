"""Where a sequence of calls is cut into segments: no longer than wanted, and few. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cut:
    """A pass in segments."""

    boundaries: frozenset[Hashable]
    """Before every call of these the pass can stand still."""
    segments: int
    """Parts of the pass between two places where it can."""
    longest_ns: int
    """Time of the longest part: how long strict work may have to wait for it."""


def cut(
    calls: Sequence[Hashable], costs_ns: Sequence[int], target_ns: int, before_ns: int = 0
) -> Cut:
    """Choose boundaries so that no segment is longer than ``target_ns`` where calls allow it.

    ``calls[i]`` is who is called, ``costs_ns[i]`` the time from that call to the next one, or to
    the end of the pass; ``before_ns`` the time from the start of the pass to the first call. A call
    that takes longer than the target is a segment of its own. Who is chosen once is a boundary at
    each of its calls.
    """
    chosen: set[Hashable] = set()
    since = before_ns
    for call, cost in zip(calls, costs_ns, strict=True):
        if call in chosen:
            since = 0
        elif since and since + cost > target_ns:
            chosen.add(call)
            since = 0
        since += cost
    parts = segments_ns(calls, costs_ns, chosen, before_ns)
    return Cut(frozenset(chosen), len(parts), max(parts, default=0))


def segments_ns(
    calls: Sequence[Hashable],
    costs_ns: Sequence[int],
    boundaries: frozenset[Hashable] | set[Hashable],
    before_ns: int = 0,
) -> list[int]:
    """Times of the segments of a pass with these boundaries."""
    parts = [before_ns] if before_ns else []
    for call, cost in zip(calls, costs_ns, strict=True):
        if call in boundaries or not parts:
            parts.append(cost)
        else:
            parts[-1] += cost
    return parts
