"""Compile the C sources of the data path into its shared library, and the seat of pooled models.

As with the plugin jar, one rule for a checkout, an editable install and a wheel: the library lies
in ``build/`` beside this file. A wheel is built with it; anywhere else :func:`ensure` builds it on
first use. It says what it was built from, so staleness is a comparison of contents.

Plain C, no Python.h: one library serves every Python. Only the standard library is used here,
because ``setup.py`` loads this file while nothing is installed yet.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = (HERE.parent / "batching/c", HERE / "c")
"""What knows nothing of networks, and the network front end."""
LIBRARY = "build/libshunter.so"
"""Where the library lies, relative to this file's folder."""
# Copies of a rule give the same numbers only if none of them multiplies and adds in one rounding.
FLAGS = ("-std=c11", "-O2", "-g", "-fPIC", "-shared", "-pthread", "-ffp-contract=off")
WARNINGS = ("-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Werror")
SEAT = HERE.parent / "handlers/pool/build/shunter-seat"
"""A worker that only holds the place of a pooled model; it stands where those look who run it."""
SEAT_SOURCES = HERE.parent / "handlers/pool/c"
SEAT_FLAGS = ("-std=c11", "-O2", "-g")
LIBRARIES = ("-ldl",)
"""Part of libc since glibc 2.34."""
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WITHOUT_VERBS = b"built without rdma-core's header"
"""In a library that cannot serve RDMA devices."""
_MARK = b"shunter-source-sha256="
_SEAT_MARK = b"shunter-seat-sha256="
_ADVICE = "install a C compiler (Debian: apt-get install gcc libc6-dev)"


class BuildError(Exception):
    """The library cannot be built; the message says what to do."""


def digest() -> str:
    """Of the sources, of how they are compiled and for which processors."""
    total = hashlib.sha256(" ".join((*FLAGS, *WARNINGS, platform.machine())).encode())
    for path in sources("*.[ch]"):
        total.update(str(path.relative_to(HERE.parent)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def sources(pattern: str = "*.c") -> list[Path]:
    """All files of that kind."""
    return [path for folder in SOURCES for path in sorted(folder.rglob(pattern))]


def includes() -> list[str]:
    """Flags for every folder of headers."""
    return [f"-I{folder}" for folder in sorted({path.parent for path in sources("*.h")})]


def is_fresh(library: Path = HERE / LIBRARY) -> bool:
    """Whether a library was built from these sources."""
    try:
        return _MARK + digest().encode() in library.read_bytes()
    except OSError:
        return False


def ensure() -> Path:
    """The library; it is built only when it is missing or stale. Raises BuildError."""
    library = HERE / LIBRARY
    return library if is_fresh(library) else build(library)


def build(library: Path | None = None, *, more: Sequence[str] = ()) -> Path:
    """Compile; the library appears under its name only when it is complete. Raises BuildError.

    ``more``: flags behind the usual ones.
    """
    mark = f'-DSHUNTER_SOURCE="{_MARK.decode()}{digest()}"'
    flags = [*FLAGS, *WARNINGS, *includes(), mark, *more]
    return _compile(library or HERE / LIBRARY, [*flags, *map(str, sources()), *LIBRARIES])


def _compile(wanted: Path, arguments: Sequence[str]) -> Path:
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=wanted.parent, prefix=".so-") as scratch:
            finished = Path(scratch) / wanted.name
            command = [*compiler(), *arguments, "-o", str(finished)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise BuildError(f"{command[0]} failed:\n{done.stderr.strip()}")
            os.replace(finished, wanted)
    except FileNotFoundError as error:
        raise BuildError(f"the compiler was not found: {_ADVICE}") from error
    except OSError as error:
        what = error.filename or wanted.parent
        raise BuildError(f"{what}: {error.strerror}") from error
    return wanted


def seat_digest() -> str:
    """As :func:`digest`, of the seat."""
    total = hashlib.sha256(" ".join((*SEAT_FLAGS, platform.machine())).encode())
    for path in sorted(SEAT_SOURCES.glob("*.[ch]")):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def ensure_seat() -> Path:
    """The seat's program; it is built only when it is missing or stale. Raises BuildError."""
    return SEAT if seat_is_fresh() else build_seat()


def seat_is_fresh() -> bool:
    """As :func:`is_fresh`."""
    return SEAT.exists() and _SEAT_MARK + seat_digest().encode() in SEAT.read_bytes()


def build_seat(program: Path | None = None) -> Path:
    """Compile the seat, without shared libraries where that can be. Raises BuildError."""
    mark = f'-DSHUNTER_SEAT_SOURCE="{_SEAT_MARK.decode()}{seat_digest()}"'
    arguments = [*SEAT_FLAGS, *WARNINGS, mark, *map(str, sorted(SEAT_SOURCES.glob("*.c")))]
    try:
        return _compile(program or SEAT, [*arguments, "-static"])
    except BuildError:
        return _compile(program or SEAT, arguments)


def compiler() -> list[str]:
    """The command that compiles C: ``$CC``, else the first that there is. Raises BuildError."""
    if given := shlex.split(os.environ.get("CC", "")):
        return given
    for name in ("cc", "gcc", "clang"):
        if found := shutil.which(name):
            return [found]
    raise BuildError(f"no C compiler was found: {_ADVICE}")


def main() -> int:
    """Build what is missing; the exit status. All but the network front end works without it."""
    try:
        library = ensure()
        print(library)
        ensure_seat()
        if WITHOUT_VERBS in library.read_bytes():
            print(
                "It has no RDMA backend: rdma-core's header was missing when it was built (Debian: "
                "apt-get install libibverbs-dev, then remove this file and build it again)",
                file=sys.stderr,
            )
    except BuildError as error:
        print(f"No network front end without its C library: {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
