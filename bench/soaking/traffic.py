"""Callers of all protocols that ask at random and compare every answer."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Sequence

from common import Row
from pool.callers import RIGHT, WRONG, Ends
from pool.churn import Churn

from soaking.askers import ABSENT, SCHEMES, TOO_LATE, Asker, Grpc, Network, Rest, Terms
from soaking.targets import Target

CALLERS = {"rest": 4, "grpc": 4, **dict.fromkeys(SCHEMES, 1)}
"""Threads of each protocol."""
WITH_DEADLINE = 0.2
DEADLINES_MS = (50.0, 500.0)
EXAMPLES = 20
Makers = dict[str, Callable[[], Asker]]


def makers(rest: int, grpc: int, network: int, unix: str) -> Makers:
    """How a client of each protocol is made: three ports, and the path of a Unix socket."""
    loopback = f"127.0.0.1:{network}"
    urls = {"udp": f"udp://{loopback}", "tcp": f"tcp://{loopback}", "unix": f"unix://{unix}"}
    found: Makers = {"rest": lambda: Rest(rest), "grpc": lambda: Grpc(grpc)}
    for scheme in SCHEMES:
        found[scheme] = lambda scheme=scheme: Network(urls[scheme])
    return found


def served_by(protocol: str, targets: Sequence[Target]) -> list[Target]:
    """Those that are asked by this protocol."""
    return [each for each in targets if protocol not in SCHEMES or each.by_network]


class Tally:
    """What became of requests. Guarded by the lock of who counts."""

    def __init__(self) -> None:
        self.ends, self.by_protocol = Ends(), dict.fromkeys(CALLERS, 0)
        self.gone = 0
        """Requests for a model that was just not there, which is what they were told."""
        self.slowest_ms = 0.0
        self.examples: list[str] = []
        """The first requests that were lost, or answered wrongly."""

    @property
    def too_late(self) -> int:
        """Refused because of the deadline that they had named."""
        return self.ends.counts[TOO_LATE]

    @property
    def lost(self) -> int:
        """Without a right answer, for no such reason."""
        return self.ends.lost - self.too_late - self.gone

    def add(self, protocol: str, target: Target, end: str, ms: float, is_gone: bool) -> None:
        """Count a request that has ended."""
        # Of what differs with every request there is one kind; its text is in the examples.
        kind = end if end in (RIGHT, WRONG, TOO_LATE, ABSENT) else end.partition(":")[0]
        self.ends.add(f"{target.name} by {protocol}", kind, ms)
        self.by_protocol[protocol] += 1
        self.gone += is_gone
        self.slowest_ms = max(self.slowest_ms, ms)
        if end not in (RIGHT, TOO_LATE) and not is_gone and len(self.examples) < EXAMPLES:
            self.examples.append(f"{target.name} by {protocol}: {end} after {ms:.0f} ms")

    def row(self) -> Row:
        """As it stands in a result."""
        row = self.ends.row() | {"lost": self.lost, "too_late": self.too_late, "gone": self.gone}
        row |= {"by_protocol": self.by_protocol, "slowest_ms": round(self.slowest_ms, 1)}
        return row | {"examples": self.examples}


def ask_all(targets: Sequence[Target], clients: Makers) -> Tally:
    """Every model with every request by every protocol, one after the other."""
    tally, began = Tally(), time.monotonic()
    for protocol, make in clients.items():
        asker = make()
        for target in served_by(protocol, targets):
            for question in target.questions:
                sent = time.monotonic()
                end = asker.ask(target, question, Terms())
                tally.add(protocol, target, end, (time.monotonic() - sent) * 1e3, False)
        asker.close()
    tally.ends.seconds = time.monotonic() - began
    return tally


class Traffic:
    """Threads that ask at random, from the beginning of ``with`` to its end."""

    def __init__(
        self, targets: Sequence[Target], clients: Makers, churn: Churn, rate: float
    ) -> None:
        """``rate``: of all together, per second, at most."""
        self._targets, self._clients, self._churn = list(targets), clients, churn
        self._pause_s = sum(CALLERS.values()) / rate
        self._over, self._lock = threading.Event(), threading.Lock()
        self.tally = Tally()
        who = [protocol for protocol, count in CALLERS.items() for _ in range(count)]
        self._threads = [
            threading.Thread(target=self._run, args=(protocol, seed), daemon=True)
            for seed, protocol in enumerate(who)
        ]

    def __enter__(self) -> Traffic:
        self._began = time.monotonic()
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join()
        self.tally.ends.seconds = time.monotonic() - self._began

    def _run(self, protocol: str, seed: int) -> None:
        choose, asker = random.Random(seed), self._clients[protocol]()
        targets = served_by(protocol, self._targets)
        weights = [each.weight for each in targets]
        while not self._over.wait(choose.expovariate(1 / self._pause_s)):
            [target] = choose.choices(targets, weights)
            before, sent = self._churn.steps(target), time.monotonic()
            try:
                end = asker.ask(target, choose.choice(target.questions), _terms(target, choose))
            except Exception as error:  # whatever it is, the request has no answer
                end = f"{type(error).__name__}: {error}"
                print(f"{target.name} by {protocol}: {end}", file=sys.stderr)
            ms = (time.monotonic() - sent) * 1e3
            is_gone = end == ABSENT and self._churn.may_be_gone(target, before)
            with self._lock:
                self.tally.add(protocol, target, end, ms, is_gone)
        asker.close()


def _terms(target: Target, choose: random.Random) -> Terms:
    """A class that the model may be asked in, and now and then a deadline."""
    has_deadline = choose.random() < WITH_DEADLINE
    deadline_ms = round(choose.uniform(*DEADLINES_MS), 1) if has_deadline else None
    return Terms(choose.choice(target.classes), deadline_ms)
