"""The control page of a host: what it tells the controller, and what it is told there."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from shunter.batching.page.control_page import UnstableError
from shunter.batching.page.layout import HEADER_FIELDS, ChangeState
from shunter.batching.page.records import Commands, GroupTelemetry, SlotChange
from shunter.nic_frontend.server.model_policy import policy_of
from shunter.plugins.errors import UserError
from shunter.plugins.events import Tallies
from shunter.plugins.host import HostError
from shunter.plugins.reading import content
from shunter.plugins.supervised import Supervised
from shunter.plugins.triton import archive_keys
from shunter.plugins.triton.backend import Backend, BackendGone
from shunter.plugins.triton.pools import pools_of
from shunter.plugins.triton.published import (
    NO_STATE,
    devices_of,
    groups_of,
    telemetry_of,
    told_of,
    wanted_of,
)
from shunter.plugins.triton.served import Served, identity_of, place_of
from shunter.plugins.triton.serving.host import TritonHost
from shunter.plugins.triton.serving.known import Overlooked

LOGGER = logging.getLogger("shunter.triton")
CYCLE_S = 0.1
"""As often as the controller looks."""
SECOND_NS = 1_000_000_000
_DROPS = {
    "expired": "requests were dropped: too late to be in time",
    "rejected": "requests were refused",
}
_AGAIN_NS = 5_000_000_000
_BEAT = HEADER_FIELDS["controller_heartbeat_ns"].offset // 8


def may_forbid_claims(named: str | None) -> bool:
    """Whether the settings, which ``plugins/control/settings.py`` finds and reads, may forbid it to
    call a request strict: that they mention it is enough, and so is that nobody can tell."""
    named = named or os.environ.get("SHUNTER_CONFIG")
    path = Path(named or "shunter.toml")
    if not named and not os.path.lexists(path):
        return False
    try:
        text = content(path).decode("latin-1").replace("-", "_")
    except OSError:
        return True
    return "allow_strict" in text or "strict_secret_file" in text


class Control:
    """A thread between the backend, the page and the controller, which it keeps running."""

    def __init__(self, host: TritonHost, settings: str | None, log: Path) -> None:
        """``settings``: path of the controller's settings, None: where it finds them."""
        self._host, self._page = host, host.page
        host.changes.guarded = may_forbid_claims(settings)
        host.changes.pools = pools_of(settings)
        arguments = ["-m", "shunter.plugins.control.controller", "--page", str(host.page.path)]
        arguments += ["--config", settings] if settings else []
        words = host.page.page.words
        self.controller = Supervised("controller", arguments, log, lambda: words[_BEAT])
        self._backend: Backend | None = None
        self._tallies, self._told_ns = Tallies(_DROPS), 0
        self._overlooked, self._again_ns = Overlooked(), 0
        """When what the server does not know yet is loaded."""
        self._changes = ThreadPoolExecutor(1, "changes")
        """The controller wants one at a time."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)

    def start(self) -> None:
        """From now on the page says what there is."""
        self._thread.start()

    def close(self) -> None:
        """No more. The host closes the page."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self.controller.close()
        self._host.abandon()  # or this would wait until they have loaded
        self._changes.shutdown(cancel_futures=True)
        self._hang_up()

    def _run(self) -> None:
        told = ""
        while not self._over.wait(CYCLE_S):
            try:
                self._cycle(time.monotonic_ns())
            except Exception as error:  # the page is not what requests wait for
                if repr(error) != told:
                    LOGGER.exception("the control page is not up to date")
                told = repr(error)

    def _cycle(self, now_ns: int) -> None:
        self._page.beat(now_ns)
        self.controller.look()
        self._connect()
        served = self._host.served
        for each in served:
            self._obey(each)
        states = self._states()  # by what it was told just now
        for each in served:
            self._tell(each, states.get(each.key), now_ns)
        self._told_ns = now_ns
        late = [each for each in served if each.is_late and each.workers and each.workers.pids]
        late += self._overlooked.look(served, states, self._host.pid(), now_ns)
        if late and now_ns > self._again_ns:
            self._again_ns = now_ns + _AGAIN_NS
            self._changes.submit(self._load_late, late)

    def _connect(self) -> None:
        """If there is a backend."""
        if self._backend is not None:
            return
        try:
            self._backend = Backend(self._host.backend_at)
            self._backend.hold_on(self._page.page.descriptor)
        except (BackendGone, UserError):
            self._hang_up()
        else:
            for each in self._host.served:
                each.policy = None  # it has been told nothing yet

    def _states(self) -> Mapping[tuple[str, int], Mapping[str, Any]]:
        """Of all functions; none while there is no backend."""
        try:
            found = self._backend.functions() if self._backend is not None else []
            return {(each["model"], each["version"]): each for each in found}
        except (BackendGone, UserError):
            self._hang_up()
            return {}

    def _hang_up(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    # ---- one model

    def _tell(self, served: Served, state: Mapping[str, Any] | None, now_ns: int) -> None:
        workers, slot = served.workers, served.slot
        assert slot is not None
        members = workers.members if workers else {}
        groups: list[GroupTelemetry] = []
        if workers is not None:
            places = [place_of(served, cores) for cores in workers.cores]
            groups = groups_of(workers.configuration, members, state or NO_STATE, places)
        slot.identity(identity_of(served, state["entries"] if state else 0), groups)
        slot.groups(groups)
        if state is not None:
            slot.telemetry(telemetry_of(state, served.window, now_ns))
            if now_ns // SECOND_NS != self._told_ns // SECOND_NS:
                self._tallies.look(served.title, state)
        slot.change(served.change)

    def _obey(self, served: Served) -> None:
        """Decide by what the controller says, and run the configuration that it wants."""
        assert served.slot is not None
        page, slot = self._page.page, served.slot.index
        try:
            commands = page.read_commands(slot)
            identity = page.read_identity(slot)
        except UnstableError:
            return  # as it was; the next look may be luckier
        policy = told_of(
            policy_of(commands, identity, page.read_groups(slot, identity.group_count)),
            served.generation,
            page.read_claims(slot),
            page.header().strict_key,
            guarded=self._host.changes.guarded,
        )
        if policy != served.policy and self._backend is not None:
            with contextlib.suppress(BackendGone):
                capacity = archive_keys.capacity_of(served.model)
                self._backend.set_policy(*served.key, policy, capacity)
                served.policy = self._host.reception.policies[served.key] = policy
        request = commands.slot.wanted_request if commands else 0
        if commands is not None and request not in (0, served.change.change_request):
            served.change = SlotChange(request, ChangeState.UNDER_WAY)
            self._changes.submit(self._change, served, commands)

    def _load_late(self, late: Sequence[Served]) -> None:
        for each in late:
            try:
                self._host.load_late(each)
            except (HostError, OSError) as error:
                LOGGER.warning("%s is not loaded again: %s", each.title, error)

    def _change(self, served: Served, commands: Commands) -> None:
        state = ChangeState.UNDONE
        try:
            if devices := devices_of(commands):  # workers elsewhere would not be what is wanted
                raise HostError(f"behind Triton no worker is put on a device: {devices[0]}")
            self._host.reconfigure(served, *wanted_of(commands))
            state = ChangeState.SERVES
        except HostError as error:
            LOGGER.warning("%s: the change was refused or undone: %s", served.title, error)
        except Exception:  # else it would be under way for ever
            LOGGER.exception("%s: the change failed", served.title)
        served.change = SlotChange(commands.slot.wanted_request, state)
