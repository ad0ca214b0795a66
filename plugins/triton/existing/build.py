"""Compile the batching strategy for existing models, ``libbatchstrategy_shunter.so``.

As the backend is: plain C without Triton's headers. Where Triton runs in a container the library is
copied there, so it needs nothing beside the C library.
"""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

from shunter.plugins.triton import build as backend

SOURCES = Path(__file__).resolve().parent / "c"
LIBRARY = "build/strategy/libbatchstrategy_shunter.so"
"""Relative to the folder of the backend's build."""
_MARK = "shunter-strategy-sha256="


def sources(pattern: str = "*.c") -> list[Path]:
    """All files of that kind."""
    return sorted(SOURCES.glob(pattern))


def flags() -> list[str]:
    """Beside the usual ones. Triton's interface is declared with the backend."""
    return [f"-I{SOURCES}", f"-I{backend.HERE / 'c'}"]


def digest() -> str:
    """Of the sources, of how they are compiled and for which processors."""
    total = hashlib.sha256(" ".join((*backend.FLAGS, platform.machine())).encode())
    for path in (*sources("*.[ch]"), *sorted((backend.HERE / "c").glob("*.h"))):
        total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def ensure() -> Path:
    """The library; it is built only when it is missing or stale. Raises UserError."""
    library = backend.HERE / LIBRARY
    try:
        if (_MARK + digest()).encode() in library.read_bytes():
            return library
    except OSError:
        pass
    return build(library)


def build(library: Path) -> Path:
    """Compile it. Raises UserError."""
    said = f'-DSHUNTER_STRATEGY_SOURCE="{_MARK}{digest()}"'
    return backend.link(library, sources(), [*flags(), said])


if __name__ == "__main__":
    print(ensure())
