"""``python -m shunter.plugins.triton.emit``: the messages of host and backend as a C header."""

from __future__ import annotations

from pathlib import Path

from shunter.batching.emit import define, find, write_or_check
from shunter.plugins.triton import layout

_PROG = "python -m shunter.plugins.triton.emit"
_TYPES = {"Q": "uint64_t", "q": "int64_t", "d": "double", "s": "char"}


def c_source() -> str:
    """The C header; sizes are asserted at compile time."""
    rows = [
        ("CONTROL_MAGIC", layout.MAGIC, "'SHUNTERT', little-endian"),
        ("CONTROL_DIGEST", layout.digest(), "of all messages"),
        ("STREAM_PLACES", layout.STREAM_PLACES, "for parts of an answer, of each request"),
        ("CLAIMS_UNREAD", layout.CLAIMS_UNREAD, "beside those of the page"),
        ("CONTROL_DIMS", layout.MOST_DIMS, "most of a tensor"),
        *((f"KIND_{each.name}", int(each), "of a message") for each in layout.Kind),
        *((f"SAID_{each.name}", int(each), "of a reply") for each in layout.Said),
    ]
    lines = [
        f"/* Emitted by {_PROG}. Do not edit. */",
        "#ifndef SHUNTER_CONTROL_LAYOUT_H",
        "#define SHUNTER_CONTROL_LAYOUT_H",
        "",
        "#include <stdint.h>",
        "",
        *map(define, rows),
        f'#define SHUNTER_PAGE_PARAMETER "{layout.PAGE_PARAMETER}" /* of a model */',
        "",
        *(line for name in layout.STRUCTURES for line in _struct(name)),
        "#endif",
        "",
    ]
    return "\n".join(lines)


def _struct(name: str) -> list[str]:
    lines = [f"struct control_{name} {{"]
    for field in layout.STRUCTURES[name]:
        array = f"[{field.count}]" if field.count > 1 else ""
        lines.append(f"    {_TYPES[field.kind]} {field.name}{array}; /* {field.meaning} */")
    size = layout.format_of(name).size
    return [
        *lines,
        "};",
        f'_Static_assert(sizeof(struct control_{name}) == {size}, "{name}");',
        "",
    ]


def emitted_files(root: Path) -> dict[Path, str]:
    """Path and text of the emitted file under a checkout."""
    return {find(root, "control_layout.h"): c_source()}


def main(argv: list[str] | None = None) -> int:
    """Write the header, or with ``--check`` compare it. Returns the exit status."""
    return write_or_check(_PROG, emitted_files, argv)


if __name__ == "__main__":
    raise SystemExit(main())
