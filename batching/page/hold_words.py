"""How a holder's line tells slices: in which order words are stored, and how they are read. Pure.

A set of slices is several words, and no store changes all of them at once. What matters is that a
reader never misses a hold on its slices that is up all the time, however slices move from one word
to another meanwhile. So a change is stored in three parts: first what comes, then a new
``hold_number``, then what goes. A reader that sees something gone sees the new number, too, and
reads once more, and then sees what came before it. Nothing is ever seen that neither the old nor
the new set has; a writer that ends in the midst of a change leaves both together, and nobody
believes a holder that has ended.

The number is 0 while nothing is held: then the other words are not looked at.
"""

from __future__ import annotations

from shunter.batching.page.layout import HOLDER_FIELDS
from shunter.batching.page.slices import SliceSet, read_slices, words_of

_K = {name: placed.offset // 8 for name, placed in HOLDER_FIELDS.items()}
_NUMBER, _SLICES = _K["hold_number"], _K["hold_slices"]
_ATTEMPTS = 8


def stores(before: SliceSet, after: SliceSet, number: int) -> list[tuple[int, int]]:
    """What to store into the words of a line, in this order, to say ``after``.

    ``number`` is none that was used lately; it stays out where nothing is held.
    """
    now, then = words_of(before), words_of(after)
    if not after:
        return [(_NUMBER, 0), *_changes(now, then)]
    both = words_of(before | after)
    return [*_changes(now, both), (_NUMBER, number), *_changes(both, then)]


def _changes(before: list[int], after: list[int]) -> list[tuple[int, int]]:
    return [(_SLICES + i, word) for i, word in enumerate(after) if before[i] != word]


def held_here(words: memoryview, base: int, slices: SliceSet) -> SliceSet:
    """Which of these slices the line at ``base`` says are held; all if it changes all the time."""
    for _ in range(_ATTEMPTS):
        number = words[base + _NUMBER]
        if number == 0:
            return 0
        found = read_slices(words, base + _SLICES) & slices
        if found or words[base + _NUMBER] == number:
            return found
    return slices
