"""How a session begins: bytes, cookies, and the key."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shunter.batching.queue.tensor_spec import TensorSpec
from shunter.nic_frontend.wire.hello import (
    COOKIE_NS,
    SMALLEST_SEGMENT,
    Hello,
    HelloError,
    Opened,
    cookie_is_good,
    cookie_of,
    pack_cookie,
    parse_cookie,
    session_key,
)
from shunter.nic_frontend.wire.layout import LARGEST_SEGMENT

NONCE, OTHER_NONCE = bytes(range(16)), bytes(range(16, 32))
SECRET = bytes(range(100, 116))
PEER = bytes([2, 0, 0x1F, 0x90, 127, 0, 0, 1]).ljust(32, b"\0")
INPUTS = (TensorSpec("a", "float32", (3, 4)), TensorSpec("ü", "uint8", ()))
OUTPUTS = (TensorSpec("b", "int64", (0,)),)
OPENED = Opened(NONCE, OTHER_NONCE, 1408, 64, INPUTS, OUTPUTS)


@given(
    st.text(max_size=32).filter(lambda text: "\0" not in text),
    st.integers(SMALLEST_SEGMENT, LARGEST_SEGMENT),
    st.integers(1, 65535),
    st.integers(0, 2**64 - 1),
)
def test_a_hello_is_read_as_it_was_said(model, segment, window, cookie):
    hello = Hello(NONCE, model, "1.0", segment, window, cookie)
    assert len(hello.pack()) == Hello.BYTES
    assert Hello.parse(hello.pack()) == hello


@given(st.binary(max_size=300))
def test_rubbish_is_no_hello_or_a_sound_one(payload):
    for data in (payload, payload.ljust(Hello.BYTES, b"\0")[: Hello.BYTES]):
        try:
            hello = Hello.parse(data)
        except HelloError:
            continue
        assert SMALLEST_SEGMENT <= hello.segment <= LARGEST_SEGMENT and hello.window >= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"segment": SMALLEST_SEGMENT - 1},
        {"segment": LARGEST_SEGMENT + 1},
        {"segment": 0},
        {"window": 0},
    ],
    ids=str,
)
def test_numbers_that_make_no_session(changes):
    with pytest.raises(HelloError):
        Hello.parse(Hello(NONCE, "m", **changes).pack())


def test_names_that_are_no_text():
    data = bytearray(Hello(NONCE, "model").pack())
    data[data.index(b"model")] = 0xFF
    with pytest.raises(HelloError, match="UTF-8"):
        Hello.parse(bytes(data))


# ---- cookies


@pytest.mark.parametrize(
    ("age", "good"),
    [(0, True), (COOKIE_NS - 1, True), (COOKIE_NS, True), (2 * COOKIE_NS, False)],
)
def test_a_cookie_is_good_for_a_while(age, good):
    begin = 7 * COOKIE_NS
    cookie = cookie_of(SECRET, PEER, begin)
    assert cookie_is_good(SECRET, PEER, begin + age, cookie) is good


def test_a_cookie_is_of_one_address_and_one_server():
    cookie = cookie_of(SECRET, PEER, 0)
    assert cookie
    assert not cookie_is_good(SECRET, PEER[:3] + b"\x91" + PEER[4:], COOKIE_NS, cookie)
    assert not cookie_is_good(bytes(16), PEER, COOKIE_NS, cookie)
    assert not cookie_is_good(SECRET, PEER, COOKIE_NS, 0)


def test_a_cookie_answers_one_hello():
    payload = pack_cookie(NONCE, 0x1122334455667788)
    assert payload == NONCE + bytes.fromhex("8877665544332211")
    assert parse_cookie(payload, NONCE) == 0x1122334455667788
    for wrong in (payload[:-1], payload + b"\0", b""):
        with pytest.raises(HelloError):
            parse_cookie(wrong, NONCE)
    with pytest.raises(HelloError, match="this hello"):
        parse_cookie(payload, OTHER_NONCE)


# ---- what the server says


def test_a_session_is_read_as_it_was_opened():
    assert Opened.parse(OPENED.pack(), NONCE) == OPENED
    with pytest.raises(HelloError, match="this hello"):
        Opened.parse(OPENED.pack(), OTHER_NONCE)


@given(st.data())
def test_a_description_that_is_damaged_is_an_error_or_another_description(data):
    payload = bytearray(OPENED.pack())
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.sampled_from([len(payload), at]))]
    try:
        opened = Opened.parse(bytes(payload), NONCE)
    except HelloError:
        return
    assert opened.client_nonce == NONCE and 1 <= len(opened.inputs) <= 8


# ---- keys


def test_the_key_is_derived_as_rfc_5869_says():
    shared = b"s" * 32
    extracted = hmac.new(NONCE + OTHER_NONCE, shared, hashlib.sha256).digest()
    expanded = hmac.new(extracted, b"shunter x64 tag" + b"\x01", hashlib.sha256).digest()
    assert session_key(shared, NONCE, OTHER_NONCE) == expanded[:16]
    assert session_key(shared, NONCE, OTHER_NONCE).hex() == "a4a1bfc058c9bf14bbd51a63fcdbd03c"


def test_hkdf_of_the_library_gives_the_same():
    hkdf = pytest.importorskip("cryptography.hazmat.primitives.kdf.hkdf")
    hashes = pytest.importorskip("cryptography.hazmat.primitives.hashes")
    derive = hkdf.HKDF(hashes.SHA256(), 16, NONCE + OTHER_NONCE, b"shunter x64 tag").derive
    assert session_key(b"s" * 40, NONCE, OTHER_NONCE) == derive(b"s" * 40)


@pytest.mark.parametrize(
    "other",
    [
        (b"t" * 32, NONCE, OTHER_NONCE),
        (b"s" * 32, OTHER_NONCE, NONCE),
        (b"s" * 32, NONCE, NONCE),
        (b"s" * 33, NONCE, OTHER_NONCE),
    ],
)
def test_every_session_has_another_key(other):
    assert session_key(b"s" * 32, NONCE, OTHER_NONCE) != session_key(*other)
