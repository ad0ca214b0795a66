"""The controller: writes policy's numbers to the control page, at a duty cycle.

``python -m shunter.plugins.control.controller --page PATH [--config FILE] [--directory DIR]
[--once]``

Started and supervised by the server, which holds its standard input: end of input means that the
server is gone. Serving never waits for this process; when it dies the last numbers stay in force
and the next controller takes the page over. SIGHUP reads the settings again, SIGTERM ends it.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
import time
from pathlib import Path

from shunter.batching.page.control_page import ControlPage, PageError
from shunter.batching.page.processes import is_alive
from shunter.handlers.weights.files import sweep
from shunter.handlers.weights.setting import RUNTIME, folder_of
from shunter.plugins.control.controller_agent import ControllerAgent
from shunter.plugins.control.settings import find, load

LOGGER = logging.getLogger("shunter.controller")
STANDARD_INPUT = 0
BEAT_S = 1.0
"""A server ends a controller that is silent for several times that."""
QUIET_S = 10.0
"""When nothing has changed for so long, a duty cycle comes in ``BEAT_S`` until something does."""
QUIET_LOOK_S = 0.5
"""Until then, so often it is seen whether something does."""
SWEEP_S = 5.0
"""So often files of weights that no worker maps any more are removed."""
EXIT_NO_PAGE = 2
EXIT_NOT_ALONE = 3


class _Signals:
    """Signals as bytes in a pipe, so that one ``select`` waits for everything."""

    HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __enter__(self) -> _Signals:
        self.descriptor, self._write_end = os.pipe()
        os.set_blocking(self.descriptor, False)
        os.set_blocking(self._write_end, False)
        self._old_descriptor = signal.set_wakeup_fd(self._write_end, warn_on_full_buffer=False)
        self._old = {number: signal.signal(number, lambda *_: None) for number in self.HANDLED}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_descriptor)
        os.close(self.descriptor)
        os.close(self._write_end)

    def take(self) -> set[int]:
        """Signals that arrived since the last call."""
        try:
            return set(os.read(self.descriptor, 1024))
        except BlockingIOError:
            return set()


class Quiet:
    """Whether a duty cycle is due. To see that nothing has changed costs a hundredth of one."""

    def __init__(self, page: ControlPage) -> None:
        self._page = page
        self._seen: list[bytes] = []
        self._since_ns = self._worked_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Of what stays as it is, policy knows enough after ``QUIET_S``."""
        if (seen := self._slots()) != self._seen:
            self._seen, self._since_ns = seen, now_ns
        return not self._is_quiet(now_ns) or now_ns - self._worked_ns >= BEAT_S * 1e9

    def look_s(self, interval_s: float, now_ns: int) -> float:
        """Seconds until the next look, where duty cycles come in ``interval_s``."""
        return max(interval_s, QUIET_LOOK_S) if self._is_quiet(now_ns) else interval_s

    def worked(self, now_ns: int) -> None:
        """A duty cycle began then. What it has written is no news."""
        self._seen, self._worked_ns = self._slots(), now_ns

    def _is_quiet(self, now_ns: int) -> bool:
        return now_ns - self._since_ns >= QUIET_S * 1e9

    def _slots(self) -> list[bytes]:
        return [self._page.slot_bytes(slot) for slot in self._page.live_slots()]


class _Sweeping:
    """Of the files of weights. That a folder cannot be read is said once, and ends nothing."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._swept, self._told = 0.0, ""

    def look(self) -> None:
        """Sweep, if it is time."""
        if time.monotonic() - self._swept < SWEEP_S:
            return
        try:
            sweep(self._folder)
            self._told = ""
        except OSError as error:
            if str(error) != self._told:
                LOGGER.warning("files of weights are not swept: %s", error)
            self._told = str(error)
        self._swept = time.monotonic()


def run(agent: ControllerAgent, page: ControlPage, lifeline: int, weights: Path) -> str:
    """Duty cycles until there is a reason to end, which is returned.

    ``lifeline`` is a descriptor whose end of file means that the server is gone; ``weights`` the
    folder of its files of weights.
    """
    owner = page.header().owner_pid
    sweeping = _Sweeping(weights)
    quiet = Quiet(page)
    with _Signals() as signals:
        while True:
            now_ns = time.monotonic_ns()
            if quiet.is_due(now_ns):
                agent.do_work(now_ns)
                quiet.worked(now_ns)
            sweeping.look()
            if not is_alive(owner):
                return f"the server, process {owner}, is gone"
            interval_s = agent.settings.controller.interval_ms / 1e3
            due = time.monotonic() + quiet.look_s(interval_s, now_ns)
            ready: list[int] = []
            while not ready and (pause := due - time.monotonic()) > 0:
                ready, _, _ = select.select(
                    [lifeline, signals.descriptor], [], [], min(pause, BEAT_S)
                )
                agent.beat(time.monotonic_ns())
            if lifeline in ready and not os.read(lifeline, 4096):
                return "the server closed its end"
            arrived = signals.take()
            if arrived & {signal.SIGTERM, signal.SIGINT}:
                return "told to end"
            if signal.SIGHUP in arrived and agent.reload():
                LOGGER.info("settings were read again")
                quiet = Quiet(page)


def main(argv: list[str] | None = None) -> int:
    """Run the controller of one server. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m shunter.plugins.control.controller", description=main.__doc__
    )
    parser.add_argument("--page", type=Path, required=True, help="the server's control page")
    parser.add_argument(
        "--config", type=Path, help="settings; default: $SHUNTER_CONFIG, else shunter.toml if any"
    )
    parser.add_argument(
        "--directory", type=Path, default=Path("."), help="where relative settings paths start"
    )
    parser.add_argument("--once", action="store_true", help="one duty cycle, then end")
    args = parser.parse_args(argv)
    # No time: the server adds its own when it takes the lines over.
    logging.basicConfig(format="%(levelname)s %(message)s", level="INFO")
    # Standard input may be closed; then the page would be opened in its place.
    lifeline = None if sys.stdin is None else STANDARD_INPUT
    try:
        page = ControlPage.attach(args.page)
    except (OSError, PageError) as error:
        LOGGER.error("no control page: %s", error)
        return EXIT_NO_PAGE
    with page:
        if not page.claim_controller():
            LOGGER.error("another controller serves %s", args.page)
            return EXIT_NOT_ALONE
        agent = ControllerAgent(
            page, lambda: load(find(args.config, os.environ, args.directory)), os.getpid()
        )
        if args.once:
            agent.do_work(time.monotonic_ns())
            return 0
        weights = folder_of({**os.environ, RUNTIME: str(args.page.parent)})
        assert weights is not None
        has_none = "no standard input"
        reason = has_none if lifeline is None else run(agent, page, lifeline, weights)
        LOGGER.info("controller ends: %s", reason)
        return 0


if __name__ == "__main__":
    raise SystemExit(main())
