"""``python -m shunter.batching.emit``: the declared bytes as Java and C constants.

An emitted file stands where those who compile it want it; it is found by its name.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from shunter.batching.page.fields import LINE
from shunter.batching.page.layout import constants
from shunter.batching.queue import layout as queue_layout

NOTICE = "Emitted by python -m shunter.batching.emit. Do not edit."
_PREFIXES = "H_ in the header, K_ in a holder, R_ in a runner, S_ in a slot; [n] words in a row."
_QUEUE_IN_JAVA = ("MAX_TENSORS", "MAX_ENTRIES", "WORKER_COUNT")
_QUEUE_PREFIXES = "Q_ offsets in its header, W_ in a worker, E_ in an entry."


def define(row: tuple[str, int, str]) -> str:
    name, value, meaning = row
    literal = f"{value:#x}ULL" if value >= 1 << 31 else str(value)
    return f"#define SHUNTER_{name} {literal} /* {meaning} */"


def java_source() -> str:
    """The Java constants class."""
    lines = [
        f"// {NOTICE}",
        "package org.shunter.torchserve.page;",
        "",
        f"/** Offsets of the control page. {_PREFIXES} */",
        "public final class ControlLayout {",
        "    private ControlLayout() {}",
        "",
    ]
    shared = [row for row in queue_layout.constants() if row[0] in _QUEUE_IN_JAVA]
    for name, value, meaning in constants() + shared:
        kind, literal = ("long", f"{value:#x}L") if name == "MAGIC" else ("int", str(value))
        lines.append(f"    public static final {kind} {name} = {literal}; // {meaning}")
    return "\n".join([*lines, "}", ""])


def c_source() -> str:
    """The C header; sizes are asserted at compile time."""
    lines = [
        f"/* {NOTICE} */",
        "#ifndef SHUNTER_LAYOUT_H",
        "#define SHUNTER_LAYOUT_H",
        "",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        f"/* Offsets of the control page. {_PREFIXES} */",
    ]
    lines += map(define, constants())
    lines += [
        "",
        f'_Static_assert(SHUNTER_SLOT_SIZE % {LINE} == 0, "slots start on a line");',
        "_Static_assert(SHUNTER_SLOTS_OFFSET + SHUNTER_SLOT_COUNT * SHUNTER_SLOT_SIZE ==",
        '               SHUNTER_PAGE_SIZE, "the page holds header, holders and slots");',
        "",
        f"/* Offsets of the queue page. {_QUEUE_PREFIXES} */",
        *map(define, queue_layout.constants()),
        f"#define SHUNTER_LAYOUT_DIGEST {queue_layout.digest():#x}ULL",
        "",
        "#endif",
        "",
    ]
    return "\n".join(lines)


def find(root: Path, name: str) -> Path:
    """The file of that name in a checkout. Raises FileNotFoundError where there is none."""
    for path in sorted(root.glob(f"[!.]*/**/{name}")):
        return path
    raise FileNotFoundError(f"there is no {name} under {root.resolve()}")


def emitted_files(root: Path) -> dict[Path, str]:
    """Path and text of every emitted file under a checkout."""
    texts = {"ControlLayout.java": java_source(), "shunter_layout.h": c_source()}
    return {find(root, name): text for name, text in texts.items()}


def main(argv: list[str] | None = None) -> int:
    """Write the emitted files, or with ``--check`` compare them. Returns the exit status."""
    return write_or_check("python -m shunter.batching.emit", emitted_files, argv)


def write_or_check(
    prog: str, emitted: Callable[[Path], dict[Path, str]], argv: list[str] | None
) -> int:
    """The command that emits these files. Returns the exit status."""
    parser = argparse.ArgumentParser(prog=prog, description=main.__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a file is stale")
    parser.add_argument("--root", type=Path, default=Path("."), help="checkout, default: here")
    args = parser.parse_args(argv)
    stale = 0
    for path, text in emitted(args.root).items():
        if not args.check:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            print(f"{path} is stale: run {prog}", file=sys.stderr)
            stale = 1
    return stale


if __name__ == "__main__":
    raise SystemExit(main())
