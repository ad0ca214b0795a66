"""What a seat and its pool process say to each other."""

import os
import struct

import pytest

from shunter.handlers.pool import handover
from shunter.handlers.pool.handover import Announced, Handover, HandoverError, Kind

SEAT = Handover(
    b"/models/m",
    (b"python", b"-m", b"worker", b""),
    {b"PATH": b"/bin:/usr/bin", b"EMPTY": b"", b"BYTES": b"\xff=\xfe\n"},
)


def read(data):
    announced = Announced.unpack(data[: handover.HANDOVER_BYTES])
    return announced.read(data[handover.HANDOVER_BYTES :])


def test_a_seat_is_read_as_it_handed_itself_over():
    assert read(SEAT.pack()) == SEAT


def test_variables_that_nobody_can_set_are_left_out():
    packed = Handover(b"/", (), {b"A": b"1"}).pack().replace(b"A=1\0", b"A 1\0")
    assert read(packed).environment == {}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (0, 1),  # magic
        (1, 2),  # digest
        (2, 9),  # arguments
        (3, 1 << 40),  # variables
        (4, handover.MOST_BYTES + 1),
        (4, 3),
    ],
)
def test_what_makes_no_sense_is_refused(word, value):
    data = bytearray(SEAT.pack())
    struct.pack_into("<Q", data, 8 * word, value)
    with pytest.raises(HandoverError):
        read(bytes(data))


@pytest.mark.parametrize("cut", [1, 20, handover.HANDOVER_BYTES, handover.HANDOVER_BYTES + 9])
def test_what_is_cut_short_is_refused(cut):
    with pytest.raises(HandoverError):
        read(SEAT.pack()[:cut])


def test_words_are_read_as_they_were_said():
    said = handover.word(Kind.ALONE, -7, b"ab")
    assert handover.unpack_word(said[: handover.WORD_BYTES]) == (Kind.ALONE, -7, 2)
    for wrong in (b"", said[:8], struct.pack("<3q", 99, 0, 0), struct.pack("<3q", 1, 0, -1)):
        with pytest.raises(HandoverError):
            handover.unpack_word(wrong)


def test_the_whole_environment_of_this_process_fits():
    there = {os.fsencode(k): os.fsencode(v) for k, v in os.environ.items()}
    assert read(Handover(b"/", (b"x",), there).pack()).environment == there
