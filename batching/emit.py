"""``python -m shunter.batching.emit``: the declared bytes as Java and C constants."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from shunter.batching import wire_layout
from shunter.batching.layout import LINE, constants

_NOTICE = "Emitted by python -m shunter.batching.emit. Do not edit."
_PREFIXES = "H_ in the header, K_ in a holder, R_ in a runner, S_ in a slot; [n] words in a row."
_WIRE_IN_JAVA = ("MAX_TENSORS", "MAX_ENTRIES", "WORKER_COUNT")
_QUEUE_PREFIXES = "Q_ offsets in its header, W_ in a worker, E_ in an entry."


def _define(row: tuple[str, int, str]) -> str:
    name, value, meaning = row
    literal = f"{value:#x}ULL" if value >= 1 << 31 else str(value)
    return f"#define SHUNTER_{name} {literal} /* {meaning} */"


def java_source() -> str:
    """The Java constants class."""
    lines = [
        f"// {_NOTICE}",
        "package org.shunter.torchserve;",
        "",
        f"/** Offsets of the control page. {_PREFIXES} */",
        "final class ControlLayout {",
        "    private ControlLayout() {}",
        "",
    ]
    shared = [row for row in wire_layout.constants() if row[0] in _WIRE_IN_JAVA]
    for name, value, meaning in constants() + shared:
        kind, literal = ("long", f"{value:#x}L") if name == "MAGIC" else ("int", str(value))
        lines += [f"    /** {meaning} */", f"    static final {kind} {name} = {literal};"]
    return "\n".join([*lines, "}", ""])


def c_source() -> str:
    """The C header; sizes are asserted at compile time."""
    lines = [
        f"/* {_NOTICE} */",
        "#ifndef SHUNTER_LAYOUT_H",
        "#define SHUNTER_LAYOUT_H",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        f"/* Offsets of the control page. {_PREFIXES} */",
    ]
    lines += map(_define, constants())
    lines += [
        "",
        f'_Static_assert(SHUNTER_SLOT_SIZE % {LINE} == 0, "slots start on a line");',
        "_Static_assert(SHUNTER_SLOTS_OFFSET + SHUNTER_SLOT_COUNT * SHUNTER_SLOT_SIZE ==",
        '               SHUNTER_PAGE_SIZE, "the page holds header, holders and slots");',
        "",
        f"/* X64, and offsets of the queue page. {_QUEUE_PREFIXES} */",
        *map(_define, wire_layout.constants()),
        f"#define SHUNTER_LAYOUT_DIGEST {wire_layout.digest():#x}ULL",
        "",
        *wire_layout.c_struct(),
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def emitted_files(root: Path) -> dict[Path, str]:
    """Path and text of every emitted file under a checkout."""
    java = root / "plugins/torchserve/java/org/shunter/torchserve/ControlLayout.java"
    return {java: java_source(), root / "nic_frontend/c/shunter_layout.h": c_source()}


def main(argv: list[str] | None = None) -> int:
    """Write the emitted files, or with ``--check`` compare them. Returns the exit status."""
    prog = "python -m shunter.batching.emit"
    parser = argparse.ArgumentParser(prog=prog, description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a file is stale")
    parser.add_argument("--root", type=Path, default=Path("."), help="checkout, default: here")
    args = parser.parse_args(argv)
    stale = 0
    for path, text in emitted_files(args.root).items():
        if args.check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                print(f"{path} is stale: run python -m shunter.batching.emit", file=sys.stderr)
                stale = 1
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
