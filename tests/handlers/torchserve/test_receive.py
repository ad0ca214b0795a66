import socket
import struct
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ts.protocol.otf_message_handler import retrieve_msg
from ts.service import Service

from shunter.handlers.torchserve import inbox
from shunter.handlers.torchserve.inbox import Disconnected, ProtocolError
from shunter.handlers.torchserve.receive import INFER, LOAD, PreambleCache, Receiver

GOLDEN = bytes.fromhex(
    "49"  # I
    "00000003 7265 71"  # id "req"
    "00000004 486f7374 00000001 68"  # header Host: h
    "ffffffff"
    "00000004 626f6479 00000010 6170706c69636174696f6e2f6a736f6e"  # body, application/json
    "00000007 5b312c20325d20"  # [1, 2]_
    "ffffffff ffffffff"
)

texts = st.text(max_size=6)
content_types = st.sampled_from(
    ["", "application/json", "text/plain", "text", "application/octet-stream", "image/jpeg"]
)
values = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([b"[1.5, NaN]", b'{"a": [1, null]}', b"{", b"\xef\xbb\xbf1", "é".encode()]),
)
# Few distinct headers and parameters, so that preambles repeat.
header_lists = st.lists(st.tuples(st.sampled_from(["Host", "body", "é"]), texts), max_size=3)
parameter_lists = st.lists(
    st.tuples(st.sampled_from(["body", "data", ""]), content_types, values), max_size=3
)
shapes = st.tuples(header_lists, parameter_lists)
batches = st.lists(st.tuples(texts, st.integers(0, 2)), max_size=5)


def visible(headers, inputs, ids):
    """All that a handler can see: types, values and orders."""
    return repr(([h.get_request_properties() for h in headers], inputs, ids))


def stock_batch(dripping, message):
    _, received = retrieve_msg(dripping(message))
    return visible(*Service.retrieve_data_for_inference(received))


def our_batch(receiver):
    assert receiver.command() == INFER
    return visible(*receiver.batch())


def test_golden_bytes_are_one_request(dripping):
    receiver = Receiver(dripping(GOLDEN))
    assert receiver.command() == b"I"
    headers, inputs, ids = receiver.batch()
    assert [h.get_request_properties() for h in headers] == [
        {"body": {"content-type": "application/json"}, "Host": "h"}
    ]
    assert inputs == [{"body": [1, 2]}]
    assert ids == {0: "req"}


@settings(deadline=None, database=None)
@given(
    shapes=st.lists(shapes, min_size=3, max_size=3),
    batches=st.lists(batches, min_size=1, max_size=4),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=8),
    size=st.sampled_from([16, 64, 300, 1 << 16]),
)
def test_any_messages_in_any_pieces_read_as_torchserve_reads_them(
    wire, dripping, shapes, batches, sizes, size
):
    messages = [
        wire.infer(*((request_id, *shapes[which]) for request_id, which in batch))
        for batch in batches
    ]
    receiver = Receiver(dripping(b"".join(messages), sizes), size)
    for message in messages:
        assert our_batch(receiver) == stock_batch(dripping, message)
    with pytest.raises(Disconnected):
        receiver.command()


@settings(deadline=None, database=None)
@given(values=st.lists(values, min_size=2, max_size=8), content_type=content_types)
def test_requests_of_one_client_read_as_torchserve_reads_them(wire, dripping, values, content_type):
    requests = [
        (f"id-{number}", [("Host", "h"), ("Accept", "*/*")], [("body", content_type, value)])
        for number, value in enumerate(values)
    ]
    message = wire.infer(*requests)
    receiver = Receiver(dripping(message * 2))
    assert our_batch(receiver) == stock_batch(dripping, message)
    assert our_batch(receiver) == stock_batch(dripping, message)


def test_one_byte_at_a_time_over_a_socket_is_enough(wire):
    message = wire.infer(
        ("a", [("Host", "h")], [("body", "text/plain", b"x" * 50)]),
        ("b", [("Host", "h")], [("body", "text/plain", b"y" * 50)]),
    )
    theirs, mine = socket.socketpair()

    def drip():
        for byte in message * 2:
            theirs.sendall(bytes([byte]))
        theirs.close()

    thread = threading.Thread(target=drip)
    thread.start()
    receiver = Receiver(mine)
    for _ in range(2):
        assert receiver.command() == INFER
        assert receiver.batch()[1] == [{"body": "x" * 50}, {"body": "y" * 50}]
    with pytest.raises(Disconnected):
        receiver.command()
    thread.join()
    mine.close()


@pytest.mark.parametrize("length", [65_535, 65_536, 300_000, 3_000_000])
@pytest.mark.parametrize("piece", [4_000, 1 << 20])
def test_long_values_arrive_whole_among_short_ones(wire, dripping, length, piece):
    body = bytes(range(256)) * (length // 256 + 1)
    message = wire.infer(
        ("a", [], [("body", "image/jpeg", b"short")]),
        ("b", [], [("body", "image/jpeg", body[:length]), ("more", "", b"1")]),
        ("c", [], [("body", "image/jpeg", b"last")]),
    )
    receiver = Receiver(dripping(message * 2, (piece, 100)))
    for _ in range(2):
        assert receiver.command() == INFER
        _, inputs, _ = receiver.batch()
        assert inputs == [
            {"body": bytearray(b"short")},
            {"body": bytearray(body[:length]), "more": bytearray(b"1")},
            {"body": bytearray(b"last")},
        ]
        assert type(inputs[1]["body"]) is bytearray


def test_a_value_longer_than_a_growth_step_arrives_whole(wire, dripping, monkeypatch):
    monkeypatch.setattr(inbox, "GROWTH_STEP", 70_000)
    body = bytes(range(251)) * 2000
    receiver = Receiver(dripping(wire.infer(("a", [], [("body", "", body)])), (9_999,)))
    receiver.command()
    assert receiver.batch()[1] == [{"body": bytearray(body)}]


def test_a_text_longer_than_the_buffer_makes_it_grow(wire, dripping):
    headers = [("Cookie", "c" * 1000), ("Host", "h")]
    message = wire.infer(*((str(n), headers, [("body", "", b"1")]) for n in range(5)))
    receiver = Receiver(dripping(message, (100,)), 64)
    receiver.command()
    got, _, ids = receiver.batch()
    assert list(ids.values()) == ["0", "1", "2", "3", "4"]
    assert all(h.get_request_property("Cookie") == "c" * 1000 for h in got)


def test_handlers_may_change_what_they_got(wire, dripping):
    message = wire.infer(("a", [("Host", "h")], [("body", "image/png", b"123")]))
    receiver = Receiver(dripping(message * 3))
    receiver.command()
    receiver.batch()
    receiver.command()
    headers, inputs, _ = receiver.batch()
    headers[0].get_request_properties()["body"]["content-type"] = "other"
    headers[0].get_request_properties()["Host"] = "other"
    inputs[0]["body"][:] = b"other"
    assert our_batch(receiver) == stock_batch(dripping, message)


@pytest.mark.parametrize("switch", ["true", "false", "no"])
def test_decoding_follows_the_switch_of_the_server(wire, dripping, monkeypatch, switch):
    monkeypatch.setenv("TS_DECODE_INPUT_REQUEST", switch)
    message = wire.infer(
        *((f"{n}", [], [("body", "application/json", b"[1]"), ("t", "text", b"t")]) for n in "ab"),
        *((f"{n}", [], [("body", "application/json", b"[1]")]) for n in "cde"),
    )
    assert our_batch(Receiver(dripping(message))) == stock_batch(dripping, message)


@pytest.mark.parametrize("content_type", ["application/json", "text/csv"])
def test_a_body_that_cannot_be_decoded_is_forwarded_with_a_warning(
    wire, dripping, caplog, content_type
):
    receiver = Receiver(dripping(wire.infer(("a", [], [("body", content_type, b"\xff{")]))))
    receiver.command()
    assert receiver.batch()[1] == [{"body": bytearray(b"\xff{")}]
    assert "Forwarding encoded payload" in caplog.text
    assert "UnicodeDecodeError" in caplog.text


def test_a_load_message_reads_as_torchserve_reads_it(wire, dripping):
    for gpu in (-1, 0, 3):
        message = wire.load("noop", "/models/noop", "service:handle", 8, gpu, "json")
        receiver = Receiver(dripping(message, (3,)))
        assert receiver.command() == LOAD
        assert receiver.load_message() == retrieve_msg(dripping(message))[1]


@pytest.mark.parametrize("length", [-2, -(2**31), 2**31 - 1, inbox.MAX_TEXT + 1])
@pytest.mark.parametrize(
    ("prefix", "what"),
    [
        (b"", "request id"),
        (b"\0\0\0\1a", "header name"),
        (b"\0\0\0\1a\0\0\0\1n", "header value"),
        (b"\0\0\0\1a\xff\xff\xff\xff", "parameter name"),
        (b"\0\0\0\1a\xff\xff\xff\xff\0\0\0\1n", "content type"),
    ],
)
def test_a_length_that_cannot_be_is_refused_by_name(dripping, prefix, what, length):
    receiver = Receiver(dripping(b"I" + prefix + struct.pack("!i", length) + b"rest"))
    receiver.command()
    with pytest.raises(ProtocolError, match=f"length of the {what} is {length};"):
        receiver.batch()


def test_a_negative_value_length_is_refused(wire, dripping):
    good = wire.request("a", [], [("body", "", b"1")])
    bad = good[: -len(wire.END) - 5] + struct.pack("!i", -7)
    receiver = Receiver(dripping(b"I" + good + bad + b"\0" * 20))
    receiver.command()
    with pytest.raises(ProtocolError, match="length of a value is -7;"):
        receiver.batch()


def test_a_false_value_length_ends_with_the_connection_not_with_the_memory(wire, dripping):
    good = wire.request("a", [], [("body", "", b"1")])
    bad = good[: -len(wire.END) - 5] + struct.pack("!i", 2**31 - 1)
    receiver = Receiver(dripping(b"I" + bad + b"\0" * 100))
    receiver.command()
    with pytest.raises(Disconnected):
        receiver.batch()


def test_bytes_of_earlier_messages_are_never_read_again(wire, dripping):
    request = ("a", [("Host", "h")], [("body", "", b"123456")])
    whole = wire.infer(request, request, request)
    # The second message stops where the first one, still in the buffer, would go on.
    receiver = Receiver(dripping(whole + whole[:60], (len(whole),)))
    receiver.command()
    receiver.batch()
    receiver.command()
    with pytest.raises(Disconnected):
        receiver.batch()


def test_known_preambles_are_bounded(wire, dripping):
    messages = [
        wire.infer((str(n), [("Trace", f"{n:0{n % 9 + 4}}")], [("body", "", b"1")]))
        for n in range(3 * PreambleCache.MAX_BLOCKS)
    ]
    messages.append(wire.infer(("z", [("Cookie", "c" * 5000)], [("body", "", b"1")])))
    receiver = Receiver(dripping(b"".join(messages)))
    for message in messages:
        assert our_batch(receiver) == stock_batch(dripping, message)
        assert len(receiver._preambles) <= PreambleCache.MAX_BLOCKS
