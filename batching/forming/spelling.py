"""What somebody may have meant by a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LIKENESS = 0.6
"""So much of two names must be the same, as difflib counts; less would be a guess."""


def hint(word: str, known: Iterable[str]) -> str:
    """The nearest of the known names, as the end of an error; empty when none is near.

    Case does not count, and a hyphen is as good as an underscore.

    >>> hint("max-wait", ["max_wait_ms", "alpha"]), hint("colour", ["alpha"])
    ('; did you mean max_wait_ms?', '')
    """
    names = {_plain(name): name for name in known}
    found = get_close_matches(_plain(word), names, n=1, cutoff=LIKENESS)
    return f"; did you mean {names[found[0]]}?" if found and names[found[0]] != word else ""


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")
