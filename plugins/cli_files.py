"""Arguments that several commands take: profiles, and numbers."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from shunter.batching.profile import Profile


def profile_file(path: Path) -> tuple[Path, Path | None]:
    """The profile that is meant, and its archive if that is there."""
    from shunter.plugins.profiles import SUFFIX, profile_path

    if path.suffix != ".mar":
        archive = path.with_name(path.name.removesuffix(SUFFIX) + ".mar")
        return path, archive if archive.is_file() else None
    if not path.is_file():
        raise UserError(f"{path} does not exist")
    found = profile_path(path)
    if not found.exists():
        raise UserError(f"{path} has no profile yet: run `shunter profile {path}`")
    return found, path


def load(path: Path) -> Profile:
    from shunter.batching.profile import ProfileError
    from shunter.plugins.profiles import load_profile

    try:
        return load_profile(path)
    except ProfileError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def check_finite(**options: float | None) -> None:
    """Raises UserError for nan and inf, which the command line lets through as numbers."""
    for name, value in options.items():
        if value is not None and not math.isfinite(value):
            raise UserError(f"--{name.replace('_', '-')} {value}: allowed: a finite number")


def stdout() -> Console:
    from rich.console import Console

    # A file or a pipe has no width of its own; 80 columns would fold the tables.
    return Console(width=None if sys.stdout.isatty() else 120)
