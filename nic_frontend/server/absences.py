"""Models that have no worker now, and why: for clients and for the status. Pure."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

REMEMBER_S = 60.0
"""So long a model is known whose worker is gone or was refused, which tries again and again."""
MOST = 256
"""Models that are remembered."""
GONE = "its last worker has ended, and no other is there yet"
NEVER_CAME = "none has attached; workers for it start when its model-config.yaml says network"


@dataclass(frozen=True)
class Absence:
    """Why a version of a model has no worker."""

    reason: str
    since: float
    needs_mb: int = 0
    """Megabytes of its tensor queue, where that is what is too much."""


class Absences:
    """What was said last of each version of each model, until it has a worker again."""

    def __init__(self) -> None:
        """Nobody is missed."""
        self._known: OrderedDict[tuple[str, str], Absence] = OrderedDict()

    def note(
        self, model: str, version: str, reason: str, now: float, needs_mb: int = 0
    ) -> None:
        """It has no worker; ``now`` in seconds."""
        self._known.pop((model, version), None)
        self._known[model, version] = Absence(reason, now, needs_mb)
        if len(self._known) > MOST:
            self._known.popitem(last=False)

    def clear(self, model: str, version: str) -> None:
        """It has one."""
        self._known.pop((model, version), None)

    def why(self, model: str, version: str, now: float) -> str | None:
        """Why it has none; None: nobody knows of such a model. Without a version: of any."""
        for (name, its_version), absence in reversed(self._known.items()):
            is_wanted = name == model and version in ("", its_version)
            if is_wanted and now - absence.since <= REMEMBER_S:
                return absence.reason
        return None

    def needs_mb(self, model: str, version: str, now: float) -> int:
        """Megabytes that its queue would need, when its workers are refused for that; else 0."""
        absence = self._known.get((model, version))
        return absence.needs_mb if absence and now - absence.since <= REMEMBER_S else 0
