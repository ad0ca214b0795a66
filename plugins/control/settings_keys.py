"""The keys of ``shunter.toml``: for each its type, default, bounds and meaning, once.

``TypeAdapter(Settings).json_schema()`` has all of it, for a reference.
"""

from __future__ import annotations

import zlib
from dataclasses import fields, replace
from typing import Literal

from pydantic import Field

from shunter.batching.forming.threshold import DEFAULT_ALPHA, DEFAULT_CAP
from shunter.batching.page.layout import Claims, Order
from shunter.batching.preemption.evidence import SLOW_DOWN
from shunter.plugins.control.settings_types import (
    MAX_WAIT_MS,
    ByClass,
    Cap,
    Groups,
    Name,
    PoolSettings,
    Rank,
    Share,
    Switch,
    lists,
    number,
    section,
    text,
    zero_or,
)


@section
class BatchingSettings:
    """How batches of a model form: ``[batching]``, and ``[models.NAME]`` over it."""

    alpha: float = number(DEFAULT_ALPHA, 0, 0.999999)
    """Weight of the old threshold when it rises: 0 follows load at once, near 1 hardly."""
    threshold_cap: float = number(DEFAULT_CAP, 1, 1_000_000)
    """Upper bound of the adaptive threshold, in requests."""
    threshold: zero_or(1, 1_000_000) = 0
    """0: adapt, by Shunter's own rule, which is not Rafiqi's. Else a fixed one, in requests."""
    max_wait_ms: float | None = number(None, 0, MAX_WAIT_MS)
    """Longest deliberate wait; absent: the registered maxBatchDelay, which also bounds it."""
    mix_classes: Switch = False
    """Whether one batch may hold strict and best-effort requests."""
    ageing_ms: float = number(1000, 0, MAX_WAIT_MS)
    """Best effort that waits goes first if no batch of it began or ended in this time; 0: never."""
    ahead: int = number(1, 0, 1)
    """Batches that may be sent to a worker before its answer is back."""
    admission: Switch = False
    """Whether a request that would be answered after its deadline is refused at once, by 429."""
    margin_ms: float = number(2, 0, 10_000)
    """How long before its deadline an answer shall be ready, for the way back to the client."""


@section
class ModelSettings(BatchingSettings):
    """``[models.NAME]``: entry i of a list is for worker group i; missing ones are defaults.

    The controller does not change the configuration of a model that has such lists.
    """

    caps: Groups[Cap] = lists((), "0 or a batch size")
    """Batch cap; 0, the default: the group's own."""
    weights: ByClass[Share] = lists(((), ()), "a number from 0 to 1", table=True)
    """Factor of the cap for each class; 1 is the default, 0 keeps the class away from the group."""
    preferences: ByClass[Rank] = lists(((), ()), "a whole number from 0 to 1000", table=True)
    """For each class, groups with a lower number are filled first; 0 is the default."""

    @property
    def has_lists(self) -> bool:
        """Whether anything is set by worker group."""
        return any((self.caps, *self.weights, *self.preferences))

    def without_lists(self) -> ModelSettings:
        """The same numbers, with nothing by worker group."""
        return replace(self, caps=(), weights=((), ()), preferences=((), ()))


@section
class ClassesSettings:
    """Which requests may say that they are strict: ``[classes]``.

    Only what a request says of itself is judged, not a model's own class. Requests to the network
    front end are judged by the rights of their key and by ``strict`` in ``[nic]`` instead.
    """

    allow_strict: Literal["all", "none"] | tuple[Name, ...] = Field(
        "all", json_schema_extra={"allowed": '"all", "none" or a list of model names'}
    )
    """Those for all models, for none, or for the models of that list."""
    strict_secret_file: str | None = text(None, "a path")
    """Of these, those that bring this file's content as ``x-shunter-strict-key``; absent: all."""

    def claims(self, model: str) -> Claims:
        """As the page has it."""
        allowed = self.allow_strict
        if allowed == "none" or (isinstance(allowed, tuple) and model not in allowed):
            return Claims.NONE
        return Claims.WITH_KEY if self.strict_secret_file else Claims.ALL


@section
class ControllerSettings:
    """The controller itself: ``[controller]``."""

    interval_ms: float = number(100, 20, 60_000)
    """Pause between two duty cycles."""


@section
class ConfigurationSettings:
    """Instances, threads and batch, chosen while serving: ``[configuration]``."""

    auto: Switch = True
    """Change the configuration of models that have a profile and do not forbid it."""
    pin: Switch = True
    """Workers keep cores of their own."""
    timeout_s: float = number(30, 1, 86_400)
    """Time between two looks at whether the load of that time wants another batch size."""
    gain: float = number(0.05, 0, 1)
    """A new generation must be expected to be faster by this share."""


@section
class PlacementSettings:
    """Who runs on which set of cores: ``[placement]``.

    Only where every model has a profile, may be changed, and there are strict ones and others.
    """

    auto: Switch = False
    """Split the cores into sets, and choose the models' places on them."""
    interval_s: float = number(5, 0.1, 86_400)
    """Time between two looks at the load."""
    alpha: float = number(0.5, 0.001, 1)
    """Weight of the newest rate of requests."""
    wait: int = number(3, 0, 1000)
    """So many looks in a row must have wanted another split before it is changed."""


@section
class MigSettings:
    """MIG instances of this machine's GPUs, and which models run on them: ``[mig]``.

    MIG itself must be on. Not run on a GPU yet, only on simulated ones.
    """

    layouts: tuple[Name, ...] = Field(
        (), json_schema_extra={"allowed": 'a list of layouts, such as ["4g,3g"]'}
    )
    """Layouts that the GPUs shall have: one for all of them, or one for each; empty: as they are.
    """
    auto: Switch = False
    """Let the layouts follow the load of best effort instead (PROTEAN, algorithm 2)."""
    models: tuple[Name, ...] = Field((), json_schema_extra={"allowed": "a list of model names"})
    """Models whose workers are seated on the instances; the controller must be allowed to change
    them. Where there is no instance for one, its workers see no GPU."""
    batch_mb: int = number(4096, 1, 1 << 20)
    """Memory of a best-effort batch, with ``auto``."""
    interval_s: float = number(5, 0.1, 86_400)
    """Time between two looks at the load, with ``auto``."""
    wait: int = number(3, 0, 1000)
    """So many looks in a row must have wanted another layout before it is changed."""
    patience_s: float = number(60, 1, 86_400)
    """How long workers may take to leave an instance that is to go; else nothing is changed."""

    @property
    def is_wanted(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.layouts or self.auto or self.models)


@section
class AutoscalingSettings:
    """How many instances models have: ``[autoscaling]``.

    Of models that the controller may change and whose number of instances nothing else decides:
    they have no profile, or run on instances of GPUs.
    """

    auto: Switch = False
    """One instance for each batch of the requests that are in the server (PROTEAN, 4.2)."""
    keep_s: float = number(600, 0, 86_400)
    """An instance ends when it was not needed for so long."""
    least: int = number(1, 1, 1000)
    """So many instances of each model stay, whatever comes."""
    most: int = number(8, 1, 1000)
    """No model has more."""
    interval_s: float = number(5, 0.1, 86_400)
    """Time between two looks at the load; the highest one in between counts."""


@section
class PreemptionSettings:
    """How best-effort models give way to strict ones: ``[preemption]``."""

    strict: Literal["concurrent", "fifo", "edf"] = "concurrent"
    """Turns of strict models that share cores or a device: none, by arrival, by deadline."""
    best_effort: Literal["round_robin", "concurrent"] = "round_robin"
    """Turns of the models that give way."""
    exclusive: Switch = False
    """Both classes take turns, strict first; what runs is not interrupted."""
    max_hold_ms: float = number(2000, 1, MAX_WAIT_MS)
    """Strict work that got nowhere for so long does not hold best effort up any longer."""
    longest_park_ms: float = number(1000, 1, MAX_WAIT_MS)
    """A best-effort batch that was parked for so long goes on beside strict work."""
    padding: Literal["auto", "always", "never"] = "auto"
    """Which best-effort models may run beside which strict ones: as measured, all, none."""
    slow_down: float = number(SLOW_DOWN, 0, 1)
    """Share by which strict work may be slower beside best effort, with ``auto``."""
    memory_floor_mb: int = number(0, 0, 1 << 30)
    """While less memory is available, parked work gives back what it holds; 0: never."""

    @property
    def strict_order(self) -> Order:
        """As the page has it."""
        return Order[self.strict.upper()]

    @property
    def best_effort_order(self) -> Order:
        """As the page has it."""
        return Order[self.best_effort.upper()]


@section
class NicSettings:
    """The network front end: ``[nic]``. Options of ``shunter nic`` go before these.

    Relative paths start at the server's working directory.
    """

    enabled: Switch = False
    """Whether the server starts it, and keeps it running."""
    host: str = text("127.0.0.1", "an address, IPv4 or IPv6")
    """Address to serve at."""
    port: int = number(8083, 0, 65535)
    """UDP and TCP port; 0: any that is free."""
    tcp: Switch = True
    """Also serve streams at the same port."""
    unix: str | None = text(None, "a path")
    """Also serve streams at this Unix socket."""
    key_file: str | None = text(None, "a path")
    """File of a key, which others cannot read: only clients that have a key are served. Its id is
    ``default``, and it has all rights."""
    encrypt: Switch = False
    """Serve encrypted sessions only; needs a key."""
    spin_us: int = number(100, 0, 1_000_000)
    """Where waits are shorter than this, wait without sleeping; 0: never."""
    queue_mb: int = number(1024, 1, 65_536)
    """Memory of the tensors of one model version."""
    keys_file: str | None = text(None, "a path")
    """File of more keys, each with an id and rights; it is read again when it changes."""
    strict: Literal["all", "keyed", "none"] = "all"
    """Whose requests may be strict: ``all`` but of keys without the right, only of those who have a
    ``keyed`` right, or of nobody (``none``). The others are best effort."""
    xdp: str | None = text(None, "the name of a network interface")
    """Interface at which the kernel splits UDP datagrams (AF_XDP), where it can and may."""
    verbs: str | None = text(None, "the name of an RDMA device, with a port if not 1: mlx5_0:2")
    """RDMA device that is served too, by unreliable datagrams. Not run on hardware so far."""
    threads: int = number(1, 1, 8)
    """Threads that share the work. A model version is one thread's: more of them are for several
    busy models."""

    @property
    def number(self) -> int:
        """0 when it is not enabled, else a number that other settings change."""
        return 1 << 32 | zlib.crc32(repr(self).encode()) if self.enabled else 0


@section
class Settings:
    """Everything in one file."""

    batching: BatchingSettings = BatchingSettings()
    models: dict[str, ModelSettings] = Field(default_factory=dict)
    controller: ControllerSettings = ControllerSettings()
    configuration: ConfigurationSettings = ConfigurationSettings()
    nic: NicSettings = NicSettings()
    preemption: PreemptionSettings = PreemptionSettings()
    placement: PlacementSettings = PlacementSettings()
    mig: MigSettings = MigSettings()
    autoscaling: AutoscalingSettings = AutoscalingSettings()
    classes: ClassesSettings = ClassesSettings()
    pool: PoolSettings = PoolSettings()

    def for_model(self, name: str) -> ModelSettings:
        """Settings of a model: its own keys, else those of ``[batching]``."""
        found = self.models.get(name)
        if found is not None:
            return found
        return ModelSettings(*(getattr(self.batching, f.name) for f in fields(self.batching)))
