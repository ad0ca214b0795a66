"""What a key of a record may be, in words, out of the record's own definition."""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin


def allowed(record: Any, key: str) -> str:
    """In words for people; ``json_schema_extra={"allowed": ...}`` of a field goes first."""
    field = record.__pydantic_fields__[key]
    if isinstance(field.json_schema_extra, dict):
        return str(field.json_schema_extra["allowed"])
    if field.annotation is bool:
        return "true or false"
    if field.annotation is str:
        return "a text"
    if get_origin(field.annotation) is Literal:
        return " or ".join(get_args(field.annotation))
    bounds = {name: getattr(part, name) for part in field.metadata for name in part.__slots__}
    return number_in_words(bounds, whole=field.annotation is int)


def number_in_words(bounds: dict[str, float], *, whole: bool = False) -> str:
    """Of bounds as pydantic names them: ge, gt, le.

    >>> number_in_words({"ge": 1, "le": 1_000_000}, whole=True), number_in_words({"gt": 0})
    ('a whole number from 1 to 1000000', 'a number above 0')
    """
    text = f"a {'whole ' if whole else ''}number "
    text += f"above {bounds['gt']:.12g}" if "gt" in bounds else f"from {bounds['ge']:.12g}"
    return text + (f" to {bounds['le']:.12g}" if "le" in bounds else "")
