"""The front end's ties to a server: where its workers attach, and the control page.

Looked at up to five times a second, beside serving. A server that ends takes its runtime folder
with it; the next one's is found when it is the only one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shunter.batching.page import front_end_page, holds
from shunter.batching.page.control_page import ControlPage, PageError, UnstableError
from shunter.batching.page.layout import HEADER_SIZE, HOLDER_SIZE
from shunter.batching.page.records import FrontEndState, SlotIdentity, SlotNetwork
from shunter.batching.page.runtime import RuntimeFolder, RuntimeFolderError, only_live
from shunter.batching.queue.attach import NAME
from shunter.batching.queue.slo_window import SloWindow
from shunter.nic_frontend.server.front_end import FrontEnd
from shunter.nic_frontend.server.functions import Function
from shunter.nic_frontend.server.model_policy import policy_of
from shunter.nic_frontend.server.structures import COUNTERS

LOGGER = logging.getLogger("shunter.nic")
LOOK_NS = 1_000_000_000


class ServerLink:
    """Ties a front end to one server after another."""

    def __init__(self, front_end: FrontEnd, folder: RuntimeFolder, *, only_this: bool) -> None:
        """``only_this``: the front end ends with this server."""
        self._front_end = front_end
        self._folder: RuntimeFolder | None = folder
        self._only_this = only_this
        self._page = _page_of(folder)
        self._holders: list[holds.Holder] = []
        self._holds = False
        """Whether the data path holds for strict requests."""
        self._claim()
        self._look_ns = 0
        self._slots: dict[int, tuple[int, SlotIdentity]] = {}
        """Sequence of the identity of each slot, and the identity."""
        self._told: set[int] = set()
        """Slots that have numbers of ours."""
        self._windows: dict[int, SloWindow] = {}
        """Of these, their last minute."""

    def close(self) -> None:
        """Say that this front end is gone."""
        if self._page is not None:
            self._let_go()
            front_end_page.write(self._page, FrontEndState(), ())
            for slot in self._told:
                front_end_page.write_network(self._page, slot, SlotNetwork())
            self._page.close()
            self._page = None
        self._told.clear()
        self._windows.clear()
        self._slots.clear()
        self._front_end.functions.default_versions = {}
        self._front_end.functions.registered = None

    def cycle(self, now_ns: int) -> None:
        """What is due."""
        if now_ns >= self._look_ns:
            self._look_ns = now_ns + LOOK_NS
            self._look()
        if self._page is not None:
            self._tell(self._page, now_ns)

    def _look(self) -> None:
        """Whether the server is still there, or another one is."""
        if self._folder is not None and _finds(lambda: only_live(self._folder_path())) is None:
            LOGGER.info("the server of %s is gone", self._folder.path)
            self._folder = None
            self.close()
            self._front_end.detach()
            if self._only_this:
                self._front_end.stop()
        if self._folder is None and not self._only_this:
            self._attach(_finds(lambda: only_live(environ=os.environ)))

    def _folder_path(self) -> Path:
        assert self._folder is not None
        return self._folder.path

    def _attach(self, folder: RuntimeFolder | None) -> None:
        if folder is None:
            return
        try:
            self._front_end.attach_at(folder.path / NAME)
        except OSError as error:
            LOGGER.error("workers cannot attach in %s: %s", folder.path, error.strerror)
            return
        self._folder, self._page = folder, _page_of(folder)
        self._claim()
        LOGGER.info("a server is there: %s", folder.path)

    # ---- the page

    def _claim(self) -> None:
        """Take a line of the page for each loop, on which it says what strict requests hold."""
        if self._page is None:
            return
        try:
            for _ in range(len(self._front_end.path)):
                holder = holds.claim(self._page, os.getpid(), time.monotonic_ns())
                self._holders.append(holder)
        except holds.NoHolderError as error:
            LOGGER.warning("best-effort work does not stand still for strict requests: %s", error)
            self._let_go()
            return
        self._hold(self._page)

    def _hold(self, page: ControlPage) -> None:
        """Nothing is preempted where the classes take turns, as the server does not then either."""
        wanted = not page.header().exclusive
        if wanted != self._holds:
            starts = [(HEADER_SIZE + each.index * HOLDER_SIZE) // 8 for each in self._holders]
            lines = [page.words[start : start + HOLDER_SIZE // 8] for start in starts]
            self._front_end.path.hold_at(lines if wanted else [])
            self._holds = wanted

    def _let_go(self) -> None:
        """Hold nothing any more: the page is going to be closed."""
        if self._holders:
            self._front_end.path.hold_at([])
            self._holds = False
        while self._holders:
            self._holders.pop().release()

    def _tell(self, page: ControlPage, now_ns: int) -> None:
        front_end = self._front_end
        if self._holders:
            self._hold(page)
        stats = front_end.path.stats()
        state = FrontEndState(
            os.getpid(),
            now_ns,
            front_end.port,
            front_end.path.sessions(),
            front_end.reception.hello_times.sum_ns,
            front_end.reception.hello_times.count,
            stats["landing_blocks"],
            stats["landing_free"],
            front_end.path.landing_wanted(),
        )
        front_end_page.write(page, state, tuple(stats.get(name, 0) for name in COUNTERS))
        self._read_slots(page)
        known = [identity for _, identity in self._slots.values()]
        front_end.functions.default_versions = {i.model_name: i.default_version for i in known}
        slots = {(i.model_name, i.model_version): slot for slot, (_, i) in self._slots.items()}
        front_end.functions.registered = slots.keys()
        told = self._tell_of_refused(page, slots)
        for function in front_end.functions.all():
            slot = slots.get((function.model, function.version))
            if slot is not None:
                told.add(slot)
                self._serve(page, slot, function, now_ns)
        for slot in (self._told - told) & set(slots.values()):
            front_end_page.write_network(page, slot, SlotNetwork())
        self._told = told
        self._windows = {slot: each for slot, each in self._windows.items() if slot in told}

    def _tell_of_refused(
        self, page: ControlPage, slots: dict[tuple[str, str], int]
    ) -> set[int]:
        """Of models whose workers are refused because their queue is too large; their slots."""
        found, now = set(), time.monotonic()
        for model, slot in slots.items():
            if needs_mb := self._front_end.functions.absences.needs_mb(*model, now):
                refused = SlotNetwork(network_needs_mb=needs_mb)
                front_end_page.write_network(page, slot, refused)
                found.add(slot)
        return found

    def _serve(self, page: ControlPage, slot: int, function: Function, now_ns: int) -> None:
        """Take the policy of a function, and tell of it: who is told of it finds it obeying."""
        path = self._front_end.path
        try:
            commands = page.read_commands(slot)
            identity = page.read_identity(slot)
            groups = page.read_groups(slot, identity.group_count)
        except UnstableError:
            return  # as it was; the next look may be luckier
        path.set_policy(function.id, policy_of(commands, identity, groups))
        sessions, credit = path.load(function.id)
        network = SlotNetwork(
            len(function.workers),
            function.queue.entries,
            path.free_entries(function.id),
            path.waiting(function.id),
            sessions,
            credit,
        )
        counted = path.telemetry(function.id)
        window = self._windows.setdefault(slot, SloWindow())
        share = window.attainment_ppm(counted, now_ns)
        counted = replace(counted, network_attainment_ppm=share)
        front_end_page.write_network(page, slot, network, counted)

    def _read_slots(self, page: ControlPage) -> None:
        """Which models the server has; only what changed is read again."""
        live = page.live_slots()
        self._slots = {slot: known for slot, known in self._slots.items() if slot in live}
        for slot in live:
            sequence = page.identity_sequence(slot)
            if slot in self._slots and self._slots[slot][0] == sequence:
                continue
            with contextlib.suppress(UnstableError):  # as it was; the next look may be luckier
                self._slots[slot] = sequence, page.read_identity(slot)


def _finds(find: Callable[[], RuntimeFolder]) -> RuntimeFolder | None:
    try:
        return find()
    except RuntimeFolderError:
        return None


def _page_of(folder: RuntimeFolder) -> ControlPage | None:
    """The server's page with our part claimed, None when the numbers can go nowhere."""
    try:
        page = ControlPage.attach(folder.control)
    except (OSError, PageError) as error:
        LOGGER.warning("no control page, so no numbers and no policy: %s", error)
        return None
    if not front_end_page.claim(page):
        LOGGER.warning("another front end writes its numbers to %s", folder.control)
        page.close()
        return None
    front_end_page.write_names(page, COUNTERS)
    return page
