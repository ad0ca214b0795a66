"""A request, or many, at one of several servers after the other, while that may help. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shunter.nic_frontend.client.requests.balance import (
    Balancer,
    Health,
    health_of,
    may_go_elsewhere,
)
from shunter.nic_frontend.client.requests.calls import Options
from shunter.nic_frontend.client.requests.errors import InferenceError


class Attempts:
    """Whom to ask, and whether to ask another after an error."""

    def __init__(self, balancer: Balancer, options: Options, timeout_s: float) -> None:
        """``timeout_s``: if the options do not say otherwise."""
        self.options = options
        """Of the next attempt: what is left of the time."""
        self._balancer, self._given = balancer, options
        self._timeout_s = timeout_s if options.timeout_s is None else options.timeout_s
        self._tried: set[int] = set()
        self._begun_ns = self._server = 0

    def begin(self, now_ns: int) -> int:
        """The number of a server; :meth:`end` must follow."""
        self._begun_ns = self._begun_ns or now_ns
        found = self._balancer.pick(now_ns, self._tried)
        assert found is not None
        self._server = found
        return found

    def end(self, error: BaseException | None, now_ns: int) -> bool:
        """Whether it is over: there is an answer, or the error is to be told."""
        is_told = error is None or isinstance(error, InferenceError)
        health = health_of(error) if is_told else Health.UNKNOWN
        self._balancer.ended(self._server, health, now_ns)
        self._tried.add(self._server)
        return not (isinstance(error, InferenceError) and self._goes_on(error, now_ns))

    def _goes_on(self, error: InferenceError, now_ns: int) -> bool:
        if len(self._tried) == len(self._balancer.endpoints):
            return False
        given, passed_s = self._given, (now_ns - self._begun_ns) / 1e9
        left_s = self._timeout_s - passed_s
        left_ms = None if given.deadline_ms is None else given.deadline_ms - 1000 * passed_s
        self.options = replace(given, timeout_s=left_s, deadline_ms=left_ms)
        is_late = left_s <= 0 or (left_ms is not None and left_ms <= 0)
        return not is_late and may_go_elsewhere(error, idempotent=given.idempotent)


class Many:
    """The results of many requests, of which some may have to be asked elsewhere."""

    def __init__(self, count: int) -> None:
        """None of them is there."""
        self.found: list[Any] = [None] * count
        """Answers and errors."""
        self.left = list(range(count))
        """Those that are asked next."""

    def take(self, answers: Sequence[Any], options: Options) -> None:
        """Of those that were left. Raises the first error after which another may be asked."""
        for i, answer in zip(self.left, answers, strict=True):
            self.found[i] = answer
        self.left = [i for i in self.left if self._may_go(self.found[i], options)]
        if self.left:
            raise self.found[self.left[0]]

    @staticmethod
    def _may_go(found: Any, options: Options) -> bool:
        is_error = isinstance(found, InferenceError)
        return is_error and may_go_elsewhere(found, idempotent=options.idempotent)

    def end(self, error: InferenceError) -> None:
        """There is nobody to be asked any more."""
        self.found = [error if each is None else each for each in self.found]
