"""⟨instances, threads, batch⟩ as people write it: ``1x8x32,2x4x16`` (Packrat section 3)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# As GroupConfig.java, which reads what users write.
MAX_INSTANCES = 9999
MAX_THREADS = 9999
MAX_BATCH = 999_999
MAX_GROUPS = 8
"""Of one model; a server has room for at least as many."""

_GROUP = re.compile(r"([0-9]{1,6})x([0-9]{1,6})x([0-9]{1,6})", re.ASCII)


class ConfigurationError(ValueError):
    """The text is not a configuration; the message says what is allowed."""


@dataclass(frozen=True, order=True)
class InstanceGroup:
    """Worker instances of the same kind."""

    instances: int
    threads: int
    """Threads of one operator in each instance; 0: as the handler likes."""
    batch: int
    """Largest batch of each instance."""

    def __str__(self) -> str:
        """The group as in a configuration."""
        return f"{self.instances}x{self.threads}x{self.batch}"


Configuration = tuple[InstanceGroup, ...]


def parse_configuration(text: str) -> Configuration:
    """Return the groups of ``INSTANCESxTHREADSxBATCH[,...]``."""
    parts = text.replace(" ", "").split(",")
    if len(parts) > MAX_GROUPS:
        raise ConfigurationError(f"{text!r}: {len(parts)} groups, at most {MAX_GROUPS}")
    return tuple(_parse_group(text, part) for part in parts)


def _parse_group(text: str, part: str) -> InstanceGroup:
    match = _GROUP.fullmatch(part)
    if match is None:
        raise ConfigurationError(
            f"{text!r}: {part!r} is not INSTANCESxTHREADSxBATCH such as 2x4x16 "
            "(threads 0: as the handler likes)"
        )
    instances, threads, batch = (int(number) for number in match.groups())
    bounds = {
        "instances": (instances, 1, MAX_INSTANCES),
        "threads": (threads, 0, MAX_THREADS),
        "batch": (batch, 1, MAX_BATCH),
    }
    for name, (value, lowest, highest) in bounds.items():
        if not lowest <= value <= highest:
            raise ConfigurationError(f"{text!r}: {name} {value}; allowed: {lowest} to {highest}")
    return InstanceGroup(instances, threads, batch)


def format_configuration(groups: Iterable[InstanceGroup]) -> str:
    """The inverse of :func:`parse_configuration`."""
    return ",".join(str(group) for group in groups)


def with_ceiling(groups: Configuration, ceiling: int) -> Configuration:
    """Caps in the ratio of the optimum, as large as the registration allows.

    A burst beyond the estimate is then not cut into small batches.
    """
    largest = max(group.batch for group in groups)
    return tuple(
        InstanceGroup(g.instances, g.threads, max(1, round(g.batch * ceiling / largest)))
        for g in groups
    )


def layout(groups: Configuration) -> list[tuple[int, int]]:
    """Processes and their threads; what is left of a configuration without its caps."""
    return sorted((group.threads, group.instances) for group in groups)
