"""A version of a model that Triton serves, and what its archive says of it."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shunter.allocator.planning.configuration import (
    Configuration,
    ConfigurationError,
    format_configuration,
    parse_configuration,
)
from shunter.batching.page.records import GroupTelemetry, SlotChange, SlotIdentity
from shunter.batching.queue.packed_form import PackedForm
from shunter.batching.queue.slo_window import SloWindow
from shunter.nic_frontend.server.model_policy import Policy
from shunter.plugins.host import HostedModel, HostError, WorkerRuntime
from shunter.plugins.record import RecordedModel
from shunter.plugins.slot_writer import SlotWriter
from shunter.plugins.triton import archive_keys
from shunter.plugins.triton.generation import Generation, Strangers
from shunter.plugins.triton.published import AUTO, Told, clipped, slices_of
from shunter.plugins.triton.repository import config_text

if TYPE_CHECKING:
    from shunter.handlers.queue.tensor_config import TensorConfig

_NAME = re.compile(r"[A-Za-z0-9_.-]+\Z")
_HOSTED = ("name", "version", "configuration", "ready", "problem")
_SERVED = ("auto", "generation", "last_change")
SPIN_US = 20
"""A worker waits for its next batch so long without sleeping: no longer than waking it costs, for
the server's own threads want the processor, too."""


def number_of(version: str) -> int:
    """A version of an archive, as Triton counts: its whole number, at least 1."""
    found = re.match(r"\d*", version)
    return int(found[0] or 0) or 1 if found else 1


@dataclass(eq=False)
class Served:
    """A version of a model."""

    name: str
    number: int
    """Its version, as Triton counts: a whole number."""
    version: str
    """As its archive calls it."""
    archive: Path
    folder: Path
    model: Any
    batch: int
    slot: SlotWriter | None = None
    """Of the control page, if there is one."""
    pooled: bool = False
    """Whether its workers share processes with those of other models."""
    auto: bool = False
    """Whether the controller may change its configuration."""
    workers: Generation | None = None
    strangers: Strangers | None = None
    """Workers of another host, which serve until there are some of its own."""
    recorded: RecordedModel | None = None
    """How those were started."""
    is_late: bool = False
    """The server does not know it yet, for it had no worker when that server started."""
    generation: int = 0
    problem: str = ""
    last_change: str = ""
    change: SlotChange = field(default_factory=SlotChange)
    """What became of the configuration that the controller wanted last."""
    policy: Told | None = None
    """That the backend was told last."""
    window: SloWindow = field(default_factory=SloWindow)
    lock: threading.RLock = field(default_factory=threading.RLock)
    """Of who changes its workers."""

    @property
    def title(self) -> str:
        """For users."""
        return f"{self.name}/{self.version}"

    @property
    def key(self) -> tuple[str, int]:
        """As the backend calls it."""
        return self.name, self.number

    @property
    def configuration(self) -> Configuration:
        """Of its own workers; none while it is retired."""
        return self.workers.configuration if self.workers else ()

    @property
    def cores(self) -> str:
        """Of its workers where nobody says others: a CPU list, auto, or none of their own."""
        return str(self.model.section.get("cores") or "")

    @property
    def device(self) -> str:
        """Where its workers run, as CUDA_VISIBLE_DEVICES has it; empty: where they want."""
        found = self.model.section.get("device")
        return "" if found is None else str(found)

    @property
    def yields(self) -> bool:
        """Whether its workers stand still for strict work: as its archive says, or by its class."""
        found = self.model.section.get("preemptible")
        return _class(self) == "best_effort" if found is None else found is not False


def may_change(served: Served) -> bool:
    """What the archive says of ``auto``; when it says nothing, yes unless it says where or what."""
    section = served.model.section
    placed = served.cores not in ("", AUTO) or "device" in section
    if (said := section.get("auto")) is None:
        return not placed and "configuration" not in section
    return bool(said) and not placed


def unpacked(
    runtime: WorkerRuntime, archive: Path, folder: Path, name: str | None, batch: int | None
) -> Served:
    """What an archive says. Raises UserError."""
    model: Any = runtime.unpack(archive, folder)
    archive_keys.check(model)
    name = name or str(model.name)
    if not _NAME.match(name):
        raise HostError(f"{name!r}: a name has letters, digits, '_', '.' and '-'")
    batch = batch or archive_keys.batch_of(model)
    number = number_of(model.version)
    return Served(*(name, number, model.version, archive, folder), replace(model, name=name), batch)


def identity_of(served: Served, entries: int) -> SlotIdentity:
    """Of its slot of the control page."""
    problem = served.workers.problem if served.workers else ""
    path = str(served.archive)
    return clipped(
        SlotIdentity(
            slot_state=1,
            generation=served.generation,
            registered_batch_size=served.batch,
            registered_max_wait_us=archive_keys.max_wait_ms(served.model) * 1000,
            queue_capacity=archive_keys.capacity_of(served.model) or entries,
            group_count=len(served.configuration),
            slo_us=archive_keys.slo_ns(served.model) // 1000,
            model_name=served.name,
            model_version=served.version,
            auto=int(served.auto),
            archive=path if len(path.encode()) < 512 else "",
            last_change=served.last_change,
            default_version=served.version,
            problem=problem or served.problem,
        )
    )


def place_of(served: Served, cores: str) -> GroupTelemetry:
    """Where its workers run, and whether they give way."""
    return GroupTelemetry(group_slices=slices_of(cores), group_yields=int(served.yields))


def usual_policy(served: Served) -> Policy:
    """Numbers to decide by, as long as nobody says others."""
    return Policy(
        max_wait_ns=archive_keys.max_wait_ms(served.model) * 1_000_000,
        slo_ns=archive_keys.slo_ns(served.model),
    )


def variables_of(served: Served) -> dict[str, str]:
    """What its workers get, wherever they run."""
    variables = {
        "SHUNTER_SPIN_US": os.environ.get("SHUNTER_SPIN_US", str(SPIN_US)),
        **served.model.environment,
        "SHUNTER_OUTLIVES_HOST": "1",
        "SHUNTER_BODIES": "1",
        "SHUNTER_MODEL_VERSION": str(served.number),
        "SHUNTER_WARM_UP": "1",
        "SHUNTER_CLASS": _class(served),
        "SHUNTER_SLO_NS": str(archive_keys.slo_ns(served.model)),
        "SHUNTER_CLIENT_TIMEOUT_NS": str(archive_keys.client_timeout_ns(served.model)),
        "SHUNTER_RETRY": "1" if served.model.section.get("retry", True) else "0",
        "SHUNTER_RESPONSE_TIMEOUT_S": str(archive_keys.response_timeout_s(served.model)),
    }
    if served.slot is not None:
        variables["SHUNTER_SLOT"] = str(served.slot.index)
    if served.yields:
        variables["SHUNTER_PREEMPTIBLE"] = "1"
        if not served.device:
            variables.setdefault("SHUNTER_SCHED", "idle")
    if served.device:
        variables["CUDA_VISIBLE_DEVICES"] = served.device
    return variables


def _class(served: Served) -> str:
    return str(served.model.section.get("class", "strict")).replace("-", "_")


def record_of(served: Served) -> RecordedModel:
    """For the next host."""
    if served.recorded is not None:
        return served.recorded
    return RecordedModel(
        *(served.archive.name, served.name, served.batch),
        format_configuration(served.configuration),
        list(served.workers.cores) if served.workers else [],
        served.auto,
    )


def hosted_of(served: Served, state: Mapping[str, Any] | None) -> HostedModel:
    """For users. ``state``: of the backend, if that has it."""
    workers = served.workers
    ready = len(workers.pids & state["pids"].keys()) if workers and state else 0
    problem = (workers.problem if workers else "") or served.problem
    configuration = format_configuration(served.configuration)
    return HostedModel(served.name, served.version, configuration, ready, problem=problem)


def status_of(served: Served, state: Mapping[str, Any] | None) -> dict[str, Any]:
    """The same, and what is counted."""
    hosted, counted = hosted_of(served, state), dict(state or {})
    counted.pop("model", None)
    counted.pop("version", None)
    return {
        **{word: getattr(hosted, word) for word in _HOSTED},
        **{word: getattr(served, word) for word in _SERVED},
        **counted,
    }


def config_of(served: Served) -> str:
    """Its ``config.pbtxt``. Raises HostError."""
    form = form_of(served)
    packing = form.packing or PackedForm()
    alone = packing.streamed and not packing.batched  # a stream is one row's
    text = config_text(
        *(served.name, form.inputs, form.outputs, 1 if alone else served.batch, packing.optional),
        streamed=packing.streamed,
    )
    return text + str(served.model.config.get("triton", ""))


def form_of(served: Served) -> TensorConfig:
    """What a model takes and gives. Raises HostError."""
    from shunter.handlers.queue.tensor_config import (
        TensorConfigError,
        bodies_config,
        is_of_bodies,
        tensor_config,
    )

    section = served.model.section
    try:
        found = (bodies_config if is_of_bodies(section) else tensor_config)(section)
    except TensorConfigError as error:
        raise HostError(f"{served.title} cannot be served by Triton: {error}") from error
    return found


def configuration_of(served: Served, usual: Configuration) -> Configuration:
    """What the archive asks for. Raises HostError."""
    text = served.model.section.get("configuration")
    try:
        return parse_configuration(str(text)) if text else usual
    except ConfigurationError as error:
        raise HostError(f"{served.title}: {error}") from error
