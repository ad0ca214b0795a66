"""C sources of the benchmarks as libraries, compiled when they are needed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from shunter.nic_frontend import build


def compiled(source: Path) -> Path:
    """The library of one source file, which may use the data path's functions."""
    library = build.ensure()
    digest = hashlib.sha256(source.read_bytes() + library.read_bytes()).hexdigest()[:16]
    target = Path(tempfile.gettempdir()) / f"shunter-{source.stem}-{os.getuid()}-{digest}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            command = [*build.compiler(), *build.FLAGS, *build.WARNINGS]
            command += [*build.includes(), str(source), str(library)]
            command += [f"-Wl,-rpath,{library.parent}", "-o", str(made)]
            subprocess.run(command, check=True)
            made.rename(target)
    return target
