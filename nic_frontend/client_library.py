"""Build and install the client library for C: ``python -m shunter.nic_frontend.client_library``.

Of the sources of the data path it takes the client's alone: nothing of a server, and no Python. It
installs ``include/shunter_client.h``, ``lib/libshunter_client.so`` and ``.a``, and a file for
pkg-config under a prefix.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shunter.nic_frontend.build import (
    FLAGS,
    HERE,
    LIBRARIES,
    WARNINGS,
    BuildError,
    compiler,
    includes,
)

NAME, VERSION, ABI = "shunter_client", "1.2.0", 1
"""``ABI`` is raised when programs that were linked before would not run."""
PREFIX = HERE / "build" / "client"
SOURCES = HERE / "c"
SHARED = HERE.parent / "batching/c"
"""What it has in common with workers."""
_FOLDERS = ("client", "crypto", "library")
_MORE = ("common/siphash.c", "path/congestion.c", "path/congestion_loss.c")
_PKG_CONFIG = """\
prefix={prefix}
includedir=${{prefix}}/include
libdir=${{prefix}}/lib

Name: {name}
Description: Client of Shunter's network front end
Version: {version}
Cflags: -I${{includedir}}
Libs: -L${{libdir}} -l{name}
Libs.private: -pthread -ldl
"""


def sources() -> list[Path]:
    """What the library is made of."""
    found = [path for folder in _FOLDERS for path in sorted((SOURCES / folder).glob("*.c"))]
    return [*found, *(SOURCES / name for name in _MORE), SHARED / "packed/packed_run.c"]


def install(prefix: Path, *, root: Path | None = None, more: Sequence[str] = ()) -> Path:
    """Build and copy; the folder that stands for the prefix. Raises BuildError.

    ``root``: the prefix lies in this folder for now, as a package does while it is made. ``more``:
    flags of the compiler.
    """
    target = root / prefix.relative_to("/") if root else prefix
    lib, shared = target / "lib", f"lib{NAME}.so"
    try:
        for folder in (lib / "pkgconfig", target / "include"):
            folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="shunter-client-") as scratch:
            objects = _compile(Path(scratch), more)
            archive = Path(scratch) / f"lib{NAME}.a"
            _run(["ar", "rcs", str(archive), *objects])
            whole = Path(scratch) / shared
            link = ["-shared", "-pthread", f"-Wl,-soname,{shared}.{ABI}", *more, *objects]
            _run([*compiler(), *link, *LIBRARIES, "-o", str(whole)])
            shutil.copy(archive, lib)
            shutil.copy(whole, lib / f"{shared}.{VERSION}")
        for name in (f"{shared}.{ABI}", shared):
            (lib / name).unlink(missing_ok=True)
            (lib / name).symlink_to(f"{shared}.{VERSION}")
        shutil.copy(SOURCES / "library" / f"{NAME}.h", target / "include")
        text = _PKG_CONFIG.format(prefix=prefix, name=NAME, version=VERSION)
        (lib / "pkgconfig" / f"{NAME}.pc").write_text(text, encoding="utf-8")
    except OSError as error:
        raise BuildError(f"{error.filename or target}: {error.strerror}") from error
    return target


def _compile(scratch: Path, more: Sequence[str]) -> list[str]:
    flags = [*(flag for flag in FLAGS if flag != "-shared"), *WARNINGS, "-fvisibility=hidden"]
    found = []
    for path in sources():
        found.append(str(scratch / f"{path.parent.name}-{path.stem}.o"))
        _run([*compiler(), *flags, *includes(), *more, "-c", str(path), "-o", found[-1]])
    return found


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{command[0]} failed:\n{done.stderr.strip()}")


def main(argv: Sequence[str] | None = None) -> int:
    """Install it; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefix", type=Path, default=PREFIX, help="default: %(default)s")
    args = parser.parse_args(argv)
    root = os.environ.get("DESTDIR")
    try:
        print(install(args.prefix.absolute(), root=Path(root) if root else None))
    except BuildError as error:
        print(f"No client library: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
