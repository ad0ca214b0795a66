"""Compile the backend for Triton, ``libtriton_shunter.so``, as the network front end's library is.

It lies in ``build/backends/shunter/`` beside this file, so that ``build/backends`` is a backend
directory; plain C without Triton's headers, so that it can be built anywhere.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shunter.nic_frontend import build as native
from shunter.plugins.errors import UserError

HERE = Path(__file__).resolve().parent
SOURCES = (native.HERE.parent / "batching/c", HERE / "c")
CRYPTO = native.HERE / "c/crypto"
SHA256 = (CRYPTO / "sha256.c", CRYPTO / "sha256.h")
NOT_HERE = ("worker",)
"""Folders of these that are for workers only."""
LIBRARY = "build/backends/shunter/libtriton_shunter.so"
"""Relative to this file's folder."""
FLAGS = (*native.FLAGS, "-fvisibility=hidden")
_MARK = b"shunter-triton-source-sha256="


def sources(pattern: str = "*.c") -> list[Path]:
    """All files of that kind."""
    found = (path for folder in SOURCES for path in sorted(folder.rglob(pattern)))
    own = [path for path in found if path.parent.name not in NOT_HERE]
    return own + [path for path in SHA256 if path.match(pattern)]


def includes() -> list[str]:
    """Flags for every folder of headers."""
    return [f"-I{folder}" for folder in sorted({path.parent for path in sources("*.h")})]


def digest() -> str:
    """Of the sources, of how they are compiled and for which processors."""
    total = hashlib.sha256(" ".join((*FLAGS, *native.WARNINGS, platform.machine())).encode())
    for path in sources("*.[ch]"):
        total.update(str(path.relative_to(native.HERE.parent)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def ensure() -> Path:
    """The library; it is built only when it is missing or stale. Raises UserError."""
    return HERE / LIBRARY if is_fresh() else build(HERE / LIBRARY)


def is_fresh() -> bool:
    """Whether there is one that was built from these sources."""
    try:
        return _MARK + digest().encode() in (HERE / LIBRARY).read_bytes()
    except OSError:
        return False


def build(library: Path, more: Sequence[str] = ()) -> Path:
    """Compile the backend. Raises UserError."""
    mark = f'-DSHUNTER_TRITON_SOURCE="{_MARK.decode()}{digest()}"'
    return link(library, sources(), [*includes(), mark, *more])


def link(library: Path, compiled: Sequence[Path], more: Sequence[str]) -> Path:
    """Compile; the library appears under its name only when it is complete. Raises UserError."""
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=library.parent, prefix=".so-") as scratch:
            finished = Path(scratch) / library.name
            command = [*native.compiler(), *FLAGS, *native.WARNINGS, *more]
            command += [*map(str, compiled), "-lm", "-o", str(finished)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise UserError(f"{command[0]} failed:\n{done.stderr.strip()}")
            os.replace(finished, library)
    except native.BuildError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{error.filename or library.parent}: {error.strerror}") from error
    return library


if __name__ == "__main__":
    print(ensure())
