"""Arguments that several commands take: profiles and numbers."""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shunter.batching.forming.spelling import hint
from shunter.plugins.errors import UserError

if TYPE_CHECKING:
    from shunter.allocator.planning.profile import Profile


def archive_in(path: Path) -> Path:
    """The archive that is meant: of a model of a packed repository that of its newest version."""
    versions = [each for each in path.glob("*/model.mar") if each.parent.name.isdecimal()]
    return max(versions, key=lambda each: int(each.parent.name), default=path)


def missing(path: Path) -> str:
    """What to say of a file that is not there, with the nearest one that is."""
    names = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
    return f"{path} does not exist{hint(path.name, names)}"


def profile_file(path: Path) -> tuple[Path, Path | None]:
    """The profile that is meant, and its archive if that is there."""
    from shunter.plugins.profiling.profiles import SUFFIX, profile_path

    path = archive_in(path)
    if path.suffix != ".mar":
        archive = path.with_name(path.name.removesuffix(SUFFIX) + ".mar")
        return path, archive if archive.is_file() else None
    if not path.is_file():
        raise UserError(missing(path))
    found = profile_path(path)
    if not found.exists():
        raise UserError(f"{path} has no profile yet: run `shunter profile {path}`")
    return found, path


def load(path: Path) -> Profile:
    from shunter.allocator.planning.profile import ProfileError
    from shunter.plugins.profiling.profiles import load_profile

    try:
        return load_profile(path)
    except ProfileError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from error


def registered_batch(archive: Path) -> int | None:
    """Largest batch that a server makes of the model's requests, if its archive says so."""
    from shunter.allocator.planning.profile import LARGEST_BATCH

    config = _model_config(archive)
    section = config.get("shunter")
    wanted = section.get("max_batch") if isinstance(section, dict) else None
    for size in (wanted, config.get("batchSize")):
        if isinstance(size, int) and size > 0:
            return min(size, LARGEST_BATCH)
    return None


def check_archive(archive: Path) -> None:
    """Whether a server can read an archive of its store. Raises UserError that says why not.

    What is no .mar file is left to the server: it takes folders and URLs, too.
    """
    if archive.suffix == ".mar" and archive.is_file():
        manifest, _ = _described(archive)
        for key in ("modelName", "handler"):
            if not manifest.get(key):
                raise UserError(
                    f"{archive} cannot be read as a model archive: its MANIFEST.json has no {key}"
                )


def _model_config(archive: Path) -> dict[str, Any]:
    return _described(archive)[1]


def _described(archive: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of an archive what its manifest says of the model, and its model-config.yaml."""
    import yaml

    if archive.is_dir():
        raise UserError(f"{archive} is a folder: make an archive of it with `shunter pack`")
    if not archive.exists():
        raise UserError(missing(archive))
    damage = (OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError, zlib.error)
    try:
        with zipfile.ZipFile(archive) as content:
            manifest = json.loads(content.read("MAR-INF/MANIFEST.json"))["model"]
            name = manifest.get("configFile")
            config = yaml.safe_load(content.read(name)) if name else None
    except (*damage, AttributeError, zipfile.BadZipFile, yaml.YAMLError) as error:
        raise UserError(f"{archive} cannot be read as a model archive: {error}") from error
    return manifest, config if isinstance(config, dict) else {}


def check_finite(**options: float | None) -> None:
    """Raises UserError for nan and inf, which the command line lets through as numbers."""
    for name, value in options.items():
        if value is not None and not math.isfinite(value):
            raise UserError(f"--{name.replace('_', '-')} {value}: allowed: a finite number")
