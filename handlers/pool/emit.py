"""``python -m shunter.handlers.pool.emit``: what seats and pool processes say, as a C header."""

from __future__ import annotations

from pathlib import Path

from shunter.batching.emit import define, find, write_or_check
from shunter.handlers.pool import handover

_PROG = "python -m shunter.handlers.pool.emit"


def c_source() -> str:
    """The C header; sizes are asserted at compile time."""
    rows = [
        ("SEAT_MAGIC", handover.MAGIC, "'SHUNTSEA', little-endian"),
        ("SEAT_DIGEST", handover.digest(), "of all that is said"),
        ("SEAT_MOST_BYTES", handover.MOST_BYTES, "of a seat's texts"),
        ("SEAT_MOST_TEXT", handover.MOST_TEXT, "bytes behind a word"),
        ("SEAT_AT_WORK", handover.AT_WORK, "words of the page: for whom the process works"),
        ("SEAT_UNBEGUN_STATUS", handover.UNBEGUN, "nothing of its model had begun"),
        ("SEAT_PATIENCE_S", handover.PATIENCE_S, "usually"),
        *((f"SEAT_{each.name}", int(each), "kind of a word") for each in handover.Kind),
    ]
    texts = {
        "SOCKET": handover.SOCKET_VARIABLE,
        "LOCK": handover.LOCK_VARIABLE,
        "CONTINUES": handover.CONTINUES_VARIABLE,
        "PATIENCE": handover.PATIENCE_VARIABLE,
        "TUNABLES": handover.TUNABLES[0],
    }
    lines = [
        f"/* Emitted by {_PROG}. Do not edit. */",
        "#ifndef SHUNTER_HANDOVER_H",
        "#define SHUNTER_HANDOVER_H",
        "",
        "#include <stdint.h>",
        "",
        *map(define, rows),
        *(f'#define SHUNTER_SEAT_{name}_VARIABLE "{text}"' for name, text in texts.items()),
        f'#define SHUNTER_SEAT_TUNABLES "{handover.TUNABLES[1]}"',
        "",
        *_struct("handover", "uint64_t", handover.HANDOVER, handover.HANDOVER_BYTES),
        *_struct("seat_word", "int64_t", handover.WORD, handover.WORD_BYTES),
        "#endif",
        "",
    ]
    return "\n".join(lines)


def _struct(name: str, kind: str, fields: tuple[str, ...], size: int) -> list[str]:
    return [
        f"struct shunter_{name} {{",
        *(f"    {kind} {each};" for each in fields),
        "};",
        f'_Static_assert(sizeof(struct shunter_{name}) == {size}, "{name}");',
        "",
    ]


def emitted_files(root: Path) -> dict[Path, str]:
    """Path and text of the emitted file under a checkout."""
    return {find(root, "shunter_handover.h"): c_source()}


def main(argv: list[str] | None = None) -> int:
    """Write the header, or with ``--check`` compare it. Returns the exit status."""
    return write_or_check(_PROG, emitted_files, argv)


if __name__ == "__main__":
    raise SystemExit(main())
