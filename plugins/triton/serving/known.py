"""What the server knows of what is served: a folder of each version that it is told to load.

It refuses a whole name when one of its versions has no worker, so those without are set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shunter.plugins.host import HostError
from shunter.plugins.triton.repository import Repository, other_kind
from shunter.plugins.triton.served import Served, config_of

States = Mapping[tuple[str, int], Mapping[str, Any]]
"""Of the backend's functions, by model version."""
LIVE = "/v2/health/live"
OVERLOOKED_NS = 5_000_000_000
"""So long a version may have workers in the server before that has loaded it."""


class Known:
    """Versions come there when their workers do, and leave it when they have none."""

    def __init__(
        self,
        repository: Repository,
        all_served: Callable[[], Iterable[Served]],
        states: Callable[[], States],
    ) -> None:
        """``states``: raises HostError when they are not known."""
        self._repository, self._all_served, self._states = repository, all_served, states

    def check(self, served: Served) -> None:
        """Raises HostError: it cannot be served beside the other versions of its name."""
        text = config_of(served)
        if any(config_of(each) != text for each in self._others(served)):
            raise other_kind(served.name, served.number)

    def load(self, served: Served) -> None:
        """Tell the server of a version with workers. Raises HostError: it does not want it, and
        its folder is gone; the other versions are served as before."""
        self.check(served)
        self._set_aside(served)
        if not (self._repository.folder / served.name / str(served.number)).is_dir():
            self._repository.write(served.name, served.number, config_of(served))
        self._repository.load_version(served.name, served.number)

    def unload(self, served: Served) -> None:
        """Let the server forget a version. Raises HostError: it has not."""
        if not served.is_late:
            self._set_aside(served)
            self._repository.unload_version(served.name, served.number)

    def names(self) -> list[str]:
        """Models for a server that starts; those without workers come when they have some."""
        for each in self._all_served():
            if not (each.workers and each.workers.pids):
                self._make_late(each)
        return sorted({each.name for each in self._all_served() if not each.is_late})

    def lacks(self, served: Served) -> bool:
        """Whether a server that has started did not load it, though it has workers there."""
        return _is_unloaded(self._states_now().get(served.key))

    def _others(self, served: Served) -> list[Served]:
        return [
            each
            for each in self._all_served()
            if each.name == served.name and each.number != served.number
        ]

    def _set_aside(self, served: Served) -> None:
        """Other versions of that name for which the server would wait in vain."""
        others = [each for each in self._others(served) if not each.is_late]
        states = self._states_now() if others else {}
        for each in others:
            if not _has_workers(each, states):
                self._make_late(each)

    def _states_now(self) -> States:
        """None while the server starts, where workers that live may attach yet."""
        try:
            return self._states() if self._repository.is_ready(LIVE) else {}
        except HostError:
            return {}

    def _make_late(self, served: Served) -> None:
        if not served.is_late:
            self._repository.remove(served.name, served.number)
            served.is_late = True


def _has_workers(served: Served, states: States) -> bool:
    """``states``: one that hangs may live and have no connection, since the server is another."""
    if states:
        return bool((states.get(served.key) or {}).get("pids"))
    return served.strangers is not None or bool(served.workers and served.workers.pids)


def _is_unloaded(state: Mapping[str, Any] | None) -> bool:
    return state is not None and bool(state["pids"]) and not state["loaded"]


class Overlooked:
    """Versions that a server was started with and gave up: their workers came too late for it.

    One whose name it had as a whole since was unloaded by somebody else, who knows why.
    """

    def __init__(self) -> None:
        """None so far."""
        self._had: dict[str, int] = {}
        """Of each name the process of the server that has had all its versions."""
        self._since: dict[Served, int] = {}

    def look(
        self, all_served: Iterable[Served], states: States, pid: int, now_ns: int
    ) -> list[Served]:
        """``pid``: of the server. Those that are to be loaded again."""
        known = [each for each in all_served if not each.is_late]
        lacking = {e.name for e in known if not (states.get(e.key) or {}).get("loaded")}
        self._had |= {each.name: pid for each in known if each.name not in lacking}
        found = [each for each in known if _is_unloaded(states.get(each.key))]
        found = [each for each in found if self._had.get(each.name) != pid]
        self._since = {each: self._since.get(each, now_ns) for each in found}
        return [each for each, since in self._since.items() if now_ns - since > OVERLOOKED_NS]
