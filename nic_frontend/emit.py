"""``python -m shunter.nic_frontend.emit``: the bytes of the wire as a C header."""

from __future__ import annotations

from pathlib import Path

from shunter.batching.emit import define, find, write_or_check
from shunter.nic_frontend.wire import layout

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
        *layout.c_struct(),
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def emitted_files(root: Path) -> dict[Path, str]:
    """Path and text of the emitted file under a checkout."""
    return {find(root, "wire_layout.h"): c_source()}


def main(argv: list[str] | None = None) -> int:
    """Write the header, or with ``--check`` compare it. Returns the exit status."""
    return write_or_check(_PROG, emitted_files, argv)


if __name__ == "__main__":
    raise SystemExit(main())
