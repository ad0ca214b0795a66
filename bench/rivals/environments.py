"""Packages of the rivals: installed once into a cache folder, never into the caller's environment.

torch is not among them. The rivals take torch, and TorchServe's base class of handlers, from the
environment of the benchmark (see ``hosted``), so every side runs the same build of it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

_INSTALL_TIMEOUT_S = 900


class Unavailable(Exception):
    """The rival cannot run here; the message says why."""


def cache() -> Path:
    """Where the rivals' packages are kept."""
    given = os.environ.get("SHUNTER_BENCH_CACHE")
    folder = Path(given) if given else Path.home() / ".cache/shunter-bench"
    return folder.expanduser().resolve()


def installed(name: str, packages: Sequence[str], *, dependencies: bool = True) -> Path:
    """A folder with ``packages``, for PYTHONPATH; installed at the first call.

    ``name`` must change with the packages. Several processes may ask at the same time.
    """
    python = f"py{sys.version_info.major}.{sys.version_info.minor}"
    target = cache() / f"{name}-{python}"
    if target.is_dir():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (target.parent / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_dir():
                _install(target, packages, dependencies)
    except OSError as error:
        raise Unavailable(f"{name} cannot be installed: {error}") from error
    return target


def _install(target: Path, packages: Sequence[str], dependencies: bool) -> None:
    print(f"installing {', '.join(packages)} into {target} (once)", file=sys.stderr, flush=True)
    # Renamed when it is complete, so that an interrupted installation is never taken for one.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".install-") as scratch:
        folder = Path(scratch) / "packages"
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install"]
        command += ["--quiet", "--only-binary=:all:", "--target", str(folder)]
        command += [] if dependencies else ["--no-deps"]
        try:
            done = subprocess.run(
                [*command, *packages],
                capture_output=True,
                text=True,
                check=False,
                timeout=_INSTALL_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"pip took longer than {_INSTALL_TIMEOUT_S} s") from error
        if done.returncode != 0:
            reasons = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            raise Unavailable(f"pip failed: {reasons[0] if reasons else done.stderr[-200:]}")
        os.rename(folder, target)


def remove() -> None:
    """Delete everything that was installed."""
    shutil.rmtree(cache(), ignore_errors=True)
