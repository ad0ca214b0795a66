"""``python -m shunter.nic_frontend.emit``: the bytes of the wire as a C header."""

from __future__ import annotations

import struct
from pathlib import Path

from shunter.batching.emit import define, find, write_or_check
from shunter.nic_frontend.wire import layout
from shunter.nic_frontend.wire.hello import DEFAULT_KEY

_PROG = "python -m shunter.nic_frontend.emit"


def c_source() -> str:
    """The C header; sizes are asserted at compile time."""
    lines = [
        f"/* Emitted by {_PROG}. Do not edit. */",
        "#ifndef SHUNTER_WIRE_LAYOUT_H",
        "#define SHUNTER_WIRE_LAYOUT_H",
        "",
        '#include "shunter_layout.h"',
        "",
        *map(define, layout.constants()),
        f"#define SHUNTER_WIRE_DIGEST {layout.digest():#x}ULL",
        "",
        *_labels(),
        "",
        *_structs(),
        "#endif",
        "",
    ]
    return "\n".join(lines)


def _labels() -> list[str]:
    """What are strings: the labels of HKDF, and the id of a key that has no other."""
    labels = layout.LABELS.items()
    found = [f'#define SHUNTER_LABEL_{name} "{label.decode()}"' for name, label in labels]
    return [*found, f'#define SHUNTER_DEFAULT_KEY "{DEFAULT_KEY}"']


def _structs() -> list[str]:
    """The structures, their offsets asserted."""
    found = layout.STRUCTURES.items()
    return [line for name, fields in found for line in _struct(f"shunter_{name}", fields)]


def _struct(name: str, fields: tuple[layout.WireField, ...]) -> list[str]:
    lines = [f"struct {name} {{"]
    for field in fields:
        array = f"[{field.count}]" if field.count > 1 else ""
        lines.append(f"    uint{8 * field.width}_t {field.name}{array}; /* {field.meaning} */")
    size = struct.calcsize(layout.format_of(fields))
    lines += ["};", f'_Static_assert(sizeof(struct {name}) == {size}, "{name}");']
    lines += [
        f'_Static_assert(offsetof(struct {name}, {field}) == {at}, "{field}");'
        for field, (at, _) in layout.place_wire(fields).items()
    ]
    return [*lines, ""]


def emitted_files(root: Path) -> dict[Path, str]:
    """Path and text of the emitted file under a checkout."""
    return {find(root, "wire_layout.h"): c_source()}


def main(argv: list[str] | None = None) -> int:
    """Write the header, or with ``--check`` compare it. Returns the exit status."""
    return write_or_check(_PROG, emitted_files, argv)


if __name__ == "__main__":
    raise SystemExit(main())
