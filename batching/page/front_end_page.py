"""The network front end's part of the control page: what it tells, and who reads it.

Counters carry their names, so that a new one needs no change of the layout.
"""

from __future__ import annotations

from typing import NamedTuple

from shunter.batching.page.codec import decode, encode
from shunter.batching.page.control_page import ControlPage
from shunter.batching.page.layout import (
    COUNTER_COUNT,
    COUNTER_NAME_BYTES,
    HEADER_FIELDS,
    SLOT_SIZE,
    SLOTS_OFFSET,
)
from shunter.batching.page.records import (
    MAX_COUNT,
    FrontEndState,
    NetworkTelemetry,
    SlotNetwork,
)

_LINE = HEADER_FIELDS["front_end_pid"].offset
_COUNT = HEADER_FIELDS["front_end_counter_count"].offset // 8
_NAMES = HEADER_FIELDS["front_end_counter_names"].offset
_COUNTERS = HEADER_FIELDS["front_end_counters"].offset // 8


class FrontEndNumbers(NamedTuple):
    """All that a front end says of itself."""

    state: FrontEndState
    counters: dict[str, int]


def claim(page: ControlPage) -> bool:
    """Become the page's only front end; False when another one lives. Kept until close."""
    return page.lock(_LINE)


def write_names(page: ControlPage, names: tuple[str, ...]) -> None:
    """Say what is counted, before the first :func:`write`. Raises ValueError for what is not."""
    encoded = [name.encode() for name in names]
    if len(names) > COUNTER_COUNT or max(map(len, encoded), default=0) > COUNTER_NAME_BYTES:
        raise ValueError(
            f"{names}: at most {COUNTER_COUNT} names of at most {COUNTER_NAME_BYTES} bytes"
        )
    page.words[_COUNT] = 0
    table = b"".join(name.ljust(COUNTER_NAME_BYTES, b"\0") for name in encoded)
    words = memoryview(table).cast("q")
    for i, word in enumerate(words):
        page.words[_NAMES // 8 + i] = word
    for i in range(len(names)):
        page.words[_COUNTERS + i] = 0
    page.words[_COUNT] = len(names)


def write(page: ControlPage, state: FrontEndState, counters: tuple[int, ...]) -> None:
    """Replace the numbers; counters are in the order of their names."""
    for i, value in enumerate(counters):
        page.words[_COUNTERS + i] = min(value, MAX_COUNT)
    encode(state, page.words)


def read(page: ControlPage) -> FrontEndNumbers:
    """What the front end wrote last."""
    count = min(max(page.words[_COUNT], 0), COUNTER_COUNT)
    table = page.words[_NAMES // 8 : _COUNTERS].tobytes()
    counters = {}
    for i in range(count):
        raw = table[i * COUNTER_NAME_BYTES : (i + 1) * COUNTER_NAME_BYTES]
        name = raw.split(b"\0", 1)[0].decode("utf-8", "replace")
        counters[name] = max(page.words[_COUNTERS + i], 0)
    return FrontEndNumbers(decode(FrontEndState, page.words), counters)


def write_network(
    page: ControlPage,
    slot: int,
    network: SlotNetwork,
    telemetry: NetworkTelemetry = NetworkTelemetry(),  # noqa: B008 it is frozen
) -> None:
    """Replace the numbers of a slot."""
    encode(telemetry, page.words, _base(slot))
    encode(network, page.words, _base(slot))


def read_network(page: ControlPage, slot: int) -> SlotNetwork:
    """What the front end wrote last of a slot."""
    return decode(SlotNetwork, page.words, _base(slot))


def read_telemetry(page: ControlPage, slot: int) -> NetworkTelemetry:
    """What became of a slot's requests by the network."""
    return decode(NetworkTelemetry, page.words, _base(slot))


def _base(slot: int) -> int:
    return (SLOTS_OFFSET + slot * SLOT_SIZE) // 8
