"""Profiles on disk: where they lie, what they must match, how they are written.

The profile of ``store/NAME.mar`` is ``store/NAME.profile.json``, so that both move together.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from shunter.allocator.cpus.discovery import read_topology
from shunter.allocator.cpus.topology import Topology
from shunter.allocator.planning.profile import Profile, ProfileError, Provenance, read_profile
from shunter.plugins.errors import UserError

LOGGER = logging.getLogger("shunter.profiles")
SUFFIX = ".profile.json"
_MANIFEST = "MAR-INF/MANIFEST.json"
# What reading a file that is no archive, or whose manifest is none, may raise.
_DAMAGE = (
    *(ValueError, LookupError, TypeError, AttributeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)


def profile_path(archive: Path) -> Path:
    """Where the profile of a model archive lies."""
    return archive.with_name(archive.name.removesuffix(".mar") + SUFFIX)


def hash_archive(path: Path) -> str:
    """SHA-256 of what an archive says of its files: names, sizes and checksums; not of the bytes.

    So weights of gigabytes are not read, and packing the same files again makes no difference.
    Raises OSError for what cannot be read, ProfileError for what is no archive.
    """
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in sorted(archive.infolist(), key=lambda each: each.filename):
                if entry.filename == _MANIFEST:
                    content = json.loads(archive.read(entry))
                    content.pop("createdOn", None)
                    what = json.dumps(content, sort_keys=True)
                else:
                    what = f"{entry.file_size} {entry.CRC}"
                digest.update(f"{entry.filename}\0{what}\0".encode())
    except _DAMAGE as error:
        raise ProfileError(f"{path} is no model archive: {error}") from None
    return digest.hexdigest()


def _registered_name(path: Path) -> str:
    """The name that a server gives the model unless told one: the manifest's, else the file's."""
    with contextlib.suppress(*_DAMAGE), zipfile.ZipFile(path) as archive:
        name = json.loads(archive.read(_MANIFEST))["model"]["modelName"]
        if name and isinstance(name, str):
            return name
    return path.name.removesuffix(".mar")


def provenance_here(
    archive: Path, sample_hash: str = "", topology: Topology | None = None
) -> Provenance:
    """What a profile of ``archive`` measured on this host would say about itself.

    Raises OSError for what cannot be read, ProfileError for what is no archive.
    """
    model_hash = hash_archive(archive)
    return Provenance(
        model=_registered_name(archive),
        model_hash=model_hash,
        cpu=cpu_model(),
        cores=(topology or read_topology()).cores,
        torch=importlib.metadata.version("torch"),
        sample_hash=sample_hash,
        shunter=importlib.metadata.version("shunter"),
        python=platform.python_version(),
    )


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name; its family and model where it has none."""
    fields: dict[str, str] = {}
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    for line in text.split("\n\n", 1)[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    name = fields.get("model name") or platform.machine()
    keys = ("vendor_id", "cpu family", "model", "stepping")
    kind = "/".join(fields.get(key, "?") for key in keys)
    return f"{name} ({kind})"


def write_profile(path: Path, profile: Profile) -> None:
    """Replace the file in one step, so that no crash leaves half a profile."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(profile.to_json(), encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise UserError(f"the profile {path} cannot be written: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def load_profile(path: Path) -> Profile:
    """Read a profile. Raises ProfileError naming the file, OSError when it cannot be read."""
    try:
        return read_profile(path.read_bytes())
    except ProfileError as error:
        raise ProfileError(f"{path}: {error}") from None


@dataclass(slots=True)
class _Known:
    stamp: tuple[int, int, int, int]
    profile: Profile | None


class ProfileStore:
    """Profiles of served archives, read again when a file changes. Errors are logged once."""

    def __init__(self, topology: Topology | None = None) -> None:
        """Profiles must have been measured on ``topology``, default: this host."""
        self._topology = topology
        self._known: dict[str, _Known] = {}

    def of(self, archive: str) -> Profile | None:
        """The profile of an archive, None when there is none that can be used here."""
        if not archive:
            return None
        path = profile_path(Path(archive))
        try:
            of_profile, of_archive = path.stat(), Path(archive).stat()
        except OSError:
            return None
        stamp = (
            of_profile.st_mtime_ns,
            of_profile.st_size,
            of_archive.st_mtime_ns,
            of_archive.st_size,
        )
        known = self._known.get(archive)
        if known is None or known.stamp != stamp:
            profile = self._load(path, Path(archive), known.profile if known else None)
            known = self._known[archive] = _Known(stamp, profile)
        return known.profile

    def _load(self, path: Path, archive: Path, before: Profile | None) -> Profile | None:
        try:
            profile = load_profile(path)
            profile.check_usable(provenance_here(archive, topology=self._topology))
            if not profile.complete:
                if before and before.provenance.model_hash == profile.provenance.model_hash:
                    return before  # it is being extended
                raise ProfileError(f"{path} is not complete: run `shunter profile` again")
            if profile.doubt:
                again = "measure it again on an idle host: `shunter profile --restart`"
                raise ProfileError(f"{path} was {profile.doubt}: {again}")
        except (OSError, ProfileError) as error:
            LOGGER.warning("%s; the configuration is left as it is", error)
            return None
        LOGGER.info("profile of %s: %d cells", archive.name, len(profile.cells))
        return profile
