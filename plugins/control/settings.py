"""``shunter.toml``: what an operator may set, checked at the edge.

::

    [batching]              # numbers for every model
    threshold_cap = 64
    max_wait_ms = 2.5

    [models.resnet]         # the same keys for one model, and lists with one entry per worker group
    max_wait_ms = 10
    caps = [32, 8]
    weights = { strict = [1, 0.5], best_effort = [0, 1] }

    [configuration]         # instances, threads and batch of models with a profile
    auto = true

    [preemption]            # best-effort models that give way to strict ones
    best_effort = "round_robin"
    longest_park_ms = 1000

    [placement]             # who runs on which set of cores
    auto = true

    [mig]                   # instances of GPUs, and who runs on them
    layouts = ["4g,3g"]
    models = ["resnet"]

    [autoscaling]           # how many instances
    auto = true

    [classes]               # which requests may say that they are strict
    allow_strict = ["resnet"]
    strict_secret_file = "/etc/shunter/strict.key"

    [pool]                  # models that share processes
    workers = 2
    hot_mb = 2000

    [controller]
    interval_ms = 100

    [nic]                   # the network front end, see shunter nic
    enabled = true
    host = "0.0.0.0"
    key_file = "/etc/shunter/nic.key"

The keys are described in :mod:`shunter.plugins.control.settings_keys`. An unknown key or a bad
value is a SettingsError that names the key, the value and what is allowed; nothing of such a file
is used. A hyphen in a key is as good as an underscore: requests say ``best-effort``.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from shunter.allocator.cpus.cpu_list import CpuListError, parse_cpu_list
from shunter.allocator.planning.allowed import allowed
from shunter.batching.forming.spelling import hint
from shunter.plugins.control.settings_keys import (  # noqa: F401 - who reads settings needs the sections
    AutoscalingSettings,
    BatchingSettings,
    ClassesSettings,
    ConfigurationSettings,
    ControllerSettings,
    MigSettings,
    ModelSettings,
    NicSettings,
    PlacementSettings,
    PoolSettings,
    PreemptionSettings,
    Settings,
)
from shunter.plugins.reading import content
from shunter.plugins.section_keys import SECTION

FILE = "shunter.toml"
_SECRET = "classes.strict_secret_file"
VARIABLE = "SHUNTER_CONFIG"
Table = dict[str, Any]
Section = TypeVar("Section")


class SettingsError(ValueError):
    """The settings cannot be used; the message names file, key, value and what is allowed."""


def find(explicit: Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    """Which file holds: the explicit one, else ``SHUNTER_CONFIG``, else ``directory``'s if any.

    Relative paths start at ``directory``. None means that the defaults hold. Whether the file
    that was named exists is found out by :func:`load`.
    """
    named = explicit or environ.get(VARIABLE)
    if named:
        return directory / named
    path = directory / FILE
    return path if os.path.lexists(path) else None


def load(path: Path | None) -> Settings:
    """Settings in a file, the defaults for None. Raises SettingsError."""
    if path is None:
        return Settings()
    try:
        document = tomllib.loads(content(path).decode())
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # TOML's own errors, bad UTF-8, deep nesting
        raise SettingsError(f"{path} is not TOML: {error}") from error
    try:
        return parse(document)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from None


def parse(document: Table) -> Settings:
    """Settings in a parsed TOML document. Raises SettingsError."""
    document = {name: _spelled(name, value) for name, value in document.items()}
    batching, models = document.get("batching"), document.get("models")
    if isinstance(batching, dict) and isinstance(models, dict):
        inherited = {
            name: {**batching, **table} if isinstance(table, dict) else table
            for name, table in models.items()
        }
        document = {**document, "models": inherited}
    try:
        found = TypeAdapter(Settings).validate_python(document)
    except ValidationError as error:
        raise _told(error, document) from None
    if found.nic.encrypt and not (found.nic.key_file or found.nic.keys_file):
        raise _refused("nic.encrypt", True, "false, or nic.key_file is set")
    _check_pool_cores(found.pool)
    if found.classes.strict_secret_file and found.classes.allow_strict == "none":
        raise _refused("classes.allow_strict", "none", '"all" or a list, where there is a secret')
    return found


def _check_pool_cores(pool: PoolSettings) -> None:
    if pool.cores in (None, "auto"):
        return
    try:
        count = len(parse_cpu_list(pool.cores))
    except CpuListError as error:
        raise _refused("pool.cores", pool.cores, f"a CPU list; {error}") from None
    if count < pool.workers:
        raise _refused("pool.cores", pool.cores, f"at least {pool.workers} CPUs for pool.workers")


def key_digest(classes: ClassesSettings) -> bytes:
    """SHA-256 of the secret, zeros where there is none. Raises SettingsError."""
    if classes.strict_secret_file is None:
        return bytes(hashlib.sha256().digest_size)
    path = Path(classes.strict_secret_file)
    try:
        if path.stat().st_mode & 0o077:
            raise _refused(_SECRET, str(path), "a file that others cannot read; chmod 600 it")
        secret = path.read_bytes().strip()
    except OSError as error:
        raise SettingsError(f"{_SECRET}: {path} cannot be read: {error.strerror}") from error
    if not secret or not all(0x21 <= byte <= 0x7E for byte in secret):
        raise _refused(_SECRET, str(path), "a file with one line of ASCII without spaces")
    return hashlib.sha256(secret).digest()


def override(section: Section, name: str, values: Table) -> Section:
    """A section with other values, checked as those of a file are. Raises SettingsError."""
    try:
        return replace(section, **values)  # type: ignore[type-var]
    except ValidationError as error:
        raise _told(error, {name: values}, name) from None


def _spelled(where: str, value: Any) -> Any:
    """The table with underscores in its keys; names of models stay as they are."""
    if not isinstance(value, dict):
        return value
    if where == "models":
        return {name: _spelled("", table) for name, table in value.items()}
    spelled: dict[str, str] = {}
    for key in value:
        other = spelled.setdefault(key.replace("-", "_"), key)
        if other != key:
            raise SettingsError(f"{other} and {key} are the same key; allowed: one of them")
    return {name: _spelled("", value[key]) for name, key in spelled.items()}


def _told(error: ValidationError, document: Table, *above: str) -> SettingsError:
    """The first thing that is wrong, in our words."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = (*above, *first["loc"])
    path = [str(part) for part in where[: 3 if where[0] == "models" else 2]]
    key, value = ".".join(path), reduce(getitem, path, document)
    section: Any = ModelSettings if len(path) == 3 else Settings
    if len(path) == 2 and path[0] != "models":
        section = Settings.__pydantic_fields__[path[0]].annotation
    if first["type"] == "unexpected_keyword_argument":
        known = ", ".join(sorted(section.__pydantic_fields__))
        near = hint(path[-1], section.__pydantic_fields__)
        if issubclass(section, BatchingSettings) and path[-1] in SECTION:
            near = f"; {path[-1]} belongs into model-config.yaml of the archive, below shunter:"
        return SettingsError(f"{key} = {_shown(value)} is unknown; allowed: {known}{near}")
    if first["type"] in ("dataclass_type", "dict_type"):
        return _refused(key, value, "a table")
    return _refused(key, value, allowed(section, path[-1]))


def _refused(key: str, value: Any, text: str) -> SettingsError:
    near = hint(value, text.replace('"', "").split(" or ")) if isinstance(value, str) else ""
    return SettingsError(f"{key} = {_shown(value)} is not allowed; allowed: {text}{near}")


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # hexadecimal numbers of a file may have more digits than Python writes
        return "a number that is too long to be shown"


def main(argv: list[str] | None = None) -> int:
    """Print the settings of pools for a server that starts: shared by all, number, MB, threads,
    and cores, or a dash."""
    parser = argparse.ArgumentParser(prog="python -m shunter.plugins.control.settings")
    parser.add_argument("--config", type=Path)
    try:
        pool = load(find(parser.parse_args(argv).config, os.environ, Path())).pool
    except SettingsError as error:
        print(error, file=sys.stderr)
        return 1
    print(int(pool.models == "shared"), pool.workers, pool.hot_mb, pool.threads, pool.cores or "-")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
