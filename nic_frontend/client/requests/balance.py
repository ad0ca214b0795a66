"""Which of several front ends is asked, which is left alone, and what may be asked twice. Pure.

Of two that are picked at random the one with fewer requests on their way is asked: as good as the
least busy of all, and clients that know nothing of each other do not all run to the same one
(Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001). Who fails is left
alone for a time, which doubles; then one request at a time shows whether it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from random import randrange

from shunter.nic_frontend.client.requests.errors import (
    InferenceError,
    ServerError,
    TooLateError,
    UnreachableError,
)
from shunter.nic_frontend.wire.layout import WireStatus

MOST_FAILURES = 3
"""In a row; so many are enough to be left alone."""
FIRST_PAUSE_NS, MOST_PAUSE_NS = 1_000_000_000, 30_000_000_000
_FAILURES = {
    WireStatus.WORKER_DIED,
    WireStatus.UNKNOWN_SESSION,
    WireStatus.NO_WORKER,
    WireStatus.RETRY_LATER,
}


class Health(Enum):
    """What the end of a request says of who was asked."""

    GOOD = "it answered, if only that the request is wrong"
    FAILED = "it could not do what it should"
    GONE = "nobody is there"
    UNKNOWN = "the caller did not wait for it"


def health_of(error: InferenceError | None) -> Health:
    """By how a request ended."""
    if isinstance(error, UnreachableError):
        return Health.GONE
    if isinstance(error, ServerError) and error.status in _FAILURES:
        return Health.FAILED
    return Health.GOOD


def may_go_elsewhere(error: InferenceError, *, idempotent: bool) -> bool:
    """Whether another front end may be asked: this one has not run it, or it may run twice.

    Who has more to do than it could in time is well, and another may have less.
    """
    is_busy = isinstance(error, TooLateError) and not error.may_have_run
    failed = health_of(error) is not Health.GOOD and (idempotent or not error.may_have_run)
    return is_busy or failed


@dataclass
class Endpoint:
    """One front end."""

    outstanding: int = 0
    """Requests that have been picked for it and have not ended."""
    failures: int = 0
    """In a row."""
    pauses: int = 0
    """In a row that it was left alone."""
    ejected_until_ns: int = 0
    """It is left alone until then; 0: it is not. After that one request at a time tries it."""

    def is_free(self, now_ns: int) -> bool:
        """Whether it may be asked as any other, or is to be tried."""
        if not self.ejected_until_ns:
            return True
        return now_ns >= self.ejected_until_ns and not self.outstanding


class Balancer:
    """Front ends by their numbers, 0 to ``count`` - 1."""

    def __init__(self, count: int, draw: Callable[[int], int] = randrange) -> None:
        """``draw(n)``: a random number from 0 to n - 1."""
        self.endpoints = [Endpoint() for _ in range(count)]
        self._draw = draw

    def pick(self, now_ns: int, tried: Collection[int] = ()) -> int | None:
        """Who is asked next, None: all were ``tried``. :meth:`ended` must follow."""
        left = [i for i in range(len(self.endpoints)) if i not in tried]
        if not left:
            return None
        free = [i for i in left if self.endpoints[i].is_free(now_ns)]
        if not free:  # rather ask who has failed than nobody
            found = min(left, key=lambda i: self.endpoints[i].ejected_until_ns)
        elif due := [i for i in free if self.endpoints[i].ejected_until_ns]:
            found = due[0]
        else:
            found = self._less_busy(free)
        self.endpoints[found].outstanding += 1
        return found

    def _less_busy(self, free: list[int]) -> int:
        first = free.pop(self._draw(len(free)))
        if not free:
            return first
        second = free[self._draw(len(free))]
        busy = self.endpoints[first].outstanding > self.endpoints[second].outstanding
        return second if busy else first

    def ended(self, at: int, health: Health, now_ns: int) -> None:
        """A request that was picked for it has ended."""
        found = self.endpoints[at]
        found.outstanding -= 1
        if health is Health.GOOD:
            found.failures = found.pauses = found.ejected_until_ns = 0
        elif health is not Health.UNKNOWN:
            found.failures += 1
            is_again = found.ejected_until_ns > 0
            if health is Health.GONE or is_again or found.failures >= MOST_FAILURES:
                self._leave_alone(found, now_ns)

    def _leave_alone(self, found: Endpoint, now_ns: int) -> None:
        if now_ns < found.ejected_until_ns:
            return  # others that were on their way say the same
        pause_ns = min(FIRST_PAUSE_NS << found.pauses, MOST_PAUSE_NS)
        found.pauses = min(found.pauses + 1, 5)
        found.ejected_until_ns = now_ns + pause_ns
