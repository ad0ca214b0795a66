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

    [classes]               # which requests may say that they are strict
    allow_strict = ["resnet"]
    strict_secret_file = "/etc/shunter/strict.key"

    [controller]
    interval_ms = 100

    [nic]                   # the network front end, see shunter nic
    enabled = true
    host = "0.0.0.0"
    key_file = "/etc/shunter/nic.key"

Each key is described at its field below. An unknown key or a bad value is a SettingsError that
names the key, the value and what is allowed; nothing of such a file is used.
"""

from __future__ import annotations

import hashlib
import os
import tomllib
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from shunter.batching.estimator import ALPHA, WINDOW
from shunter.batching.layout import CLASSES, GROUP_COUNT, Claims, Order
from shunter.batching.padding import SLOW_DOWN
from shunter.batching.threshold import DEFAULT_ALPHA, DEFAULT_CAP

FILE = "shunter.toml"
_SECRET = "classes.strict_secret_file"
VARIABLE = "SHUNTER_CONFIG"
MAX_WAIT_MS = 3_600_000
Table = dict[str, Any]
Parsed = TypeVar("Parsed")


class SettingsError(ValueError):
    """The settings cannot be used; the message names file, key, value and what is allowed."""


class _Bad(ValueError):
    """A value is not what is allowed; says what is."""


def _number(low: float, high: float, *, whole: bool = False, or_zero: bool = False) -> Any:
    """A check for numbers from ``low`` to ``high``."""
    allowed = f"a {'whole ' if whole else ''}number from {low:.12g} to {high:.12g}"
    allowed = f"0 or {allowed}" if or_zero else allowed

    def check(value: Any) -> float:
        good = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if not good or not (low <= value <= high or (or_zero and value == 0)):
            raise _Bad(allowed)
        return value

    return check


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Bad("true or false")
    return value


def _text(meaning: str) -> Any:
    """A check for texts that are not empty."""

    def check(value: Any) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise _Bad(meaning)
        return value

    return check


def _one_of(*allowed: str) -> Any:
    """A check for texts out of a few."""

    def check(value: Any) -> str:
        if value not in allowed:
            raise _Bad(" or ".join(allowed))
        return value

    return check


def _list(check: Callable[[Any], Any], meaning: str) -> Any:
    """A check for lists with one entry per worker group."""

    def check_all(value: Any) -> tuple[Any, ...]:
        allowed = f"a list of at most {GROUP_COUNT} entries, each {meaning}"
        if not isinstance(value, list) or len(value) > GROUP_COUNT:
            raise _Bad(allowed)
        try:
            return tuple(check(entry) for entry in value)
        except _Bad:
            raise _Bad(allowed) from None

    return check_all


def _by_class(check: Callable[[Any], Any], meaning: str) -> Any:
    """A check for tables of a list per request class; gives a list for every class, in order."""
    check_list = _list(check, meaning)
    allowed = f"a table with the keys {', '.join(CLASSES)}: lists of {meaning}"

    def check_table(value: Any) -> tuple[tuple[Any, ...], ...]:
        if not isinstance(value, dict) or not value.keys() <= set(CLASSES):
            raise _Bad(allowed)
        return tuple(check_list(value.get(name, [])) for name in CLASSES)

    return check_table


def _models(value: Any) -> str | tuple[str, ...]:
    """A check for all models, none, or a list of names."""
    if value in ("all", "none"):
        return str(value)
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise _Bad('"all", "none" or a list of model names')
    return tuple(value)


def _key(check: Callable[[Any], Any], default: Any) -> Any:
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, slots=True)
class BatchingSettings:
    """How batches of a model form: ``[batching]``, and ``[models.NAME]`` over it."""

    alpha: float = _key(_number(0, 0.999999), DEFAULT_ALPHA)
    """Weight of the old threshold when it rises: 0 follows load at once, near 1 hardly."""
    threshold_cap: float = _key(_number(1, 1_000_000), DEFAULT_CAP)
    """Upper bound of the adaptive threshold, in requests."""
    threshold: float = _key(_number(1, 1_000_000, or_zero=True), 0)
    """0: adapt. Else a fixed threshold, in requests."""
    quantum_ms: float = _key(_number(0.1, MAX_WAIT_MS, or_zero=True), 0)
    """0: the threshold follows what comes after answers. Else the fixed quantum of Rafiqi."""
    max_wait_ms: float | None = _key(_number(0, MAX_WAIT_MS), None)
    """Longest deliberate wait; absent: the registered maxBatchDelay, which also bounds it."""
    mix_classes: bool = _key(_boolean, False)
    """Whether one batch may hold strict and best-effort requests."""
    ageing_ms: float = _key(_number(0, MAX_WAIT_MS), 1000)
    """One best-effort batch goes first in this time if a request has waited as long; 0: never."""
    ahead: int = _key(_number(0, 1, whole=True), 1)
    """Batches that may be sent to a worker before its answer is back."""
    admission: bool = _key(_boolean, False)
    """Whether a request that would be answered after its deadline is refused at once, by 429."""
    margin_ms: float = _key(_number(0, 10_000), 2)
    """How long before its deadline an answer shall be ready, for the way back to the client."""


@dataclass(frozen=True, slots=True)
class ModelSettings(BatchingSettings):
    """``[models.NAME]``: entry i of a list is for worker group i; missing ones are defaults.

    The controller does not change the configuration of a model that has such lists.
    """

    caps: tuple[int, ...] = _key(_list(_number(0, 1 << 20, whole=True), "0 or a batch size"), ())
    """Batch cap; 0, the default: the group's own."""
    weights: tuple[tuple[float, ...], ...] = _key(
        _by_class(_number(0, 1), "a number from 0 to 1"), ((), ())
    )
    """Factor of the cap for each class; 1 is the default, 0 keeps the class away from the group."""
    preferences: tuple[tuple[int, ...], ...] = _key(
        _by_class(_number(0, 1000, whole=True), "a whole number from 0 to 1000"), ((), ())
    )
    """For each class, groups with a lower number are filled first; 0 is the default."""

    @property
    def has_lists(self) -> bool:
        """Whether anything is set by worker group."""
        return any((self.caps, *self.weights, *self.preferences))

    def without_lists(self) -> ModelSettings:
        """The same numbers, with nothing by worker group."""
        return replace(self, caps=(), weights=((), ()), preferences=((), ()))


@dataclass(frozen=True, slots=True)
class ClassesSettings:
    """Which requests may say that they are strict: ``[classes]``.

    Only what a request says of itself is judged, not a model's own class. Requests by UDP are not:
    whoever has the key of ``[nic]`` may be strict.
    """

    allow_strict: str | tuple[str, ...] = _key(_models, "all")
    """Those for all models, for none, or for the models of that list."""
    strict_secret_file: str | None = _key(_text("a path"), None)
    """Of these, those that bring this file's content as ``x-shunter-strict-key``; absent: all."""

    def claims(self, model: str) -> Claims:
        """As the page has it."""
        allowed = self.allow_strict
        if allowed == "none" or (isinstance(allowed, tuple) and model not in allowed):
            return Claims.NONE
        return Claims.WITH_KEY if self.strict_secret_file else Claims.ALL

    def key_digest(self) -> bytes:
        """SHA-256 of the secret, zeros where there is none. Raises SettingsError."""
        if self.strict_secret_file is None:
            return bytes(hashlib.sha256().digest_size)
        path = Path(self.strict_secret_file)
        try:
            if path.stat().st_mode & 0o077:
                raise _refused(_SECRET, str(path), "a file that others cannot read; chmod 600 it")
            secret = path.read_bytes().strip()
        except OSError as error:
            raise SettingsError(f"{_SECRET}: {path} cannot be read: {error.strerror}") from error
        if not secret or not all(0x21 <= byte <= 0x7E for byte in secret):
            raise _refused(_SECRET, str(path), "a file with one line of ASCII without spaces")
        return hashlib.sha256(secret).digest()


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The controller itself: ``[controller]``."""

    interval_ms: float = _key(_number(20, 60_000), 100)
    """Pause between two duty cycles."""


@dataclass(frozen=True, slots=True)
class ConfigurationSettings:
    """Instances, threads and batch, chosen while serving: ``[configuration]``."""

    auto: bool = _key(_boolean, True)
    """Change the configuration of models that have a profile and do not forbid it."""
    pin: bool = _key(_boolean, True)
    """Workers keep cores of their own."""
    timeout_s: float = _key(_number(1, 86_400), 30)
    """Time between two looks at whether another batch size is wanted."""
    alpha: float = _key(_number(0.001, 1), ALPHA)
    """Weight of the newest number of requests in the system, at every look of the controller."""
    window: int = _key(_number(1, 10_000, whole=True), WINDOW)
    """How many of the smoothed batch sizes are looked at; the most frequent one counts."""
    gain: float = _key(_number(0, 1), 0.05)
    """A new generation must be expected to be faster by this share."""


@dataclass(frozen=True, slots=True)
class PreemptionSettings:
    """How best-effort models give way to strict ones: ``[preemption]``."""

    strict: str = _key(_one_of("concurrent", "fifo", "edf"), "concurrent")
    """Turns of strict models that share cores or a device: none, by arrival, by deadline."""
    best_effort: str = _key(_one_of("round_robin", "concurrent"), "round_robin")
    """Turns of the models that give way."""
    exclusive: bool = _key(_boolean, False)
    """Both classes take turns, strict first; what runs is not interrupted."""
    max_hold_ms: float = _key(_number(1, MAX_WAIT_MS), 2000)
    """Strict work that got nowhere for so long does not hold best effort up any longer."""
    longest_park_ms: float = _key(_number(1, MAX_WAIT_MS), 1000)
    """A best-effort batch that was parked for so long goes on beside strict work."""
    padding: str = _key(_one_of("auto", "always", "never"), "auto")
    """Which best-effort models may run beside which strict ones: as measured, all, none."""
    slow_down: float = _key(_number(0, 1), SLOW_DOWN)
    """Share by which strict work may be slower beside best effort, with ``auto``."""
    memory_floor_mb: int = _key(_number(0, 1 << 30, whole=True), 0)
    """While less memory is available, parked work gives back what it holds; 0: never."""

    @property
    def strict_order(self) -> Order:
        """As the page has it."""
        return Order[self.strict.upper()]

    @property
    def best_effort_order(self) -> Order:
        """As the page has it."""
        return Order[self.best_effort.upper()]


@dataclass(frozen=True, slots=True)
class NicSettings:
    """The network front end: ``[nic]``. Options of ``shunter nic`` go before these.

    Relative paths start at the server's working directory.
    """

    enabled: bool = _key(_boolean, False)
    """Whether the server starts it, and keeps it running."""
    host: str = _key(_text("an address, IPv4 or IPv6"), "127.0.0.1")
    """Address to serve at."""
    port: int = _key(_number(0, 65535, whole=True), 8083)
    """UDP and TCP port; 0: any that is free."""
    tcp: bool = _key(_boolean, True)
    """Also serve streams at the same port."""
    unix: str | None = _key(_text("a path"), None)
    """Also serve streams at this Unix socket."""
    key_file: str | None = _key(_text("a path"), None)
    """File of a key, which others cannot read: only clients that have it are served."""
    encrypt: bool = _key(_boolean, False)
    """Serve encrypted sessions only; needs the key."""
    spin_us: int = _key(_number(0, 1_000_000, whole=True), 100)
    """Where waits are shorter than this, wait without sleeping; 0: never."""
    queue_mb: int = _key(_number(1, 65_536, whole=True), 1024)
    """Memory of the tensors of one model version."""

    @property
    def number(self) -> int:
        """0 when it is not enabled, else a number that other settings change."""
        return 1 << 32 | zlib.crc32(repr(self).encode()) if self.enabled else 0


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything in one file."""

    batching: BatchingSettings = field(default_factory=BatchingSettings)
    models: Mapping[str, ModelSettings] = field(default_factory=dict)
    controller: ControllerSettings = field(default_factory=ControllerSettings)
    configuration: ConfigurationSettings = field(default_factory=ConfigurationSettings)
    nic: NicSettings = field(default_factory=NicSettings)
    preemption: PreemptionSettings = field(default_factory=PreemptionSettings)
    classes: ClassesSettings = field(default_factory=ClassesSettings)

    def for_model(self, name: str) -> ModelSettings:
        """Settings of a model: its own keys, else those of ``[batching]``."""
        found = self.models.get(name)
        if found is not None:
            return found
        return ModelSettings(*(getattr(self.batching, f.name) for f in fields(self.batching)))


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
        with path.open("rb") as file:
            document = tomllib.load(file)
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
    known = {f.name for f in fields(Settings)}
    for name, value in document.items():
        if name not in known:
            raise _unknown(name, value, known)
        if not isinstance(value, dict):
            raise _refused(name, value, "a table")
    batching = _section(BatchingSettings(), document.get("batching", {}), "batching")
    controller = _section(ControllerSettings(), document.get("controller", {}), "controller")
    configuration = _section(
        ConfigurationSettings(), document.get("configuration", {}), "configuration"
    )
    inherited = Settings(batching).for_model("")
    models = {}
    for name, table in document.get("models", {}).items():
        if not isinstance(table, dict):
            raise _refused(f"models.{name}", table, "a table")
        models[name] = _section(inherited, table, f"models.{name}")
    nic = _section(NicSettings(), document.get("nic", {}), "nic")
    if nic.encrypt and not nic.key_file:
        raise _refused("nic.encrypt", True, "false, or nic.key_file is set")
    preemption = _section(PreemptionSettings(), document.get("preemption", {}), "preemption")
    classes = _section(ClassesSettings(), document.get("classes", {}), "classes")
    if classes.strict_secret_file and classes.allow_strict == "none":
        raise _refused("classes.allow_strict", "none", '"all" or a list, where there is a secret')
    return Settings(batching, models, controller, configuration, nic, preemption, classes)


def _section(defaults: Parsed, table: Table, where: str) -> Parsed:
    checks = {f.name: f.metadata["check"] for f in fields(defaults)}  # type: ignore[arg-type]
    values = {}
    for name, value in table.items():
        key = f"{where}.{name}"
        if name not in checks:
            raise _unknown(key, value, checks)
        try:
            values[name] = checks[name](value)
        except _Bad as error:
            raise _refused(key, value, str(error)) from None
    return replace(defaults, **values)  # type: ignore[type-var]


def _unknown(key: str, value: Any, known: Mapping[str, Any] | set[str]) -> SettingsError:
    return SettingsError(f"{key} = {value!r} is unknown; allowed: {', '.join(sorted(known))}")


def _refused(key: str, value: Any, allowed: str) -> SettingsError:
    return SettingsError(f"{key} = {value!r} is not allowed; allowed: {allowed}")
