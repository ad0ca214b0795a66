"""Where Triton is: the server's own program, its libraries and its backends.

``python -m shunter.plugins.triton.installation`` gets one without containers or a GPU: the package
nvidia-pytriton carries the program of Triton 2.51, with the Python backend only. It needs
``numpy<2`` and a C library of version 2.35 or later, so it gets a virtual environment of its own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shunter.plugins.errors import UserError

VARIABLE = "SHUNTER_TRITON"
"""Environment: a ``tritonserver`` program, or a virtual environment with nvidia-pytriton."""
PACKAGES = ("nvidia-pytriton==0.7.0", "numpy<2")
FETCHED = Path(__file__).resolve().parent / "build/server"
USUAL = Path("/opt/tritonserver/bin/tritonserver")
_USUAL = {
    "model-control-mode": "explicit",
    "exit-on-error": "false",  # one model that does not load must not end the others
    "http-address": "127.0.0.1",
    "grpc-address": "127.0.0.1",
    "allow-metrics": "false",
    "exit-timeout-secs": "60",
}
ADVICE = (
    "install Triton 2.51 or later (its container has it at /opt/tritonserver), name its program by "
    f"{VARIABLE}, or get one for CPUs with `make triton`"
)


@dataclass(frozen=True)
class Installation:
    """A Triton that can be started."""

    program: Path
    backends: Path
    """Its own: shunter's is put beside them."""
    variables: Mapping[str, str] = field(default_factory=dict)
    stub: Path | None = None
    """For the Python backend, where it does not have one beside it."""

    def link_backends(self, folder: Path, ours: Path) -> None:
        """Make a backend directory: those of this Triton, and the library ``ours``."""
        shutil.rmtree(folder, ignore_errors=True)
        for backend in sorted(self.backends.iterdir()) if self.backends.is_dir() else ():
            (folder / backend.name).mkdir(parents=True)
            for each in backend.iterdir():
                (folder / backend.name / each.name).symlink_to(each)
        if self.stub is not None:
            (folder / "python" / self.stub.name).symlink_to(self.stub)
        (folder / "shunter").mkdir(parents=True, exist_ok=True)
        (folder / "shunter" / ours.name).symlink_to(ours)

    def command(self, options: Mapping[str, str], models: Iterable[str]) -> list[str]:
        """How it is started, with these models."""
        named = [f"--load-model={name}" for name in models]
        options = {**_USUAL, **options}
        return [str(self.program), *(f"--{k}={v}" for k, v in options.items()), *named]

    def environment(self) -> dict[str, str]:
        """This process's, without what is of its own Python, and what the program needs."""
        own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        return own | dict(self.variables)


def find() -> Installation:
    """The one that is named, else the first that there is. Raises UserError."""
    if given := os.environ.get(VARIABLE):
        found = _at(Path(given))
        if found is None:
            raise UserError(f"{VARIABLE}={given} is no tritonserver; {ADVICE}")
        return found
    on_path = shutil.which("tritonserver")
    for each in (Path(on_path) if on_path else None, USUAL, FETCHED):
        if each is not None and (found := _at(each)):
            return found
    raise UserError(f"there is no tritonserver; {ADVICE}")


def _at(path: Path) -> Installation | None:
    if path.is_file() and os.access(path, os.X_OK):
        return Installation(path.resolve(), path.resolve().parents[1] / "backends")
    for packages in sorted(path.glob("lib/python3.*/site-packages")):
        server = packages / "pytriton/tritonserver"
        program = server / "bin/tritonserver"
        if program.is_file():
            version = packages.parent.name.removeprefix("python")
            variables = {
                "LD_LIBRARY_PATH": str(packages / "nvidia_pytriton.libs"),
                "PYTHONPATH": str(packages),
            }
            stub = server / "python_backend_stubs" / version / "triton_python_backend_stub"
            return Installation(program, server / "backends", variables, stub)
    return None


def fetch(folder: Path = FETCHED) -> Installation:
    """Install one into ``folder``, unless it is there. Raises UserError."""
    if found := _at(folder):
        return found
    venv.create(folder, with_pip=True, clear=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check"]
    done = subprocess.run([*pip, "install", "--quiet", *PACKAGES], check=False)
    found = _at(folder) if done.returncode == 0 else None
    if found is None:
        shutil.rmtree(folder, ignore_errors=True)
        raise UserError(f"{PACKAGES[0]} could not be installed; pip says above why")
    return found


if __name__ == "__main__":
    try:
        print(fetch().program)
    except UserError as error:
        sys.exit(f"No Triton: {error}")
