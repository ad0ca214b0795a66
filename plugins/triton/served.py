"""A version of a model that Triton serves, and what its archive says of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shunter.allocator.planning.configuration import Configuration, parse_configuration
from shunter.nic_frontend.server.model_policy import Policy
from shunter.plugins.host import HostError
from shunter.plugins.triton.generation import Generation
from shunter.plugins.triton.repository import config_text

if TYPE_CHECKING:
    from shunter.handlers.queue.tensor_config import TensorConfig


@dataclass
class Served:
    """A version of a model."""

    name: str
    number: int
    """Its version, as Triton counts: a whole number."""
    version: str
    """As its archive calls it."""
    folder: Path
    model: Any
    batch: int
    workers: Generation | None = None
    problem: str = ""

    @property
    def title(self) -> str:
        """For users."""
        return f"{self.name}/{self.version}"


USUAL_BATCH = 1
"""Of an archive that does not say it."""


def number_of(version: str) -> int:
    """A version of an archive, as Triton counts: its whole number, at least 1."""
    found = re.match(r"\d*", version)
    return int(found[0] or 0) or 1 if found else 1


def policy_of(served: Served) -> Policy:
    """Numbers to decide by, as long as nobody says others."""
    return Policy(
        max_wait_ns=int(served.model.config.get("maxBatchDelay", 0)) * 1_000_000,
        slo_ns=_slo_ns(served),
    )


def variables_of(served: Served) -> dict[str, str]:
    """What its workers get."""
    found = str(served.model.section.get("class", "strict"))
    return {
        **served.model.environment,
        "SHUNTER_OUTLIVES_HOST": "1",
        "SHUNTER_BODIES": "1",
        "SHUNTER_MODEL_VERSION": str(served.number),
        "SHUNTER_WARM_UP": "1",
        "SHUNTER_CLASS": found.replace("-", "_"),
        "SHUNTER_SLO_NS": str(_slo_ns(served)),
        "SHUNTER_RETRY": "1" if served.model.section.get("retry", True) else "0",
        "SHUNTER_RESPONSE_TIMEOUT_S": str(served.model.config.get("responseTimeout", 120)),
    }


def _slo_ns(served: Served) -> int:
    return int(float(served.model.section.get("slo_ms", 0)) * 1e6)


def config_of(served: Served) -> str:
    """Its ``config.pbtxt``. Raises HostError."""
    form = form_of(served)
    optional = form.packing.optional if form.packing else 0
    return config_text(served.name, form.inputs, form.outputs, served.batch, optional)


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
        if found.packing is not None and found.packing.streamed:
            raise TensorConfigError("streamed answers are not served behind Triton yet")
    except TensorConfigError as error:
        raise HostError(f"{served.title} cannot be served by Triton: {error}") from error
    return found


def configuration_of(served: Served, usual: Configuration) -> Configuration:
    """What the archive asks for."""
    text = served.model.section.get("configuration")
    return parse_configuration(str(text)) if text else usual
