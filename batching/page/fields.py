"""Tables of words in shared memory, and where each word lies. Pure.

The rules of such tables are those of :mod:`shunter.batching.page.layout`.
"""

from __future__ import annotations

from dataclasses import dataclass

LINE = 128
"""Bytes between fields of different writers: two cache lines, because x86 prefetches pairs."""


@dataclass(frozen=True)
class Field:
    """``count`` words of ``width`` bytes. ``width`` is 8, or the length of a byte string."""

    name: str
    meaning: str
    count: int = 1
    width: int = 8


@dataclass(frozen=True)
class Section:
    """Fields with one writer, starting on a line of their own."""

    name: str
    fields: tuple[Field, ...]
    repeat: int = 1

    @property
    def stride(self) -> int:
        """Bytes of one repetition, rounded up to whole lines."""
        used = sum(f.count * f.width for f in self.fields)
        return -(-used // LINE) * LINE


@dataclass(frozen=True)
class Placed:
    """A field with its offset from the start of its structure."""

    field: Field
    offset: int
    section: Section


def place(sections: tuple[Section, ...]) -> tuple[dict[str, Placed], int]:
    """Lay sections out; return the fields by name and the size in bytes.

    The offset of a field in a repeated section is that of repetition 0.
    """
    fields: dict[str, Placed] = {}
    at = 0
    for section in sections:
        inner = at
        for field in section.fields:
            assert field.name not in fields, field.name
            fields[field.name] = Placed(field, inner, section)
            inner += field.count * field.width
        at += section.stride * section.repeat
    return fields, at
