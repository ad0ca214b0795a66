"""Records read out of the words of the control page, and stored there. Pure.

A reader cuts every word to the range that its field states; a writer's value outside it is an
error.
"""

from __future__ import annotations

import functools
from collections.abc import MutableSequence, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from shunter.batching.page.fields import Placed
from shunter.batching.page.layout import HEADER_FIELDS, RUNNER_FIELDS, SLOT_FIELDS
from shunter.batching.page.records import FrontEndState, PageHeader, RunnerLine
from shunter.batching.page.slices import words_of

Record = TypeVar("Record")


@dataclass(frozen=True, slots=True)
class _Plan:
    """Where a record's field lies, in words from the start of its structure."""

    name: str
    start: int
    count: int
    low: int
    high: int
    is_text: bool
    is_mask: bool
    is_tuple: bool


_STRUCTURES = {
    PageHeader: HEADER_FIELDS,
    FrontEndState: HEADER_FIELDS,
    RunnerLine: RUNNER_FIELDS,
}
"""Where records are that are not in a slot."""


@functools.cache
def _plans(kind: type) -> tuple[_Plan, ...]:
    placed: dict[str, Placed] = _STRUCTURES.get(kind, SLOT_FIELDS)
    plans = []
    for item in fields(kind):
        at, limits = placed[item.name], item.metadata
        plans.append(
            _Plan(
                item.name,
                at.offset // 8,
                at.field.count * at.field.width // 8,
                limits.get("low", 0),
                limits.get("high", 0),
                "text" in limits,
                "mask" in limits,
                at.field.count > 1 and "mask" not in limits,
            )
        )
    return tuple(plans)


def decode(kind: type[Record], words: memoryview, base: int = 0) -> Record:
    """Read a record out of 8-byte ``words``; its structure starts at index ``base``.

    A word outside its field's range is cut to the range, a text ends at its first zero.
    """
    values: dict[str, Any] = {}
    for plan in _plans(kind):
        part = words[base + plan.start : base + plan.start + plan.count]
        if plan.is_text:
            values[plan.name] = part.tobytes().split(b"\0", 1)[0].decode("utf-8", "replace")
        elif plan.is_mask:
            values[plan.name] = int.from_bytes(part.tobytes(), "little")
        else:
            cut = tuple(min(max(value, plan.low), plan.high) for value in part)
            values[plan.name] = cut if plan.is_tuple else cut[0]
    return kind(**values)


def encode(record: Any, words: MutableSequence[int], base: int = 0) -> None:
    """Store a record word by word, all checked before the first is stored.

    Raises ValueError naming a field whose value is out of range, or is a text that is too long.
    """
    stores: list[tuple[int, int]] = []
    for plan in _plans(type(record)):
        value = getattr(record, plan.name)
        parts = _parts_of_text(plan, value) if plan.is_text else _parts(plan, value)
        stores += [(base + plan.start + i, word) for i, word in enumerate(parts)]
    for index, word in stores:
        words[index] = word


def cut_text(value: str, width: int) -> list[int]:
    """The words of a text of any length, in a field of so many bytes.

    >>> len(cut_text("x" * 99, 16)), cut_text("a", 8)
    (2, [97])
    """
    encoded = value.replace("\0", " ").encode()[:width]
    whole = encoded.decode("utf-8", "ignore").encode()  # not in the middle of a character
    return memoryview(whole.ljust(width, b"\0")).cast("q").tolist()


def _parts(plan: _Plan, value: Any) -> Sequence[int]:
    numbers = value if plan.is_tuple else (value,)
    for word in numbers:
        if not plan.low <= word <= plan.high:
            raise ValueError(f"{plan.name} = {word}; allowed: {plan.low} to {plan.high}")
    return words_of(value, plan.count) if plan.is_mask else numbers


def _parts_of_text(plan: _Plan, value: str) -> Sequence[int]:
    encoded, most = value.encode(), 8 * plan.count
    if len(encoded) > most or b"\0" in encoded:
        raise ValueError(f"{plan.name} = {value!r}; allowed: {most} bytes, none of them 0")
    return memoryview(encoded.ljust(most, b"\0")).cast("q").tolist()
