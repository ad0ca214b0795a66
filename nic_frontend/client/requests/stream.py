"""A request whose answer comes in parts, of which some are asked for before they are there; nothing
here waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from shunter.nic_frontend.client.requests.calls import DEFAULT, Array, Call, Options, Tensors
from shunter.nic_frontend.client.requests.errors import BadRequestError, ServerError
from shunter.nic_frontend.client.requests.packed import PackedTensors
from shunter.nic_frontend.wire.layout import WireStatus


class Exchange(Protocol):
    """What sends calls: the exchange of a session."""

    core: Any
    tensors: Tensors | None

    def submit(self, calls: Sequence[Call]) -> None:
        """Send them."""

    def cancel(self, call: Call) -> None:
        """It is not wanted any more."""


AHEAD = 8
"""Parts that a worker may write before the first of them is taken."""
_LATER_NS = 1 << 60
_NOTHING = np.empty(0, np.uint8)


class Parts:
    """The parts of one answer: take :attr:`head` when it has ended, until there is none."""

    def __init__(
        self, exchange: Exchange, tensors: PackedTensors, request: Call, ahead: int = AHEAD
    ) -> None:
        """``request``: has begun; ``ahead``: parts that are asked for at once."""
        self._exchange, self._tensors, self._request = exchange, tensors, request
        self._timeout_ns = request.ends_ns - request.begun_ns
        self._ahead = max(1, min(ahead, AHEAD))
        self._asked: deque[Call] = deque()
        self._numbers = self._number = self._ends_ns = 0
        self._has_begun = self._is_over = False

    @property
    def head(self) -> Call | None:
        """What must end next; None: nothing does any more."""
        if self._is_over:
            return None
        if not self._request.done:
            return self._request
        if self._asked:
            return self._asked[0]
        return None

    def take(self, now_ns: int) -> list[Array] | None:
        """The next part when :attr:`head` has ended, None: it was none. Raises InferenceError."""
        if not self._numbers:
            self._take_first(now_ns)
            return None
        call = self._asked.popleft()
        if _status(call) == WireStatus.END:
            self._is_over = True
            for each in self._asked:  # which is said to these, too
                each.ends_ns = now_ns + self._timeout_ns
            return None
        if _status(call) == WireStatus.NOT_YET:
            self._asked.appendleft(self._next(call.part, now_ns))
            self._is_next(now_ns)
            return None
        if call.error is not None:
            raise call.error
        self._has_begun = True
        self._ask(now_ns)
        return call.outputs

    def _take_first(self, now_ns: int) -> None:
        if _status(self._request) != WireStatus.UNDER_WAY:
            self._request.answer()  # raises, as a rule
            raise ServerError("the server gave no answer in parts", WireStatus.HANDLER_FAILED)
        self._ask(now_ns)

    def _ask(self, now_ns: int) -> None:
        # While the model has not begun, one is enough: it shows that it has.
        while len(self._asked) < (self._ahead if self._has_begun else 1):
            self._numbers += 1
            self._asked.append(self._next(self._numbers, now_ns))
        self._is_next(now_ns)

    def _next(self, part: int, now_ns: int) -> Call:
        call = Call([_NOTHING], [], now_ns, now_ns + _LATER_NS, 0, DEFAULT)
        call.rows, call.taken = 1, self._tensors.taken
        call.part, call.of, call.within = part, self._request.req_id, self._request.within
        self._exchange.submit((call,))
        return call

    def _is_next(self, now_ns: int) -> None:
        """From now on the first of those that were asked for is waited for."""
        call = self._asked[0]
        if self._number != call.part:
            self._number, self._ends_ns = call.part, now_ns + self._timeout_ns
        call.begun_ns, call.ends_ns = self._ends_ns - self._timeout_ns, self._ends_ns

    def close(self) -> None:
        """No more of them are wanted."""
        exchange, request = self._exchange, self._request
        core = exchange.core
        running = core is not None and request.req_id and request.within in (None, core)
        if not request.done:
            exchange.cancel(request)
        if running and not self._is_over:
            core.unwanted(request.req_id)  # what is said once may be lost, and nobody answers it
        if not self._is_over:
            for call in self._asked:
                exchange.cancel(call)
        self._is_over = True


def begin(
    exchange: Exchange,
    inputs: Sequence[Any],
    options: Options,
    timeout_s: float,
    ahead: int,
    more: Mapping[str, Any],
    now_ns: int,
) -> Parts:
    """Ask for an answer in parts. ``more``: fields of other options. Raises BadRequestError."""
    tensors = exchange.tensors
    if not isinstance(tensors, PackedTensors):
        raise BadRequestError("answers of this model are whole: ask by infer")
    options = Options(**more) if more else options
    call = tensors.call_of_stream(inputs, options, now_ns, timeout_s)
    exchange.submit((call,))
    return Parts(exchange, tensors, call, ahead)


def _status(call: Call) -> int:
    return call.error.status if isinstance(call.error, ServerError) else 0
