"""``json.dumps(value, indent=2)`` at the speed of the C encoder.

TorchServe answers with that layout, and the standard library writes indented text with its slow
Python encoder. But a container that holds only scalars needs just another item separator, which
the C encoder takes: ``",\\n  "`` instead of ``", "``. Nested containers are put together from such
pieces, each with the separator of its depth. Whatever is not one of the plain types goes to the
standard library whole, so the text is the same in every case.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

# Exact types: a subclass may be written in another way.
_SCALARS = frozenset({float, int, str, bool, type(None)})

_MAX_DEPTH = 8
_quote = json.encoder.encode_basestring_ascii


class _NotPlain(Exception):
    """The value holds something that is left to the standard library."""


def _flat_encoder(separator: str) -> Callable[[Any], str]:
    """Return a function that writes one flat container with ``separator`` between its items."""
    encoder = json.JSONEncoder(separators=(separator, ": "), check_circular=False)
    make = getattr(json.encoder, "c_make_encoder", None)
    try:
        # The public encoder builds this object anew for each call, a third of a short call's time.
        chunks = make(None, None, _quote, None, ": ", separator, False, False, True)
        join = "".join
        if join(chunks([0.5, "é", None], 0)) == encoder.encode([0.5, "é", None]):
            return lambda container: join(chunks(container, 0))
    except Exception:  # an interpreter with another inner interface: only slower
        pass
    return encoder.encode


_LEVELS = tuple(
    (_flat_encoder(",\n" + "  " * (depth + 1)), "\n" + "  " * (depth + 1), "\n" + "  " * depth)
    for depth in range(_MAX_DEPTH)
)


def dumps(value: Any) -> str:
    """Return exactly ``json.dumps(value, indent=2)``, or raise exactly what that raises."""
    kind = type(value)
    if kind is list or kind is dict or kind is tuple:
        try:
            return _dict(value, 0) if kind is dict else _list(value, 0)
        except Exception:
            # Not plain, or an error: the standard library says which, in its own words.
            return json.dumps(value, indent=2)
    return json.dumps(value, indent=2)


def _list(value: list | tuple, depth: int) -> str:
    if not value:
        return "[]"
    encode, inner, outer = _level(depth)
    if _SCALARS.issuperset(map(type, value)):
        return f"[{inner}{encode(value)[1:-1]}{outer}]"
    items = [_item(item, depth + 1) for item in value]
    return f"[{inner}{f',{inner}'.join(items)}{outer}]"


def _dict(value: dict, depth: int) -> str:
    if not value:
        return "{}"
    encode, inner, outer = _level(depth)
    if not _SCALARS.issuperset(map(type, value)):
        raise _NotPlain
    if _SCALARS.issuperset(map(type, value.values())):
        return f"{{{inner}{encode(value)[1:-1]}{outer}}}"
    # A key that is not a string raises here and so reaches the standard library.
    items = [f"{_quote(key)}: {_item(item, depth + 1)}" for key, item in value.items()]
    return f"{{{inner}{f',{inner}'.join(items)}{outer}}}"


def _item(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is list or kind is tuple:
        return _list(value, depth)
    if kind is dict:
        return _dict(value, depth)
    if kind in _SCALARS:
        return json.dumps(value)
    raise _NotPlain


def _level(depth: int) -> tuple[Callable[[Any], str], str, str]:
    if depth >= _MAX_DEPTH:  # deep or circular: the standard library tells them apart
        raise _NotPlain
    return _LEVELS[depth]
